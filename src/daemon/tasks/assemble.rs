//! The task of an assemble shard.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::{mpsc, watch};

use super::{BURST, Common, FullSessions, Gone, LeftOut, ToAssemble, ToSessions, save};
use crate::embed;
use crate::engine::assemble::texts::SpanBatch;
use crate::engine::assemble::{Assembler, AtMost, Learned, Refused};
use crate::engine::facts::{Barrier, TraceFacts};
use crate::engine::route::Route;
use crate::engine::span::Timestamp;
use crate::engine::tenants::TraceKey;
use crate::judge;

/// How many timers of traces a task runs before it forwards the results and other tasks have their turn. The update of a trace
/// takes many times the memory of the trace, so the updates of thousands of traces that are done at once are never all in memory.
const TIMERS: usize = 64;

/// How many changed traces a task handles before it forwards the results and other tasks have their turn: one request can change
/// tens of thousands. Of large traces it handles fewer: reading one takes time in proportion to its spans.
const READ: AtMost = AtMost { traces: 64, spans: 2_048 };

/// One assemble shard, with the channels for its updates.
pub(in crate::daemon) struct AssembleTask {
    pub(in crate::daemon) shard: usize,
    pub(in crate::daemon) stage: Assembler,
    /// What all shards have learned.
    pub(in crate::daemon) learned: Arc<RwLock<Learned>>,
    pub(in crate::daemon) sessions: Vec<mpsc::Sender<ToSessions>>,
    pub(in crate::daemon) route: Route,
    pub(in crate::daemon) common: Common,
}

