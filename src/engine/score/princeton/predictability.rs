//! Predictability: does an agent's confidence tell whether it succeeds?
//!
//! ```text
//! P_brier = 1 - mean (c - y)^2
//! P_auroc = (concordant + tied / 2) / (n+ * n-)       pairs of a success and a failure
//! ```
//!
//! Source: Princeton, agent reliability, "Discrimination Score" and "Brier Score"; `calibration.rs` and
//! `risk_coverage.rs` have the other two.
//!
//! Runs are counted by their exact confidence, up to 4,096 different ones; from then on by the nearest 0.001, with all below
//! 0 and all over 1 as one each, and discrimination and risk-coverage are approximate. Brier and calibration stay exact.

use std::collections::BTreeMap;

use super::calibration::Bins;
use super::outcome::Outcomes;
use super::score::Score;
use super::{names, risk_coverage};
use crate::engine::math::{Quanta, ratio};

/// Confidences told apart.
const MAX_LEVELS: usize = 4_096;

/// What they are rounded to when there are more.
const STEP: i64 = Quanta::ONE / 1_000;

/// Counts of runs with a confidence and an outcome.
#[derive(Clone, Debug, Default)]
pub(super) struct Predictability {
    levels: BTreeMap<Quanta, Outcomes>,
    /// The levels are rounded.
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
        self.levels.entry(self.level(confidence)).or_default().observe(success);
        if self.levels.len() > MAX_LEVELS && !self.coarse {
            self.coarsen();
        }
    }

    pub(super) fn forget(&mut self, confidence: Quanta, success: bool) {
        self.total.forget(success);
        self.confidences -= i128::from(confidence.0);
        self.squares -= squared_error(confidence, success);
        self.bins.forget(confidence, success);
        let level = self.level(confidence);
        if let Some(outcomes) = self.levels.get_mut(&level) {
            outcomes.forget(success);
            if outcomes.runs == 0 {
                self.levels.remove(&level);
            }
        }
    }

    /// Whether confidences were too many to tell apart.
    pub(super) fn is_approximate(&self) -> bool {
        self.coarse
    }

    /// The scores that exist.
    pub(super) fn scores(&self) -> impl Iterator<Item = (&'static str, Score)> {
        let n = self.total.runs;
        // Each level is looked at once.
        let mut pairs = Pairs::default();
        let best_first = self.levels.values().rev().copied();
        let best_first = best_first.inspect(|outcomes| pairs.observe(*outcomes));
        let risk_coverage = risk_coverage::score(self.total, best_first);
        let found = [
            (names::RISK_COVERAGE, risk_coverage),
            (names::CALIBRATION, self.bins.calibration(n)),
            (names::AUROC, pairs.auroc(self.total)),
            (names::BRIER, self.brier()),
            (names::MEAN_CONFIDENCE, self.mean_confidence()),
        ];
        let scored = move |(name, value): (_, Option<f64>)| {
            value.map(|value| (name, Score { value, samples: n }))
        };
        found.into_iter().filter_map(scored)
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
        for (confidence, outcomes) in std::mem::take(&mut self.levels) {
            self.levels.entry(rounded(confidence)).or_default().merge(outcomes);
        }
    }
}

/// Pairs of a success and a failure, the most confident level first.
#[derive(Clone, Copy, Debug, Default)]
struct Pairs {
    successes_above: u64,
    /// Twice the pairs whose success is the more confident, and those that are tied.
    twice_won: u128,
}

impl Pairs {
    fn observe(&mut self, level: Outcomes) {
        let won = u128::from(2 * self.successes_above + level.successes);
        self.twice_won += u128::from(level.failures()) * won;
        self.successes_above += level.successes;
    }

    fn auroc(self, total: Outcomes) -> Option<f64> {
        let pairs = u128::from(total.successes) * u128::from(total.failures());
        (pairs > 0).then(|| self.twice_won as f64 / (2 * pairs) as f64)
    }
}

/// The nearest step; one below 0 and one over 1 stand for all that is outside.
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
        let before: Vec<_> = exact.scores().collect();
        let mut coarse = exact.clone();
        coarse.observe(said(4_096).0, said(4_096).1);
        assert!(coarse.is_approximate());
        assert!(coarse.levels.len() < 1_003);
        coarse.forget(said(4_096).0, said(4_096).1);
        for ((name, exact), (_, rounded)) in before.into_iter().zip(coarse.scores()) {
            // The few most confident are a hundredth of risk-coverage.
            assert!((exact.value - rounded.value).abs() < 1e-2, "{name}: {exact:?} {rounded:?}");
        }
        (0..4_096).for_each(|at| coarse.forget(said(at).0, said(at).1));
        assert_eq!(coarse.scores().count(), 0);
        assert!(coarse.levels.is_empty());
    }
}
