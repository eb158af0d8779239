//! One session: its traces in order, and its scores, kept up to date with every change.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::IDLE;
use super::fleet::Fleet;
use super::held::{Given, Held, Past};
use super::key::{Agent, SessionId};
use super::pane::PaneKey;
use super::rules::Rules;
use super::run;
use super::scoring::{Earlier, Scored, SignalName};
use super::summary::SessionScores;
use super::tally::Tally;
use super::verdict::{self, PASS, evaluate, verdict};
use crate::engine::count::Counts;
use crate::engine::few::Few;
use crate::engine::loops::{LoopKind, LoopLabels};
use crate::engine::math::Quanta;
use crate::engine::runs::{is_about_runs, is_outcome};
use crate::engine::score::agent_consistency::AgentConsistency;
use crate::engine::score::agent_reliability::AgentReliability;
use crate::engine::score::trajectory_gate::TrajectoryGate;
use crate::engine::signal::loop_detection::WINDOW;
use crate::engine::span::{Report, Source, Timestamp, TraceId};
use crate::engine::time::WallShift;
use crate::engine::update::{AgentKey, DoneTrace, Effort, TraceState, TraceUpdate};

/// How a session stands; in the order in which sessions are evicted.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Standing {
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
    pub(super) counts: Counts,
    /// The time, which does not go back.
    pub(super) now: Timestamp,
    /// How far wall time is ahead of it.
    pub(super) shift: WallShift,
    /// Sessions that began to loop since they were last asked for, by kind, and how bad it got. Invariant: all are held.
    pub(super) runaways: BTreeMap<(Arc<SessionId>, LoopKind), LoopLabels>,
}

impl Shared {
    /// Wall time: what ends of traces are held against.
    pub(super) fn wall(&self) -> Timestamp {
        self.shift.wall(self.now)
    }
}

/// One session. Everything derived is a function of the traces held, not of their arrival.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Session {
    pub(super) id: Arc<SessionId>,
    // Boxed: a node of the map has room for eleven, and most sessions hold a few.
    pub(super) traces: BTreeMap<TraceId, Box<Held>>,
    // Invariant: exactly the traces held.
    pub(super) order: BTreeSet<(Timestamp, TraceId)>,
    // Revisions at which traces left: an older update must not bring them back.
    pub(super) left: BTreeMap<TraceId, u64>,
    pub(super) reports: BTreeMap<Arc<str>, Report>,
    /// It comes from a snapshot, which may have been made under other options.
    #[serde(skip, default = "yes")]
    pub(super) restored: bool,
    /// When it last changed.
    #[serde(skip)]
    pub(super) changed: Timestamp,
    /// Where it stands in the order in which sessions go, at the latest.
    #[serde(skip)]
    pub(super) filed: (Standing, Timestamp),
    /// Arrival time of the newest thing.
    pub(super) touched: Timestamp,
    pub(super) closed: bool,
    pub(super) close_counted: bool,
    pub(super) reliability: AgentReliability,
    pub(super) consistency: AgentConsistency,
    // Done traces of each agent by end, and in which panes the session counts for the newest.
    pub(super) ends: Few<Agent, BTreeSet<(Timestamp, TraceId)>>,
    pub(super) marks: Few<Agent, (Timestamp, Vec<PaneKey>)>,
    pub(super) gates: Few<SignalName, TrajectoryGate>,
    unsettled: BTreeSet<TraceId>,
    pub(super) placed: Option<(Agent, SessionScores)>,
    pub(super) growing: BTreeSet<TraceId>,
    pub(super) looping: BTreeSet<(Agent, LoopLabels)>,
    /// Traces that are open.
    #[serde(default)]
    pub(super) open: BTreeSet<TraceId>,
    /// How many of them nothing has come of for long.
    #[serde(default)]
    pub(super) stalled: BTreeMap<Agent, u64>,
    /// When one of its loops, or of its open traces, will have been quiet for long enough.
    pub(super) deadline: Option<Timestamp>,
    /// What its done traces took, but for the answer.
    #[serde(default)]
    pub(super) took: Effort,
    /// What its agent was told that it took.
    #[serde(default)]
    pub(super) spent: Option<(Agent, Timestamp, Effort)>,
}

