//! All stages in one thread, for `replay`, `verify` and tests.
//!
//! The daemon runs the same stages as tasks with channels between them; here a batch passes through all stages before the next one
//! is taken.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::agent_facts::{AgentFacts, look_at_session};
use super::agents::Agents;
use super::assemble::texts::SpanBatch;
use super::assemble::{Assembler, Input, Learned};
use super::detect::DropOptions;
use super::drift::DriftOptions;
use super::embedding::Embedded;
use super::expect::Suite;
use super::facts::{AgentKey, TraceFacts};
use super::judging::{JudgeReply, JudgeRules};
use super::options::{AgentOptions, AssembleOptions, CostOptions, LoopOptions, SessionOptions};
use super::resolve::ResponseIndex;
use super::route::{Route, Takers};
use super::score::ars::ArsOptions;
use super::score::princeton::TaskOptions;
use super::sessions::{NoSessionStore, SessionStore, Sessions};
use super::span::{Log, Report, Span, Timestamp};
use super::tenants::{Shares, TraceKey};
use super::time::WallShift;
use super::view::{Document, SessionView};

/// The options of all stages.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// How traces are assembled.
    pub assemble: AssembleOptions,
    /// What a loop is.
    pub loops: LoopOptions,
    /// What model calls cost.
    pub cost: CostOptions,
    /// How sessions are scored.
    pub session: SessionOptions,
    /// How agents are summed up.
    pub agents: AgentOptions,
    /// Scores over runs of tasks.
    pub tasks: TaskOptions,
    /// The agent reliability score.
    pub ars: ArsOptions,
    /// How versions are compared.
    pub drift: DriftOptions,
    /// How drops are found.
    pub drops: DropOptions,
    /// How tenants share the bounds.
    pub shares: Shares,
    /// The expectations of traces.
    pub expected: Arc<[Suite]>,
    /// Which traces a judge is asked about; `None`: there is no judge.
    pub judging: Option<JudgeRules>,
    /// Most bytes of a text that is sent to an embedding model; `None`: there is no model.
    pub embedding: Option<usize>,
}

/// The stages one by one, to run as tasks.
pub struct Stages {
    /// The assignment to shards.
    pub route: Route,
    /// Traces of response ids, and reports that wait for a response id.
    pub resolve: ResponseIndex,
    /// Stage 1, by shard.
    pub assemble: Vec<Assembler>,
    /// What the shards of stage 1 have learned.
    pub learned: Learned,
    /// Stage 2, by shard.
    pub sessions: Vec<Sessions>,
    /// Where sessions are evicted to, by shard.
    pub session_stores: Vec<Box<dyn SessionStore + Send>>,
    /// Stage 3.
    pub agents: Agents,
    /// The newest update of each agent.
    pub board: BTreeMap<AgentKey, AgentFacts>,
}

/// The stages in one thread, one after the other.
pub struct Pipeline {
    route: Route,
    resolve: ResponseIndex,
    assemble: Vec<Assembler>,
    learned: Learned,
    sessions: Vec<Sessions>,
    // Invariant: one for each shard of `sessions`.
    session_stores: Vec<Box<dyn SessionStore + Send>>,
    agents: Agents,
    board: BTreeMap<AgentKey, AgentFacts>,
    // Whether the board is not updated, as nothing reads it yet.
    unseen: bool,
    // A buffer for the updates of traces.
    updates: Vec<Box<TraceFacts>>,
}

impl EngineOptions {
    /// A shard of stage 1, empty.
    pub fn assemble_stage(&self) -> Assembler {
        Assembler::new(self.assemble.clone(), self.loops.clone(), &self.cost)
            .scoped_by(self.session.scope)
            .shared_by(self.shares.clone())
            .expecting(self.expected.clone())
            .judging(self.judging.clone())
            .embedding(self.embedding)
    }

    /// This shard of stage 2, empty.
    pub fn sessions_stage(&self, shard: u32) -> Sessions {
        let (loops, agents) = (self.loops.clone(), self.agents.clone());
        Sessions::new(shard, self.session.clone(), loops, agents).shared_by(self.shares.clone())
    }

    /// Stage 3, empty.
    pub fn agents_stage(&self) -> Agents {
        Agents::new(Arc::new(self.clone()))
    }
}

impl Pipeline {
    /// Empty stages with `shards` shards, at least one.
    pub fn new(options: &EngineOptions, shards: u32) -> Self {
        Self::routed(options, Route::new(shards, 0))
    }

