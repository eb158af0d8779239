//! The session stage: traces in order, signals that depend on neighbours, scores of sessions, and the state of every agent on this
//! shard.
//!
//! ```text
//! TraceFacts --> Session (by tenant and id) --> Summary (by agent) --> SessionFacts
//! Report -----'   traces, scores, loops           panes, counters
//! ```
//!
//! An update replaces every lower revision of its trace. The old contribution to sums is subtracted exactly before the new one is
//! added, so signals, scores and panes are a function of the traces held, whatever their order of arrival. Verdicts and the
//! trajectory gate count a trace once: the traces that are done for the first time between two calls of `drain` are counted in the
//! order of (start, id).
//!
//! Whatever is left out is counted by (what, why):
//!
//! | What | Why | Counts |
//! |---|---|---|
//! | `trace_updates` | `malformed` | updates without a usable trace id, session, agent or state: dropped |
//! | | `stale` | updates with a lower revision than the one held: dropped |
//! | | `unheld` | updates that seal a trace that is not held as a done one: dropped |
//! | | `late` | updates of traces of an evicted session: dropped |
//! | | `session_full` | updates of further traces over `max_traces_per_session` or `max_session_bytes`, while none is done: dropped |
//! | | `agent_overflow` | updates that count towards `__overflow__` because of `max_agents` |
//! | | `tenant_overflow` | likewise because of the tenant's share of `max_agents` |
//! | `sessions` | `evicted` | sessions that were closed and dropped because of `max_sessions` or `max_bytes` |
//! | | `full` | sessions that were closed and dropped because of `max_traces_per_session` or `max_session_bytes`: their id starts a new session |
//! | | `trace_not_done` | traces that were not done when their session was evicted: in no score |
//! | `evicted_sessions` | `evicted` | sessions evicted to the session store |
//! | | `restored` | evicted sessions that were restored |
//! | | `lost` | evicted sessions whose bytes could not be read |
//! | `departed_traces` | `forgotten` | over `max_departed_traces`: they may count twice |
//! | `agents` | `forgotten` | quiet agents that were removed to make room before `agents.memory` was over |
//! | `signals` | `agent_full` | scores without sums because of `max_signals_per_agent` |
//! | `panes` | `outside_window` | windows that a done trace missed because it ended before them or too far after them |
//! | `reported_scores` | `malformed` | reported scores out of `[0,1]` or without name |
//! | `reports` | `misdirected` | reports about neither a session, a run nor a trace |
//! | | `unmatched` | reports whose session did not arrive within `report_wait`, or ended too long ago for `max_outstanding_outcomes` |
//! | | `applied`, `duplicate`, `trace_full` | reports about traces that were sealed: accepted, outranked by another one, over `max_reports_per_session` |
//! | | `waiting_full` | waiting reports dropped for newer ones over `max_waiting_reports` |
//! | | `session_full` | reports of further names over `max_reports_per_session` |
//! | `run_sessions` | `run_full` | traces of further sessions of a run over `agents.max_traces_per_run`: its outcome does not reach them |
//! | `loop_chains` | `cut` | chains of traces that were cut at `loops.max_traces`: their repetitions are counted from zero |
//! | `label_values_limited` | `agent_names` | names of agents beyond those that a session keeps |
//! | `run_outcomes` | `forgotten` | outcomes of runs forgotten before `report_wait`, for newer ones over `max_waiting_reports` |

mod bytes;
mod card;
mod chain;
mod common;
mod compact_effort;
mod departed;
mod evicted;
mod exemplar;
mod explain;
mod full;
mod gauges;
mod halves;
mod histogram;
mod linked;
mod list;
mod newest;
mod open_traces;
mod optional;
mod outcomes;
mod outstanding;
mod pane;
mod record;
mod reports;
mod restored;
mod rules;
mod run;
mod run_outcomes;
mod scoring;
mod session;
mod shard_agents;
mod summary;
mod table;
mod tally;
#[cfg(test)]
mod tests;
mod times;
mod trace_index;
mod traces;
mod verdict;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

