//! The stages as tasks: one owner of each state, bounded channels in between.
//!
//! A task takes what has piled up, lets its stage work, then hands on what came of it. Forward
//! sends wait for room, and there is no channel backwards, so nothing can deadlock.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::Clock;
use crate::engine::agents::Agents;
use crate::engine::assemble::{Assemble, Input};
use crate::engine::explained::{SessionFilter, TraceExplanation};
use crate::engine::route::Route;
use crate::engine::sessions::{Part, SessionId, Sessions, Sought};
use crate::engine::span::{Report, Timestamp, TraceId};
use crate::engine::update::{Barrier, SessionUpdate, TraceUpdate};
use crate::engine::view::SessionView;
use crate::export::board::Board;
use crate::health::Health;

/// How many messages a task takes before it hands on what came of them.
const BURST: usize = 64;

/// To an assemble task.
pub(super) enum ToAssemble {
    /// A part of a batch; acknowledged when it is applied and handed on.
    Inputs { inputs: Vec<Input>, now: Timestamp, acknowledge: oneshot::Sender<()> },
    /// A barrier.
    Barrier(Barrier),
}

/// To a session task.
pub(super) enum ToSessions {
    /// What an assemble task has to say.
    Traces(Vec<TraceUpdate>, Timestamp),
    /// A score of a whole session.
    Report(Box<Report>, Timestamp),
    /// A barrier, from one of the assemble tasks.
    Barrier(Barrier),
    /// Somebody wants to see one session.
    One { tenant: String, id: String, reply: oneshot::Sender<Option<SessionView>> },
    /// Somebody wants a part of a list of sessions.
    Rows {
        after: Option<SessionId>,
        filter: SessionFilter,
        budget: usize,
        reply: oneshot::Sender<Part>,
    },
    /// Somebody looks for the session that holds a trace.
    Find {
        tenant: String,
        after: Option<String>,
        trace: TraceId,
        budget: usize,
        reply: oneshot::Sender<Sought>,
    },
    /// Somebody wants to know why a trace has its score.
    Explain {
        tenant: String,
        id: String,
        trace: TraceId,
        reply: oneshot::Sender<Option<Box<TraceExplanation>>>,
    },
}

/// To the agents task.
pub(super) enum ToAgents {
    /// What a session task has to say.
    Updates(Vec<SessionUpdate>, Timestamp),
    /// Something about a run.
    Report(Box<Report>, Timestamp),
    /// A barrier, from one of the session tasks.
    Barrier(Barrier),
}

/// What all tasks share.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) clock: Clock,
    pub(super) health: Arc<Health>,
}

/// Counts barriers until one has come in on every input.
struct Alignment {
    inputs: usize,
    seen: BTreeMap<u64, usize>,
}

impl Alignment {
    fn new(inputs: usize) -> Self {
        Self { inputs, seen: BTreeMap::new() }
    }

    /// Returns whether this was the last input that the epoch was missing.
    fn complete(&mut self, barrier: Barrier) -> bool {
        let seen = self.seen.entry(barrier.epoch).or_default();
        *seen += 1;
        let complete = *seen == self.inputs;
        if complete {
            self.seen.remove(&barrier.epoch);
        }
        complete
    }
}

/// Runs one assemble shard until its channel closes.
pub(super) async fn assemble(
    shard: usize,
    mut stage: Assemble,
    (mut inbox, sessions): (mpsc::Receiver<ToAssemble>, Vec<mpsc::Sender<ToSessions>>),
    route: Route,
    common: Common,
) {
    let mut burst = Vec::with_capacity(BURST);
    loop {
        let wait = sleep_until(stage.poll_timeout(), &common.clock);
        tokio::select! {
            taken = inbox.recv_many(&mut burst, BURST) => if taken == 0 { return },
            () = wait => {}
        }
        let now = common.clock.now();
        let mut acknowledgements = Vec::new();
        let mut barriers = Vec::new();
        for message in burst.drain(..) {
            match message {
                ToAssemble::Inputs { inputs, now: arrival, acknowledge } => {
                    inputs.into_iter().for_each(|input| stage.handle(input, arrival));
                    acknowledgements.push(acknowledge);
                }
                ToAssemble::Barrier(barrier) => barriers.push(barrier),
            }
        }
        stage.handle_timeout(now);
        let mut parts: BTreeMap<usize, Vec<TraceUpdate>> = BTreeMap::new();
        for update in stage.drain() {
            let session = update.session.as_ref();
            let shard = session.map_or(0, |session| route.session(&session.tenant, &session.id));
            parts.entry(shard).or_default().push(update);
        }
        for (to, updates) in parts {
            // A closed channel: the daemon is going down, and what is lost was never acknowledged.
            if sessions[to].send(ToSessions::Traces(updates, now)).await.is_err() {
                return;
            }
        }
        // A sender that has gone does not need to know.
        for acknowledge in acknowledgements {
            let _ = acknowledge.send(());
        }
        for barrier in barriers {
            for session in &sessions {
                if session.send(ToSessions::Barrier(barrier)).await.is_err() {
                    return;
                }
            }
        }
        let source = format!("assemble/{shard}");
        common.health.counts(&source, stage.counts().iter());
        common.health.held("traces", &source, stage.open_traces());
    }
}