    /// Empty stages with the shards of this route.
    pub fn routed(options: &EngineOptions, route: Route) -> Self {
        let shards = 0..route.shards();
        Self {
            route,
            resolve: ResponseIndex::new(
                options.assemble.max_waiting_reports,
                options.assemble.report_wait,
                options.shares.clone(),
            ),
            assemble: shards.clone().map(|_| options.assemble_stage()).collect(),
            learned: Learned::new(&options.assemble, options.shares.clone()),
            sessions: shards.map(|shard| options.sessions_stage(shard)).collect(),
            session_stores: (0..route.shards()).map(|_| Box::new(NoSessionStore) as _).collect(),
            agents: options.agents_stage(),
            board: BTreeMap::new(),
            unseen: false,
            updates: Vec::new(),
        }
    }

    /// Makes sessions over `max_sessions` go to these stores, one for each shard.
    pub fn use_session_store(&mut self, session_stores: Vec<Box<dyn SessionStore + Send>>) {
        self.session_stores = session_stores;
        self.sessions.iter_mut().for_each(Sessions::use_session_store);
    }

    /// Sets how far wall time is ahead of engine time, after the wall clock was set.
    pub fn shift_to(&mut self, shift: WallShift) {
        self.sessions.iter_mut().for_each(|stage| stage.shift_to(shift));
        self.agents.shift_to(shift);
    }

    /// Applies one batch that arrived at `now`.
    pub fn apply(
        &mut self,
        spans: Vec<Span>,
        logs: Vec<Log>,
        reports: Vec<Report>,
        now: Timestamp,
    ) {
        for span in &spans {
            self.resolve_waiting(span, now);
        }
        let shares = self.route.spans(&spans);
        let all = Arc::new(spans);
        for (shard, places) in shares {
            self.assemble[shard].spans(SpanBatch { all: Arc::clone(&all), places }, now);
        }
        for log in logs {
            self.assemble[self.route.trace(log.trace_id)].handle(Input::Log(Box::new(log)), now);
        }
        for report in reports {
            self.report(report, now);
        }
        self.flow(now);
    }

    /// Applies a judge's replies, and the reports that follow from them.
    pub fn judged(&mut self, replies: Vec<JudgeReply>, reports: Vec<Report>, now: Timestamp) {
        for reply in replies {
            let shard = self.route.trace(reply.trace.id);
            self.assemble[shard].handle(Input::Judged(Box::new(reply)), now);
        }
        self.apply(Vec::new(), Vec::new(), reports, now);
    }

    /// Applies an embedding model's replies about the texts of traces.
    pub fn embedded(&mut self, embedded: Vec<(TraceKey, Embedded)>, now: Timestamp) {
        for (trace, embedded) in embedded {
            let shard = self.route.trace(trace.id);
            self.assemble[shard].handle(Input::Embedded(trace, embedded), now);
        }
        self.flow(now);
    }

    /// Runs the timers up to `now`, each at its own time.
    pub fn advance(&mut self, now: Timestamp) {
        self.advance_in_steps(now, Duration::ZERO);
    }

    /// Runs the timers up to `now`; timers due within `step` of the first run together, as in a busy daemon.
    pub fn advance_in_steps(&mut self, now: Timestamp, step: Duration) {
        while let Some(due) = self.poll_timeout().filter(|due| *due <= now) {
            let due = due.after(step).min(now);
            self.resolve.handle_timeout(due);
            let Self { assemble, learned, .. } = self;
            assemble.iter_mut().for_each(|stage| stage.handle_timeout(due, learned));
            self.flow(due);
            for (stage, session_store) in self.sessions.iter_mut().zip(&mut self.session_stores) {
                stage.run_timers(due, session_store.as_mut());
            }
            self.agents.handle_timeout(due);
            self.flow(due);
        }
    }

