//! One agent in one shard: its panes, counters, histograms and gauges.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::exemplar::Exemplified;
use serde::{Deserialize, Serialize};

use super::histogram::Histogram;
use super::optional::OptionalNumber;
use super::pane::{Mark, PaneSet, Panes, Widths};
use super::record::{Contribution, TraceRecord};
use super::verdict::Verdict;
use crate::counters::{Counter, Counters, Labels};
use crate::distributions::{Distribution, Distributions, TraceUsage};
use crate::facts::{
    DoneTrace, Effort, LastTrace, OVERFLOW, RunTrace, ScoreHistogram, SessionFacts, Silences,
};
use crate::limits::Cause;
use crate::math::Quanta;
use crate::options::AgentOptions;
use crate::predict::{EffortBuckets, Spread, StartedRun};
use crate::score::trajectory_gate::GateStep;
use crate::signal::SignalName;
use crate::small_map::SmallMap;
use crate::span::{Timestamp, TraceId};

/// Tolerance for client clocks that are ahead.
const AHEAD: Duration = Duration::from_secs(300);

/// One agent, as known on this shard.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Summary {
    /// How many traces in memory count towards it.
    pub(super) held: u64,
    /// When a trace of it was last handled.
    pub(super) active: Timestamp,
    /// When a span or log record of it last arrived, or was attributed to it.
    pub(super) last_heard: Timestamp,
    /// Whether no trace is certain to be its own.
    pub(super) uncertain: bool,
    /// Whether an update about it has been sent.
    #[serde(skip)]
    pub(super) announced: bool,
    /// Whether it is among the agents that changed.
    #[serde(skip)]
    pub(super) changed: bool,
    panes: Panes,
    // The last done traces, in the order of their starts and ids: one list, as it is told often.
    last: Arc<VecDeque<LastTrace>>,
    #[serde(skip)]
    max_last: usize,
    // Counters start with the process or, in a cluster, with the shard.
    counters: Counters,
    // The counts of earlier processes, for the families whose totals the API shows.
    earlier: Counters,
    sessions_active: u64,
    /// How many of its traces have been silent, and for how long.
    pub(super) silences: Silences,
    // Distributions of what its traces used; they start as counters do.
    distributions: Distributions,
    // How many sessions run away, by cause.
    runaways: BTreeMap<Cause, u64>,
    /// How many sessions run away by a loop with more evidence than names, each counted once, whatever kinds of loops it has.
    pub(super) looping: u64,
    open: Scores,
    closed: Closed,
    signals: SmallMap<SignalName, Judged>,
    other_signals: BTreeSet<String>,
    #[serde(skip)]
    max_signals: usize,
    // Names from spans that have series of their own.
    names: BTreeSet<String>,
    #[serde(skip)]
    max_names: usize,
    spread: Arc<Spread>,
    // Efforts of single traces.
    trace_spread: Arc<Spread>,
    // Changes since the last update.
    #[serde(skip)]
    run_traces: BTreeMap<TraceId, RunTrace>,
    #[serde(skip)]
    done_traces: Vec<DoneTrace>,
}

/// Counts of one signal over traces that were done for the first time.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Judged {
    // By `Verdict`.
    evaluations: [Counted; Verdict::ALL.len()],
    // In the order of `BREACHES`.
    breaches: [Counted; BREACHES.len()],
    scores: Exemplified,
}

/// Label values of the trajectory gate's breaches.
const BREACHES: [&str; 2] = ["regression", "stall"];

/// A counter of a signal.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Counted {
    value: u64,
    // Made when the counter is first sent.
    #[serde(skip)]
    labels: Option<Labels>,
}

/// Distributions of the two scores of sessions.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Scores {
    reliability: Histogram,
    consistency: Histogram,
}

/// Distributions over closed sessions, with an example in each bucket.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Closed {
    reliability: Exemplified,
    consistency: Exemplified,
}