impl AssembleTask {
    /// Runs the shard until its channel closes; `full` has the full sessions of each session shard.
    pub(in crate::daemon) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<ToAssemble>,
        mut full: Vec<watch::Receiver<FullSessions>>,
    ) {
        // Repeats the requests that an earlier process made without getting an answer, one by one, as each is as large as a trace.
        for id in self.stage.unanswered() {
            self.ask_again(id);
            self.ask(self.common.clock.now());
        }
        let mut burst = Vec::with_capacity(BURST);
        let source = format!("assemble/{}", self.shard);
        let held = self.common.health.held("traces", &source);
        let held_bytes = self.common.health.held_bytes("traces", &source);
        let ages = self.common.health.open_traces(&source);
        let mut timer = self.common.clock.timer();
        loop {
            tokio::select! {
                taken = inbox.recv_many(&mut burst, BURST) => if taken == 0 { return },
                () = timer.until(self.stage.poll_timeout()) => {}
            }
            let now = self.common.clock.now();
            self.common.judge.iter().for_each(|judge| self.stage.attend(judge.attention(now)));
            // Fails only while the daemon stops.
            if full.iter().any(|full| full.has_changed().unwrap_or(false)) {
                let named = full.iter_mut().flat_map(|full| full.borrow_and_update().clone());
                self.stage.refuse_traces_of(named.collect());
            }
            let (mut acknowledgements, mut taken) = (Vec::new(), 0);
            for message in burst.drain(..) {
                match message {
                    ToAssemble::Inputs { spans, share, now: arrival, acknowledge } => {
                        taken += share.spans.len() + share.inputs.len();
                        let before = self.stage.refused();
                        self.stage.spans(SpanBatch { all: spans, places: share.spans }, arrival);
                        share
                            .inputs
                            .into_iter()
                            .for_each(|input| self.stage.handle(input, arrival));
                        let left_out = left_out(before, self.stage.refused());
                        acknowledgements.push((acknowledge, left_out));
                    }
                    ToAssemble::Barrier(barrier) => {
                        if self.pass(barrier, now).await.is_err() {
                            return;
                        }
                    }
                }
            }
            self.common.note_timers(self.stage.poll_timeout(), now).await;
            // A trace has two timers, and at least one input: timers keep up with inputs, and inputs do not wait for all timers.
            let mut owed = 2 * taken;
            loop {
                let all = self.stage.handle_some_timeouts(now, TIMERS, &known(&self.learned));
                if self.hand_on(now).await.is_err() {
                    return;
                }
                self.ask(now);
                // The acknowledgement may no longer be awaited.
                for (acknowledge, left_out) in acknowledgements.drain(..) {
                    let _ = acknowledge.send(left_out);
                }
                owed = owed.saturating_sub(TIMERS);
                if all || (owed == 0 && !inbox.is_empty()) {
                    break;
                }
                tokio::task::yield_now().await;
            }
            self.common.health.counts(&source, self.stage.counts().iter());
            held.set(self.stage.open_traces());
            held_bytes.set(self.stage.held_bytes());
            ages.iter().zip(self.stage.ages(now)).for_each(|(gauge, count)| gauge.set(count));
        }
    }

    /// Passes on a barrier: results of everything before it are sent first, and only that is saved.
    async fn pass(&mut self, barrier: Barrier, now: Timestamp) -> Result<(), Gone> {
        self.stage.tell_all();
        self.hand_on(now).await?;
        self.ask(now);
        let Self { shard, stage, common, .. } = &*self;
        save(common, barrier, || Some((format!("assemble/{shard}"), stage.save())));
        for session in &self.sessions {
            session.send(ToSessions::Barrier(*shard, barrier)).await.map_err(|_| Gone)?;
        }
        Ok(())
    }

    /// Makes the unanswered requests about a trace again.
    fn ask_again(&mut self, id: TraceKey) {
        self.stage.ask_again(id, &known(&self.learned));
    }

    /// The updates of some traces of the stage, and whether these were all. After that, all shards know what the stage has learned.
    fn drain(&mut self) -> (Vec<Box<TraceFacts>>, bool) {
        let Self { stage, learned, common, .. } = self;
        let drained = stage.drain_some(READ, &known(learned));
        let lessons = stage.lessons();
        if !lessons.is_empty() {
            let mut learned = learned.write().unwrap_or_else(PoisonError::into_inner);
            learned.learn(lessons);
            common.health.counts("learned", learned.counts().iter());
        }
        drained
    }

    /// Offers the stage's requests to the judge and the embedding model, if there are any.
    fn ask(&mut self, now: Timestamp) {
        let Self { stage, common, .. } = self;
        offer(stage, common.embedder.as_ref(), common.judge.as_ref(), now);
    }

    /// Sends the updates of the stage, and reports about traces that it has sealed; fails only while the daemon stops, and what is
    /// lost then was never acknowledged.
    async fn hand_on(&mut self, now: Timestamp) -> Result<(), Gone> {
        loop {
            let (updates, all) = self.drain();
            let mut parts: BTreeMap<usize, Vec<Box<TraceFacts>>> = BTreeMap::new();
            for update in updates {
                let session = update.session.as_ref();
                let to = session.map_or(0, |key| self.route.session(&key.tenant, &key.id));
                parts.entry(to).or_default().push(update);
            }
            for (to, updates) in parts {
                let message = ToSessions::Traces(self.shard, updates, now);
                self.sessions[to].send(message).await.map_err(|_| Gone)?;
            }
            if all {
                break;
            }
            tokio::task::yield_now().await;
        }
        for report in self.stage.late_reports() {
            for session in &self.sessions {
                let message = ToSessions::Report(Some(self.shard), Box::new(report.clone()), now);
                session.send(message).await.map_err(|_| Gone)?;
            }
        }
        Ok(())
    }
}

/// What all shards have learned. Only shards that add something wait, which is rare.
fn known(learned: &RwLock<Learned>) -> RwLockReadGuard<'_, Learned> {
    learned.read().unwrap_or_else(PoisonError::into_inner)
}

/// Offers the stage's requests to the embedding model and the judge, if there are any.
pub(in crate::daemon) fn offer(
    stage: &mut Assembler,
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

/// What was left out for want of room, by the counts before and after.
fn left_out(before: Refused, after: Refused) -> LeftOut {
    LeftOut {
        trace_full: after.trace_full.saturating_sub(before.trace_full),
        session_full: after.session_full.saturating_sub(before.session_full),
        ..LeftOut::default()
    }
}
