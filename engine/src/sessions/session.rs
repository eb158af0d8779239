//! One session: its traces in order, and its scores, kept up to date with every change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::IDLE;
use super::card::{AgentsHeld, Listed};
use super::common::Common;
use super::compact_effort::{CompactEffort, CompactUsage};
use super::open_traces::OpenTraces;
use super::outcomes::SessionRuns;
use super::pane::{Mark, PaneSet, Widths};
use super::record::{CarriedOver, Contribution, TraceRecord};
use super::rules::Rules;
use super::run;
use super::run_outcomes::RunIndex;
use super::scoring::Scoring;
use super::shard_agents::ShardAgents;
use super::summary::SessionScores;
use super::tally::Tally;
use super::traces::Traces;
use super::verdict::{self, Gates, PASS, evaluate, verdict};
use crate::count::Counts;
use crate::counters::Counter;
use crate::facts::{AgentKey, SessionId, TraceFacts, TraceState};
use crate::limits::{Cause, LimitSet, RunLimit};
use crate::predict::EffortBuckets;
use crate::score::agent_consistency::AgentConsistency;
use crate::score::agent_reliability::AgentReliability;
use crate::silences::Level;
use crate::span::{Report, Timestamp, TraceId};
use crate::time::WallShift;

/// Which sessions are evicted first.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum EvictionOrder {
    /// Sessions whose traces have all moved to other sessions.
    #[default]
    Empty,
    /// Sessions that were quiet for `session_idle`.
    Closed,
    /// Sessions that may still get traces.
    Open,
}

/// What all sessions of a shard share.
#[derive(Clone, Debug)]
pub(super) struct ShardContext {
    pub(super) rules: Rules,
    pub(super) shard_agents: ShardAgents,
    /// Parts that are equal in many trace records.
    pub(super) common: Common,
    pub(super) counts: Counts,
    /// The stage's time, which never goes back.
    pub(super) now: Timestamp,
    /// When this process took the shard over: it could not notice arrivals before, so silence counts from then.
    pub(super) since: Timestamp,
    /// How far wall time is ahead of the stage's time.
    pub(super) shift: WallShift,
    /// For each run, the sessions that have traces of it.
    pub(super) runs: RunIndex,
    /// Most sessions of one run that its outcome reaches.
    pub(super) max_sessions_per_run: usize,
    /// Sessions that began to run away since this list was last taken, by kind, with the worst cause and the time when the first
    /// was noticed. Invariant: all are in memory.
    pub(super) runaways: BTreeMap<(Arc<SessionId>, &'static str), (Cause, Timestamp)>,
    /// The trace that the session being changed has just gained or lost, if any.
    pub(super) moved: Option<TraceId>,
    /// A buffer for the traces that a change makes stale; empty between changes.
    pub(super) stale: Vec<TraceId>,
}

impl ShardContext {
    /// Wall time, with which ends of traces are compared.
    pub(super) fn wall(&self) -> Timestamp {
        self.shift.wall(self.now)
    }
}

/// The part of a session that changes as time passes: running loops, exceeded limits, stalled traces.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct TimedState {
    /// When a loop or a limit is no longer shown, or an open trace has been silent for long enough to be shown.
    pub(super) deadline: Option<Timestamp>,
    /// Traces whose loops have grown.
    pub(super) growing: BTreeSet<TraceId>,
    /// Limits that are exceeded, by a trace or (`None`) by the session: the amount used (0: the limit was exceeded, but is no
    /// longer), and when that last grew, which may be long ago.
    pub(super) over: BTreeMap<(Option<TraceId>, RunLimit), (u64, Timestamp)>,
    /// Causes for which its agents count the session as running away.
    pub(super) runaways: BTreeSet<(AgentKey, Cause)>,
    /// Traces that are open and do not wait for a person.
    pub(super) open: OpenTraces,
    /// How many open traces have been silent for long, by agent and level.
    pub(super) silent: BTreeMap<(AgentKey, Level), u64>,
}

/// The parts that few sessions have.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Rare {
    // Revisions at which traces moved elsewhere: an older update must not bring them back.
    left: BTreeMap<TraceId, u64>,
    pub(super) reports: BTreeMap<Arc<str>, Report>,
    /// Present exactly while any of its traces belongs to a run at a task.
    pub(super) runs: Option<Box<SessionRuns>>,
    /// Whether the session's outcome was sent to an agent.
    pub(super) has_reported_outcome: bool,
    /// The reliability over the traces that the judge was asked about, with its scores.
    pub(super) judged: AgentReliability,
}