pub(crate) use bytes::of_reported as reported_bytes;
pub use evicted::{NoSessionStore, SessionPlace, SessionStore};
pub use histogram::SCORE_BOUNDS;
pub use list::{Found, LOOK, ListPart, ListPosition, Wanted};

use common::Common;
use departed::{Departed, Fate};
use evicted::{EvictedSession, EvictedSessions};
use full::FullSessions;
use outstanding::{Ended, Outstanding, OutstandingOutcomes};
use reports::AnyScope;
use rules::Rules;
use run_outcomes::{RunIndex, RunOutcomes};
use session::{EvictionOrder, Session, ShardContext};
use shard_agents::ShardAgents;
use summary::Summary;
use table::SessionTable;
use tally::Tally;

use super::count::Counts;
use super::explained::{SessionRow, TraceExplanation};
use super::facts::{SessionFacts, SessionId, SessionKey, TraceFacts};
use super::limits::Cause;
use super::options::{AgentOptions, LoopOptions, SessionOptions};
use super::runs::tells_outcome;
use super::span::{Timestamp, TraceId};
use super::tenants::{Shares, TenantHash, TraceKey, tenant_hash};
use super::time::WallShift;
use super::view::SessionView;
use super::waiting::Waiting;

/// The sessions of one shard.
#[derive(Clone, Debug)]
pub struct Sessions {
    sessions: SessionTable,
    loops: BTreeSet<(Timestamp, Arc<SessionId>)>,
    // Numbers of sessions with verdicts to count, in no order; a session may be listed twice, or no longer exist.
    unsettled: Vec<u32>,
    evicted: EvictedSessions,
    departed: Departed,
    outstanding: OutstandingOutcomes,
    waiting: Waiting<AnyScope>,
    run_outcomes: RunOutcomes,
    open: usize,
    full: FullSessions,
    max_sessions: usize,
    max_bytes: usize,
    shares: Shares,
    shared: ShardContext,
}

/// The serialised form of a shard; `restored.rs` reads it.
#[derive(Serialize)]
struct Saved<'a> {
    sessions: &'a SessionTable,
    departed: newest::Saved<&'a BTreeMap<TraceKey, (u64, Fate)>>,
    outstanding: newest::Saved<&'a BTreeMap<Ended, (u64, Outstanding)>>,
    waiting: &'a Waiting<AnyScope>,
    run_outcomes: &'a RunOutcomes,
    runs: &'a RunIndex,
    shard_agents: shard_agents::Saved<&'a Summary>,
    now: Timestamp,
    evicted: Vec<(&'a SessionId, &'a EvictedSession)>,
}

impl Sessions {
    /// No sessions yet. `shard` goes into every message.
    pub fn new(
        shard: u32,
        options: SessionOptions,
        loops: LoopOptions,
        agents: AgentOptions,
    ) -> Self {
        let (max_sessions, max_bytes) = (options.max_sessions.max(1), options.max_bytes);
        // A run has no more sessions than traces.
        let max_sessions_per_run = agents.max_traces_per_run;
        let shard_agents = ShardAgents::new(shard, agents, options.session_idle);
        let departed = Departed::new(options.max_departed_traces);
        let outstanding = OutstandingOutcomes::new(options.max_outstanding_outcomes);
        let waiting = Waiting::new(options.max_waiting_reports, options.report_wait);
        let run_outcomes = RunOutcomes::new(options.max_waiting_reports, options.report_wait);
        let (counts, now) = (Counts::default(), Timestamp::default());
        Self {
            sessions: SessionTable::default(),
            loops: BTreeSet::new(),
            unsettled: Vec::new(),
            evicted: EvictedSessions::default(),
            departed,
            outstanding,
            waiting,
            run_outcomes,
            open: 0,
            full: FullSessions::default(),
            max_sessions,
            max_bytes,
            shares: Shares::default(),
            shared: ShardContext {
                rules: Rules::new(options, loops),
                shard_agents,
                common: Common::default(),
                counts,
                now,
                since: Timestamp::default(),
                shift: WallShift::default(),
                runs: RunIndex::default(),
                max_sessions_per_run,
                runaways: BTreeMap::new(),
                moved: None,
                stale: Vec::new(),
            },
        }
    }