impl Session {
    /// A session without traces.
    pub(super) fn new(id: Arc<SessionId>) -> Self {
        Self {
            id,
            traces: BTreeMap::new(),
            order: BTreeSet::new(),
            left: BTreeMap::new(),
            reports: BTreeMap::new(),
            restored: false,
            changed: Timestamp::default(),
            filed: <(Standing, Timestamp)>::default(),
            touched: Timestamp::default(),
            closed: false,
            close_counted: false,
            reliability: AgentReliability::default(),
            consistency: AgentConsistency::default(),
            ends: Few::default(),
            marks: Few::default(),
            gates: Few::default(),
            unsettled: BTreeSet::new(),
            placed: None,
            growing: BTreeSet::new(),
            looping: BTreeSet::new(),
            open: BTreeSet::new(),
            stalled: BTreeMap::new(),
            deadline: None,
            took: Effort::default(),
            spent: None,
        }
    }

    /// Where it belongs in the order in which sessions go.
    pub(super) fn place(&self) -> (Standing, Timestamp) {
        let standing = match (self.traces.is_empty(), self.closed) {
            (true, _) => Standing::Empty,
            (false, true) => Standing::Closed,
            (false, false) => Standing::Open,
        };
        (standing, self.touched)
    }

    /// The revision at which a trace is held or at which it left.
    pub(super) fn revision(&self, trace: TraceId) -> Option<u64> {
        let held = self.traces.get(&trace).map(|held| held.update.revision);
        held.max(self.left.get(&trace).copied())
    }

    /// Returns whether traces are done whose verdicts are not counted.
    pub(super) fn is_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// Holds a trace in this form; `tally` is what it has counted elsewhere.
    pub(super) fn upsert(
        &mut self,
        trace: TraceId,
        update: TraceUpdate,
        tally: Option<Tally>,
        shared: &mut Shared,
    ) {
        self.touch(Timestamp(update.touched_unix_nano), shared);
        let unnamed = AgentKey::default();
        let (agent, overflow) = shared.fleet.resolve(update.agent.as_ref().unwrap_or(&unnamed));
        shared.counts.add_many("trace_updates", "agent_overflow", u64::from(overflow));
        let summary = shared.fleet.summary(&agent);
        summary.held += 1;
        summary.active = shared.now;
        self.left.remove(&trace);
        let last = self.order.last().copied();
        let mut stale = BTreeSet::from([trace]);
        let mut places = vec![(Timestamp(update.start_unix_nano), trace)];
        let old = self.traces.remove(&trace);
        let same = old.as_ref().is_some_and(|old| {
            old.update.start_unix_nano == update.start_unix_nano
                && old.update.output_digest == update.output_digest
        });
        if let Some(old) = &old {
            shared.fleet.summary(&old.agent).held -= 1;
            if !same {
                stale.extend(self.after(old.position()));
                self.order.remove(&old.position());
                places.push(old.position());
            }
        }
        let moved = || Past { tally: tally.unwrap_or_default(), ..Past::default() };
        let past = old.map_or_else(moved, |old| old.into_past());
        let held = Held::new(trace, update, agent, past);
        if !same {
            self.order.insert(held.position());
            stale.extend(self.after(held.position()));
        }
        self.traces.insert(trace, Box::new(held));
        stale.extend(self.relink(&places, shared));
        stale.extend(self.outlived(last));
        stale.iter().for_each(|trace| self.rescore(*trace, shared));
        self.note_unusable(trace, shared);
        stale.iter().for_each(|trace| self.grow(*trace, shared.now));
        if self.closed {
            self.count_close(IDLE, shared);
        }
        self.refresh(shared);
    }

