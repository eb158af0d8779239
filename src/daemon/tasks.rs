//! The stages as tasks: one owner of each state, bounded channels in between.
//!
//! A task takes what has piled up, lets its stage work, then hands on what came of it: traces at once, what is known of
//! agents at its [`Pace`], as many words about one agent are then said as one. An agent of which a session begins to run away is
//! told at a pace of its own, so that nobody who is to be paged waits for what is told of all others. Forward sends wait for room,
//! and there is no channel backwards, so nothing can deadlock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;

use super::durable;
use super::pace::Pace;
use crate::clock::Clock;
use crate::embed;
use crate::engine::agent_update::AgentUpdate;
use crate::engine::agents::Agents;
use crate::engine::assemble::texts::SpanBatch;
use crate::engine::assemble::{Assemble, FullSession, Input};
use crate::engine::explained::{SessionRow, TraceExplanation};
use crate::engine::route::Route;
use crate::engine::sessions::{Found, Nowhere, Part, SessionId, SessionStore, Sessions, Wanted};
use crate::engine::span::{Report, Span, Timestamp, TraceId};
use crate::engine::update::{Barrier, SessionUpdate, TraceUpdate};
use crate::export::board::Board;
use crate::export::query::ListRequest;
use crate::health::Health;
use crate::ingest::LeftOut;
use crate::judge;
use crate::store::Section;
use crate::webhook::{self, Runaway};

/// How many messages a task takes before it hands on what came of them.
const BURST: usize = 64;

/// How many timers of traces a task runs before it hands on what came of them, and others have their turn: what a trace has come
/// to takes many times the memory of the trace, so that of thousands, done at once, it is never there for all.
const TIMERS: usize = 64;

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

