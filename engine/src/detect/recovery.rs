//! Evidence that a level is good again: the e-detector of a drop, reversed.
//!
//! ```text
//! G(m) = sum of G_k     G_k <- (G_k + w_k b) (1 - f_k + f_k (1 - x) / (1 - m))     b: days that the value spends, 1/4000 at most
//!
//! recovering if G(d) >= 90 and G(m1) >= 1/4 and H(m2) >= the days that the drop has lasted, 1 at most
//!                                              d  = level from the change to the good values at its end, less its standard error
//!                                              m1 = sqrt(tolerated * level since the change), or of what that surely was
//!                                                   without the first 40 good values at its end, if that is more
//! quiet      if G(m2) >= 2.5                   m2 = sqrt(tolerated * m1)
//!
//! H: as G, where a value spends all of the time that it has to spend
//! ```
//!
//! While values have a mean of `m` or more, `G(m)` reaches a number once in as many days, or in 4,000 times as many values if these
//! take longer. So a drop that continues stops being critical at most once in 90 days, whatever the rate; one that improved, but
//! only to `m1`, once in six hours or in 1,000 values, whichever is rarer; one that improved, but only to `m2`, once in as long as
//! it has lasted by then, or in a day. `H` needs no number of values, or a drop of rare ones would be over only after days, and a
//! short drop is over as soon as it would be without `H`. Good values lower the level since the change, and so `m1`: without the
//! values that do not, a drop of a few values would last for several times as many good ones as one of many.

use serde::{Deserialize, Serialize};

use super::baseline::ValueSum;

/// The evidence, and the stretch of good values that it is about.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Recovery {
    /// Evidence that the level is no longer that of the drop.
    over: [f64; BETS.len()],
    better: [f64; BETS.len()],
    good: [f64; BETS.len()],
    /// Evidence that the level is good, of which a value spends more where values are rare.
    nearly: [f64; BETS.len()],
    capital: f64,
    pub(super) stretch: ValueSum,
}

/// The levels of a drop below which a recovery is searched for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Levels {
    drop: f64,
    half: f64,
    quarter: f64,
}

impl Levels {
    /// Of a drop from what is tolerated to this level, which had these values before the good ones at its end.
    pub(super) fn of(tolerated: f64, level: f64, before: ValueSum) -> Self {
        let below = |level: f64| (tolerated * level).sqrt().max(tolerated).min(MOST_BAD);
        let (half, mean) = (below(level), before.mean());
        let error = (mean * (1.0 - mean) / before.count.max(1) as f64).sqrt();
        Self { drop: (mean - error).clamp(half, MOST_BAD), half, quarter: below(half) }
    }
}

impl Recovery {
    /// Adds the next value, which has so many days to spend; `ratio_at` is its `(1 - x) / (1 - m)` by level. A probability has no
    /// `value`, and is not part of the stretch.
    pub(super) fn observe(
        &mut self,
        ratio_at: impl Fn(f64) -> f64,
        value: Option<f64>,
        levels: Levels,
        days: f64,
    ) {
        let half = ratio_at(levels.half);
        if self.capital <= 1.0 {
            (self.capital, self.stretch) = (1.0, ValueSum::default());
        }
        self.capital = (self.capital * payout(SMALL_BET, half)).min(MOST);
        value.into_iter().for_each(|value| self.stretch.add(value));
        let (drop, quarter) = (ratio_at(levels.drop), ratio_at(levels.quarter));
        let few = days.min(MOST_DAYS);
        for (sums, ratio, spent) in [
            (&mut self.over, drop, few),
            (&mut self.better, half, few),
            (&mut self.good, quarter, few),
            (&mut self.nearly, quarter, days),
        ] {
            for (sum, bet) in sums.iter_mut().zip(BETS) {
                *sum = ((*sum + WEIGHT * spent) * payout(bet, ratio)).min(MOST);
            }
        }
    }

    /// The certain level of a drop with these values, two standard errors below their mean (Wilson's), without the first good ones
    /// at its end.
    pub(super) fn level_surely(&self, values: ValueSum) -> f64 {
        let before = values.minus(self.stretch);
        let later = self.stretch.count.saturating_sub(FIRST_GOOD) as f64;
        let count = (before.count as f64 + later).max(1.0);
        let mean = ((before.sum + later * self.stretch.mean()) / count).clamp(0.0, 1.0);
        let errors = SURE * SURE / count;
        let width = (errors * (mean * (1.0 - mean) + errors / 4.0)).sqrt();
        (mean + errors / 2.0 - width) / (1.0 + errors)
    }

    /// Whether the drop, which has lasted so many days, is over and the level much better and nearly good, by the evidence times `trust`.
    pub(super) fn is_better(&self, lasted: f64, trust: f64) -> bool {
        let reaches = |sums: &[f64], days| sums.iter().sum::<f64>() * trust >= days;
        reaches(&self.over, OVER)
            && reaches(&self.better, BETTER)
            && reaches(&self.nearly, lasted.min(MOST_LASTED))
    }

    /// Whether the level is good, by the evidence times `trust`.
    pub(super) fn is_good(&self, trust: f64) -> bool {
        self.good.iter().sum::<f64>() * trust >= GOOD
    }
}

fn payout(bet: f64, ratio: f64) -> f64 {
    1.0 - bet + bet * ratio
}

/// Most days that a value spends on the end of a drop, or on a relapse: if values are rare, their number limits the effect of
/// chance, not the time.
pub(super) const MOST_DAYS: f64 = 0.00025;

/// Evidence that a drop is over: the least mean number of days in which chance alone reaches it once while the drop continues.
const OVER: f64 = 90.0;

/// Evidence that a level is much better, in such days.
const BETTER: f64 = 0.25;

/// Evidence that a level is good, in such days.
const GOOD: f64 = 2.5;

/// Most days that a drop has to have lasted as evidence that its level is nearly good.
const MOST_LASTED: f64 = 1.0;

/// Number of good values at the end of a drop that say nothing about its level.
const FIRST_GOOD: u64 = 40;

/// Standard errors by which a level is at least what it surely is.
const SURE: f64 = 2.0;

/// Bets, as in [`super::evidence`]; small ones are of no use, as successes say less than failures do.
const BETS: [f64; 3] = [0.25, 0.55, 0.9];

/// The bet that finds where a stretch of good values begins.
const SMALL_BET: f64 = 0.15;

/// The part of the evidence that each bet has.
const WEIGHT: f64 = 1.0 / BETS.len() as f64;

/// The worst level to recover to, so that there is always a worse one.
const MOST_BAD: f64 = 0.99;

const MOST: f64 = 1e100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_surely_less_than_the_mean_and_the_first_good_values_do_not_lower_it() {
        let of = |bad: u64, good: u64, good_at_end: u64| {
            let stretch = ValueSum { count: good_at_end, sum: 0.0 };
            let values = ValueSum { count: bad + good + good_at_end, sum: bad as f64 };
            Recovery { stretch, ..Recovery::default() }.level_surely(values)
        };
        // Wilson's bound for 6 of 6 is 6 / (6 + 2^2).
        assert!((of(6, 0, 0) - 0.6).abs() < 1e-9);
        assert!((of(6, 0, 40) - 0.6).abs() < 1e-9);
        assert!(of(6, 0, 60) < 0.2);
        assert!(of(200, 0, 40) > 0.98 && of(200, 300, 0) < 0.4 && of(200, 300, 0) > 0.35);
        assert!(of(0, 30, 0).abs() < 1e-9);
    }
}