/// The two scores of one session; `None` without a done trace.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct SessionScores {
    reliability: OptionalNumber,
    consistency: OptionalNumber,
}

impl Summary {
    /// An agent about which nothing is known yet.
    pub(super) fn new(widths: Widths, options: &AgentOptions) -> Self {
        let AgentOptions { last_traces: max_last, max_signals_per_agent: max_signals, .. } =
            *options;
        Self {
            held: 0,
            uncertain: true,
            active: Timestamp::default(),
            last_heard: Timestamp::default(),
            announced: false,
            changed: false,
            panes: Panes::new(widths),
            last: Arc::default(),
            max_last,
            counters: Counters::default(),
            earlier: Counters::default(),
            sessions_active: 0,
            silences: Silences::default(),
            distributions: Distributions::default(),
            runaways: BTreeMap::new(),
            looping: 0,
            open: Scores::default(),
            closed: Closed::default(),
            signals: SmallMap::default(),
            other_signals: BTreeSet::new(),
            max_signals,
            names: BTreeSet::new(),
            max_names: options.max_names_per_agent,
            spread: Arc::default(),
            trace_spread: Arc::default(),
            run_traces: BTreeMap::new(),
            done_traces: Vec::new(),
        }
    }

    /// Whether nothing is left of it that could be shown.
    pub(super) fn is_void(&self) -> bool {
        self.held == 0
            && self.counters.is_empty()
            && self.panes.is_empty()
            && self.spread.is_empty()
            && self.trace_spread.is_empty()
            && self.run_traces.is_empty()
            && self.done_traces.is_empty()
    }

    /// Whether a signal has sums of its own: the first `max_signals_per_agent` names have, permanently.
    pub(super) fn admits(&mut self, signal: &str) -> bool {
        if self.other_signals.contains(signal) {
            return true;
        }
        let room = self.other_signals.len() < self.max_signals;
        if room {
            self.other_signals.insert(signal.to_owned());
        }
        room
    }

    /// Raises a counter; `labels` are the values in the order of the family's labels.
    pub(super) fn count(&mut self, family: Counter, labels: &[&str], more: u64) {
        if more > 0 {
            self.counters.raise(family, labels, more);
        }
    }

    /// Raises a counter whose first label is a name from spans; names over `max_names_per_agent` share `__overflow__`. Returns whether
    /// there was room.
    pub(super) fn count_named(&mut self, family: Counter, labels: &[&str], more: u64) -> bool {
        let Some((name, rest)) = labels.split_first() else { return true };
        let has_room = self.names.contains(*name) || self.names.len() < self.max_names;
        if has_room && !self.names.contains(*name) {
            self.names.insert((*name).to_owned());
        }
        let labels = [&[if has_room { *name } else { OVERFLOW }], rest].concat();
        self.count(family, &labels, more);
        has_room
    }

    /// Takes over an agent from a snapshot, under the options of this process: panes of windows that are no longer configured are
    /// dropped.
    pub(super) fn restore(&mut self, saved: Self) {
        let Self { uncertain, max_last, max_signals, max_names, changed, .. } = *self;
        self.panes.restore(saved.panes);
        let panes = std::mem::replace(&mut self.panes, Panes::new(Arc::default()));
        let own = Self { panes, uncertain, max_last, max_signals, max_names, changed, ..saved };
        *self = Self { announced: true, ..own };
        let over = self.last.len().saturating_sub(self.max_last);
        Arc::make_mut(&mut self.last).drain(..over);
    }

    /// Marks everything as changed, so that it is sent again.
    pub(super) fn tell_all(&mut self) {
        self.changed = true;
        self.panes.tell_all();
    }

    /// Restarts counters, and histograms that only rise, from zero; totals continue.
    pub(super) fn restart_counts(&mut self) {
        let counters = std::mem::take(&mut self.counters);
        self.earlier.add(&counters, |family| TOTALS.contains(&family));
        self.closed = Closed::default();
        self.distributions = Distributions::default();
        self.names.clear();
        self.signals = SmallMap::default();
    }

