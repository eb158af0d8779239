//! The judge's own metrics: its queue, its calls, their cost and their results.

use prometheus::{Counter, Gauge, GaugeVec, IntCounterVec, IntGauge};

use super::metric::Metric;
use crate::engine::math::Quanta;
use crate::registry::metrics;

metrics! {
    /// The judge's own metrics.
    pub struct Meter {
        pub(super) waiting: IntGauge = gauge("judge_queue_traces", "Traces waiting for the judge."),
        pub(super) pending_bytes: IntGauge = gauge("judge_pending_bytes", "Bytes of transcripts held for the judge."),
        calls: IntCounterVec = counters("judge_calls_total", "Calls to the judge, by outcome.", &["outcome"]),
        tokens: IntCounterVec = counters("judge_tokens_total", "Tokens of the judge, by direction.", &["direction"]),
        dollars: Counter = counter("judge_cost_usd_total", "Dollars spent on the judge, by the configured prices."),
        left: Gauge = gauge("judge_budget_left_usd", "Dollars that the judge may still spend in this hour."),
        results: IntCounterVec = counters("judge_results_total",
            "Scores requested from the judge, by result: scored, nothing to score, or why it failed.",
            &["metric", "result"]),
        dropped: IntCounterVec = counters("judge_dropped_total",
            "Traces that were to be judged and were not, and scores that did not arrive, by reason.", &["reason"]),
        degraded: IntGauge = gauge("judge_degraded",
            "1 while the judge is over its budget or its endpoint fails: scores that depend on it use computed signals."),
        noise: GaugeVec = gauges("judge_noise",
            "Standard deviation of a single judgement, from traces that were judged twice.", &["metric"]),
        rejudged: IntCounterVec = counters("judge_rejudged_total",
            "Scores of traces that were judged twice, by metric.", &["metric"]),
        drift: GaugeVec = gauges("judge_drift",
            "Mean difference between the judge's scores and the known answers, in the last round of canaries.", &["metric"]),
        canaries: IntCounterVec = counters("judge_canaries_total",
            "Scores of canaries (traces with known answers), by result.", &["result"]),
    }
}

impl Meter {
    /// Counts a call.
    pub(super) fn call(&self, outcome: &str) {
        self.calls.with_label_values(&[outcome]).inc();
    }

    /// Counts the tokens of a call.
    pub(super) fn tokens(&self, input: Option<u64>, output: Option<u64>) {
        for (direction, tokens) in [("input", input), ("output", output)] {
            self.tokens.with_label_values(&[direction]).inc_by(tokens.unwrap_or(0));
        }
    }

    /// Counts the cost of a call, or the most that it may have cost.
    pub(super) fn cost(&self, cost: Quanta) {
        self.dollars.inc_by(cost.to_f64().max(0.0));
    }

    /// Sets the dollars that are left, and whether the judge is degraded.
    pub(super) fn stands(&self, left: Quanta, degraded: bool) {
        self.left.set(left.to_f64());
        self.degraded.set(i64::from(degraded));
    }

    /// Counts the result of a metric.
    pub(super) fn result(&self, metric: Metric, result: &str) {
        self.results.with_label_values(&[metric.name(), result]).inc();
    }

    /// Counts the result of a rule.
    pub(super) fn rubric(&self, result: &str) {
        self.results.with_label_values(&["rubric", result]).inc();
    }

    /// Sets the noise of a metric, after one more trace was judged twice.
    pub(super) fn noise(&self, metric: Metric, noise: f64) {
        self.rejudged.with_label_values(&[metric.name()]).inc();
        self.noise.with_label_values(&[metric.name()]).set(noise);
    }

    /// Sets the drift of a metric, or removes it if the last round has none.
    pub(super) fn drift(&self, metric: Metric, drift: Option<f64>) {
        match drift {
            Some(drift) => self.drift.with_label_values(&[metric.name()]).set(drift),
            // Removes the drift of an earlier round; fails if there was none.
            None => drop(self.drift.remove_label_values(&[metric.name()])),
        }
    }

    /// Counts the result of a metric for a trace with known answers.
    pub(super) fn canary(&self, result: &str) {
        self.canaries.with_label_values(&[result]).inc();
    }

    /// Counts a trace that was not judged, or a score that did not arrive.
    pub(super) fn dropped(&self, reason: &str) {
        self.dropped.with_label_values(&[reason]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;

    #[test]
    fn drift_that_is_not_known_any_more_is_not_shown() {
        let registry = Registry::new();
        let meter = Meter::new(&registry).unwrap();
        let shown = || {
            let page = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            page.lines().find(|line| line.starts_with("agentgauge_judge_drift")).map(str::to_owned)
        };
        meter.drift(Metric::Confidence, None);
        assert_eq!(shown(), None);
        meter.drift(Metric::Confidence, Some(0.5));
        let line = "agentgauge_judge_drift{metric=\"confidence\"} 0.5";
        assert_eq!(shown().as_deref(), Some(line));
        meter.drift(Metric::Confidence, None);
        assert_eq!(shown(), None);
    }
}
