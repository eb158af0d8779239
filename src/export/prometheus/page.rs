//! Writes samples of agents as a page.

use std::fmt::Write;

use super::super::families::{Family, Kind};
use super::super::gauges::number;
use super::super::samples::{Histogram, Sink};
use super::line::{self, count, label, label_block};
use super::{Format, NANOS, PIECE_BYTES};
use crate::engine::facts::{AgentKey, Exemplar};
use crate::engine::math::Quanta;

/// The text that is written so far.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) text: String,
    format: Format,
    // The family that was begun and has no head yet: it gets one with its first sample.
    head: Option<&'static Family>,
}

impl Sink for Page {
    type Labels = String;

    fn labels(agent: &AgentKey) -> String {
        label_block(agent)
    }

    fn begin(&mut self, family: &'static Family, always: bool) {
        self.head = Some(family);
        if always {
            self.head();
        }
    }

    fn number<V: AsRef<str>>(&mut self, family: &Family, agent: &String, values: &[V], value: f64) {
        let suffix = if family.kind == Kind::Counter { "_total" } else { "" };
        self.series(family, suffix, agent, values);
        self.value(value);
    }

    fn histogram(
        &mut self,
        family: &Family,
        agent: &String,
        values: &[&str],
        histogram: &Histogram<'_>,
    ) {
        self.head();
        let start = self.text.len();
        self.series(family, "_bucket", agent, values);
        self.text.push_str(",le=\"");
        // Everything but the bound is the same in every bucket.
        let series = start..self.text.len();
        for (bucket, (bound, sum)) in (0..).zip(histogram.cumulative()) {
            if bucket > 0 {
                self.text.extend_from_within(series.clone());
            }
            self.text.push_str(bound);
            self.text.push_str("\"} ");
            count(sum, &mut self.text);
            // The text format has no exemplars.
            let has_exemplars = self.format == Format::OpenMetrics;
            if let Some(exemplar) = histogram.buckets.exemplar(bucket).filter(|_| has_exemplars) {
                self.exemplar(exemplar);
            }
            self.text.push('\n');
        }
        self.series(family, "_sum", agent, values);
        self.value(histogram.sum());
        self.series(family, "_count", agent, values);
        self.value(number(histogram.buckets.count));
    }

    fn is_full(&self) -> bool {
        self.text.len() >= PIECE_BYTES
    }
}

impl Page {
    /// An empty page.
    pub(super) fn new(format: Format) -> Self {
        Self { text: String::new(), format, head: None }
    }

    /// Writes the head of the family that was begun, unless it is written. In the text format the name of a counter's family has its
    /// `_total`.
    fn head(&mut self) {
        let Some(family) = self.head.take() else { return };
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

    /// Writes what follows the labels of a series: the closing brace, the value and a line break.
    fn value(&mut self, value: f64) {
        self.text.push_str("} ");
        line::number(value, &mut self.text);
        self.text.push('\n');
    }

    /// Writes the name and the labels of a series, up to the closing brace.
    fn series<V: AsRef<str>>(&mut self, family: &Family, suffix: &str, agent: &str, values: &[V]) {
        self.head();
        self.text.push_str(family.name);
        self.text.push_str(suffix);
        self.text.push('{');
        self.text.push_str(agent);
        for (name, value) in family.labels.iter().zip(values) {
            self.text.push(',');
            label(name, value.as_ref(), &mut self.text);
        }
    }

    /// Writes an example for a bucket: the id, the score and the end of a trace.
    fn exemplar(&mut self, exemplar: &Exemplar) {
        let _ = write!(self.text, " # {{trace_id=\"{}", exemplar.trace_id);
        let score = Quanta(exemplar.score_quanta).to_f64();
        let (seconds, nanos) = (exemplar.end_unix_nano / NANOS, exemplar.end_unix_nano % NANOS);
        let _ = write!(self.text, "\"}} {score} {seconds}.{:03}", nanos / 1_000_000);
    }
}