    /// Adds a done trace; returns its panes, and for how many windows it is too early or too late.
    pub(super) fn observe(&mut self, trace: &TraceRecord, wall: Timestamp) -> (PaneSet, usize) {
        let (end, scored) = (trace.end(), &*trace.scored);
        let panes = self.panes.of(end, wall);
        self.panes.observe(panes, end, scored);
        let quanta = |score: Option<Quanta>| score.map(|score| score.0);
        let told = LastTrace {
            start_unix_nano: trace.start.0,
            trace_id: trace.id,
            risk_quanta: quanta(scored.own_risk()),
            uncertainty_quanta: quanta(scored.own_uncertainty()),
            judged_quanta: quanta(scored.judged_risk()),
        };
        let last = Arc::make_mut(&mut self.last);
        match place_among(last, trace.position()) {
            Ok(at) => last[at] = told,
            Err(at) => last.insert(at, told),
        }
        if last.len() > self.max_last {
            last.pop_front();
        }
        (panes, self.panes.windows() + 1 - panes.len())
    }

    /// Subtracts a done trace.
    pub(super) fn forget(&mut self, trace: TraceId, given: &Contribution) {
        self.panes.forget(given.panes, given.end, &given.scored);
        if let Ok(at) = place_among(&self.last, (given.took.start, trace)) {
            Arc::make_mut(&mut self.last).remove(at);
        }
    }

    /// Adds the effort of a done trace.
    pub(super) fn observe_effort(&mut self, start: Timestamp, effort: &Effort) {
        Arc::make_mut(&mut self.trace_spread).add(start, effort);
    }

    /// Subtracts the effort of a done trace.
    pub(super) fn forget_effort(&mut self, start: Timestamp, effort: &Effort) {
        Arc::make_mut(&mut self.trace_spread).remove(start, effort);
    }

    /// Moves a session to the panes of its newest trace, which ended at `end`, with its effort; returns where it counts from here
    /// on.
    pub(super) fn mark(
        &mut self,
        before: Option<Mark>,
        end: Option<Timestamp>,
        wall: Timestamp,
        took: Option<EffortBuckets>,
    ) -> Option<Mark> {
        let after = end.map(|end| (end, self.panes.of(end, wall)));
        self.panes.mark(before, after, took);
        after
    }

    /// Replaces the effort of a session in the panes of this mark.
    pub(super) fn spend(
        &mut self,
        mark: Option<Mark>,
        before: Option<StartedRun>,
        after: Option<StartedRun>,
    ) {
        Arc::make_mut(&mut self.spread).replace(before, after);
        let effort = |run: Option<StartedRun>| run.map(|(_, effort)| effort);
        self.panes.spend(mark, effort(before), effort(after));
    }

    /// Removes panes that are no longer in any window, and efforts of runs that started in future weeks.
    pub(super) fn expire(&mut self, wall: Timestamp) {
        self.panes.expire(wall);
        let spreads = [&mut self.spread, &mut self.trace_spread].into_iter();
        for spread in spreads.filter(|spread| spread.is_ahead(wall)) {
            Arc::make_mut(spread).forget_ahead(wall);
        }
    }

    /// Starts a new era of panes, as the wall clock was set.
    pub(super) fn stepped(&mut self) {
        self.panes.stepped();
    }

    /// After the wall clock was set back: removes last traces that started well ahead of it, as they would stay the last ones until
    /// then.
    pub(super) fn forget_ahead(&mut self, wall: Timestamp) {
        let ahead = wall.after(AHEAD);
        Arc::make_mut(&mut self.last).retain(|trace| trace.start_unix_nano <= ahead.0);
    }

    /// Adds an open session.
    pub(super) fn open(&mut self, scores: SessionScores) {
        self.sessions_active += 1;
        self.open.observe(scores);
    }

    /// Removes an open session.
    pub(super) fn remove_open(&mut self, scores: SessionScores) {
        self.sessions_active -= 1;
        self.open.forget(scores);
    }