    /// The next moment at which a timer fires.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let stages = self.assemble.iter().map(Assembler::poll_timeout);
        stages
            .chain(self.sessions.iter().map(Sessions::poll_timeout))
            .chain([self.resolve.poll_timeout(), self.agents.poll_timeout()])
            .flatten()
            .min()
    }

    /// Ends the input: every trace is done and sealed, every session closed.
    pub fn finish(&mut self, now: Timestamp) {
        let Self { assemble, learned, .. } = self;
        assemble.iter_mut().for_each(|stage| stage.finish(now, learned));
        self.flow(now);
        for (stage, session_store) in self.sessions.iter_mut().zip(&mut self.session_stores) {
            stage.restore_all(session_store.as_mut());
            stage.finish(now);
        }
        self.flow(now);
    }

    /// All sessions and agents, as `replay` prints them, without agents that have neither a done trace nor a score.
    pub fn document(&self) -> Document {
        let mut sessions: Vec<SessionView> =
            self.sessions.iter().flat_map(Sessions::sessions).collect();
        sessions.sort_by(|a, b| {
            let start = |session: &SessionView| {
                session.traces.first().and_then(|trace| trace.start_unix_nano.parse::<u64>().ok())
            };
            start(a).cmp(&start(b)).then_with(|| a.name().cmp(&b.name()))
        });
        for session in &mut sessions {
            look_at_session(session, |agent| self.board.get(agent));
        }
        let agents = self
            .board
            .values()
            .filter(|agent| agent.view.traces > 0 || !agent.view.scores.is_empty());
        let mut agents: Vec<_> = agents.map(AgentFacts::shown).collect();
        // Counters hold what was known when they counted; a document holds what is true in the end.
        agents.iter_mut().for_each(|agent| agent.add_up(&sessions));
        Document { sessions, agents }
    }

    /// Stops updating the board until [`Pipeline::into_stages`]: nothing reads it while a log is replayed, and keeping it current
    /// is a large part of the work.
    pub fn leave_board(&mut self) {
        self.unseen = true;
    }

    /// The stages with all their state. Counters belong to a process, so they start at zero.
    pub fn into_stages(mut self, now: Timestamp) -> Stages {
        // Deferred updates are sent before counters start.
        self.assemble.iter_mut().for_each(Assembler::tell_all);
        self.flow(now);
        self.resolve.restart_counts();
        self.assemble.iter_mut().for_each(Assembler::restart_counts);
        self.learned.restart_counts();
        for stage in &mut self.sessions {
            stage.restart_counts();
            stage.take_over(now);
        }
        self.unseen = false;
        self.flow(now);
        self.agents.restart_counts();
        let Self {
            route, resolve, assemble, learned, sessions, session_stores, agents, board, ..
        } = self;
        Stages { route, resolve, assemble, learned, sessions, session_stores, agents, board }
    }

    /// The stages whose state is written to snapshots.
    pub fn lasting(
        &mut self,
    ) -> (&mut ResponseIndex, &mut [Assembler], &mut [Sessions], &mut Agents) {
        (&mut self.resolve, &mut self.assemble, &mut self.sessions, &mut self.agents)
    }

    /// What the shards of stage 1 have learned; it is written to snapshots, too.
    pub fn learned(&mut self) -> &mut Learned {
        &mut self.learned
    }

    /// The newest update of each agent.
    pub fn board(&self) -> &BTreeMap<AgentKey, AgentFacts> {
        &self.board
    }

    /// Delivers the reports that waited for this span's response id.
    fn resolve_waiting(&mut self, span: &Span, now: Timestamp) {
        let Some(response_id) = span.model.as_ref().and_then(|model| model.response_id) else {
            return;
        };
        for report in
            self.resolve.seen(span.resource.tenant.as_deref(), response_id, span.trace_id, now)
        {
            self.deliver(report, now);
        }
    }

    fn report(&mut self, report: Report, now: Timestamp) {
        if let Some(report) = self.resolve.report(report, now) {
            self.deliver(report, now);
        }
    }

    fn deliver(&mut self, report: Report, now: Timestamp) {
        let Takers { assemble, sessions, agents } = self.route.report(&report);
        for shard in sessions {
            self.sessions[shard].restore_for_report(&report, self.session_stores[shard].as_mut());
            self.sessions[shard].report(report.clone(), now);
        }
        if agents {
            self.agents.report(report, now);
        } else if let Some(shard) = assemble {
            self.assemble[shard].handle(Input::Report(Box::new(report)), now);
        }
    }

    /// Passes the updates of each stage on to the next, down to the board.
    fn flow(&mut self, now: Timestamp) {
        for stage in &mut self.assemble {
            stage.drain_into(&mut self.updates, &self.learned);
            for update in self.updates.drain(..) {
                let session = update.session.as_ref();
                let shard = session.map_or(0, |to| self.route.session(&to.tenant, &to.id));
                self.sessions[shard].restore_for(&update, self.session_stores[shard].as_mut());
                self.sessions[shard].handle(update, now);
            }
            for report in stage.late_reports() {
                for (stage, session_store) in self.sessions.iter_mut().zip(&mut self.session_stores)
                {
                    stage.restore_for_report(&report, session_store.as_mut());
                    stage.report(report.clone(), now);
                }
            }
            // Neither a judge nor an embedding model is asked here: the stage remembers open requests, and a daemon sends them once
            // it has recovered.
            drop((stage.requests(), stage.embed_requests()));
        }
        // After all shards, so that no shard knows more than another.
        let lessons = self.assemble.iter_mut().map(Assembler::lessons);
        lessons.for_each(|lessons| self.learned.learn(lessons));
        for (stage, session_store) in self.sessions.iter_mut().zip(&mut self.session_stores) {
            for update in stage.drain() {
                self.agents.handle(update, now);
            }
            stage.fit(session_store.as_mut());
        }
        if self.unseen {
            self.agents.settle();
            return;
        }
        for update in self.agents.drain() {
            if update.gone {
                self.board.remove(&update.agent);
            } else {
                self.board.insert(update.agent.clone(), update);
            }
        }
    }
}