    /// Forgets a trace that left with `revision`; returns what it has counted.
    pub(super) fn remove(
        &mut self,
        trace: TraceId,
        revision: u64,
        shared: &mut Shared,
    ) -> Option<Tally> {
        if self.left.len() < shared.rules.max_traces || self.left.contains_key(&trace) {
            self.left.insert(trace, revision);
        } else {
            shared.counts.add("departed_traces", "forgotten");
        }
        if self.unsettled.contains(&trace) {
            // It was done here: where it goes it is not done for the first time.
            self.settle(shared);
        }
        let last = self.order.last().copied();
        let mut held = self.traces.remove(&trace)?;
        self.retract(&mut held, shared);
        held.tell_run(None, &mut shared.fleet);
        shared.fleet.summary(&held.agent).held -= 1;
        self.order.remove(&held.position());
        self.unsettled.remove(&trace);
        self.growing.remove(&trace);
        self.open.remove(&trace);
        let mut stale = BTreeSet::from_iter(self.after(held.position()));
        stale.extend(self.relink(&[held.position()], shared));
        stale.extend(self.outlived(last));
        stale.into_iter().for_each(|trace| self.rescore(trace, shared));
        self.refresh(shared);
        Some(held.tally)
    }

    /// Takes a score of the session as a whole; of each name the one to believe most is kept.
    pub(super) fn report(&mut self, report: Report, shared: &mut Shared) {
        let rank = |report: &Report| {
            (report.source, report.time, Arc::clone(&report.identifier), report.score)
        };
        let held = self.reports.get(&report.name);
        if held.is_none() && self.reports.len() >= shared.rules.max_reports {
            shared.counts.add("reports", "session_full");
        } else if held.is_none_or(|held| rank(held) < rank(&report)) {
            let (about_runs, is_outcome) = (is_about_runs(&report.name), is_outcome(&report.name));
            self.tell_outcome(&report, shared);
            self.reports.insert(Arc::clone(&report.name), report);
            let traces = self.traces.values_mut().filter(|_| about_runs);
            for held in traces {
                let run = run::trace(held, &self.id, &self.reports);
                held.tell_run(run, &mut shared.fleet);
            }
            if let Some((_, last)) = self.order.last().copied().filter(|_| is_outcome) {
                self.rescore(last, shared);
                self.refresh(shared);
            }
        }
    }

    /// What came of the session, if somebody reported it: the last report holds.
    fn outcome(&self) -> Option<bool> {
        let told = self.reports.values();
        let told =
            told.filter(|report| report.source == Source::Reported && is_outcome(&report.name));
        let last = told.max_by_key(|report| (report.time, &report.identifier, report.score));
        last.map(|report| report.score.0 >= Quanta::ONE)
    }

    /// The traces whose share in the session's outcome changes when its last trace is not this one any more.
    fn outlived(&self, last: Option<(Timestamp, TraceId)>) -> Vec<TraceId> {
        let now = self.order.last().copied();
        if now == last || self.outcome().is_none() {
            return Vec::new();
        }
        now.into_iter().chain(last).map(|(_, trace)| trace).collect()
    }

    /// Tells the agent of the session's first trace what came of it, the first time that somebody else than our judge says so.
    fn tell_outcome(&self, report: &Report, shared: &mut Shared) {
        let told = |report: &Report| report.source == Source::Reported && is_outcome(&report.name);
        let Some(first) = self.first().filter(|_| told(report)) else { return };
        if self.reports.values().any(told) {
            return;
        }
        let outcome = DoneTrace {
            start_unix_nano: first.update.start_unix_nano,
            at_unix_nano: shared.wall().0,
            touched_unix_nano: shared.now.0,
            outcome_failed: Some(report.score.0 < Quanta::ONE),
            session: self.id.scoped(),
            ..DoneTrace::default()
        };
        shared.fleet.summary(&first.agent).tell_done(outcome);
    }

