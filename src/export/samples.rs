//! The samples that are exported of agents, family by family: what `/metrics` shows and what is sent as OTLP metrics.
//!
//! Read from live state each time: a series that ended is not exported, and a score over nothing has no series.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use super::families::{
    COUNTERS, CounterFamily, DISTRIBUTIONS, DistributionFamily, Family, InCore, SCORES,
    SESSION_CONSISTENCY, SESSION_RELIABILITY, ScoreFamily, TRACE_SIGNAL,
};
use super::gauges::{Gauge, RUNS, SESSIONS, WINDOWS};
use super::watched::WATCHED;
use crate::engine::agent_facts::AgentFacts;
use crate::engine::distributions::Distribution;
use crate::engine::facts::{AgentKey, ScoreHistogram};
use crate::engine::math::{Quanta, ratio};
use crate::engine::sessions::SCORE_BOUNDS;

/// Which families are exported.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Detail {
    /// Those that alerts and the headline need.
    #[default]
    Core,
    /// All.
    Full,
}

/// A format that samples are written in.
pub(super) trait Sink {
    /// The labels of an agent, made once per agent.
    type Labels;

    /// Makes the labels of an agent.
    fn labels(agent: &AgentKey) -> Self::Labels;

    /// Begins a family; one that is `always` named has a head even if it gets no sample.
    fn begin(&mut self, family: &'static Family, always: bool);

    /// Writes a gauge or a counter; `values` are those of the family's own labels.
    fn number<V: AsRef<str>>(
        &mut self,
        family: &Family,
        agent: &Self::Labels,
        values: &[V],
        number: f64,
    );

    /// Writes a histogram.
    fn histogram(
        &mut self,
        family: &Family,
        agent: &Self::Labels,
        values: &[&str],
        histogram: &Histogram<'_>,
    );

    /// Whether it is time for others to run.
    fn is_full(&self) -> bool;
}

/// The content of a histogram.
#[derive(Debug)]
pub(super) struct Histogram<'b> {
    pub(super) buckets: &'b ScoreHistogram,
    pub(super) bounds: &'static Bounds,
    // The number of units of the sum that make one.
    per_unit: i128,
}

/// Upper bounds of buckets, without the infinite one; and as text, with it.
#[derive(Debug)]
pub(super) struct Bounds {
    pub(super) upper: Vec<f64>,
    text: Vec<String>,
}

/// The bounds of scores.
static SCORE: LazyLock<Bounds> = LazyLock::new(|| Bounds::new(SCORE_BOUNDS.to_vec()));

/// The bounds of each distribution of what traces took.
static TAKEN: LazyLock<Vec<Bounds>> = LazyLock::new(|| {
    let of = |taken: &Distribution| {
        let shown = |bound: &u64| ratio(i128::from(*bound), i128::from(taken.per_unit()));
        Bounds::new(taken.bounds().iter().map(shown).collect())
    };
    Distribution::ALL.iter().map(of).collect()
});

impl Bounds {
    fn new(upper: Vec<f64>) -> Self {
        let text = upper.iter().map(|bound| format!("{bound:?}"));
        Self { text: text.chain(["+Inf".to_owned()]).collect(), upper }
    }
}

impl<'b> Histogram<'b> {
    pub(super) fn of_scores(buckets: &'b ScoreHistogram) -> Self {
        Self { buckets, bounds: &SCORE, per_unit: i128::from(Quanta::ONE) }
    }

    pub(super) fn sum(&self) -> f64 {
        ratio(self.buckets.sum_quanta, self.per_unit)
    }

    /// Counts of the buckets, one more than there are bounds.
    pub(super) fn counts(&self) -> impl Iterator<Item = u64> + 'b {
        let counts = self.buckets.buckets.iter().copied().chain(std::iter::repeat(0));
        counts.take(self.bounds.text.len())
    }

    /// The upper bound of each bucket as text, and the count of what is at most that.
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (&'static str, u64)> + 'b {
        let sums = self.counts().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        self.bounds.text.iter().map(String::as_str).zip(sums)
    }
}

