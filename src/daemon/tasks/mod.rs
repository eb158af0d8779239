//! The stages as tasks: one owner of each state, and bounded channels between them.
//!
//! A task takes the messages that have queued up, lets its stage handle them, then sends the results on: traces at once, updates of
//! agents at a pace, so that many changes of one agent become one update. The agent of a session that begins to run away is sent at
//! a separate pace, so that a page does not wait for the updates of all others. Forward sends wait for room, and there is no
//! channel backwards, so nothing can deadlock.

pub(super) mod agents;
pub(super) mod assemble;
pub(super) mod barriers;
pub(super) mod sessions;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use self::barriers::BarrierRoom;
use super::durable::{self, Durable};
use crate::clock::Clock;
use crate::embed;
use crate::engine::assemble::Input;
use crate::engine::facts::{Barrier, SessionFacts, SessionId, TraceFacts};
use crate::engine::sessions::{SessionStore, Sessions};
use crate::engine::span::{Report, Span, Timestamp};
use crate::health::Health;
use crate::ingest::LeftOut;
use crate::judge;
use crate::store::Section;
use crate::webhook;

/// How many messages a task takes before it sends on the results.
const BURST: usize = 64;

/// For how many agents a task sends updates before other tasks have their turn.
const SLICE: usize = 16;

/// The part of a batch that one shard takes.
#[derive(Default)]
pub(super) struct ShardBatch {
    /// The indices of its spans in the batch, as spans stay where they were decoded.
    pub(super) spans: Vec<usize>,
    /// Its inputs other than spans.
    pub(super) inputs: Vec<Input>,
}

impl ShardBatch {
    /// Whether there is nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty() && self.inputs.is_empty()
    }
}

/// A message to an assemble task.
pub(super) enum ToAssemble {
    /// A part of a batch, which is acknowledged when it is applied and the results are forwarded.
    Inputs {
        /// All spans of the batch.
        spans: Arc<Vec<Span>>,
        share: ShardBatch,
        now: Timestamp,
        acknowledge: oneshot::Sender<LeftOut>,
    },
    /// A barrier.
    Barrier(Barrier),
}

/// A message to a session task.
pub(super) enum ToSessions {
    /// The updates of an assemble task, by its number.
    Traces(usize, Vec<Box<TraceFacts>>, Timestamp),
    /// A report for the session stage, with the number of an assemble task if that found the trace sealed.
    Report(Option<usize>, Box<Report>, Timestamp),
    /// A barrier, from one of the assemble tasks.
    Barrier(usize, Barrier),
    /// A question, which answers itself.
    Ask(Question),
}

/// A question to a session shard, with access to its sessions on disk.
pub(super) type Question = Box<dyn FnOnce(&Sessions, &dyn SessionStore) + Send>;

/// A message to the agents task.
pub(super) enum ToAgents {
    /// The updates of a session task, by its number.
    Updates(usize, Vec<SessionFacts>, Timestamp),
    /// A report for the agents stage, such as one about a run.
    Report(Box<Report>, Timestamp),
    /// A barrier, from one of the session tasks.
    Barrier(usize, Barrier),
}

/// The handles that all tasks share.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) clock: Clock,
    pub(super) health: Arc<Health>,
    pub(super) judge: Option<judge::Handle>,
    pub(super) embedder: Option<embed::Handle>,
    pub(super) webhook: Option<webhook::Handle>,
    /// The log, if one is kept.
    pub(super) durable: Option<Durable>,
    /// Takes the section of each stage at a barrier of a snapshot, with its epoch.
    pub(super) saving: Option<mpsc::Sender<(u64, Option<Section>)>>,
    /// The room for messages that wait at barriers.
    pub(super) barrier_room: Arc<BarrierRoom>,
}

impl Common {
    /// If a log is kept and a timer that counts something is due, notes in the log that timers run at `now`.
    async fn note_timers(&self, due: Option<Timestamp>, now: Timestamp) {
        if let Some(durable) = self.durable.as_ref().filter(|_| due.is_some_and(|due| due <= now)) {
            durable.note_time(now).await;
        }
    }
}

/// Sessions of one shard that accept no further trace, for the assemble tasks.
pub(super) type FullSessions = BTreeSet<Arc<SessionId>>;

/// Serialises the state of a stage and sends it to the snapshot, if the barrier belongs to one; a missing state fails the snapshot.
fn save<S: Serialize>(
    common: &Common,
    barrier: Barrier,
    state: impl FnOnce() -> Option<(String, S)>,
) {
    let Some(saving) = common.saving.as_ref().filter(|_| barrier.log_sequence.is_some()) else {
        return;
    };
    let section = state().and_then(|(name, state)| durable::section(name, &state));
    // There is room for the sections of this snapshot and of an abandoned one. If there is none, the snapshot fails: a stage does
    // not wait for the writer.
    let _ = saving.try_send((barrier.epoch, section));
}

/// Abandons the snapshot of an epoch, as there is no room for the messages that would wait for it; another one is written later.
fn give_up(common: &Common, epoch: u64) {
    tracing::warn!(
        "a snapshot is abandoned: a shard is behind the others, and too much would wait for it"
    );
    common.health.limit_reached("snapshot_waiting");
    if let Some(saving) = &common.saving {
        // If there is no room, the snapshot waits for the section for as long as it does for any.
        let _ = saving.try_send((epoch, None));
    }
}

/// The error that the task of the next stage has ended.
struct Gone;
