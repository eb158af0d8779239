//! The meaning of the trace metrics' scores: the threshold to pass, and the names of ranges.
//!
//! ```text
//! passes = score >= threshold
//! band   = the last one that begins at or below the score
//! ```
//!
//! Source: PandaProbe, trace metrics, "Default threshold" and the scoring guides. Where a guide names points instead of
//! ranges (confidence, `plan_adherence`, `plan_quality`), a band reaches from its point up to the next. The other metrics have no
//! guide, and so no bands.

use crate::math::Quanta;

/// A trace metric of the source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceMetric {
    /// Its name, which is that of the signal.
    pub name: &'static str,
    /// The least score that passes by default, in `[0,1]`.
    pub threshold: Quanta,
    /// Its bands, the greatest first, down to 0; empty if the source has none.
    pub bands: &'static [Band],
}

/// A range of scores that has a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// Its least score, in `[0,1]`.
    pub from: Quanta,
    /// The source's name for it.
    pub name: &'static str,
}

/// All trace metrics of the source, sorted by name.
pub const TRACE_METRICS: &[TraceMetric] = &[
    metric(super::argument_correctness::NAME, &[]),
    metric(super::coherence::NAME, &[]),
    metric(super::confidence::NAME, CONFIDENCE),
    metric(super::loop_detection::NAME, &[]),
    metric("plan_adherence", PLAN_ADHERENCE),
    metric("plan_quality", PLAN_QUALITY),
    metric("step_efficiency", &[]),
    metric("task_completion", TASK_COMPLETION),
    metric("tool_correctness", &[]),
];

/// The trace metric of this name.
pub fn of(name: &str) -> Option<&'static TraceMetric> {
    TRACE_METRICS.iter().find(|metric| metric.name == name)
}

impl TraceMetric {
    /// Whether a score passes the default threshold.
    pub fn passes(&self, score: Quanta) -> bool {
        score >= self.threshold
    }

    /// The source's name for a score of this height; `None` if it has none.
    pub fn band(&self, score: Quanta) -> Option<&'static str> {
        self.bands.iter().find(|band| score >= band.from).map(|band| band.name)
    }
}

const TASK_COMPLETION: &[Band] = &guide([
    "task perfectly accomplished",
    "mostly complete, minor aspects missing",
    "partially complete",
    "significant gaps in completion",
    "task not meaningfully addressed",
]);

const CONFIDENCE: &[Band] = &guide([
    "fully confident, decisive execution",
    "minor hesitation or suboptimal strategy",
    "noticeable indecision or inconsistency",
    "significant uncertainty, multiple abandoned approaches",
    "completely uncertain, contradictory actions",
]);

const PLAN_ADHERENCE: &[Band] = &guide([
    "perfect adherence, execution matches plan exactly",
    "nearly all steps in order, minor deviations",
    "partial adherence, some steps skipped or reordered",
    "weak adherence, significant deviation from plan",
    "no adherence, execution bears little relation to plan",
]);

const PLAN_QUALITY: &[Band] = &guide([
    "excellent plan: complete, coherent, optimal",
    "good plan: minor flaws or suboptimal choices",
    "adequate but flawed: works but has notable gaps",
    "weak plan: significant issues",
    "inadequate: does not address the task",
]);

/// A metric with the default threshold, which is one half for every metric of the source.
const fn metric(name: &'static str, bands: &'static [Band]) -> TraceMetric {
    TraceMetric { name, threshold: Quanta(Quanta::ONE / 2), bands }
}

/// The bands of a scoring guide, by quarters, as in every guide of the source; `names` are from 1 down to 0.
const fn guide(names: [&'static str; 5]) -> [Band; 5] {
    let [top, third, half, first, zero] = names;
    let quarter = Quanta::ONE / 4;
    [
        Band { from: Quanta(4 * quarter), name: top },
        Band { from: Quanta(3 * quarter), name: third },
        Band { from: Quanta(2 * quarter), name: half },
        Band { from: Quanta(quarter), name: first },
        Band { from: Quanta(0), name: zero },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quanta(value: f64) -> Quanta {
        Quanta::from_f64(value).unwrap()
    }

    #[test]
    fn names_are_unique_and_sorted() {
        assert!(TRACE_METRICS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    #[test]
    fn a_score_at_the_threshold_passes() {
        let metric = of("coherence").unwrap();
        assert!(metric.passes(quanta(0.5)) && !metric.passes(quanta(0.499)));
        assert_eq!(metric.band(quanta(0.5)), None);
        assert_eq!(of("error"), None);
    }

    #[test]
    fn bands_leave_no_gap() {
        let metric = of("task_completion").unwrap();
        for (score, name) in [
            (1.0, "task perfectly accomplished"),
            (0.995, "mostly complete, minor aspects missing"),
            (0.745, "partially complete"),
            (0.25, "significant gaps in completion"),
            (0.0, "task not meaningfully addressed"),
        ] {
            assert_eq!(metric.band(quanta(score)), Some(name));
        }
    }
}