/// No labels but the agent's.
const NONE: [&str; 0] = [];

/// What one family exports, written for one agent after the other, as the samples of a family have to be together.
#[derive(Clone, Copy, Debug)]
enum Section {
    Gauge(&'static Gauge),
    RunScore(&'static ScoreFamily),
    TraceSignal,
    ClosedSessions(&'static Family, &'static str),
    Taken(&'static DistributionFamily),
    Counter(&'static CounterFamily, Detail),
}

/// All families, in the order of the page.
pub(super) fn families() -> impl Iterator<Item = &'static Family> {
    Section::all(Detail::Full).into_iter().map(|section| section.family().0)
}

impl Section {
    /// All sections, in the order of the page.
    fn all(detail: Detail) -> Vec<Self> {
        let mut sections: Vec<Self> = WINDOWS.iter().map(Self::Gauge).collect();
        sections.extend(SCORES.iter().map(Self::RunScore));
        sections.extend([RUNS, WATCHED, SESSIONS].into_iter().flatten().map(Self::Gauge));
        sections.extend([
            Self::TraceSignal,
            Self::ClosedSessions(&SESSION_RELIABILITY, "reliability"),
            Self::ClosedSessions(&SESSION_CONSISTENCY, "consistency"),
        ]);
        sections.extend(DISTRIBUTIONS.iter().map(Self::Taken));
        sections.extend(COUNTERS.iter().map(|counter| Self::Counter(counter, detail)));
        sections.retain(|section| section.family().0.core || detail == Detail::Full);
        sections
    }

    /// The family of the section, and whether it is named even if no agent has a sample.
    fn family(self) -> (&'static Family, bool) {
        match self {
            Self::Gauge(gauge) => (&gauge.family, gauge.always),
            Self::RunScore(score) => (&score.family, false),
            Self::TraceSignal => (&TRACE_SIGNAL, true),
            Self::ClosedSessions(family, _) => (family, true),
            Self::Taken(taken) => (&taken.family, false),
            Self::Counter(counter, _) => (&counter.family, counter.family.core),
        }
    }

    /// Writes the samples of an agent.
    fn write<S: Sink>(self, of: &AgentFacts, agent: &S::Labels, sink: &mut S) {
        match self {
            Self::Gauge(gauge) => (gauge.of)(of, &mut |values, value| {
                sink.number(&gauge.family, agent, values, value);
            }),
            Self::RunScore(score) => {
                for (name, scores) in &of.run_scores {
                    if let Some((value, _)) = scores.scores.get(score.score) {
                        sink.number(&score.family, agent, &[name], *value);
                    }
                }
            }
            Self::TraceSignal => {
                for (signal, buckets) in of.trace_signals.iter() {
                    let histogram = Histogram::of_scores(buckets);
                    sink.histogram(&TRACE_SIGNAL, agent, &[signal], &histogram);
                }
            }
            Self::ClosedSessions(family, score) => {
                if let Some(buckets) = of.closed_sessions.get(score) {
                    sink.histogram(family, agent, &NONE, &Histogram::of_scores(buckets));
                }
            }
            Self::Taken(taken) => {
                let distribution = taken.distribution;
                if let Some(buckets) = of.distributions.get(&distribution) {
                    let bounds = &TAKEN[distribution as usize];
                    let per_unit = i128::from(distribution.per_unit());
                    let histogram = Histogram { buckets, bounds, per_unit };
                    sink.histogram(&taken.family, agent, &NONE, &histogram);
                }
            }
            Self::Counter(counter, detail) => counter.write(detail, of, agent, sink),
        }
    }
}

impl CounterFamily {
    /// Writes the samples that this detail has of an agent.
    fn write<S: Sink>(&self, detail: Detail, of: &AgentFacts, agent: &S::Labels, sink: &mut S) {
        match (detail, self.in_core) {
            (Detail::Full, _) | (Detail::Core, InCore::All | InCore::Nothing) => {
                self.series(None, of, agent, sink);
            }
            (Detail::Core, InCore::Of(value)) => self.series(Some(value), of, agent, sink),
            (Detail::Core, InCore::Sum) => {
                let counted = of.counters.family(self.engine).iter();
                let sum = counted.map(|(.., value)| value).sum();
                self.count(agent, &NONE, sum, sink);
            }
        }
    }

    /// Writes the series of an agent; only those whose first label has the value `only`, if it is given.
    fn series<S: Sink>(
        &self,
        only: Option<&str>,
        of: &AgentFacts,
        agent: &S::Labels,
        sink: &mut S,
    ) {
        let is_wanted =
            |values: &[String]| only.is_none_or(|only| values.first().is_some_and(|is| is == only));
        let counted = of.counters.family(self.engine).iter();
        let counted = counted.filter(|(_, values, _)| is_wanted(values));
        // Invariant: both are in order.
        let mut zeros = self.zeros.iter().peekable();
        for (_, values, count) in counted {
            let against =
                |zero: &&[&str]| zero.iter().copied().cmp(values.iter().map(String::as_str));
            while let Some(zero) = zeros.next_if(|zero| against(zero).is_lt()) {
                self.count(agent, zero, 0, sink);
            }
            zeros.next_if(|zero| against(zero).is_eq());
            self.count(agent, values, *count, sink);
        }
        zeros.for_each(|zero| self.count(agent, zero, 0, sink));
    }

    fn count<S: Sink>(
        &self,
        agent: &S::Labels,
        values: &[impl AsRef<str>],
        count: u64,
        sink: &mut S,
    ) {
        let number = ratio(i128::from(count), i128::from(self.engine.per_unit()));
        sink.number(&self.family, agent, values, number);
    }
}

/// Writes the samples of agents to a sink, in steps, between which other tasks can run.
///
/// Each step takes its thread for a bounded time, however many agents there are.
#[derive(Debug)]
pub(super) struct Samples<S: Sink> {
    pub(super) sink: S,
    // Agents whose labels are not made yet.
    waiting: std::vec::IntoIter<Arc<AgentFacts>>,
    agents: Vec<(Arc<AgentFacts>, S::Labels)>,
    sections: Vec<Section>,
    // The position of the next sample.
    section: usize,
    agent: usize,
}

/// The visits to an agent after which a step ends.
pub(super) const STEP_VISITS: usize = 500;

/// The agents that a step drops once everything is written: updates that were replaced meanwhile are freed here.
const STEP_DROPS: usize = 50;

impl<S: Sink> Samples<S> {
    /// Begins with the samples of these agents, which come in the order of their names.
    pub(super) fn new(agents: Vec<Arc<AgentFacts>>, detail: Detail, sink: S) -> Self {
        Self {
            sink,
            agents: Vec::with_capacity(agents.len()),
            waiting: agents.into_iter(),
            sections: Section::all(detail),
            section: 0,
            agent: 0,
        }
    }

    /// Takes the next step; `false` if everything is written.
    pub(super) fn step(&mut self) -> bool {
        if self.waiting.len() > 0 {
            let labelled = self.waiting.by_ref().take(STEP_VISITS);
            self.agents.extend(labelled.map(|agent| {
                let labels = S::labels(&agent.agent);
                (agent, labels)
            }));
        } else if self.section < self.sections.len() {
            self.write();
        } else {
            let Some(others) = self.agents.len().checked_sub(1) else { return false };
            self.agents.truncate(others.saturating_sub(STEP_DROPS));
        }
        true
    }

    fn write(&mut self) {
        for _ in 0..STEP_VISITS {
            let Some(section) = self.sections.get(self.section) else { break };
            if self.agent == 0 {
                let (family, always) = section.family();
                self.sink.begin(family, always);
            }
            if let Some((of, labels)) = self.agents.get(self.agent) {
                section.write(of, labels, &mut self.sink);
            }
            self.agent += 1;
            if self.agent >= self.agents.len() {
                (self.section, self.agent) = (self.section + 1, 0);
            }
            if self.sink.is_full() {
                break;
            }
        }
    }
}