/// Runs one session shard until its channel closes.
pub(super) async fn sessions(
    shard: usize,
    mut stage: Sessions,
    (mut inbox, agents): (mpsc::Receiver<ToSessions>, mpsc::Sender<ToAgents>),
    inputs: usize,
    common: Common,
) {
    let mut alignment = Alignment::new(inputs);
    let mut burst = Vec::with_capacity(BURST);
    loop {
        let wait = sleep_until(stage.poll_timeout(), &common.clock);
        tokio::select! {
            taken = inbox.recv_many(&mut burst, BURST) => if taken == 0 { return },
            () = wait => {}
        }
        let now = common.clock.now();
        let mut barriers = Vec::new();
        for message in burst.drain(..) {
            match message {
                ToSessions::Traces(updates, now) => {
                    updates.into_iter().for_each(|update| stage.handle(update, now));
                }
                ToSessions::Report(report, now) => stage.report(*report, now),
                ToSessions::Barrier(barrier) => {
                    barriers.extend(alignment.complete(barrier).then_some(barrier));
                }
                question @ (ToSessions::One { .. }
                | ToSessions::Rows { .. }
                | ToSessions::Find { .. }
                | ToSessions::Explain { .. }) => answer(&stage, question),
            }
        }
        stage.handle_timeout(now);
        let updates = stage.drain();
        if !updates.is_empty() && agents.send(ToAgents::Updates(updates, now)).await.is_err() {
            return;
        }
        for barrier in barriers {
            if agents.send(ToAgents::Barrier(barrier)).await.is_err() {
                return;
            }
        }
        let source = format!("sessions/{shard}");
        common.health.counts(&source, stage.counts().iter());
        common.health.held("sessions", &source, stage.open_sessions());
    }
}

/// Answers a question; whoever asked may have gone.
fn answer(stage: &Sessions, question: ToSessions) {
    match question {
        ToSessions::One { tenant, id, reply } => drop(reply.send(stage.session(&tenant, &id))),
        ToSessions::Rows { after, filter, budget, reply } => {
            drop(reply.send(stage.rows(after, &filter, budget)));
        }
        ToSessions::Find { tenant, after, trace, budget, reply } => {
            drop(reply.send(stage.find(&tenant, after.as_deref(), trace, budget)));
        }
        ToSessions::Explain { tenant, id, trace, reply } => {
            drop(reply.send(stage.explain(&tenant, &id, trace).map(Box::new)));
        }
        // Not questions.
        ToSessions::Traces(..) | ToSessions::Report(..) | ToSessions::Barrier(_) => {}
    }
}

/// Adds a point to every agent's past, at every step, for as long as somebody has the board.
pub(super) async fn history(board: Weak<Board>, step: Duration, clock: Clock) {
    loop {
        tokio::time::sleep(step).await;
        let Some(board) = board.upgrade() else { return };
        board.sample(clock.now());
    }
}

/// Runs the agents stage until its channel closes, and keeps the board up to date.
pub(super) async fn agents(
    mut stage: Agents,
    mut inbox: mpsc::Receiver<ToAgents>,
    (board, flushed): (Arc<Board>, watch::Sender<u64>),
    inputs: usize,
    common: Common,
) {
    let mut alignment = Alignment::new(inputs);
    let mut burst = Vec::with_capacity(BURST);
    loop {
        let wait = sleep_until(stage.poll_timeout(), &common.clock);
        tokio::select! {
            taken = inbox.recv_many(&mut burst, BURST) => if taken == 0 { return },
            () = wait => {}
        }
        let now = common.clock.now();
        let mut epoch = None;
        for message in burst.drain(..) {
            match message {
                ToAgents::Updates(updates, now) => {
                    updates.into_iter().for_each(|update| stage.handle(update, now));
                }
                ToAgents::Report(report, now) => stage.report(*report, now),
                ToAgents::Barrier(barrier) => {
                    if alignment.complete(barrier) {
                        epoch = epoch.max(Some(barrier.epoch));
                    }
                }
            }
        }
        stage.handle_timeout(now);
        stage.drain().into_iter().for_each(|update| board.apply(update));
        common.health.counts("agents", stage.counts().iter());
        common.health.held("agents", "", board.len());
        if let Some(epoch) = epoch {
            flushed.send_replace(epoch);
        }
    }
}

/// Waits until the moment comes; for ever if there is none.
async fn sleep_until(due: Option<Timestamp>, clock: &Clock) {
    match due {
        Some(due) => tokio::time::sleep(clock.until(due)).await,
        None => std::future::pending().await,
    }
}