    /// Adds a session that closed; `worst` is its trace of the greatest risk, with its end.
    pub(super) fn close(&mut self, scores: SessionScores, worst: Option<(Timestamp, TraceId)>) {
        let Closed { reliability, consistency } = &mut self.closed;
        scores.reliability().into_iter().for_each(|score| reliability.observe(score, worst));
        scores.consistency().into_iter().for_each(|score| consistency.observe(score, worst));
    }

    /// Adds a session that runs away.
    pub(super) fn add_runaway(&mut self, cause: Cause) {
        *self.runaways.entry(cause).or_default() += 1;
    }

    /// Removes a session that no longer runs away.
    pub(super) fn remove_runaway(&mut self, cause: Cause) {
        if let Some(sessions) = self.runaways.get_mut(&cause) {
            *sessions -= 1;
        }
        self.runaways.retain(|_, sessions| *sessions > 0);
    }

    /// Adds the usage of a trace that is done for the first time to the distributions.
    pub(super) fn take(&mut self, taken: &TraceUsage) {
        self.distributions.observe(taken);
    }

    /// The counts of a signal; signals are looked up in order, as [`SmallMap::or_default_next`] does.
    pub(super) fn judged(&mut self, next: &mut usize, signal: &SignalName) -> &mut Judged {
        self.signals.or_default_next(next, signal)
    }

    /// Adds a trace that is done for the first time, or a later outcome, to the next update.
    pub(super) fn tell_done(&mut self, trace: DoneTrace) {
        self.done_traces.push(trace);
    }

    /// Adds the contribution of a trace to a run to the next update.
    pub(super) fn tell_run(&mut self, trace: TraceId, run: RunTrace) {
        self.run_traces.insert(trace, run);
    }

    /// All counters.
    fn counters(&mut self) -> Counters {
        let labels = BREACHES.len() + Verdict::ALL.len();
        let mut counters = self.counters.with_room(labels * self.signals.len());
        let breaches = self.signals.iter_mut().flat_map(|(signal, judged)| {
            let of_gate = judged.breaches.iter_mut().zip(BREACHES);
            of_gate.filter_map(|(of, breach)| of.count_of(signal, breach))
        });
        counters.insert(Counter::GateBreaches, breaches);
        let evaluations = self.signals.iter_mut().flat_map(|(signal, judged)| {
            let verdicts = judged.evaluations.iter_mut().zip(Verdict::ALL);
            verdicts.filter_map(|(of, verdict)| of.count_of(signal, verdict.name()))
        });
        counters.insert(Counter::TraceEvaluations, evaluations);
        counters
    }

    /// How many sessions run away, by causes of one kind.
    fn running_away<L: Ord>(&self, of: fn(Cause) -> Option<L>) -> BTreeMap<L, u64> {
        let causes = self.runaways.iter();
        causes.filter_map(|(cause, sessions)| Some((of(*cause)?, *sessions))).collect()
    }

    /// The update, with the panes that changed; the caller fills in the agent and the revision.
    pub(super) fn drain(&mut self) -> SessionFacts {
        let mut distributions = SmallMap::with_capacity(Distribution::ALL.len());
        distributions.extend(self.distributions.message());
        let mut trace_signals = SmallMap::with_capacity(self.signals.len());
        trace_signals.extend(self.signals.iter().filter_map(signal));
        // All fields are listed, as building the default's would be wasted work.
        SessionFacts {
            panes: self.panes.drain(),
            last: Arc::clone(&self.last),
            counters: self.counters(),
            earlier: self.earlier.clone(),
            last_heard_unix_nano: self.last_heard.0,
            sessions_active: self.sessions_active,
            silences: self.silences.clone(),
            distributions,
            sessions_looping: self.running_away(Cause::as_loop),
            looping: self.looping,
            sessions_over_limit: self.running_away(Cause::as_limit),
            open_reliability: self.open.reliability.message(),
            open_consistency: self.open.consistency.message(),
            closed_reliability: self.closed.reliability.message(),
            closed_consistency: self.closed.consistency.message(),
            trace_signals,
            run_traces: std::mem::take(&mut self.run_traces).into_values().collect(),
            done_traces: std::mem::take(&mut self.done_traces),
            spread: Arc::clone(&self.spread),
            trace_spread: Arc::clone(&self.trace_spread),
            agent: None,
            shard: 0,
            revision: 0,
            tombstone: false,
            uncertain: self.uncertain,
            panes_only: false,
        }
    }
}