    /// Sets the shares by which tenants divide its bounds.
    #[must_use]
    pub fn shared_by(mut self, shares: Shares) -> Self {
        self.shared.shard_agents.shared_by(shares.clone());
        Self { shares, ..self }
    }

    /// Applies an update of a trace, if it is not older than what is held.
    pub fn handle(&mut self, update: impl Into<Box<TraceFacts>>, now: Timestamp) {
        let mut update = update.into();
        self.advance(now);
        if !is_usable(&update) {
            self.shared.counts.add("trace_updates", "malformed");
            return;
        }
        let SessionKey { tenant, id, scope, source } = update.session.take().unwrap_or_default();
        let (id, trace) = (SessionId { tenant, id, scope }, update.trace_id);
        if update.unchanged {
            return self.seal(&id, trace, update.revision);
        }
        let number = self.sessions.number(&id);
        let held = number.and_then(|number| self.sessions.at(number));
        if held.and_then(|session| session.revision(trace)) > Some(update.revision) {
            self.shared.counts.add("trace_updates", "stale");
        } else if update.tombstone {
            self.forget(&id, trace, &update);
        } else if self.departed.is_evicted(id.trace(trace)) {
            self.shared.counts.add("trace_updates", "late");
        } else if held.is_some_and(|session| {
            session.takes_none(&self.shared.rules) && session.traces.number(trace).is_none()
        }) {
            self.shared.counts.add("trace_updates", "session_full");
            self.full.add(&id);
        } else {
            let number = number.filter(|_| !self.ends_full(&id, trace));
            let tally = self.departed.arrive(id.trace(trace)).or_else(|| Tally::of(&update));
            let waits = self.has_waiting(&id).then(|| id.clone());
            let run = self.run_of(&id, &update);
            let (mut orphaned, mut full) = (Vec::new(), None);
            let names_full = !self.full.is_empty();
            self.change(id, number, |session, shared| {
                session.upsert(update, source, tally, shared);
                if let Some((run, outcome)) = &run {
                    session.report_run(run, outcome, shared);
                }
                orphaned = session.take_orphaned_outcomes();
                let is_full = session.takes_none(&shared.rules);
                full = (is_full || names_full).then(|| (Arc::clone(&session.id), is_full));
            });
            self.remember(orphaned);
            match full {
                Some((id, true)) => self.full.add(&id),
                Some((id, false)) => self.full.remove(&id),
                None => {}
            }
            waits.iter().for_each(|id| self.deliver_waiting(id));
            while let Some(giver) = self.giver().filter(|_| !self.evicted.has_store) {
                let Some((order, id)) = self.first_to_go(giver) else { break };
                self.push_out(order, &id);
            }
        }
    }

