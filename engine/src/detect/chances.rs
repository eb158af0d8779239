//! The usual predictions for runs, and what a prediction says about a rise of the failure rate.
//!
//! ```text
//! c_r = r c / (1 - c + r c)       the chance c, if the odds of failing were r times as high for every run
//! x/m = c_r / p_r                 p the usual mean of c plus its standard error
//! ```
//!
//! A bet on `x/m` pays at most 1 on average while the mean of `c` is at most `p`, whatever the distribution of chances: `c_r` is
//! concave in `c` for `r >= 1`, so its mean is at most `p_r` (Jensen). If chances are right and failed runs keep looking as they
//! do, it is the likelihood ratio of the higher rate against the usual one: nothing says more about a run without a known outcome.

use serde::{Deserialize, Serialize};

use super::budget::{Budget, days};
use super::evidence::{Evidence, Ratios};
use crate::span::Timestamp;

/// The state that a stream of outcomes keeps about the predicted probabilities of runs without one.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Predicted {
    pub(super) usual: Chances,
    pub(super) pending: Moments,
    /// Evidence from outcomes alone against the usual level: runs may change without failing more often.
    pub(super) told: Evidence,
    /// The unspent time between outcomes.
    pub(super) budget: Budget,
    /// Since when evidence includes probabilities from the model that produced the usual ones; an outcome replaces no earlier one.
    pub(super) counted_since: Option<Timestamp>,
}

/// The usual probabilities; older ones count less.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Chances {
    held: Moments,
    aged: Timestamp,
}

/// Chances, summed up.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Moments {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Predicted {
    /// The start for the next version of the agent: the usual probabilities and, while nothing is decided, half of the evidence and
    /// all of the time.
    pub(super) fn handed_on(&mut self, undecided: bool) -> Self {
        let usual = self.usual;
        if !undecided {
            return Self { usual, ..Self::default() };
        }
        let (told, budget) = (self.told.halve(), self.budget.take());
        Self { usual, pending: self.pending, told, budget, counted_since: None }
    }
}

impl Moments {
    pub(super) fn add(&mut self, chance: f64) {
        self.count += 1.0;
        self.sum += chance;
        self.squares += chance * chance;
    }
}

impl Chances {
    /// Learns the pending probabilities, after ageing what it knows to this moment.
    pub(super) fn take(&mut self, pending: &mut Moments, at: Timestamp, memory: f64) {
        let Moments { count, sum, squares } = std::mem::take(pending);
        let passed = days(at.0.saturating_sub(self.aged.0));
        if passed >= AGE_STEP {
            let least = (ENOUGH / self.held.count.max(ENOUGH)).min(1.0);
            let left = (-passed / memory).exp2().max(least);
            let Moments { count, sum, squares } = &mut self.held;
            [count, sum, squares].into_iter().for_each(|held| *held *= left);
            self.aged = at;
        }
        self.held.count += count;
        self.held.sum += sum;
        self.held.squares += squares;
    }

    /// Whether there are enough to know what is usual.
    pub(super) fn are_known(&self) -> bool {
        self.held.count >= ENOUGH
    }

    /// A chance over the greatest means of no change: the usual mean, and the one at which the odds of failing are `tolerated_odds`,
    /// at least 1, times the usual ones; `None` before enough chances are known.
    pub(super) fn ratios(&self, chance: f64, tolerated_odds: f64) -> Option<Ratios> {
        if !self.are_known() {
            return None;
        }
        let Moments { count, sum, squares } = self.held;
        let mean = sum / count;
        let error = ((squares / count - mean * mean).max(0.0) / count).sqrt();
        let usual = (mean + error).clamp(LEAST, 1.0);
        let tolerated = tilt(usual, tolerated_odds).max(mean + ERRORS_TOLERATED * error).min(1.0);
        Some(Ratios { usual: chance / usual, tolerated: tilt(chance, tolerated_odds) / tolerated })
    }

    /// How strongly a probability speaks for a failure rate below `odds` times the usual odds, as `(1 - x) / (1 - level)` does for
    /// a value.
    pub(super) fn ratio_of_good(&self, chance: f64, odds: f64) -> f64 {
        let Moments { count, sum, .. } = self.held;
        let usual = if count > 0.0 { sum / count } else { chance };
        (1.0 - tilt(chance, odds)) / (1.0 - tilt(usual.clamp(LEAST, 1.0 - LEAST), odds))
    }
}

/// The probability with `odds` times the odds of this one.
fn tilt(chance: f64, odds: f64) -> f64 {
    odds * chance / (1.0 - chance + odds * chance)
}

/// The odds at one level over those at another; at least 1.
pub(super) fn odds_ratio(level: f64, over: f64) -> f64 {
    let odds = |level: f64| {
        let level = level.clamp(LEAST, 1.0 - LEAST);
        level / (1.0 - level)
    };
    (odds(level) / odds(over)).max(1.0)
}

/// Chances that are enough to know what is usual.
const ENOUGH: f64 = 100.0;

/// Standard errors of the usual mean that are tolerated, where they are more than the tolerance.
const ERRORS_TOLERATED: f64 = 3.0;

/// Days that pass before chances age.
const AGE_STEP: f64 = 1.0 / 24.0;

/// The least distance of a level to 0 and 1.
const LEAST: f64 = 1e-4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Chances whose odds are those of 0.25 times powers of two.
    fn chances() -> impl Iterator<Item = f64> {
        (0..1_000).map(|number| tilt(0.25, f64::from(number % 7 - 3).exp2()))
    }

    #[test]
    fn while_chances_are_as_usual_no_bet_on_them_wins() {
        let (mut usual, mut pending) = (Chances::default(), Moments::default());
        chances().take(99).for_each(|chance| pending.add(chance));
        usual.take(&mut pending, Timestamp(1), 14.0);
        assert_eq!(usual.ratios(0.3, 1.5), None);
        chances().skip(99).for_each(|chance| pending.add(chance));
        usual.take(&mut pending, Timestamp(2), 14.0);
        assert_eq!(pending, Moments::default());
        for odds in [1.0, 1.5, 4.0] {
            let ratios: Vec<Ratios> =
                chances().map(|chance| usual.ratios(chance, odds).unwrap()).collect();
            let mean = |of: fn(&Ratios) -> f64| ratios.iter().map(of).sum::<f64>() / 1_000.0;
            assert!(mean(|ratios| ratios.usual) < 1.0 && mean(|ratios| ratios.usual) > 0.97);
            assert!(mean(|ratios| ratios.tolerated) < 1.0, "{odds}");
        }
    }

    #[test]
    fn odds_are_never_less_than_once() {
        assert!((odds_ratio(0.5, 0.2) - 4.0).abs() < 1e-12);
        assert!((odds_ratio(0.2, 0.5) - 1.0).abs() < 1e-12);
        assert!(odds_ratio(1.0, 0.0).is_finite());
    }
}
