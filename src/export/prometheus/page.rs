//! Writes a page: the samples that each family has of an agent.

use std::fmt::Write;
use std::sync::LazyLock;

use super::super::families::{CounterFamily, Family, InCore, Kind, TRACE_SIGNAL};
use super::super::gauges::number;
use super::line::{self, count, label};
use super::{Detail, Exported, Format, NANOS, Section};
use crate::engine::distributions::Distribution;
use crate::engine::facts::{Exemplar, ScoreHistogram};
use crate::engine::math::{Quanta, ratio};
use crate::engine::sessions::SCORE_BOUNDS;

/// Upper bounds of the buckets of scores as text, the last of them infinite.
static BOUNDS: LazyLock<Bounds> = LazyLock::new(|| bounds(&SCORE_BOUNDS));

/// Upper bounds of the buckets of each distribution of what traces took, as text.
static TAKEN: LazyLock<Vec<Bounds>> = LazyLock::new(|| {
    let of = |taken: &Distribution| -> Bounds {
        let shown = |bound: &u64| ratio(i128::from(*bound), i128::from(taken.per_unit()));
        bounds(&taken.bounds().iter().map(shown).collect::<Vec<f64>>())
    };
    Distribution::ALL.iter().map(of).collect()
});

/// Upper bounds of buckets as text.
type Bounds = Vec<String>;

fn bounds(bounds: &[f64]) -> Bounds {
    let bounds = bounds.iter().map(|bound| format!("{bound:?}"));
    bounds.chain(["+Inf".to_owned()]).collect()
}

/// The content of a histogram.
struct Histogram<'b> {
    buckets: &'b ScoreHistogram,
    bounds: &'static Bounds,
    // The number of units of the sum that make one.
    per_unit: i128,
}

impl<'b> Histogram<'b> {
    fn of_scores(buckets: &'b ScoreHistogram) -> Self {
        Self { buckets, bounds: &BOUNDS, per_unit: i128::from(Quanta::ONE) }
    }
}

/// No labels but the agent's.
const NONE: [&str; 0] = [];

/// The text that is written so far.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) text: String,
    format: Format,
    // The family that was begun and has no head yet: it gets one with its first sample.
    head: Option<&'static Family>,
}

impl Page {
    /// An empty page.
    pub(super) fn new(format: Format) -> Self {
        Self { text: String::new(), format, head: None }
    }

    /// Begins the family of a part, with its head if it always has one.
    pub(super) fn begin(&mut self, part: &Section) {
        let (family, always) = part.family();
        self.head = Some(family);
        if always {
            self.head();
        }
    }

    /// Writes the samples that a part has of an agent.
    pub(super) fn write(&mut self, part: &Section, agent: &Exported) {
        let Exported { update, labels } = agent;
        match *part {
            Section::Gauge(gauge) => (gauge.of)(update, &mut |values, value| {
                self.sample(&gauge.family, labels, values, value);
            }),
            Section::RunScore(score) => {
                for (name, scores) in &update.run_scores {
                    if let Some((value, _)) = scores.scores.get(score.score) {
                        self.sample(&score.family, labels, &[name], *value);
                    }
                }
            }
            Section::TraceSignal => {
                for (signal, buckets) in update.trace_signals.iter() {
                    let histogram = Histogram::of_scores(buckets);
                    self.histogram(&TRACE_SIGNAL, labels, &[signal], &histogram);
                }
            }
            Section::ClosedSessions(family, score) => {
                if let Some(buckets) = update.closed_sessions.get(score) {
                    self.histogram(family, labels, &NONE, &Histogram::of_scores(buckets));
                }
            }
            Section::Taken(taken) => {
                let distribution = taken.distribution;
                if let Some(buckets) = update.distributions.get(&distribution) {
                    let bounds = &TAKEN[distribution as usize];
                    let per_unit = i128::from(distribution.per_unit());
                    let histogram = Histogram { buckets, bounds, per_unit };
                    self.histogram(&taken.family, labels, &NONE, &histogram);
                }
            }
            Section::Counter(counter, detail) => self.counter_in(detail, counter, agent),
        }
    }

    /// Writes the samples of a counter that this detail has.
    fn counter_in(&mut self, detail: Detail, counter: &CounterFamily, agent: &Exported) {
        match (detail, counter.in_core) {
            (Detail::Full, _) | (Detail::Core, InCore::All | InCore::Nothing) => {
                self.counter(counter, None, agent);
            }
            (Detail::Core, InCore::Of(value)) => self.counter(counter, Some(value), agent),
            (Detail::Core, InCore::Sum) => {
                let counted = agent.update.counters.family(counter.engine).iter();
                let sum = counted.map(|(.., value)| value).sum();
                self.counted(counter, agent, &NONE, sum);
            }
        }
    }