impl Judged {
    /// Counts a verdict.
    pub(super) fn count(&mut self, verdict: Verdict) {
        self.evaluations[verdict as usize].value += 1;
    }

    /// Adds a score of a trace with this end.
    pub(super) fn observe(&mut self, score: Quanta, trace: (Timestamp, TraceId)) {
        self.scores.observe(score, Some(trace));
    }

    /// Counts a breach found by the trajectory gate.
    pub(super) fn turn(&mut self, turn: GateStep) {
        for (breach, is_one) in self.breaches.iter_mut().zip([turn.regressed, turn.stalled]) {
            breach.value += u64::from(is_one);
        }
    }
}

impl Counted {
    /// The counter with its labels, unless it is zero.
    fn count_of(&mut self, signal: &SignalName, label: &str) -> Option<(Labels, u64)> {
        let labels = || [signal.to_string(), label.to_owned()].into();
        (self.value > 0).then(|| (Arc::clone(self.labels.get_or_insert_with(labels)), self.value))
    }
}

impl SessionScores {
    /// These scores.
    pub(super) fn new(reliability: Option<Quanta>, consistency: Option<Quanta>) -> Self {
        let number = |score: Option<Quanta>| score.map(|score| score.0.cast_unsigned()).into();
        Self { reliability: number(reliability), consistency: number(consistency) }
    }

    /// `agent_reliability`.
    pub(super) fn reliability(self) -> Option<Quanta> {
        quanta(self.reliability)
    }

    /// `agent_consistency`.
    pub(super) fn consistency(self) -> Option<Quanta> {
        quanta(self.consistency)
    }
}

impl Scores {
    fn observe(&mut self, scores: SessionScores) {
        scores.reliability().into_iter().for_each(|score| self.reliability.observe(score));
        scores.consistency().into_iter().for_each(|score| self.consistency.observe(score));
    }

    fn forget(&mut self, scores: SessionScores) {
        scores.reliability().into_iter().for_each(|score| self.reliability.forget(score));
        scores.consistency().into_iter().for_each(|score| self.consistency.forget(score));
    }
}

/// Families whose totals over all processes the API shows.
const TOTALS: [Counter; 10] = [
    Counter::CostUsd,
    Counter::Loops,
    Counter::SubAgentCostUsd,
    Counter::SubAgentErrors,
    Counter::SubAgentLoops,
    Counter::SubAgentModelCalls,
    Counter::SubAgentTokens,
    Counter::SubAgentToolCalls,
    Counter::Tokens,
    Counter::UnpricedCalls,
];

fn quanta(score: OptionalNumber) -> Option<Quanta> {
    Option::<u64>::from(score).map(|score| Quanta(score.cast_signed()))
}

/// The place of a trace of this start and id among the last ones, or where it belongs: mostly at the end.
fn place_among(last: &VecDeque<LastTrace>, place: (Timestamp, TraceId)) -> Result<usize, usize> {
    let of = |trace: &LastTrace| (Timestamp(trace.start_unix_nano), trace.trace_id);
    if last.back().is_none_or(|newest| of(newest) < place) {
        return Err(last.len());
    }
    last.binary_search_by_key(&place, of)
}

fn signal((name, judged): (&SignalName, &Judged)) -> Option<(Cow<'static, str>, ScoreHistogram)> {
    Some((name.into(), judged.scores.message()?))
}
