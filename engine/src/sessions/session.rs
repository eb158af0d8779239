//! One session: its traces in order, and its scores, kept up to date with every change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::IDLE;
use super::card::Listed;
use super::common::Common;
use super::fleet::Fleet;
use super::key::{Agent, SessionId};
use super::outcomes::SessionRuns;
use super::pane::{Mark, PaneSet};
use super::record::{Contribution, Past, TraceRecord};
use super::rules::Rules;
use super::run;
use super::run_outcomes::RunIndex;
use super::scoring::Scoring;
use super::summary::SessionScores;
use super::tally::Tally;
use super::took::Took;
use super::traces::Traces;
use super::verdict::{self, PASS, evaluate, verdict};
use crate::count::Counts;
use crate::counters::Counter;
use crate::few::Few;
use crate::limits::{Cause, LimitSet, RunLimit, UsageSums};
use crate::predict::EffortBuckets;
use crate::score::agent_consistency::AgentConsistency;
use crate::score::agent_reliability::AgentReliability;
use crate::score::trajectory_gate::TrajectoryGate;
use crate::signal::SignalName;
use crate::silences::Level;
use crate::span::{Report, Timestamp, TraceId};
use crate::time::WallShift;
use crate::update::{AgentKey, TraceState, TraceUpdate};

/// How a session stands; in the order in which sessions are evicted.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum EvictionOrder {
    /// Its traces all went elsewhere.
    #[default]
    Empty,
    /// It was quiet for `session_idle`.
    Closed,
    /// More may come.
    Open,
}

/// What all sessions share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) rules: Rules,
    pub(super) fleet: Fleet,
    /// What records have in common.
    pub(super) common: Common,
    pub(super) counts: Counts,
    /// The time, which does not go back.
    pub(super) now: Timestamp,
    /// How far wall time is ahead of it.
    pub(super) shift: WallShift,
    /// Which sessions have traces of which runs.
    pub(super) runs: RunIndex,
    /// Sessions that began to run away since they were last asked for, by kind, and how bad it got. Invariant: all are held.
    pub(super) runaways: BTreeMap<(Arc<SessionId>, &'static str), Cause>,
    /// The trace that has come to the session that is being changed, or has left it.
    pub(super) moved: Option<TraceId>,
}

impl Shared {
    /// Wall time: what ends of traces are held against.
    pub(super) fn wall(&self) -> Timestamp {
        self.shift.wall(self.now)
    }
}

/// What of a session changes with time alone: what loops in it and what stalls.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Restless {
    /// When one of its loops, or of its open traces, will have been quiet for long enough.
    pub(super) deadline: Option<Timestamp>,
    /// Traces whose loops have grown.
    pub(super) growing: BTreeSet<TraceId>,
    /// What has gone over a limit, a trace or (`None`) the session: what it had used of that when it last grew, and when that was.
    pub(super) over: BTreeMap<(Option<TraceId>, RunLimit), (u64, Timestamp)>,
    /// What its agents were told that runs away.
    pub(super) runaways: BTreeSet<(Agent, Cause)>,
    /// Traces that are open.
    pub(super) open: BTreeSet<TraceId>,
    /// How many of them nothing has come of for long, by level.
    pub(super) silent: BTreeMap<(Agent, Level), u64>,
}

/// What few sessions have.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Rare {
    // Revisions at which traces left: an older update must not bring them back.
    left: BTreeMap<TraceId, u64>,
    pub(super) reports: BTreeMap<Arc<str>, Report>,
    /// Over the traces that our judge was asked about, with what it said; nothing where there are none.
    pub(super) judged: AgentReliability,
}