/// One session. Everything derived is a function of its traces, whatever their order of arrival.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Session {
    pub(super) id: Arc<SessionId>,
    // The pane widths that the bits of its `PaneSet`s stand for.
    widths: Widths,
    pub(super) traces: Traces,
    pub(super) rare: Option<Box<Rare>>,
    // Its time in the session table's order of eviction.
    #[serde(skip)]
    filed_at: Timestamp,
    #[serde(skip)]
    filed_under: EvictionOrder,
    /// Arrival time of the newest update or report.
    pub(super) touched: Timestamp,
    pub(super) closed: bool,
    close_counted: bool,
    /// Reliability from what all traces have: without the judge's scores.
    pub(super) reliability: AgentReliability,
    // Consistency, likewise; the number of traces that have it takes less room.
    uncertainty_squares: i128,
    measured: u32,
    /// How many of its traces are done and count in scores.
    pub(super) done: u32,
    // In the order of agents. For each agent, the end and the panes of its newest done trace: the session counts in those panes.
    marks: SmallVec<[(AgentKey, Mark); 1]>,
    gates: Arc<Gates>,
    // Done traces whose verdicts are not counted yet.
    unsettled: SmallVec<[TraceId; 1]>,
    pub(super) placed: Option<(AgentKey, SessionScores)>,
    /// Present exactly while it is not empty.
    pub(super) restless: Option<Box<TimedState>>,
    /// The effort of its done traces, without the answer.
    pub(super) took: CompactEffort,
    /// Whether `took` or the answer may differ from `spent`.
    #[serde(skip)]
    pub(super) effort_changed: bool,
    /// The effort of the session as last sent to its agent.
    pub(super) spent: Option<AnnouncedEffort>,
    /// The total usage of all its traces.
    pub(super) used: CompactUsage,
    /// Limits of the session whose excess is counted.
    pub(super) over: LimitSet,
    /// The contribution of its traces to its card.
    #[serde(skip)]
    pub(super) listed: Listed,
    // Bytes of memory of its traces.
    #[serde(skip)]
    pub(super) trace_bytes: usize,
}

/// What a new record of a trace replaces and affects.
struct Replaced {
    /// The contribution of the previous record.
    given: Option<Contribution>,
    /// The position of the previous record, if it was different.
    before: Option<(Timestamp, TraceId)>,
}

/// The effort of a session, as sent to its agent.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct AnnouncedEffort {
    pub(super) agent: AgentKey,
    pub(super) start: Timestamp,
    pub(super) effort: EffortBuckets,
}

impl Session {
    /// A session without traces.
    pub(super) fn new(id: Arc<SessionId>, shared: &ShardContext) -> Self {
        Self {
            id,
            widths: shared.shard_agents.widths(),
            traces: Traces::default(),
            rare: None,
            filed_at: Timestamp::default(),
            filed_under: EvictionOrder::default(),
            touched: Timestamp::default(),
            closed: false,
            close_counted: false,
            reliability: AgentReliability::default(),
            uncertainty_squares: 0,
            measured: 0,
            done: 0,
            marks: SmallVec::new(),
            gates: shared.common.no_gates(),
            unsettled: SmallVec::new(),
            placed: None,
            restless: None,
            took: CompactEffort::default(),
            effort_changed: false,
            spent: None,
            used: CompactUsage::default(),
            over: LimitSet::default(),
            listed: Listed::default(),
            trace_bytes: 0,
        }
    }