    /// When `handle_timeout` is due next.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let sessions = ORDERS.iter().filter_map(|order| self.next_quiet(*order));
        let sessions = sessions.map(|(deadline, _)| deadline).min();
        let loops = self.loops.first().map(|(deadline, _)| *deadline);
        let edge = self.shared.shard_agents.poll_timeout(self.shared.wall());
        let shard_agents = edge.map(|edge| self.shared.shift.time(edge));
        let evicted = self.evicted.poll_timeout();
        let reports = [self.waiting.poll_timeout(), self.run_outcomes.poll_timeout()];
        [sessions, loops, evicted, shard_agents].into_iter().chain(reports).flatten().min()
    }

    /// The next moment at which a session may close because it is quiet.
    pub fn next_end(&self) -> Option<Timestamp> {
        let open = self.next_quiet(EvictionOrder::Open).map(|(deadline, _)| deadline);
        open.into_iter().chain(self.evicted.poll_timeout()).min()
    }

    /// Closes the sessions that were quiet for long enough, and evicts the closed ones that were quiet for as long again.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.advance(now);
        let now = self.shared.now;
        for order in ORDERS {
            while let Some((_, number)) = self.next_quiet(order).filter(|(due, _)| *due <= now) {
                let Some(session) = self.sessions.at(number) else { break };
                let id = Arc::clone(&session.id);
                match order {
                    _ if self.sessions.refile(number) => {}
                    EvictionOrder::Open => {
                        self.change_known(&id, |session, shared| session.close(IDLE, shared));
                    }
                    EvictionOrder::Closed if self.stays(number) => {}
                    EvictionOrder::Empty | EvictionOrder::Closed => self.evict(&id),
                }
            }
        }
        while let Some((_, id)) = self.loops.first().filter(|(due, _)| *due <= now).cloned() {
            self.change_known(&id, Session::refresh);
        }
        self.give_up_reports(now);
        self.run_outcomes.handle_timeout(now);
        let forgotten = self.shared.shard_agents.handle_timeout(self.shared.shift.moment(now));
        self.shared.counts.add_many("agents", "forgotten", forgotten as u64);
    }

    /// Notes that the wall clock was set: it is ahead of the stage's time by `shift` from here on. No timer moves; ends of traces
    /// are compared with the new wall time, and traces that are then in no window leave their panes.
    pub fn shift_to(&mut self, shift: WallShift) {
        let is_back = shift < self.shared.shift;
        if shift != self.shared.shift {
            self.shared.shift = shift;
            self.shared.shard_agents.stepped(shift.moment(self.shared.now), is_back);
        }
    }

    /// Notes that this process owns the shard from `now` on: before that it could not have noticed arrivals. No timer runs.
    pub fn take_over(&mut self, now: Timestamp) {
        self.shared.since = now.max(self.shared.now);
        let is_silent = |session: &&Session| {
            session.restless.as_ref().is_some_and(|restless| !restless.silent.is_empty())
        };
        let silent = self.sessions.iter().filter(is_silent).map(|session| Arc::clone(&session.id));
        for id in silent.collect::<Vec<_>>() {
            self.change_known(&id, Session::refresh);
        }
    }

    /// Closes all sessions at the end of the input. They can still be read.
    pub fn finish(&mut self, now: Timestamp) {
        self.advance(now);
        let places = self.sessions.iter().map(|session| (session.place(), Arc::clone(&session.id)));
        let mut open: Vec<_> =
            places.filter(|((order, _), _)| *order == EvictionOrder::Open).collect();
        open.sort_unstable();
        for (_, id) in open {
            self.change_known(&id, |session, shared| session.close(FINISHED, shared));
        }
    }

    /// One update for every agent that changed, in the order of their keys: its complete state, but only those panes that changed.
    pub fn drain(&mut self) -> Vec<SessionFacts> {
        self.drain_some(usize::MAX)
    }

    /// The same for at most `most` agents; empty once every change has been sent.
    pub fn drain_some(&mut self, most: usize) -> Vec<SessionFacts> {
        let mut unsettled = std::mem::take(&mut self.unsettled);
        let begun = |number: u32| self.sessions.at(number)?.first().map(|first| first.start);
        let name = |number: u32| self.sessions.name(number);
        unsettled.sort_unstable_by(|one, other| {
            begun(*one).cmp(&begun(*other)).then_with(|| name(*one).cmp(&name(*other)))
        });
        for number in unsettled {
            if let Some(session) = self.sessions.at_mut(number) {
                session.settle(&mut self.shared);
            }
        }
        self.shared.shard_agents.drain(most)
    }

    /// Whether something changed that pages people: a session began to run away.
    pub fn is_urgent(&self) -> bool {
        self.shared.shard_agents.is_urgent()
    }

    /// Marks every agent as changed, with all of its panes, for receivers that forget old messages.
    pub fn tell_all(&mut self) {
        self.shared.shard_agents.tell_all();
    }

    /// Like [`Sessions::drain_some`], but only for agents with an urgent change; only `drain_some` counts verdicts of done traces.
    pub fn drain_urgent(&mut self, most: usize) -> Vec<SessionFacts> {
        self.shared.shard_agents.drain_urgent(most)
    }

    /// The session in memory that has this id, explained; `None` if there is none, or several. The tenant is empty without
    /// tenants.
    pub fn session(&self, tenant: &str, id: &str) -> Option<SessionView> {
        match self.found((tenant, id, None), &NoSessionStore) {
            Found::One(session) => Some(*session),
            Found::Nothing | Found::Several(_) => None,
        }
    }

    /// The sessions with this id and, if given, this scope, in memory or evicted. Evicted ones stay evicted.
    pub fn found(
        &self,
        session: (&str, &str, Option<&str>),
        session_store: &dyn SessionStore,
    ) -> Found {
        let known = self.known(session);
        match &known[..] {
            [] => Found::Nothing,
            [id] => {
                self.session_in(id, session_store).map(Box::new).map_or(Found::Nothing, Found::One)
            }
            several => Found::Several(several.iter().map(|id| id.scope.to_string()).collect()),
        }
    }

    /// One session, explained, in memory or evicted; `None` if there is none with this id.
    pub fn session_in(
        &self,
        id: &SessionId,
        session_store: &dyn SessionStore,
    ) -> Option<SessionView> {
        let session = self.session_ref(id, session_store)?;
        (!session.traces.is_empty()).then(|| view::session(&session, &self.shared.rules))
    }

    /// The first of the matching sessions after a number, until so much work was done: a card costs 1, a session that has to be
    /// read costs [`LOOK`] and as much for each of its traces. A session that is evicted and restored between two parts may be in
    /// both.
    pub fn places(&self, after: Option<u32>, wanted: &Wanted<'_>, budget: usize) -> ListPart {
        list::places(&self.sessions, after, wanted, budget)
    }

    /// Rows of these sessions, until `budget` traces were read, but at least one row; `None` for sessions that are not held.
    pub fn rows(&self, ids: &[SessionId], budget: usize) -> Vec<Option<SessionRow>> {
        list::rows(&self.sessions, ids, budget, &self.shared.rules)
    }

    /// Why a trace has its score; `None` if no session with this id and, if given, this scope holds it.
    pub fn explain(
        &self,
        session: (&str, &str, Option<&str>),
        trace: TraceId,
        session_store: &dyn SessionStore,
    ) -> Option<TraceExplanation> {
        let known = self.known(session).into_iter();
        let mut seen = known.filter_map(|id| self.session_ref(&id, session_store));
        seen.find_map(|session| explain::explain(&session, trace, &self.shared.rules))
    }

    /// All sessions in memory, by the start of their first trace, then id.
    pub fn sessions(&self) -> impl Iterator<Item = SessionView> {
        let sessions = self.sessions.iter();
        let mut ordered: Vec<_> =
            sessions.filter_map(|session| Some((session.first()?.start, session))).collect();
        ordered.sort_by(|(a, one), (b, other)| {
            let named = |id: &'_ SessionId| (id.id.clone(), id.tenant.clone(), id.scope.clone());
            (a, named(&one.id)).cmp(&(b, named(&other.id)))
        });
        let sessions = ordered.into_iter();
        sessions.map(|(_, session)| view::session(session, &self.shared.rules))
    }

    /// Sessions in which a loop with more evidence than names began or became critical, or that exceeded a limit, since the last
    /// call; with the worst cause and the time when it was noticed.
    pub fn runaways(&mut self) -> Vec<(Arc<SessionId>, Cause, Timestamp)> {
        let runaways = std::mem::take(&mut self.shared.runaways).into_iter();
        runaways.map(|((id, _), (cause, at))| (id, cause, at)).collect()
    }

    /// Sessions that accept no further trace, if they have changed since the last call; only some of them, if there are very many.
    pub fn full_sessions(&mut self) -> Option<BTreeSet<Arc<SessionId>>> {
        self.full.news()
    }

    /// Counts of what was left out so far.
    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// Restarts counts from zero, also for every agent: counters belong to a process.
    pub fn restart_counts(&mut self) {
        self.shared.counts = Counts::default();
        self.shared.shard_agents.restart_counts();
    }

    /// The state that outlives the process; nothing may be waiting to be drained.
    pub fn save(&self) -> impl Serialize + '_ {
        Saved {
            sessions: &self.sessions,
            departed: self.departed.save(),
            outstanding: self.outstanding.save(),
            waiting: &self.waiting,
            run_outcomes: &self.run_outcomes,
            runs: &self.shared.runs,
            shard_agents: self.shared.shard_agents.save(),
            now: self.shared.now,
            evicted: self.evicted.save(),
        }
    }

    /// How many sessions are open.
    pub fn open_sessions(&self) -> usize {
        self.open
    }

    /// How many sessions are in memory, closed ones included.
    pub fn held_sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Estimated bytes of memory of these sessions.
    pub fn held_bytes(&self) -> usize {
        self.sessions.bytes()
    }

    /// Sets the bytes that sessions may take, in place of `session.max_bytes`; it is enforced from the next input on.
    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    /// How many agents are known to this shard.
    pub fn agents(&self) -> usize {
        self.shared.shard_agents.len()
    }

    fn advance(&mut self, now: Timestamp) {
        self.shared.now = self.shared.now.max(now);
    }

    /// Removes a trace that moved to another session, and keeps its tally for that one.
    fn forget(&mut self, id: &SessionId, trace: TraceId, update: &TraceFacts) {
        let mut tally = None;
        let (mut orphaned, mut outcomes) = (Vec::new(), Vec::new());
        self.change(id.clone(), self.sessions.number(id), |session, shared| {
            session.touch(Timestamp(update.touched_unix_nano), shared);
            tally = session.remove(trace, update.revision, shared);
            orphaned = session.take_unscoped_reports();
            if let Some(tally) = tally.as_mut().filter(|_| orphaned.iter().any(tells_outcome)) {
                tally.session_outcome =
                    std::mem::take(&mut session.rare_mut().has_reported_outcome);
            }
            outcomes = session.take_orphaned_outcomes();
        });
        self.full.remove(id);
        orphaned.into_iter().for_each(|report| self.let_wait(report));
        self.remember(outcomes);
        if self.has_waiting(id) {
            self.deliver_waiting(id);
        }
        self.leave(id.trace(trace), tally);
    }

    /// If the session is full and this trace is new, ends the session so that its id starts a new one; returns whether it was full.
    /// What it has counted stays, and its done traces are final. Traces that are not done, or that have counted nothing yet, belong
    /// to the new session from their next update on.
    fn ends_full(&mut self, id: &SessionId, newcomer: TraceId) -> bool {
        let is_full = |session: &&Session| {
            session.is_full(&self.shared.rules) && session.traces.number(newcomer).is_none()
        };
        let Some(session) = self.sessions.get(id).filter(is_full) else { return false };
        let id = Arc::clone(&session.id);
        for (trace, revision) in session.unfinished().collect::<Vec<_>>() {
            let mut tally = None;
            self.change_known(&id, |session, shared| {
                tally = session.remove(trace, revision, shared);
            });
            self.leave(id.trace(trace), tally);
        }
        self.change_known(&id, |session, shared| session.close(FULL, shared));
        self.shared.counts.add("sessions", FULL);
        self.evict(&id);
        true
    }

    /// Keeps what a trace that leaves its session has counted, for its next session.
    fn leave(&mut self, trace: TraceKey, tally: Option<Tally>) {
        if let Some(tally) = tally.filter(|tally| !tally.is_nothing()) {
            let fate = Fate::Moved(Box::new(tally));
            let forgotten = self.departed.insert(trace, fate, &self.shares);
            self.shared.counts.add_many("departed_traces", "forgotten", u64::from(forgotten));
        }
    }

    /// Changes the session of this number, or a new one if it has none, and files it again.
    fn change(
        &mut self,
        id: SessionId,
        number: Option<u32>,
        change: impl FnOnce(&mut Session, &mut ShardContext),
    ) {
        if let Some(number) = number {
            return self.change_at(number, change);
        }
        if !self.evicted.has_store && self.sessions.len() >= self.max_sessions {
            self.make_room(tenant_hash(Some(&id.tenant)));
        }
        let mut session = Box::new(Session::new(Arc::new(id), &self.shared));
        change(&mut session, &mut self.shared);
        self.file(session);
    }

    /// Changes a session, if it is in memory, and files it again.
    fn change_known(
        &mut self,
        id: &SessionId,
        change: impl FnOnce(&mut Session, &mut ShardContext),
    ) {
        if let Some(number) = self.sessions.number(id) {
            self.change_at(number, change);
        }
    }

    /// Changes the session of a number, and files it again.
    fn change_at(&mut self, number: u32, change: impl FnOnce(&mut Session, &mut ShardContext)) {
        let Some(session) = self.sessions.at_mut(number) else { return };
        let (before, deadline, waits) =
            (session.place(), session.deadline(), session.is_unsettled());
        let bytes = session.bytes();
        change(session, &mut self.shared);
        let after = session.place();
        self.open -= usize::from(before.0 == EvictionOrder::Open);
        self.open += usize::from(after.0 == EvictionOrder::Open);
        if deadline != session.deadline() {
            if let Some(at) = deadline {
                self.loops.remove(&(at, Arc::clone(&session.id)));
            }
            if let Some(at) = session.deadline() {
                self.loops.insert((at, Arc::clone(&session.id)));
            }
        }
        if !waits && session.is_unsettled() {
            self.unsettled.push(number);
        }
        // A session that belongs later in the same order stays where it is filed until its turn comes.
        let filed = session.filed();
        let moves = after.0 != filed.0 || after < filed;
        let placed = session.placed.as_ref().map(|(_, scores)| *scores);
        let card = session.card(placed.unwrap_or_else(|| session.scores(&self.shared.rules)));
        self.sessions.set_card(number, card);
        self.sessions.resized(number, bytes);
        if let Some(trace) = self.shared.moved.take() {
            self.sessions.moved(trace, number);
        }
        if moves {
            self.sessions.refile(number);
        }
    }

    /// Seals a trace.
    fn seal(&mut self, id: &SessionId, trace: TraceId, revision: u64) {
        let session = self.sessions.get_mut(id);
        let shard_agents = &mut self.shared.shard_agents;
        let sealed =
            session.and_then(|session| session.traces.get_mut(trace)?.seal(revision, shard_agents));
        if let Some(agent) = sealed {
            self.shared.shard_agents.summary(&agent).active = self.shared.now;
        } else if !self.departed.is_evicted(id.trace(trace)) {
            self.shared.counts.add("trace_updates", "unheld");
        }
    }

    /// Removes a session from the indexes.
    fn unfile(&mut self, session: &Session) {
        self.open -= usize::from(session.place().0 == EvictionOrder::Open);
        if let Some(deadline) = session.deadline() {
            self.loops.remove(&(deadline, Arc::clone(&session.id)));
        }
    }

    /// Adds a session to the indexes.
    fn file(&mut self, mut session: Box<Session>) {
        self.open += usize::from(session.place().0 == EvictionOrder::Open);
        if let Some(deadline) = session.deadline() {
            self.loops.insert((deadline, Arc::clone(&session.id)));
        }
        let (card, waits) =
            (session.card(session.scores(&self.shared.rules)), session.is_unsettled());
        let number = self.sessions.insert(session, card);
        if waits {
            self.unsettled.push(number);
        }
    }

    /// Evicts one session to make room for one of this tenant.
    fn make_room(&mut self, newcomer: TenantHash) {
        let tenant = self.sessions.most_over_share(&self.shares, Some(newcomer));
        if let Some((order, id)) = tenant.and_then(|tenant| self.first_to_go(tenant)) {
            self.push_out(order, &id);
        }
    }

    /// The tenant that has to make room, if there are too many sessions or they take too many bytes.
    fn giver(&self) -> Option<TenantHash> {
        if self.sessions.len() > self.max_sessions {
            return self.sessions.most_over_share(&self.shares, None);
        }
        let is_over = self.sessions.bytes() > self.max_bytes;
        is_over.then(|| self.sessions.greediest_in_bytes(&self.shares))?
    }

    /// The session of a tenant to evict first: an empty one, else the one that closed first, else the quietest.
    fn first_to_go(&mut self, tenant: TenantHash) -> Option<(EvictionOrder, Arc<SessionId>)> {
        loop {
            let first = self.sessions.first_to_go(tenant)?;
            let number = self.sessions.number(&first.1);
            if !number.is_some_and(|number| self.sessions.refile(number)) {
                return Some(first);
            }
        }
    }

    /// Closes a session and drops it, for want of room.
    fn push_out(&mut self, order: EvictionOrder, id: &Arc<SessionId>) {
        if order == EvictionOrder::Open {
            self.change_known(id, |session, shared| session.close(EVICTED, shared));
        }
        self.shared.counts.add_many(
            "sessions",
            "evicted",
            u64::from(order != EvictionOrder::Empty),
        );
        self.evict(id);
    }

    /// Keeps a session for another `session_idle` if one of its traces has not been counted at all; returns whether that is so.
    fn stays(&mut self, number: u32) -> bool {
        let idle = self.shared.rules.session_idle;
        let Some(session) = self.sessions.at_mut(number).filter(|session| session.is_uncertain())
        else {
            return false;
        };
        session.touched = session.touched.after(idle);
        self.sessions.refile(number);
        true
    }

    /// Drops a session that is closed or empty.
    fn evict(&mut self, id: &Arc<SessionId>) {
        let Some(mut session) = self.sessions.remove(id) else { return };
        self.unfile(&session);
        session.settle(&mut self.shared);
        // An outcome that was reported since it last ended is no longer outstanding.
        self.outstanding.remove(&Ended::Session(Arc::clone(id)));
        for (subject, ended) in session.outstanding_outcomes() {
            self.outstanding.insert(subject, ended, &self.shares);
        }
        self.full.remove(id);
        self.shared.runaways.retain(|(runaway, _), _| runaway != id);
        for trace in session.evict(&mut self.shared) {
            let forgotten = self.departed.insert(id.trace(trace), Fate::Evicted, &self.shares);
            self.shared.counts.add_many("departed_traces", "forgotten", u64::from(forgotten));
        }
    }

    /// The earliest deadline of the sessions filed under an order, and the number of that session.
    fn next_quiet(&self, order: EvictionOrder) -> Option<(Timestamp, u32)> {
        let idle = self.shared.rules.session_idle;
        let (quiet, number) = self.sessions.quietest(order)?;
        let due = match order {
            EvictionOrder::Empty | EvictionOrder::Open => quiet.after(idle),
            EvictionOrder::Closed => quiet.after(idle).after(idle),
        };
        Some((due, number))
    }
}

/// Whether an update identifies its trace and session.
fn is_usable(update: &TraceFacts) -> bool {
    let is_complete = update.tombstone || update.unchanged || update.agent.is_some();
    let is_of_session = update.session.as_ref().is_some_and(|session| !session.id.is_empty());
    !update.trace_id.is_zero() && is_complete && is_of_session
}

/// Open sessions first: a session that closes may be due for eviction right away.
const ORDERS: [EvictionOrder; 3] =
    [EvictionOrder::Open, EvictionOrder::Closed, EvictionOrder::Empty];

/// Why sessions close.
const IDLE: &str = "idle";
/// It had as many traces, or bytes of them, as a session may have.
const FULL: &str = "full";
/// It had to make room.
const EVICTED: &str = "evicted";
/// The input ended.
const FINISHED: &str = "finished";