/// One session. Everything derived is a function of the traces held, not of their arrival.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Session {
    pub(super) id: Arc<SessionId>,
    // What its panes are told by.
    widths: Arc<[u64]>,
    pub(super) traces: Traces,
    pub(super) rare: Option<Box<Rare>>,
    /// Present exactly while any of its traces is of a run at a task.
    pub(super) runs: Option<Box<SessionRuns>>,
    /// Where it stands in the order in which sessions go, at the latest.
    #[serde(skip)]
    pub(super) filed: (EvictionOrder, Timestamp),
    /// Arrival time of the newest thing.
    pub(super) touched: Timestamp,
    pub(super) closed: bool,
    close_counted: bool,
    /// As nobody had to be asked, as agents have it.
    pub(super) reliability: AgentReliability,
    /// Likewise.
    pub(super) consistency: AgentConsistency,
    /// How many traces give something.
    pub(super) done: usize,
    // Where the session counts for the newest done trace of each agent, with what that was told that it took.
    pub(super) marks: Few<Agent, Mark>,
    gates: Few<SignalName, TrajectoryGate>,
    // Traces that are done whose verdicts are not counted.
    unsettled: Vec<TraceId>,
    pub(super) placed: Option<(Agent, SessionScores)>,
    /// Present exactly while there is anything of it.
    pub(super) restless: Option<Box<Restless>>,
    /// What its done traces took, but for the answer.
    pub(super) took: Took,
    /// Something that it took, or its answer, may have changed since its agent was told.
    #[serde(skip)]
    pub(super) took_changed: bool,
    /// What its agent was told that it took.
    pub(super) spent: Option<Spending>,
    /// What all of its traces have used, as far as these are sums.
    pub(super) used: UsageSums,
    /// Limits of the session that are counted.
    pub(super) over: LimitSet,
    /// What its traces add to its card.
    #[serde(skip)]
    pub(super) listed: Listed,
}

/// What a session took, as it is told to its agent.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Spending {
    pub(super) agent: Agent,
    pub(super) start: Timestamp,
    pub(super) effort: EffortBuckets,
}

impl Session {
    /// A session without traces.
    pub(super) fn new(id: Arc<SessionId>, widths: Arc<[u64]>) -> Self {
        Self {
            id,
            widths,
            traces: Traces::default(),
            rare: None,
            runs: None,
            filed: <(EvictionOrder, Timestamp)>::default(),
            touched: Timestamp::default(),
            closed: false,
            close_counted: false,
            reliability: AgentReliability::default(),
            consistency: AgentConsistency::default(),
            done: 0,
            marks: Few::default(),
            gates: Few::default(),
            unsettled: Vec::new(),
            placed: None,
            restless: None,
            took: Took::default(),
            took_changed: false,
            spent: None,
            used: UsageSums::default(),
            over: LimitSet::default(),
            listed: Listed::default(),
        }
    }

    /// A session that was read is one of this shard: what it has in common with others is shared, and its panes are told by
    /// the widths that there are.
    pub(super) fn settle_in(&mut self, shared: &mut Shared) {
        let widths = shared.fleet.widths();
        for record in self.traces.iter_mut() {
            shared.common.share(record);
            record.panes = record.panes.translated(&self.widths, &widths);
        }
        for (_, (_, panes)) in self.marks.iter_mut() {
            *panes = panes.translated(&self.widths, &widths);
        }
        self.widths = widths;
        self.list();
    }

    /// Where it belongs in the order in which sessions go.
    pub(super) fn place(&self) -> (EvictionOrder, Timestamp) {
        let standing = match (self.traces.is_empty(), self.closed) {
            (true, _) => EvictionOrder::Empty,
            (false, true) => EvictionOrder::Closed,
            (false, false) => EvictionOrder::Open,
        };
        (standing, self.touched)
    }

    /// The revision at which a trace is held or at which it left.
    pub(super) fn revision(&self, trace: TraceId) -> Option<u64> {
        let held = self.traces.get(trace).map(|record| record.revision);
        held.max(self.rare().left.get(&trace).copied())
    }

    /// What few sessions have.
    pub(super) fn rare(&self) -> &Rare {
        self.rare.as_deref().unwrap_or(&NOTHING)
    }