    /// Estimated bytes of memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.id.id.len() + self.trace_bytes
    }

    /// Whether it accepts no further trace: it is full, and as none of its traces is done, it cannot be closed and restarted.
    pub(super) fn takes_none(&self, rules: &Rules) -> bool {
        self.done == 0 && self.is_full(rules)
    }

    /// Its traces that will need updates, as they are open or nothing of them is counted yet, with their revisions.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = (TraceId, u64)> {
        let unfinished = |record: &&TraceRecord| match record.state {
            TraceState::Open => true,
            TraceState::Done => record.course.uncertain,
            TraceState::Sealed => false,
        };
        self.traces.iter().filter(unfinished).map(|record| (record.id, record.revision))
    }

    /// Whether it has as many traces, or bytes of them, as it may have.
    pub(super) fn is_full(&self, rules: &Rules) -> bool {
        self.traces.len() >= rules.max_traces || self.trace_bytes >= rules.max_session_bytes
    }

    /// Makes a deserialised session part of this shard: shares its common parts with others, and translates its panes to the
    /// configured widths.
    pub(super) fn adopt(&mut self, shared: &mut ShardContext) {
        let widths = shared.shard_agents.widths();
        for record in self.traces.iter_mut() {
            shared.common.share(record);
            record.panes = record.panes.translated(&self.widths, &widths);
        }
        for (_, (_, panes)) in &mut self.marks {
            *panes = panes.translated(&self.widths, &widths);
        }
        self.widths = widths;
        self.gates = shared.common.share_gates(&self.gates);
        self.trace_bytes = self.traces.iter().map(TraceRecord::bytes).sum();
        self.list();
    }

    /// Its place in the order of eviction.
    pub(super) fn place(&self) -> (EvictionOrder, Timestamp) {
        let order = match (self.traces.is_empty(), self.closed) {
            (true, _) => EvictionOrder::Empty,
            (false, true) => EvictionOrder::Closed,
            (false, false) => EvictionOrder::Open,
        };
        (order, self.touched)
    }

    /// Its position in the session table: that in the order of eviction, or an earlier one.
    pub(super) fn filed(&self) -> (EvictionOrder, Timestamp) {
        (self.filed_under, self.filed_at)
    }

    /// Notes that the session table files it at its position in the order of eviction; returns that position.
    pub(super) fn file(&mut self) -> (EvictionOrder, Timestamp) {
        (self.filed_under, self.filed_at) = self.place();
        self.filed()
    }

    /// The last revision of a trace that is here or has moved elsewhere.
    pub(super) fn revision(&self, trace: TraceId) -> Option<u64> {
        let held = self.traces.get(trace).map(|record| record.revision);
        held.max(self.rare().left.get(&trace).copied())
    }

    /// The parts that few sessions have; empty where this one has none.
    pub(super) fn rare(&self) -> &Rare {
        self.rare.as_deref().unwrap_or(&NOTHING)
    }

    /// The mutable parts that few sessions have; added if this one has none.
    pub(super) fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// When `refresh` has something to change; see [`TimedState::deadline`].
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.restless.as_ref()?.deadline
    }

    /// Whether it has done traces whose verdicts are not counted yet.
    pub(super) fn is_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// Adds a trace, or replaces its record; `source` is what named the session, `tally` is what the trace has counted elsewhere.
    pub(super) fn upsert(
        &mut self,
        update: Box<TraceFacts>,
        source: Arc<str>,
        tally: Option<Tally>,
        shared: &mut ShardContext,
    ) {
        self.touch(Timestamp(update.touched_unix_nano), shared);
        let unnamed = AgentKey::default();
        let is_certain = !update.uncertain;
        let key = update.agent.as_ref().unwrap_or(&unnamed);
        let (agent, overflow) = shared.shard_agents.resolve(key, is_certain);
        overflow.into_iter().for_each(|why| shared.counts.add("trace_updates", why));
        let summary = shared.shard_agents.hold(&agent, is_certain);
        summary.active = shared.now;
        summary.last_heard =
            summary.last_heard.max(Timestamp(update.last_heard_unix_nano).min(shared.now));
        let last = self.traces.last_place();
        let record = TraceRecord::new(update, agent, source, &mut shared.common);
        let (trace, place) = (record.id, record.position());
        if let Some(rare) = &mut self.rare {
            rare.left.remove(&trace);
        }
        if tally.as_ref().is_some_and(|tally| tally.session_outcome) {
            self.rare_mut().has_reported_outcome = true;
        }
        let runs = self.change_run(trace, Some(&record), shared);
        let mut stale = std::mem::take(&mut shared.stale);
        let Replaced { mut given, before } = self.hold(record, tally, &mut stale, shared);
        stale.push(trace);
        let places = [place, before.unwrap_or(place)];
        stale.extend(self.relink(&places[..1 + usize::from(before.is_some())], shared));
        stale.extend(self.traces_with_changed_outcome(last));
        stale.extend(self.outlived_in_runs(runs));
        stale.sort_unstable();
        stale.dedup();
        for stale in &stale {
            let former = if *stale == trace { given.take() } else { None };
            let malformed = self.rescore(*stale, former, shared);
            if *stale == trace {
                shared.counts.add_many("reported_scores", "malformed", malformed);
            }
        }
        self.note_refused(trace, shared);
        stale.iter().for_each(|trace| self.grow(*trace, shared.now));
        stale.clear();
        // Releases the memory of a long chain.
        stale.shrink_to(STALE);
        shared.stale = stale;
        self.hold_against_limits(trace, shared);
        self.tell_outcome(shared);
        if self.closed {
            self.count_close(IDLE, shared);
        }
        self.refresh(shared);
    }

    /// Inserts a record, or replaces the previous one of the trace; adds the later traces whose scores depend on its output.
    fn hold(
        &mut self,
        mut record: TraceRecord,
        tally: Option<Tally>,
        stale: &mut Vec<TraceId>,
        shared: &mut ShardContext,
    ) -> Replaced {
        let place = record.position();
        self.used = self.used.sums().plus(record.usage().sums).into();
        self.trace_bytes += record.bytes();
        let number = self.traces.number(record.id);
        self.note_agent(&record, number);
        if let Some(number) = number {
            self.listed.remove(&self.traces[number]);
        }
        self.listed.add(&record);
        let Some(number) = number else {
            shared.moved = Some(record.id);
            record.go_on_from(CarriedOver::from(tally.unwrap_or_default()));
            self.traces.insert(record);
            stale.extend(self.traces.after(place));
            return Replaced { given: None, before: None };
        };
        let old = &mut self.traces[number];
        old.end_silence(&record, shared.since, shared.rules.stall_after);
        self.used = self.used.sums().minus(old.usage().sums).into();
        self.trace_bytes -= old.bytes();
        shared.shard_agents.summary(old.agent()).held -= 1;
        let given = old.contribution();
        if old.start == record.start && old.output() == record.output() {
            let old = std::mem::replace(old, record);
            self.traces[number].go_on_from(old.into_carried_over());
            return Replaced { given, before: None };
        }
        let before = old.position();
        stale.extend(self.traces.after(before));
        let old = self.traces.remove(record.id);
        record.go_on_from(old.map(TraceRecord::into_carried_over).unwrap_or_default());
        self.traces.insert(record);
        stale.extend(self.traces.after(place));
        Replaced { given, before: Some(before) }
    }

    /// Removes a trace that moves to another session with `revision`; returns what it has counted.
    pub(super) fn remove(
        &mut self,
        trace: TraceId,
        revision: u64,
        shared: &mut ShardContext,
    ) -> Option<Tally> {
        let left = &mut self.rare_mut().left;
        if left.len() < shared.rules.max_traces || left.contains_key(&trace) {
            left.insert(trace, revision);
        } else {
            shared.counts.add("departed_traces", "forgotten");
        }
        if self.unsettled.contains(&trace) {
            // Its verdicts count here, as it was done here first.
            self.settle(shared);
        }
        let last = self.traces.last_place();
        let runs = self.change_run(trace, None, shared);
        let mut record = self.traces.remove(trace)?;
        shared.moved = Some(trace);
        self.used = self.used.sums().minus(record.usage().sums).into();
        self.trace_bytes -= record.bytes();
        self.listed.remove(&record);
        if self.listed.agents == AgentsHeld::Several {
            self.listed.agents = AgentsHeld::Unknown;
        }
        if let Some(given) = record.contribution() {
            self.remove_contribution(&given, trace, shared);
            self.retake(Some(given.took), None, shared);
        }
        record.tell_run(None, &mut shared.shard_agents);
        shared.shard_agents.summary(record.agent()).held -= 1;
        self.unsettled.retain(|other| *other != trace);
        if let Some(restless) = &mut self.restless {
            restless.growing.remove(&trace);
            restless.open.remove(trace);
        }
        self.leave_limits(trace, &shared.rules);
        let mut stale: Vec<TraceId> = self.traces.after(record.position()).collect();
        self.hand_on_loop_counts(&mut record);
        stale.extend(self.relink(&[record.position()], shared));
        stale.extend(self.traces_with_changed_outcome(last));
        stale.extend(self.outlived_in_runs(runs));
        stale.sort_unstable();
        stale.dedup();
        for trace in stale {
            self.rescore(trace, None, shared);
        }
        self.tell_outcome(shared);
        self.refresh(shared);
        Some(record.tally())
    }

    /// Counts the verdicts of traces that are done for the first time, in the order of their starts.
    pub(super) fn settle(&mut self, shared: &mut ShardContext) {
        let mut unsettled = std::mem::take(&mut self.unsettled);
        unsettled.sort_unstable_by_key(|trace| self.traces.number(*trace));
        for trace in unsettled {
            let Some(number) = self.traces.number(trace) else { continue };
            let record = &self.traces[number];
            if record.panes.is_empty() || record.course.uncertain {
                continue;
            }
            let has_outcome = verdict::outcome(&self.traces[number]).is_some();
            self.traces[number].settle(has_outcome);
            let (record, earlier) = (&self.traces[number], self.traces.earlier(number));
            let done = verdict::done(record, &self.id, earlier, &shared.rules);
            let mut gates = shared.common.room_for_gates(&self.gates);
            evaluate(record, done, &mut gates, &shared.rules, &mut shared.shard_agents);
            self.gates = shared.common.gates(gates);
            let over = record.count_names(&mut shared.shard_agents);
            shared.counts.add_many("label_values_limited", "agent_names", over);
            let silences = &mut shared.shard_agents.summary(record.agent()).silences;
            let quiet = record.silent_for(shared.now, shared.since);
            let lost = record.lost(quiet, shared.rules.stall_after);
            silences.count(record.silence(), lost, shared.now);
            self.traces[number].count(&mut shared.shard_agents);
        }
    }

    /// Closes the session and counts its verdict, once.
    pub(super) fn close(&mut self, reason: &str, shared: &mut ShardContext) {
        self.settle(shared);
        self.closed = true;
        self.tell_outcome(shared);
        self.count_close(reason, shared);
        self.refresh(shared);
    }

    /// Counts the session's verdict, once, as soon as its agent is certain.
    fn count_close(&mut self, reason: &str, shared: &mut ShardContext) {
        let first = self.first().filter(|first| !first.course.uncertain);
        let Some(agent) = first.map(|first| first.agent().clone()).filter(|_| !self.close_counted)
        else {
            return;
        };
        self.close_counted = true;
        let (scores, worst) = (self.scores(&shared.rules), self.worst());
        let verdict = verdict(scores.reliability(), PASS);
        let summary = shared.shard_agents.summary(&agent);
        summary.count(Counter::SessionsClosed, &[reason, verdict.name()], 1);
        summary.close(scores, worst);
    }

    /// Whether the agent of any of its traces is uncertain: nothing of such a trace is counted.
    pub(super) fn is_uncertain(&self) -> bool {
        self.traces.iter().any(|record| record.course.uncertain)
    }

    /// Ends a closed session whose verdicts are all counted: its contribution to its agents stays. Returns its traces that are not
    /// sealed, for which updates may still arrive.
    pub(super) fn evict(mut self, shared: &mut ShardContext) -> Vec<TraceId> {
        shared.runs.forget(&self.id, self.rare().runs.as_deref());
        if let Some(restless) = &mut self.restless {
            restless.stand(BTreeMap::new(), shared);
        }
        let unsealed = self.traces.iter().filter(|record| record.state != TraceState::Sealed);
        let mut unsealed: Vec<TraceId> = unsealed.map(|record| record.id).collect();
        unsealed.sort_unstable();
        for record in self.traces.iter_mut() {
            let open = record.panes.is_empty() || record.course.uncertain;
            shared.counts.add_many("sessions", "trace_not_done", u64::from(open));
            // No further update of it is accepted.
            record.seal(record.revision, &mut shared.shard_agents);
            shared.shard_agents.summary(record.agent()).held -= 1;
        }
        unsealed
    }

    /// Consistency from what all traces have: without the judge's scores.
    pub(super) fn consistency(&self) -> AgentConsistency {
        AgentConsistency { count: self.measured.into(), squares: self.uncertainty_squares }
    }

    fn change_consistency(&mut self, change: impl FnOnce(&mut AgentConsistency)) {
        let mut consistency = self.consistency();
        change(&mut consistency);
        // Invariant: a session has far fewer traces than there are numbers.
        self.measured = u32::try_from(consistency.count).unwrap_or(u32::MAX);
        self.uncertainty_squares = consistency.squares;
    }

    /// Its scores, by the rules of the profile.
    pub(super) fn scores(&self, rules: &Rules) -> SessionScores {
        let consistency = self.consistency().result().map(|result| result.score);
        SessionScores::new(rules.reliability(&self.reliability), rules.quanta(consistency))
    }

    /// The done trace with the greatest risk, then with the latest end, with its end.
    fn worst(&self) -> Option<(Timestamp, TraceId)> {
        let given = self.traces.iter().filter(|record| !record.panes.is_empty());
        let worst = given.map(|record| (record.scored.own_risk(), record.end(), record.id)).max();
        worst.map(|(_, end, id)| (end, id))
    }

    /// The trace that started first.
    pub(super) fn first(&self) -> Option<&TraceRecord> {
        self.traces.iter().next()
    }

    /// Notes an arrival: a closed session that gets more is open again.
    pub(super) fn touch(&mut self, at: Timestamp, shared: &ShardContext) {
        // An arrival time that is unknown or in the future counts as now.
        let at = if at.0 == 0 { shared.now } else { at.min(shared.now) };
        if at > self.touched {
            self.touched = at;
            self.closed &= at.after(shared.rules.session_idle) <= shared.now;
        }
    }

    /// Scores a trace and replaces its contribution: that is `former` if its record is new. Returns how many of its reported scores
    /// are malformed.
    pub(super) fn rescore(
        &mut self,
        trace: TraceId,
        former: Option<Contribution>,
        shared: &mut ShardContext,
    ) -> u64 {
        let Some(number) = self.traces.number(trace) else { return 0 };
        let record = &self.traces[number];
        let outcome = self.reported_outcome(number);
        let ShardContext { rules, shard_agents, common, .. } = shared;
        let has_sums = |name: &str| shard_agents.summary(record.agent()).admits(name);
        let earlier = self.traces.earlier(number);
        let signals = common.room_for_signals();
        let Scoring { mut scored, output_repeat, malformed } =
            Scoring::new(record, earlier, outcome, rules, signals);
        if record.is_done() {
            scored.sum(rules, has_sums);
        }
        let has_given = !record.panes.is_empty();
        let same = match &former {
            Some(former) => record.contributes(former, &scored),
            // The contribution is that of this record.
            None if has_given => record.is_done() && record.scored.adds_like(&scored),
            None => !record.is_done(),
        };
        let panes = former.as_ref().map_or(record.panes, |former| former.panes);
        let given = if same { None } else { former.or_else(|| record.contribution()) };
        let record = &mut self.traces[number];
        record.scored = shared.common.scored(scored);
        record.repeat(output_repeat);
        self.listed.mark(record);
        record.panes = if same { panes } else { PaneSet::default() };
        if !same {
            let took = record.is_done().then(|| record.took());
            if let Some(given) = &given {
                self.remove_contribution(given, trace, shared);
            }
            if took.is_some() {
                self.add_contribution(number, shared);
            }
            self.retake(given.map(|given| given.took), took, shared);
        }
        self.follow_up(number, shared);
        malformed
    }

    /// Counts, and sends to agents, what follows from the scores of a trace.
    fn follow_up(&mut self, number: usize, shared: &mut ShardContext) {
        let record = &mut self.traces[number];
        let is_given = !record.panes.is_empty();
        if is_given && !record.is_settled() && !record.course.uncertain {
            if !self.unsettled.contains(&record.id) {
                self.unsettled.push(record.id);
            }
        } else if is_given
            && record.is_settled()
            && !record.has_reported_outcome()
            && verdict::outcome(record).is_some()
        {
            let told = verdict::told_later(record, &self.id, shared.shift.wall(record.arrived));
            shared.shard_agents.summary(record.agent()).tell_done(told);
            record.tell_outcome();
        }
        record.count(&mut shared.shard_agents);
        let reports = &self.rare.as_deref().unwrap_or(&NOTHING).reports;
        let run = run::trace(record, &self.id, reports, &shared.rules);
        record.tell_run(run, &mut shared.shard_agents);
    }

    /// Adds a done trace to the sums of its agent and of this session.
    fn add_contribution(&mut self, number: usize, shared: &mut ShardContext) {
        let wall = shared.wall();
        let record = &mut self.traces[number];
        let (agent, end) = (record.agent().clone(), record.end());
        let (panes, missed) = shared.shard_agents.summary(&agent).observe(record, wall);
        record.panes = panes;
        shared.counts.add_many("panes", "outside_window", missed as u64);
        let scored = &record.scored;
        scored.own_risk().into_iter().for_each(|risk| self.reliability.observe(risk));
        let uncertainty = scored.own_uncertainty();
        let judged = scored.judged_risk();
        if let Some(uncertainty) = uncertainty {
            self.change_consistency(|consistency| consistency.observe(uncertainty));
        }
        if let Some(risk) = judged {
            self.rare_mut().judged.observe(risk);
        }
        self.done += 1;
        if self.mark_of(&agent).is_none_or(|(newest, _)| newest < end) {
            self.mark(&agent, Some(end), shared);
        }
    }

    /// Subtracts the contribution of a trace from the sums of its agent and of this session.
    fn remove_contribution(
        &mut self,
        given: &Contribution,
        trace: TraceId,
        shared: &mut ShardContext,
    ) {
        let Contribution { took, scored, end, .. } = given;
        let agent = &took.agent;
        shared.shard_agents.summary(agent).forget(trace, given);
        scored.own_risk().into_iter().for_each(|risk| self.reliability.forget(risk));
        if let Some(uncertainty) = scored.own_uncertainty() {
            self.change_consistency(|consistency| consistency.forget(uncertainty));
        }
        if let Some((rare, risk)) = self.rare.as_mut().zip(scored.judged_risk()) {
            rare.judged.forget(risk);
        }
        self.done -= 1;
        if self.mark_of(agent).is_some_and(|(newest, _)| newest == *end) {
            let others = self.traces.iter().filter(|other| !other.panes.is_empty());
            let others = others.filter(|other| other.agent() == agent);
            let newest = others.map(TraceRecord::end).max();
            if newest != Some(*end) {
                self.mark(agent, newest, shared);
            }
        }
    }

    /// The panes in which the session counts for the agent.
    pub(super) fn mark_of(&self, agent: &AgentKey) -> Option<Mark> {
        self.place_of_mark(agent).ok().map(|at| self.marks[at].1)
    }

    fn place_of_mark(&self, agent: &AgentKey) -> Result<usize, usize> {
        self.marks.binary_search_by(|(held, _)| held.cmp(agent))
    }

    /// Moves the session into the panes of an agent's newest trace, which ended at `newest`; `None` removes it from all panes.
    fn mark(&mut self, agent: &AgentKey, newest: Option<Timestamp>, shared: &mut ShardContext) {
        let wall = shared.wall();
        let took = self.spent.as_ref().filter(|spent| spent.agent == *agent);
        let took = took.map(|spent| spent.effort);
        let (Ok(at) | Err(at)) = self.place_of_mark(agent);
        let before = self.mark_of(agent).map(|_| self.marks.remove(at).1);
        if let Some(mark) = shared.shard_agents.summary(agent).mark(before, newest, wall, took) {
            self.marks.insert(at, (agent.clone(), mark));
        }
    }

    /// Counts the signals of a done trace for which its agent has no room.
    pub(super) fn note_refused(&self, trace: TraceId, shared: &mut ShardContext) {
        let record = self.traces.get(trace).filter(|record| !record.panes.is_empty());
        let Some(record) = record else { return };
        let refused = record.scored.signals.values().filter(|signal| !signal.is_summed).count();
        shared.counts.add_many("signals", "agent_full", refused as u64);
    }

    fn grow(&mut self, trace: TraceId, now: Timestamp) {
        let Some(record) = self.traces.get_mut(trace) else { return };
        let grows = record.grow(now);
        let may_be_silent = record.may_be_silent();
        if !may_be_silent && !grows && self.restless.is_none() {
            return;
        }
        let TimedState { open, growing, .. } = &mut **self.restless.get_or_insert_default();
        if may_be_silent {
            open.insert(trace, record.arrived);
        } else {
            open.remove(trace);
        }
        if grows {
            growing.insert(trace);
        } else {
            growing.remove(&trace);
        }
    }
}

impl Rare {
    /// Empty.
    const fn none() -> Self {
        Self {
            left: BTreeMap::new(),
            reports: BTreeMap::new(),
            runs: None,
            has_reported_outcome: false,
            judged: AgentReliability::new(),
        }
    }
}

/// Number of stale traces for which memory is kept.
const STALE: usize = 64;

/// The rare parts, for a session that has none.
static NOTHING: Rare = Rare::none();
