//! Predictability: does an agent's confidence predict whether it succeeds?
//!
//! ```text
//! P_brier = 1 - mean (c - y)^2
//! P_auroc = (concordant + tied / 2) / (n+ * n-)       pairs of a success and a failure
//! ```
//!
//! Source: Princeton, agent reliability, "Discrimination Score" and "Brier Score". Calibration and
//! risk-coverage are scores of their own.
//!
//! Runs are counted by their exact confidence, up to 4,096 different ones; from then on by the nearest 0.001, with one level for all
//! below 0 and one for all over 1, and discrimination and risk-coverage are approximate. Brier and calibration stay exact.

use super::calibration::Bins;
use super::levels::Levels;
use super::names::{Name, Scores};
use super::outcome::Outcomes;
use super::risk_coverage;
use super::score::Score;
use crate::math::{Quanta, ratio};

/// Most different confidences.
const MAX_LEVELS: usize = 4_096;

/// The step to which confidences are rounded if there are more.
const STEP: i64 = Quanta::ONE / 1_000;

/// Counts of runs with a confidence and an outcome.
#[derive(Clone, Debug, Default)]
pub(super) struct Predictability {
    levels: Levels,
    /// Whether the levels are rounded.
    coarse: bool,
    total: Outcomes,
    /// Sum of `c`, in quanta.
    confidences: i128,
    /// Sum of `(c - y)^2`, in quanta squared.
    squares: i128,
    bins: Bins,
}

impl Predictability {
    pub(super) fn observe(&mut self, confidence: Quanta, success: bool) {
        self.total.observe(success);
        self.confidences += i128::from(confidence.0);
        self.squares += squared_error(confidence, success);
        self.bins.observe(confidence, success);
        self.levels.observe(self.level(confidence), success);
        if self.levels.len() > MAX_LEVELS && !self.coarse {
            self.coarsen();
        }
    }

    pub(super) fn forget(&mut self, confidence: Quanta, success: bool) {
        self.total.forget(success);
        self.confidences -= i128::from(confidence.0);
        self.squares -= squared_error(confidence, success);
        self.bins.forget(confidence, success);
        self.levels.forget(self.level(confidence), success);
    }

    /// Whether there were too many different confidences to count separately.
    pub(super) fn is_approximate(&self) -> bool {
        self.coarse
    }

    /// Sets the scores that exist.
    pub(super) fn score(&self, scores: &mut Scores) {
        let samples = self.total.runs;
        let scored = |value: Option<f64>| value.map(|value| Score { value, samples });
        scores.set(Name::RiskCoverage, scored(risk_coverage::score(self.total, &self.levels)));
        scores.set(Name::Calibration, scored(self.bins.calibration(samples)));
        scores.set(Name::Auroc, scored(self.auroc()));
        scores.set(Name::Brier, scored(self.brier()));
        scores.set(Name::MeanConfidence, scored(self.mean_confidence()));
    }

    fn auroc(&self) -> Option<f64> {
        let pairs = u128::from(self.total.successes) * u128::from(self.total.failures());
        (pairs > 0).then(|| self.levels.twice_won() as f64 / (2 * pairs) as f64)
    }

    fn mean_confidence(&self) -> Option<f64> {
        let n = i128::from(self.total.runs);
        (n > 0).then(|| ratio(self.confidences, n * i128::from(Quanta::ONE)))
    }

    fn brier(&self) -> Option<f64> {
        let one = i128::from(Quanta::ONE);
        let n = i128::from(self.total.runs);
        (n > 0).then(|| 1.0 - ratio(self.squares, n * one * one))
    }

    fn level(&self, confidence: Quanta) -> Quanta {
        if self.coarse { rounded(confidence) } else { confidence }
    }

    fn coarsen(&mut self) {
        self.coarse = true;
        for (confidence, outcomes) in std::mem::take(&mut self.levels).iter() {
            self.levels.merge(rounded(confidence), outcomes);
        }
    }
}

/// The nearest step; all confidences below 0 share one step, and so do all over 1.
fn rounded(confidence: Quanta) -> Quanta {
    let nearest = (confidence.0 + STEP / 2).div_euclid(STEP) * STEP;
    Quanta(nearest.clamp(-STEP, Quanta::ONE + STEP))
}

fn squared_error(confidence: Quanta, success: bool) -> i128 {
    let outcome = if success { i128::from(Quanta::ONE) } else { 0 };
    (i128::from(confidence.0) - outcome).pow(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_confidences_are_rounded_and_forgotten_all_the_same() {
        let mut exact = Predictability::default();
        let said = |at: i64| (Quanta(at * Quanta::ONE / 9_973), at % 3 > 0 && at > 2_000);
        (0..4_096).for_each(|at| exact.observe(said(at).0, said(at).1));
        assert!(!exact.is_approximate());
        let scores = |of: &Predictability| {
            let mut scores = Scores::default();
            of.score(&mut scores);
            scores
        };
        let mut coarse = exact.clone();
        coarse.observe(said(4_096).0, said(4_096).1);
        assert!(coarse.is_approximate());
        assert!(coarse.levels.len() < 1_003);
        coarse.forget(said(4_096).0, said(4_096).1);
        for ((name, exact), (_, rounded)) in scores(&exact).iter().zip(scores(&coarse).iter()) {
            // The few most confident are a hundredth of risk-coverage.
            assert!((exact.value - rounded.value).abs() < 1e-2, "{name}: {exact:?} {rounded:?}");
        }
        (0..4_096).for_each(|at| coarse.forget(said(at).0, said(at).1));
        assert!(scores(&coarse).is_empty());
        assert_eq!(coarse.levels.len(), 0);
    }
}