    /// Counts the verdicts of traces that are done for the first time, in their order.
    pub(super) fn settle(&mut self, shared: &mut Shared) {
        let traces = std::mem::take(&mut self.unsettled).into_iter();
        let mut done: Vec<_> = traces
            .filter_map(|trace| self.traces.get(&trace))
            .filter(|held| held.given.is_some() && !held.update.uncertain)
            .map(|held| held.position())
            .collect();
        done.sort_unstable();
        for (_, trace) in done {
            let Some(mut held) = self.traces.remove(&trace) else { continue };
            held.tally.done = true;
            held.tally.outcome |= verdict::outcome(&held).is_some();
            let done = verdict::done(&held, &self.id, &self.earlier(&held), &shared.rules);
            evaluate(&held, done, &mut self.gates, &shared.rules, &mut shared.fleet);
            held.count(&mut shared.fleet);
            self.traces.insert(trace, held);
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
        let first = self.first().filter(|first| !first.update.uncertain);
        let Some(agent) = first.map(|first| first.agent.clone()).filter(|_| !self.close_counted)
        else {
            return;
        };
        self.close_counted = true;
        let (scores, worst) = (self.scores(&shared.rules), self.worst());
        let verdict = verdict(scores.reliability, PASS);
        let summary = shared.fleet.summary(&agent);
        summary.count("sessions_closed", &[reason, verdict], 1);
        summary.close(scores, worst);
    }

    /// Whether it has a trace of which nothing is counted yet.
    pub(super) fn is_uncertain(&self) -> bool {
        self.traces.values().any(|held| held.update.uncertain)
    }

    /// Lets go of the session, which was closed: what it gave stays. Returns the traces that
    /// may be heard of again.
    pub(super) fn evict(mut self, shared: &mut Shared) -> Vec<TraceId> {
        self.settle(shared);
        self.stand(BTreeMap::new(), shared);
        for held in self.traces.values() {
            let open = held.given.is_none() || held.update.uncertain;
            shared.counts.add_many("sessions", "trace_not_done", u64::from(open));
            shared.fleet.summary(&held.agent).held -= 1;
        }
        let unsealed = self.traces.into_iter();
        let unsealed = unsealed.filter(|(_, held)| held.update.state != TraceState::Sealed);
        unsealed.map(|(trace, _)| trace).collect()
    }

    /// Holds a trace that it held before, with all that it gave.
    pub(super) fn take_back(&mut self, held: Held) {
        self.order.insert(held.position());
        if let Some(given) = &held.given {
            self.add_up(given, held.id);
        }
        self.traces.insert(held.id, Box::new(held));
    }

    /// The scores as the profile has them.
    pub(super) fn scores(&self, rules: &Rules) -> SessionScores {
        SessionScores {
            reliability: rules.reliability(&self.reliability),
            consistency: rules.quanta(self.consistency.result().map(|result| result.score)),
        }
    }

    /// The done trace of the greatest risk, the later one of equals, and when it ended.
    fn worst(&self) -> Option<(Timestamp, TraceId)> {
        let given = self.traces.values().filter_map(|held| Some((held, held.given.as_ref()?)));
        let worst = given.map(|(held, given)| (given.contribution.risk, given.end, held.id)).max();
        worst.map(|(_, end, id)| (end, id))
    }

    /// The trace that started first.
    pub(super) fn first(&self) -> Option<&Held> {
        self.traces.get(&self.order.first()?.1).map(AsRef::as_ref)
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

    /// The traces whose window a trace at this position is in.
    fn after(&self, position: (Timestamp, TraceId)) -> Vec<TraceId> {
        let later = self.order.range((Bound::Excluded(position), Bound::Unbounded));
        later.take(WINDOW).map(|(_, trace)| *trace).collect()
    }

    /// The last few traces before one, oldest first.
    pub(super) fn earlier(&self, held: &Held) -> Vec<Earlier<'_>> {
        let earlier = self.order.range(..held.position()).rev().take(WINDOW);
        let mut earlier: Vec<_> = earlier
            .filter_map(|(_, id)| Some((*id, self.traces.get(id)?)))
            .map(|(id, held)| Earlier { id, output: held.update.output_digest.as_ref() })
            .collect();
        earlier.reverse();
        earlier
    }

    fn rescore(&mut self, trace: TraceId, shared: &mut Shared) {
        let Some(mut held) = self.traces.remove(&trace) else { return };
        let earlier = self.earlier(&held);
        let is_last = self.order.last() == Some(&held.position());
        let outcome = if is_last { self.outcome() } else { None };
        held.scored =
            Scored::new(&held.update, held.loop_severity(), &earlier, outcome, &shared.rules);
        let contribution = held.contribution(&shared.rules, &mut shared.fleet);
        if !held.gives(contribution.as_ref()) {
            self.retract(&mut held, shared);
            if let Some(contribution) = contribution {
                let missed = held.give(contribution, shared.wall(), &mut shared.fleet);
                shared.counts.add_many("panes", "outside_window", missed as u64);
                self.count_in(&held, shared);
            }
        }
        if held.given.is_some() && !held.tally.done && !held.update.uncertain {
            self.unsettled.insert(trace);
        } else if let Some(given) = &held.given
            && held.tally.done
            && !held.tally.outcome
            && verdict::outcome(&held).is_some()
        {
            let wall = shared.shift.wall(Timestamp(held.update.touched_unix_nano));
            let told = verdict::told_later(&held, &self.id, wall);
            shared.fleet.summary(&given.agent).tell_done(told);
            held.tally.outcome = true;
        }
        held.count(&mut shared.fleet);
        let run = run::trace(&held, &self.id, &self.reports);
        held.tell_run(run, &mut shared.fleet);
        self.traces.insert(trace, held);
    }

    fn count_in(&mut self, held: &Held, shared: &mut Shared) {
        let Some(given) = &held.given else { return };
        self.add_up(given, held.id);
        self.mark(&given.agent, shared);
    }

    fn add_up(&mut self, given: &Given, trace: TraceId) {
        given.contribution.risk.into_iter().for_each(|risk| self.reliability.observe(risk));
        let uncertainty = given.contribution.uncertainty.into_iter();
        uncertainty.for_each(|uncertainty| self.consistency.observe(uncertainty));
        self.ends.or_default(given.agent.clone()).insert((given.end, trace));
        self.took = Effort { answer_words: None, ..self.took.plus(given.effort) };
    }

    fn retract(&mut self, held: &mut Held, shared: &mut Shared) {
        let Some(given) = held.take_back(&mut shared.fleet) else { return };
        given.contribution.risk.into_iter().for_each(|risk| self.reliability.forget(risk));
        let uncertainty = given.contribution.uncertainty.into_iter();
        uncertainty.for_each(|uncertainty| self.consistency.forget(uncertainty));
        if let Some(ends) = self.ends.get_mut(&given.agent) {
            ends.remove(&(given.end, held.id));
        }
        self.took = self.took.minus(given.effort);
        self.ends.retain(|_, ends| !ends.is_empty());
        self.mark(&given.agent, shared);
    }

    /// Lets the session count in the panes of an agent's newest trace.
    fn mark(&mut self, agent: &Agent, shared: &mut Shared) {
        let newest = self.ends.get(agent).and_then(|ends| ends.last()).map(|(end, _)| *end);
        if newest == self.marks.get(agent).map(|(end, _)| *end) {
            return;
        }
        let wall = shared.wall();
        let summary = shared.fleet.summary(agent);
        if let Some((_, keys)) = self.marks.remove(agent) {
            summary.unmark(&keys);
        }
        if let Some(end) = newest {
            self.marks.insert(agent.clone(), (end, summary.mark(end, wall)));
        }
    }

    fn note_unusable(&self, trace: TraceId, shared: &mut Shared) {
        let Some(held) = self.traces.get(&trace) else { return };
        shared.counts.add_many("reported_scores", "malformed", held.scored.malformed);
        if let Some(given) = &held.given {
            let refused = held.scored.signals.len() - given.contribution.signals.len();
            shared.counts.add_many("signals", "agent_full", refused as u64);
        }
    }

    fn grow(&mut self, trace: TraceId, now: Timestamp) {
        let Some(held) = self.traces.get_mut(&trace) else { return };
        if held.update.state == TraceState::Open {
            self.open.insert(trace);
        } else {
            self.open.remove(&trace);
        }
        if held.grow(now) {
            self.growing.insert(trace);
        } else {
            self.growing.remove(&trace);
        }
    }
}

fn yes() -> bool {
    true
}