    /// Likewise, to be added to.
    pub(super) fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// When one of its loops, or of its open traces, will have been quiet for long enough.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.restless.as_ref()?.deadline
    }

    /// Returns whether traces are done whose verdicts are not counted.
    pub(super) fn is_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// Holds a trace in this form; `source` is what named the session, `tally` what the trace has counted elsewhere.
    pub(super) fn upsert(
        &mut self,
        update: TraceUpdate,
        (source, tally): (String, Option<Tally>),
        shared: &mut Shared,
    ) {
        self.touch(Timestamp(update.touched_unix_nano), shared);
        let unnamed = AgentKey::default();
        let is_certain = !update.uncertain;
        let key = update.agent.as_ref().unwrap_or(&unnamed);
        let (agent, overflow) = shared.fleet.resolve(key, is_certain);
        overflow.into_iter().for_each(|why| shared.counts.add("trace_updates", why));
        shared.fleet.hold(&agent, is_certain).active = shared.now;
        let last = self.traces.last_place();
        let record = TraceRecord::new(update, (agent, source), &mut shared.common);
        let (trace, place) = (record.id, record.position());
        if let Some(rare) = &mut self.rare {
            rare.left.remove(&trace);
        }
        let (mut stale, mut places) = (vec![trace], vec![place]);
        let runs = self.change_run(trace, Some(&record), shared);
        let former = self.hold(record, tally, (&mut stale, &mut places), shared);
        stale.extend(self.relink(&places, shared));
        stale.extend(self.outlived(last));
        stale.extend(self.outlived_in_runs(runs));
        stale.sort_unstable();
        stale.dedup();
        let mut former = former;
        for stale in &stale {
            let former = if *stale == trace { former.take() } else { None };
            let malformed = self.rescore(*stale, former, shared);
            if *stale == trace {
                shared.counts.add_many("reported_scores", "malformed", malformed);
            }
        }
        self.note_refused(trace, shared);
        stale.iter().for_each(|trace| self.grow(*trace, shared.now));
        self.hold_against_limits(trace, shared);
        if self.closed {
            self.count_close(IDLE, shared);
        }
        self.refresh(shared);
    }

    /// Puts a record in the place of an earlier form of the trace; returns what that has given. What is stale by that, and the places
    /// around which chains may have changed, are added to those that are.
    fn hold(
        &mut self,
        mut record: TraceRecord,
        tally: Option<Tally>,
        (stale, places): (&mut Vec<TraceId>, &mut Vec<(Timestamp, TraceId)>),
        shared: &mut Shared,
    ) -> Option<Contribution> {
        let place = record.position();
        self.used = self.used.plus(record.usage().sums);
        let number = self.traces.number(record.id);
        if let Some(number) = number {
            self.listed.remove(&self.traces[number]);
        }
        self.listed.add(&record);
        let Some(number) = number else {
            shared.moved = Some(record.id);
            record.go_on_from(Past::from(tally.unwrap_or_default()));
            self.traces.insert(record);
            stale.extend(self.traces.after(place));
            return None;
        };
        let old = &mut self.traces[number];
        if let Some(level) = old.silence_before(&record, shared.rules.stall_after) {
            shared.fleet.summary(record.agent()).silences.end(level);
        }
        self.used = self.used.minus(old.usage().sums);
        shared.fleet.summary(old.agent()).held -= 1;
        let given = old.given();
        if old.start == record.start && old.output() == record.output() {
            let old = std::mem::replace(old, record);
            self.traces[number].go_on_from(old.into_past());
            return given;
        }
        let before = old.position();
        stale.extend(self.traces.after(before));
        places.push(before);
        let old = self.traces.remove(record.id);
        record.go_on_from(old.map(TraceRecord::into_past).unwrap_or_default());
        self.traces.insert(record);
        stale.extend(self.traces.after(place));
        given
    }

    /// Forgets a trace that left with `revision`; returns what it has counted.
    pub(super) fn remove(
        &mut self,
        trace: TraceId,
        revision: u64,
        shared: &mut Shared,
    ) -> Option<Tally> {
        let left = &mut self.rare_mut().left;
        if left.len() < shared.rules.max_traces || left.contains_key(&trace) {
            left.insert(trace, revision);
        } else {
            shared.counts.add("departed_traces", "forgotten");
        }
        if self.unsettled.contains(&trace) {
            // It was done here: where it goes it is not done for the first time.
            self.settle(shared);
        }
        let last = self.traces.last_place();
        let runs = self.change_run(trace, None, shared);
        let mut record = self.traces.remove(trace)?;
        shared.moved = Some(trace);
        self.used = self.used.minus(record.usage().sums);
        self.listed.remove(&record);
        if let Some(given) = record.given() {
            self.retract(&given, trace, shared);
            self.retake(Some(given.took), None, shared);
        }
        record.tell_run(None, &mut shared.fleet);
        shared.fleet.summary(record.agent()).held -= 1;
        self.unsettled.retain(|other| *other != trace);
        if let Some(restless) = &mut self.restless {
            restless.growing.remove(&trace);
            restless.open.remove(&trace);
            restless.over.retain(|(over, _), _| *over != Some(trace));
        }
        let mut stale: Vec<TraceId> = self.traces.after(record.position()).collect();
        stale.extend(self.relink(&[record.position()], shared));
        stale.extend(self.outlived(last));
        stale.extend(self.outlived_in_runs(runs));
        stale.sort_unstable();
        stale.dedup();
        for trace in stale {
            self.rescore(trace, None, shared);
        }
        self.refresh(shared);
        Some(record.tally())
    }

    /// Counts the verdicts of traces that are done for the first time, in their order.
    pub(super) fn settle(&mut self, shared: &mut Shared) {
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
            evaluate(record, done, &mut self.gates, &shared.rules, &mut shared.fleet);
            let over = record.count_names(&mut shared.fleet);
            shared.counts.add_many("label_values_limited", "agent_names", over);
            self.traces[number].count(&mut shared.fleet);
        }
    }

    /// Closes the session and counts how it went, once.
    pub(super) fn close(&mut self, reason: &str, shared: &mut Shared) {
        self.settle(shared);
        self.closed = true;
        self.count_close(reason, shared);
        self.refresh(shared);
    }

    /// Counts how the session went, once, and once it is certain whose it is.
    fn count_close(&mut self, reason: &str, shared: &mut Shared) {
        let first = self.first().filter(|first| !first.course.uncertain);
        let Some(agent) = first.map(|first| first.agent().clone()).filter(|_| !self.close_counted)
        else {
            return;
        };
        self.close_counted = true;
        let (scores, worst) = (self.scores(&shared.rules), self.worst());
        let verdict = verdict(scores.reliability, PASS);
        let summary = shared.fleet.summary(&agent);
        summary.count(Counter::SessionsClosed, &[reason, verdict.name()], 1);
        summary.close(scores, worst);
    }

    /// Whether it has a trace of which nothing is counted yet.
    pub(super) fn is_uncertain(&self) -> bool {
        self.traces.iter().any(|record| record.course.uncertain)
    }

    /// Lets go of the session, which was closed: what it gave stays. Returns the traces that
    /// may be heard of again.
    pub(super) fn evict(mut self, shared: &mut Shared) -> Vec<TraceId> {
        self.settle(shared);
        shared.runs.forget(&self.id, self.runs.as_deref());
        if let Some(restless) = &mut self.restless {
            restless.stand(BTreeMap::new(), shared);
        }
        let unsealed = self.traces.iter().filter(|record| record.state != TraceState::Sealed);
        let mut unsealed: Vec<TraceId> = unsealed.map(|record| record.id).collect();
        unsealed.sort_unstable();
        for record in self.traces.iter_mut() {
            let open = record.panes.is_empty() || record.course.uncertain;
            shared.counts.add_many("sessions", "trace_not_done", u64::from(open));
            // The session takes nothing more of it.
            record.seal(record.revision, &mut shared.fleet);
            shared.fleet.summary(record.agent()).held -= 1;
        }
        unsealed
    }

    /// The scores as the profile has them.
    pub(super) fn scores(&self, rules: &Rules) -> SessionScores {
        SessionScores {
            reliability: rules.reliability(&self.reliability),
            consistency: rules.quanta(self.consistency.result().map(|result| result.score)),
        }
    }

    /// The done trace of the greatest risk that counts in the session's score, the later one of equals, and when it ended.
    fn worst(&self) -> Option<(Timestamp, TraceId)> {
        let given = self.traces.iter().filter(|record| !record.panes.is_empty());
        let worst = given.map(|record| (record.scored.own_risk(), record.end(), record.id)).max();
        worst.map(|(_, end, id)| (end, id))
    }

    /// The trace that started first.
    pub(super) fn first(&self) -> Option<&TraceRecord> {
        self.traces.iter().next()
    }

    /// Notes when something arrived: a closed session of which more comes is open again.
    pub(super) fn touch(&mut self, at: Timestamp, shared: &Shared) {
        // Unknown or ahead of the time: it came now.
        let at = if at.0 == 0 { shared.now } else { at.min(shared.now) };
        if at > self.touched {
            self.touched = at;
            self.closed &= at.after(shared.rules.session_idle) <= shared.now;
        }
    }

    /// Scores a trace anew, after an earlier form of it has given so much, if it is new itself; returns how many reported scores are
    /// none.
    pub(super) fn rescore(
        &mut self,
        trace: TraceId,
        former: Option<Contribution>,
        shared: &mut Shared,
    ) -> u64 {
        let Some(number) = self.traces.number(trace) else { return 0 };
        let record = &self.traces[number];
        let outcome = self.told_outcome(number);
        let Shared { rules, fleet, .. } = shared;
        let has_sums = |name: &str| fleet.summary(record.agent()).admits(name);
        let earlier = self.traces.earlier(number);
        let Scoring { scored, output_repeat, malformed } =
            Scoring::new(record, earlier, outcome, rules, has_sums);
        let has_given = !record.panes.is_empty();
        let same = match &former {
            Some(former) => record.gives(former, &scored),
            // It is the same record.
            None if has_given => record.is_done() && record.scored.adds_like(&scored),
            None => !record.is_done(),
        };
        let panes = former.as_ref().map_or(record.panes, |former| former.panes);
        let given = if same { None } else { former.or_else(|| record.given()) };
        let record = &mut self.traces[number];
        record.scored = shared.common.scored(scored);
        record.repeat(output_repeat);
        self.listed.mark(record);
        record.panes = if same { panes } else { PaneSet::default() };
        if !same {
            let took = record.is_done().then(|| record.took());
            if let Some(given) = &given {
                self.retract(given, trace, shared);
            }
            if took.is_some() {
                self.give(number, shared);
            }
            self.retake(given.map(|given| given.took), took, shared);
        }
        self.follow_up(number, shared);
        malformed
    }

    /// Has a trace that was scored tell what follows from it beyond its scores.
    fn follow_up(&mut self, number: usize, shared: &mut Shared) {
        let record = &mut self.traces[number];
        let is_given = !record.panes.is_empty();
        if is_given && !record.is_settled() && !record.course.uncertain {
            if !self.unsettled.contains(&record.id) {
                self.unsettled.push(record.id);
            }
        } else if is_given
            && record.is_settled()
            && !record.has_told_outcome()
            && verdict::outcome(record).is_some()
        {
            let told = verdict::told_later(record, &self.id, shared.shift.wall(record.arrived));
            shared.fleet.summary(record.agent()).tell_done(told);
            record.tell_outcome();
        }
        record.count(&mut shared.fleet);
        let reports = &self.rare.as_deref().unwrap_or(&NOTHING).reports;
        let run = run::trace(record, &self.id, reports, &shared.rules);
        record.tell_run(run, &mut shared.fleet);
    }

    /// Has a done trace give to its agent, and to this session.
    fn give(&mut self, number: usize, shared: &mut Shared) {
        let wall = shared.wall();
        let record = &mut self.traces[number];
        let (agent, end) = (record.agent().clone(), record.end());
        let summary = shared.fleet.summary(&agent);
        let place = (record.start, end, record.id);
        let (panes, missed) = summary.observe(place, &record.scored, wall);
        record.panes = panes;
        shared.counts.add_many("panes", "outside_window", missed as u64);
        let scored = &record.scored;
        scored.own_risk().into_iter().for_each(|risk| self.reliability.observe(risk));
        let uncertainty = scored.own_uncertainty().into_iter();
        uncertainty.for_each(|uncertainty| self.consistency.observe(uncertainty));
        if let Some(risk) = scored.judged_risk() {
            self.rare_mut().judged.observe(risk);
        }
        self.done += 1;
        if self.marks.get(&agent).is_none_or(|(newest, _)| *newest < end) {
            self.mark(&agent, Some(end), shared);
        }
    }

    /// Takes back what a trace, which does not give it any more, has given.
    fn retract(&mut self, given: &Contribution, trace: TraceId, shared: &mut Shared) {
        let Contribution { took, scored, end, panes } = given;
        let (agent, start) = (&took.agent, took.start);
        shared.fleet.summary(agent).forget((start, *end, trace), scored, *panes);
        scored.own_risk().into_iter().for_each(|risk| self.reliability.forget(risk));
        let uncertainty = scored.own_uncertainty().into_iter();
        uncertainty.for_each(|uncertainty| self.consistency.forget(uncertainty));
        if let Some((rare, risk)) = self.rare.as_mut().zip(scored.judged_risk()) {
            rare.judged.forget(risk);
        }
        self.done -= 1;
        if self.marks.get(agent).is_some_and(|(newest, _)| *newest == *end) {
            let others = self.traces.iter().filter(|other| !other.panes.is_empty());
            let others = others.filter(|other| other.agent() == agent);
            let newest = others.map(TraceRecord::end).max();
            if newest != Some(*end) {
                self.mark(agent, newest, shared);
            }
        }
    }

    /// Lets the session count in the panes of an agent's newest trace, which ended then, with what that was told that it took.
    fn mark(&mut self, agent: &Agent, newest: Option<Timestamp>, shared: &mut Shared) {
        let wall = shared.wall();
        let took = self.spent.as_ref().filter(|spent| spent.agent == *agent);
        let took = took.map(|spent| spent.effort);
        let before = self.marks.remove(agent);
        if let Some(mark) = shared.fleet.summary(agent).mark(before, (newest, wall), took) {
            self.marks.insert(agent.clone(), mark);
        }
    }

    /// Counts the signals of a done trace of which its agent has no sums.
    fn note_refused(&self, trace: TraceId, shared: &mut Shared) {
        let record = self.traces.get(trace).filter(|record| !record.panes.is_empty());
        let Some(record) = record else { return };
        let refused = record.scored.signals.values().filter(|signal| !signal.is_summed).count();
        shared.counts.add_many("signals", "agent_full", refused as u64);
    }

    fn grow(&mut self, trace: TraceId, now: Timestamp) {
        let Some(record) = self.traces.get_mut(trace) else { return };
        let (is_open, grows) = (record.state == TraceState::Open, record.grow(now));
        if !is_open && !grows && self.restless.is_none() {
            return;
        }
        let restless = self.restless.get_or_insert_default();
        for (is_in, traces) in [(is_open, &mut restless.open), (grows, &mut restless.growing)] {
            if is_in {
                traces.insert(trace);
            } else {
                traces.remove(&trace);
            }
        }
    }
}

impl Rare {
    /// Nothing of it.
    const fn none() -> Self {
        Self { left: BTreeMap::new(), reports: BTreeMap::new(), judged: AgentReliability::new() }
    }
}

/// What most sessions have of what few have.
static NOTHING: Rare = Rare::none();