    /// Writes the series of a counter; only those whose first label has the value `of`, if it is given.
    fn counter(&mut self, counter: &CounterFamily, of: Option<&str>, agent: &Exported) {
        let counted = agent.update.counters.family(counter.engine).iter();
        let of = |labels: &[String]| of.is_none_or(|of| labels.first().is_some_and(|is| is == of));
        let counted = counted.filter(|(_, labels, _)| of(labels));
        // Invariant: both are in order.
        let mut zeros = counter.zeros.iter().peekable();
        for (_, labels, value) in counted {
            let against =
                |zero: &&[&str]| zero.iter().copied().cmp(labels.iter().map(String::as_str));
            while let Some(zero) = zeros.next_if(|zero| against(zero).is_lt()) {
                self.counted(counter, agent, zero, 0);
            }
            zeros.next_if(|zero| against(zero).is_eq());
            self.counted(counter, agent, labels, *value);
        }
        zeros.for_each(|zero| self.counted(counter, agent, zero, 0));
    }

    fn counted<L: AsRef<str>>(
        &mut self,
        counter: &CounterFamily,
        agent: &Exported,
        labels: &[L],
        value: u64,
    ) {
        let value = ratio(i128::from(value), i128::from(counter.engine.per_unit()));
        self.series(&counter.family, "_total", &agent.labels, labels);
        self.value(value);
    }

    /// Writes the head of the family that was begun, unless it is written.
    fn head(&mut self) {
        if let Some(family) = self.head.take() {
            self.family(family);
        }
    }

    /// Writes the head of a family. In the text format the name of a counter's family has its `_total`.
    fn family(&mut self, family: &Family) {
        let kind = match family.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        };
        let total =
            if self.format == Format::Text && family.kind == Kind::Counter { "_total" } else { "" };
        let name = family.name;
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name}{total} {}", family.help);
        let _ = writeln!(self.text, "# TYPE {name}{total} {kind}");
    }

    /// Writes a sample under the family's name without a suffix.
    fn sample<L: AsRef<str>>(&mut self, family: &Family, agent: &str, labels: &[L], value: f64) {
        self.series(family, "", agent, labels);
        self.value(value);
    }

    /// Writes what follows the labels of a series: the closing brace, the value and a line break.
    fn value(&mut self, value: f64) {
        self.text.push_str("} ");
        line::number(value, &mut self.text);
        self.text.push('\n');
    }

    /// Writes the name and the labels of a series, up to the closing brace.
    fn series<L: AsRef<str>>(&mut self, family: &Family, suffix: &str, agent: &str, labels: &[L]) {
        self.head();
        self.text.push_str(family.name);
        self.text.push_str(suffix);
        self.text.push('{');
        self.text.push_str(agent);
        for (name, value) in family.labels.iter().zip(labels) {
            self.text.push(',');
            label(name, value.as_ref(), &mut self.text);
        }
    }

    fn histogram(
        &mut self,
        family: &Family,
        agent: &str,
        labels: &[&str],
        histogram: &Histogram<'_>,
    ) {
        let Histogram { buckets, bounds, per_unit } = *histogram;
        self.head();
        let start = self.text.len();
        self.series(family, "_bucket", agent, labels);
        self.text.push_str(",le=\"");
        // Everything but the bound is the same in every bucket.
        let series = start..self.text.len();
        for (bucket, (bound, sum)) in (0..).zip(cumulative(buckets, bounds)) {
            if bucket > 0 {
                self.text.extend_from_within(series.clone());
            }
            self.text.push_str(bound);
            self.text.push_str("\"} ");
            count(sum, &mut self.text);
            // The text format has no exemplars.
            let has_exemplars = self.format == Format::OpenMetrics;
            if let Some(exemplar) = buckets.exemplar(bucket).filter(|_| has_exemplars) {
                self.exemplar(exemplar);
            }
            self.text.push('\n');
        }
        self.series(family, "_sum", agent, labels);
        self.value(ratio(buckets.sum_quanta, per_unit));
        self.series(family, "_count", agent, labels);
        self.value(number(buckets.count));
    }

    /// Writes an example for a bucket: the id, the score and the end of a trace.
    fn exemplar(&mut self, exemplar: &Exemplar) {
        let _ = write!(self.text, " # {{trace_id=\"{}", exemplar.trace_id);
        let score = Quanta(exemplar.score_quanta).to_f64();
        let (seconds, nanos) = (exemplar.end_unix_nano / NANOS, exemplar.end_unix_nano % NANOS);
        let _ = write!(self.text, "\"}} {score} {seconds}.{:03}", nanos / 1_000_000);
    }
}

/// How many scores are at most each upper bound, which is as text.
pub(in super::super) fn at_most(
    scores: &ScoreHistogram,
) -> impl Iterator<Item = (&'static str, u64)> + '_ {
    cumulative(scores, &BOUNDS)
}

/// Cumulative counts with their upper bounds as text.
fn cumulative<'b>(
    buckets: &'b ScoreHistogram,
    bounds: &'static Bounds,
) -> impl Iterator<Item = (&'static str, u64)> + 'b {
    let mut sum = 0;
    let counts = buckets.buckets.iter().chain(std::iter::repeat(&0));
    bounds.iter().zip(counts).map(move |(bound, count)| {
        sum += count;
        (bound.as_str(), sum)
    })
}
