//! Outcome consistency: does an agent succeed at a task each time, or fail each time?
//!
//! ```text
//! p     = successes / n                                 n >= 2
//! C_out = (2p - 1)^2                                    corrected
//!       = clip(1 - s^2 / (p (1 - p) + 1e-8), 0, 1)      methodology; s^2 over n - 1
//! ```
//!
//! Source: Princeton, agent reliability, "Outcome Consistency". The page's form is 0 for every task with mixed outcomes, since s^2
//! is always greater than p (1 - p); its authors replaced it in June 2026. A run succeeded or did not: rewards between 0 and 1 are
//! thresholded before, as in the source's evaluations. The formula itself accepts fractions, and so does the slow model.

use super::Formula;
use super::score::Score;
use crate::math::ratio;

/// The numbers of runs with an outcome, and of those that succeeded.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Outcomes {
    /// Number of runs whose outcome is known.
    pub runs: u64,
    /// Number of runs that succeeded.
    pub successes: u64,
}

impl Outcomes {
    /// Adds an outcome.
    pub fn observe(&mut self, success: bool) {
        self.runs += 1;
        self.successes += u64::from(success);
    }

    /// Subtracts an outcome that was observed.
    pub fn forget(&mut self, success: bool) {
        self.runs -= 1;
        self.successes -= u64::from(success);
    }

    /// Adds the runs of another count.
    pub fn merge(&mut self, other: Self) {
        self.runs += other.runs;
        self.successes += other.successes;
    }

    /// The number of runs that did not succeed.
    pub fn failures(self) -> u64 {
        self.runs - self.successes
    }

    /// The share of runs that succeeded; `None` without an outcome.
    pub(super) fn accuracy(self) -> Option<Score> {
        let value = ratio(i128::from(self.successes), i128::from(self.runs.max(1)));
        (self.runs > 0).then_some(Score { value, samples: self.runs })
    }

    /// `C_out` of one task; `None` with fewer than two outcomes.
    pub fn consistency(self, formula: Formula) -> Option<f64> {
        let (n, successes) = (i128::from(self.runs), i128::from(self.successes));
        (n >= 2).then(|| match formula {
            Formula::Corrected => ratio((2 * successes - n).pow(2), n * n),
            Formula::Methodology => {
                let spread = successes * (n - successes);
                let (sample, whole) = (ratio(spread, n * (n - 1)), ratio(spread, n * n));
                (1.0 - sample / (whole + 1e-8)).clamp(0.0, 1.0)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unanimous_tasks_are_consistent_and_even_ones_are_not() {
        let of = |runs, successes, formula| Outcomes { runs, successes }.consistency(formula);
        assert_eq!(of(1, 1, Formula::Corrected), None);
        for formula in [Formula::Corrected, Formula::Methodology] {
            assert!((of(5, 0, formula).unwrap() - 1.0).abs() < 1e-12);
            assert!(of(2, 1, formula).unwrap() < 1e-12);
        }
        assert!((of(1000, 999, Formula::Corrected).unwrap() - 0.996_004).abs() < 1e-12);
        assert!(of(1000, 999, Formula::Methodology).unwrap() < 1e-12);
    }
}