fn full_session(id: &SessionId) -> FullSession {
    let SessionId { tenant, id, scope } = id.clone();
    FullSession { tenant, id, scope }
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

/// Inputs that are past a barrier of a snapshot which others have not reached: what they send waits, so that a stage that
/// has seen the barrier on all inputs holds exactly what came before it. There is one snapshot at a time.
struct Waiting<M> {
    past: BTreeSet<usize>,
    messages: VecDeque<M>,
}

/// A message that may come from one of the inputs.
trait StageMessage {
    /// Which one.
    fn input(&self) -> Option<usize>;
}

impl StageMessage for ToSessions {
    fn input(&self) -> Option<usize> {
        match self {
            Self::Traces(from, ..) | Self::Barrier(from, _) => Some(*from),
            Self::Report(..)
            | Self::One { .. }
            | Self::Places { .. }
            | Self::Rows { .. }
            | Self::Find { .. }
            | Self::Away { .. }
            | Self::Explain { .. } => None,
        }
    }
}

impl StageMessage for ToAgents {
    fn input(&self) -> Option<usize> {
        match self {
            Self::Updates(from, ..) | Self::Barrier(from, _) => Some(*from),
            Self::Report(..) => None,
        }
    }
}

impl<M: StageMessage> Waiting<M> {
    fn new() -> Self {
        Self { past: BTreeSet::new(), messages: VecDeque::new() }
    }

    /// Returns the message, unless it has to wait.
    fn admit(&mut self, message: M) -> Option<M> {
        if message.input().is_some_and(|from| self.past.contains(&from)) {
            self.messages.push_back(message);
            return None;
        }
        Some(message)
    }

    /// All inputs have come: what waited goes on, in front of what is left.
    fn release(&mut self, rest: &mut VecDeque<M>) {
        self.past.clear();
        self.messages.append(rest);
        std::mem::swap(&mut self.messages, rest);
    }
}

/// The channels of a session task, and who it is.
struct SessionTask {
    shard: usize,
    stage: Sessions,
    session_store: Box<dyn SessionStore + Send>,
    agents: mpsc::Sender<ToAgents>,
    alignment: Alignment,
    waiting: Waiting<ToSessions>,
    // Of all that changed, and of what is urgent.
    pace: Pace,
    urgent: Pace,
    common: Common,
}

/// Runs one assemble shard until its channel closes.
pub(super) async fn assemble(
    shard: usize,
    mut stage: Assemble,
    (mut inbox, sessions): (mpsc::Receiver<ToAssemble>, Vec<mpsc::Sender<ToSessions>>),
    (route, mut full): (Route, Vec<watch::Receiver<FullSessions>>),
    common: Common,
) {
    // What an earlier process has asked and not been told, one by one: each is as large as a trace.
    for id in stage.unanswered() {
        stage.ask_again(id);
        ask(&mut stage, &common, common.clock.now());
    }
    let mut burst = Vec::with_capacity(BURST);
    loop {
        let wait = sleep_until(stage.poll_timeout(), &common.clock);
        tokio::select! {
            taken = inbox.recv_many(&mut burst, BURST) => if taken == 0 { return },
            () = wait => {}
        }
        let now = common.clock.now();
        common.judge.iter().for_each(|judge| stage.attend(judge.attention(now)));
        // Fails only while the daemon goes down.
        if full.iter().any(|full| full.has_changed().unwrap_or(false)) {
            let named = full.iter_mut().flat_map(|full| full.borrow_and_update().clone());
            stage.refuse_traces_of(named.collect());
        }
        let (mut acknowledgements, mut taken) = (Vec::new(), 0);
        for message in burst.drain(..) {
            match message {
                ToAssemble::Inputs { spans, share, now: arrival, acknowledge } => {
                    taken += share.spans.len() + share.inputs.len();
                    let before = stage.refused();
                    stage.spans(SpanBatch { all: spans, places: share.spans }, arrival);
                    share.inputs.into_iter().for_each(|input| stage.handle(input, arrival));
                    let after = stage.refused();
                    let left_out = LeftOut {
                        trace_full: after.trace_full.saturating_sub(before.trace_full),
                        session_full: after.session_full.saturating_sub(before.session_full),
                    };
                    acknowledgements.push((acknowledge, left_out));
                }
                ToAssemble::Barrier(barrier) => {
                    // What came before it goes before it, and only that is saved.
                    stage.tell_all();
                    if hand_on(shard, &mut stage, &sessions, route, now).await.is_err() {
                        return;
                    }
                    ask(&mut stage, &common, now);
                    save(&common, barrier, || Some((format!("assemble/{shard}"), stage.save())));
                    for session in &sessions {
                        if session.send(ToSessions::Barrier(shard, barrier)).await.is_err() {
                            return;
                        }
                    }
                }
            }
        }
        // A trace has two timers, and spans: they keep up with what comes, and what comes does not wait for all of them.
        let mut owed = 2 * taken;
        loop {
            let all = stage.handle_some_timeouts(now, TIMERS);
            if hand_on(shard, &mut stage, &sessions, route, now).await.is_err() {
                return;
            }
            ask(&mut stage, &common, now);
            // A sender that has gone does not need to know.
            for (acknowledge, left_out) in acknowledgements.drain(..) {
                let _ = acknowledge.send(left_out);
            }
            owed = owed.saturating_sub(TIMERS);
            if all || (owed == 0 && !inbox.is_empty()) {
                break;
            }
            tokio::task::yield_now().await;
        }
        let source = format!("assemble/{shard}");
        common.health.counts(&source, stage.counts().iter());
        common.health.held("traces", &source, stage.open_traces());
        common.health.open_traces(&source, stage.ages(now));
    }
}

/// Offers the judge and the embedding model, if there are any, what the stage would ask them.
fn ask(stage: &mut Assemble, common: &Common, now: Timestamp) {
    offer(stage, common.embedder.as_ref(), common.judge.as_ref(), now);
}

/// Likewise, by themselves.
pub(super) fn offer(
    stage: &mut Assemble,
    embedder: Option<&embed::Handle>,
    judge: Option<&judge::Handle>,
    now: Timestamp,
) {
    if let Some(embedder) = embedder {
        stage.embed_requests().into_iter().for_each(|request| embedder.offer(request));
    }
    if let Some(judge) = judge {
        stage.requests().into_iter().for_each(|request| judge.offer(request, now));
        stage.attend(judge.attention(now));
    }
}

/// Sends what an assemble stage has to say; fails when the daemon is going down, and what is lost was never
/// acknowledged.
async fn hand_on(
    shard: usize,
    stage: &mut Assemble,
    sessions: &[mpsc::Sender<ToSessions>],
    route: Route,
    now: Timestamp,
) -> Result<(), Gone> {
    let mut parts: BTreeMap<usize, Vec<TraceUpdate>> = BTreeMap::new();
    for update in stage.drain() {
        let session = update.session.as_ref();
        let to = session.map_or(0, |session| route.session(&session.tenant, &session.id));
        parts.entry(to).or_default().push(update);
    }
    for (to, updates) in parts {
        sessions[to].send(ToSessions::Traces(shard, updates, now)).await.map_err(|_| Gone)?;
    }
    Ok(())
}

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

/// Runs one session shard until its channel closes.
pub(super) async fn sessions(
    shard: usize,
    (stage, session_store): (Sessions, Box<dyn SessionStore + Send>),
    (mut inbox, agents): (mpsc::Receiver<ToSessions>, mpsc::Sender<ToAgents>),
    (inputs, full): (usize, watch::Sender<FullSessions>),
    common: Common,
) {
    let (alignment, waiting) = (Alignment::new(inputs), Waiting::new());
    let (pace, urgent) = (Pace::default(), Pace::default());
    let mut task = SessionTask {
        shard,
        stage,
        session_store,
        agents,
        alignment,
        waiting,
        pace,
        urgent,
        common,
    };
    let mut burst = Vec::with_capacity(BURST);
    let mut shift = task.common.clock.shift();
    loop {
        let paces = [task.pace.due(), task.urgent.due()];
        let due = paces.into_iter().chain([task.stage.poll_timeout()]).flatten().min();
        let wait = sleep_until(due, &task.common.clock);
        tokio::select! {
            taken = inbox.recv_many(&mut burst, BURST) => if taken == 0 { return },
            () = wait => {}
            () = task.common.clock.stepped_from(shift) => {}
        }
        let now = task.common.clock.now();
        shift = task.common.clock.shift();
        task.stage.shift_to(shift);
        let mut left: VecDeque<ToSessions> = burst.drain(..).collect();
        while let Some(message) = left.pop_front() {
            let Some(message) = task.waiting.admit(message) else { continue };
            if let ToSessions::Barrier(from, barrier) = message {
                let saves = barrier.log_sequence.is_some();
                if !task.alignment.complete(barrier) {
                    task.waiting.past.extend(saves.then_some(from));
                    continue;
                }
                if task.pass(barrier, now).await.is_err() {
                    return;
                }
                if saves {
                    task.waiting.release(&mut left);
                }
            } else {
                task.take(message);
                // Before anybody can see that it is full.
                if let Some(named) = task.stage.full_sessions() {
                    full.send_replace(named.iter().map(|id| full_session(id)).collect());
                }
            }
        }
        task.stage.run_timers(now, task.session_store.as_mut());
        tell(&mut task.stage, &*task.session_store, shift.wall(now), task.common.webhook.as_ref());
        task.pace.note();
        if task.stage.is_urgent() {
            task.urgent.note();
        }
        let handed_on = if task.pace.is_due(now) {
            task.hand_on(now).await
        } else if task.urgent.is_due(now) {
            task.hand_on_urgent(now).await
        } else {
            Ok(())
        };
        if handed_on.is_err() {
            return;
        }
    }
}

/// Tells the webhook, if there is one, of sessions that run away.
pub(super) fn tell(
    stage: &mut Sessions,
    session_store: &dyn SessionStore,
    at: Timestamp,
    webhook: Option<&webhook::Handle>,
) {
    for (id, cause) in stage.runaways() {
        let wanted = webhook.filter(|webhook| webhook.wants(cause.severity()));
        let view = || stage.session_in(&id, session_store);
        let held = wanted.and_then(|webhook| Some((webhook, view()?)));
        if let Some((webhook, session)) = held {
            let tenant = id.tenant.clone();
            webhook.tell(Runaway { tenant, cause, at, session: Box::new(session) });
        }
    }
}

/// Answers a question; whoever asked may have gone.
pub(super) fn answer(stage: &Sessions, session_store: &dyn SessionStore, question: ToSessions) {
    match question {
        ToSessions::One { tenant, id, scope, reply } => {
            drop(reply.send(stage.found((&tenant, &id, scope.as_deref()), session_store)));
        }
        ToSessions::Places { after, request, budget, reply } => {
            let most = request.limit.saturating_add(request.offset);
            let wanted = Wanted { filter: &request.filter, sort: request.sort, most };
            drop(reply.send(stage.places(after, &wanted, budget)));
        }
        ToSessions::Rows { ids, budget, reply } => drop(reply.send(stage.rows(&ids, budget))),
        ToSessions::Find { tenant, trace, reply } => drop(reply.send(stage.find(&tenant, trace))),
        ToSessions::Explain { tenant, id, scope, trace, reply } => {
            let explained = stage.explain((&tenant, &id, scope.as_deref()), trace, session_store);
            drop(reply.send(explained.map(Box::new)));
        }
        ToSessions::Away { reply } => drop(reply.send(stage.away())),
        // Not questions.
        ToSessions::Traces(..) | ToSessions::Report(..) | ToSessions::Barrier(..) => {}
    }
}

impl SessionTask {
    fn take(&mut self, message: ToSessions) {
        let Self { stage, session_store, .. } = self;
        match message {
            ToSessions::Traces(_, updates, now) => {
                for update in updates {
                    stage.bring_for(&update, session_store.as_mut());
                    stage.handle(update, now);
                }
            }
            ToSessions::Report(report, now) => {
                stage.bring_for_report(&report, session_store.as_mut());
                stage.report(*report, now);
            }
            question @ (ToSessions::One { .. }
            | ToSessions::Places { .. }
            | ToSessions::Rows { .. }
            | ToSessions::Find { .. }
            | ToSessions::Away { .. }
            | ToSessions::Explain { .. }) => answer(stage, session_store.as_ref(), question),
            // The loop above looks at these.
            ToSessions::Barrier(..) => {}
        }
    }

    /// A barrier has come in on all inputs: what came before it goes before it, and only that is saved.
    async fn pass(&mut self, barrier: Barrier, now: Timestamp) -> Result<(), Gone> {
        self.hand_on(now).await?;
        let safe = barrier.log_sequence.is_none() || self.keep().await;
        let Self { shard, stage, common, .. } = &*self;
        save(common, barrier, || safe.then(|| (format!("sessions/{shard}"), stage.save())));
        self.agents.send(ToAgents::Barrier(*shard, barrier)).await.map_err(|_| Gone)
    }

    /// Makes what is away as safe as what is about to be saved; returns whether it is.
    async fn keep(&mut self) -> bool {
        let mut session_store = std::mem::replace(&mut self.session_store, Box::new(Nowhere));
        let kept = spawn_blocking(move || {
            let safe = session_store.keep();
            (session_store, safe)
        });
        match kept.await {
            Ok((session_store, safe)) => {
                self.session_store = session_store;
                safe
            }
            Err(_) => false,
        }
    }

    /// Says all that changed, and what it counted.
    async fn hand_on(&mut self, now: Timestamp) -> Result<(), Gone> {
        let took = self.send(Sessions::drain_some, now).await?;
        self.stage.fit(self.session_store.as_mut());
        let Self { shard, stage, common, .. } = &*self;
        let source = format!("sessions/{shard}");
        common.health.counts(&source, stage.counts().iter());
        common.health.held("sessions", &source, stage.open_sessions());
        common.health.held("sessions_away", &source, stage.away());
        self.pace.told(took, self.common.clock.now());
        Ok(())
    }

    /// Says what cannot wait for the pace of the rest.
    async fn hand_on_urgent(&mut self, now: Timestamp) -> Result<(), Gone> {
        let took = self.send(Sessions::drain_urgent, now).await?;
        self.urgent.told(took, self.common.clock.now());
        Ok(())
    }

    /// Sends what is drained, slice by slice; returns the time that draining it took.
    async fn send(&mut self, drain: Drain, now: Timestamp) -> Result<Duration, Gone> {
        let mut took = Duration::ZERO;
        loop {
            let began = self.common.clock.now();
            let updates = drain(&mut self.stage, SLICE);
            took += self.common.clock.now().since(began);
            if updates.is_empty() {
                return Ok(took);
            }
            let message = ToAgents::Updates(self.shard, updates, now);
            self.agents.send(message).await.map_err(|_| Gone)?;
            tokio::task::yield_now().await;
        }
    }
}

/// What a session stage drains, of so many agents at most.
type Drain = fn(&mut Sessions, usize) -> Vec<SessionUpdate>;

/// The stage that would take it has gone.
struct Gone;

/// Runs the agents stage until its channel closes, and keeps the board up to date.
pub(super) async fn agents(
    mut stage: Agents,
    mut inbox: mpsc::Receiver<ToAgents>,
    (board, flushed): (Arc<Board>, watch::Sender<u64>),
    inputs: usize,
    common: Common,
) {
    let (mut alignment, mut waiting) = (Alignment::new(inputs), Waiting::new());
    let mut burst = Vec::with_capacity(BURST);
    let (mut pace, mut urgent) = (Pace::default(), Pace::default());
    let mut shift = common.clock.shift();
    loop {
        let paces = [pace.due(), urgent.due()];
        let due = paces.into_iter().chain([stage.poll_timeout()]).flatten().min();
        let wait = sleep_until(due, &common.clock);
        tokio::select! {
            taken = inbox.recv_many(&mut burst, BURST) => if taken == 0 { return },
            () = wait => {}
            () = common.clock.stepped_from(shift) => {}
        }
        let now = common.clock.now();
        shift = common.clock.shift();
        stage.shift_to(shift);
        let mut epoch = None;
        let mut left: VecDeque<ToAgents> = burst.drain(..).collect();
        while let Some(message) = left.pop_front() {
            match waiting.admit(message) {
                Some(ToAgents::Updates(_, updates, now)) => {
                    updates.into_iter().for_each(|update| stage.handle(update, now));
                }
                Some(ToAgents::Report(report, now)) => stage.report(*report, now),
                Some(ToAgents::Barrier(from, barrier)) => {
                    let saves = barrier.log_sequence.is_some();
                    if !alignment.complete(barrier) {
                        waiting.past.extend(saves.then_some(from));
                    } else if saves {
                        stage.settle();
                        save(&common, barrier, || Some(("agents".to_owned(), stage.save())));
                        waiting.release(&mut left);
                    } else {
                        epoch = epoch.max(Some(barrier.epoch));
                    }
                }
                None => {}
            }
        }
        stage.handle_timeout(now);
        pace.note();
        if stage.is_urgent() {
            urgent.note();
        }
        if pace.is_due(now) || epoch.is_some() {
            let took = post(&mut stage, Agents::drain_some, &board, &common).await;
            common.health.counts("agents", stage.counts().iter());
            common.health.held("agents", "", board.len());
            pace.told(took, common.clock.now());
        } else if urgent.is_due(now) {
            let took = post(&mut stage, Agents::drain_urgent, &board, &common).await;
            urgent.told(took, common.clock.now());
        }
        if let Some(epoch) = epoch {
            flushed.send_replace(epoch);
        }
    }
}

/// Puts what is drained on the board, slice by slice; returns the time that it spent on that.
async fn post(
    stage: &mut Agents,
    drain: fn(&mut Agents, usize) -> Vec<AgentUpdate>,
    board: &Board,
    common: &Common,
) -> Duration {
    let mut took = Duration::ZERO;
    loop {
        let began = common.clock.now();
        let updates = drain(stage, SLICE);
        if updates.is_empty() {
            return took;
        }
        updates.into_iter().for_each(|update| board.apply(update));
        took += common.clock.now().since(began);
        tokio::task::yield_now().await;
    }
}

/// Waits until the moment comes; for ever if there is none.
async fn sleep_until(due: Option<Timestamp>, clock: &Clock) {
    match due {
        Some(due) => clock.sleep_until(due).await,
        None => std::future::pending().await,
    }
}
