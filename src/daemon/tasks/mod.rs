//! The stages as tasks: one owner of each state, bounded channels in between.
//!
//! A task takes what has piled up, lets its stage work, then hands on what came of it: traces at once, what is known of
//! agents at its pace, as many words about one agent are then said as one. An agent of which a session begins to run away is
//! told at a pace of its own, so that nobody who is to be paged waits for what is told of all others. Forward sends wait for room,
//! and there is no channel backwards, so nothing can deadlock.

pub(super) mod agents;
pub(super) mod assemble;
mod barriers;
pub(super) mod sessions;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::durable;
use crate::clock::Clock;
use crate::embed;
use crate::engine::assemble::{FullSession, Input};
use crate::engine::explained::{SessionRow, TraceExplanation};
use crate::engine::sessions::{Found, Part, SessionId};
use crate::engine::span::{Report, Span, Timestamp, TraceId};
use crate::engine::update::{Barrier, SessionUpdate, TraceUpdate};
use crate::export::query::ListRequest;
use crate::health::Health;
use crate::ingest::LeftOut;
use crate::judge;
use crate::store::Section;
use crate::webhook;

/// How many messages a task takes before it hands on what came of them.
const BURST: usize = 64;

/// How many agents a task speaks of before others have their turn.
const SLICE: usize = 16;

/// What one shard has of a batch.
#[derive(Default)]
pub(super) struct ShardBatch {
    /// Which of its spans: these stay where they were decoded.
    pub(super) spans: Vec<usize>,
    /// Everything else.
    pub(super) inputs: Vec<Input>,
}

/// To an assemble task.
pub(super) enum ToAssemble {
    /// A part of a batch; acknowledged when it is applied and handed on.
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

/// To a session task.
pub(super) enum ToSessions {
    /// What an assemble task, by number, has to say.
    Traces(usize, Vec<TraceUpdate>, Timestamp),
    /// A score of a whole session.
    Report(Box<Report>, Timestamp),
    /// A barrier, from one of the assemble tasks.
    Barrier(usize, Barrier),
    /// Somebody wants to see one session.
    One { tenant: String, id: String, scope: Option<String>, reply: oneshot::Sender<Found> },
    /// Somebody wants to know which sessions come first in a list; a part of it.
    Places {
        after: Option<u32>,
        request: Arc<ListRequest>,
        budget: usize,
        reply: oneshot::Sender<Part>,
    },
    /// Somebody wants rows of these.
    Rows { ids: Vec<SessionId>, budget: usize, reply: oneshot::Sender<Vec<Option<SessionRow>>> },
    /// Somebody looks for the session that holds a trace.
    Find { tenant: String, trace: TraceId, reply: oneshot::Sender<Option<SessionId>> },
    /// How many sessions are away, and in no list?
    Away { reply: oneshot::Sender<usize> },
    /// Somebody wants to know why a trace has its score.
    Explain {
        tenant: String,
        id: String,
        scope: Option<String>,
        trace: TraceId,
        reply: oneshot::Sender<Option<Box<TraceExplanation>>>,
    },
}

/// To the agents task.
pub(super) enum ToAgents {
    /// What a session task has to say.
    Updates(usize, Vec<SessionUpdate>, Timestamp),
    /// Something about a run.
    Report(Box<Report>, Timestamp),
    /// A barrier, from one of the session tasks.
    Barrier(usize, Barrier),
}

/// What all tasks share.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) clock: Clock,
    pub(super) health: Arc<Health>,
    pub(super) judge: Option<judge::Handle>,
    pub(super) embedder: Option<embed::Handle>,
    pub(super) webhook: Option<webhook::Handle>,
    /// Where what a stage holds goes at a barrier that asks for it.
    pub(super) saving: Option<mpsc::Sender<(u64, Option<Section>)>>,
}

/// Sessions of one shard that take no further trace, for all that make traces.
pub(super) type FullSessions = BTreeSet<FullSession>;

/// Writes down what a stage holds, if the barrier asks for it; with nothing to write there is no snapshot.
fn save<S: Serialize>(
    common: &Common,
    barrier: Barrier,
    state: impl FnOnce() -> Option<(String, S)>,
) {
    let Some(saving) = common.saving.as_ref().filter(|_| barrier.log_sequence.is_some()) else {
        return;
    };
    let section = state().and_then(|(name, state)| durable::section(name, &state));
    // There is room for all of a snapshot and of one that was given up. Should there be none, then there is no snapshot;
    // a stage does not wait for its writer.
    let _ = saving.try_send((barrier.epoch, section));
}

/// The stage that would take it has gone.
struct Gone;

/// Waits until the moment comes; for ever if there is none.
async fn sleep_until(due: Option<Timestamp>, clock: &Clock) {
    match due {
        Some(due) => clock.sleep_until(due).await,
        None => std::future::pending().await,
    }
}
