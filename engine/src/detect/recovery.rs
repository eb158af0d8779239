//! Evidence that a level is good again: the e-detector of a drop, the other way round.
//!
//! ```text
//! G(m) = sum of G_k     G_k <- (G_k + 1/n) (1 - f_k + f_k (1 - x) / (1 - m))
//!
//! recovering if G(m1) >= 1000     m1 = sqrt(tolerated * level since the change)
//! quiet      if G(m2) >= 10000    m2 = sqrt(tolerated * m1)
//! ```
//!
//! While values have a mean of `m` or more, `G(m)` reaches a number once in as many values, or less often; while they have the mean
//! of the drop, far less often.

use serde::{Deserialize, Serialize};

use super::baseline::Tally;

/// The evidence, and the stretch of good values that it is about.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Recovery {
    better: [f64; BETS.len()],
    good: [f64; BETS.len()],
    capital: f64,
    pub(super) stretch: Tally,
}

impl Recovery {
    /// Takes the next value; `ratio_at` is its `(1 - x) / (1 - m)` by level, `tolerated` and `drop` are levels. A chance has no
    /// `value`, and is no part of the stretch.
    pub(super) fn observe(
        &mut self,
        ratio_at: impl Fn(f64) -> f64,
        value: Option<f64>,
        tolerated: f64,
        drop: f64,
    ) {
        let half = (tolerated * drop).sqrt().max(tolerated).min(MOST_BAD);
        let quarter = (tolerated * half).sqrt().max(tolerated).min(MOST_BAD);
        let ratio = ratio_at(half);
        if self.capital <= 1.0 {
            (self.capital, self.stretch) = (1.0, Tally::default());
        }
        self.capital = (self.capital * payout(SMALL_BET, ratio)).min(MOST);
        value.into_iter().for_each(|value| self.stretch.add(value));
        for (sums, ratio) in [(&mut self.better, ratio), (&mut self.good, ratio_at(quarter))] {
            for (sum, bet) in sums.iter_mut().zip(BETS) {
                *sum = ((*sum + SEED) * payout(bet, ratio)).min(MOST);
            }
        }
    }

    /// Whether the level is much better, by the evidence times `trust`.
    pub(super) fn is_better(&self, trust: f64) -> bool {
        self.better.iter().sum::<f64>() * trust >= BETTER
    }

    /// Whether the level is good, by the evidence times `trust`.
    pub(super) fn is_good(&self, trust: f64) -> bool {
        self.good.iter().sum::<f64>() * trust >= GOOD
    }
}

fn payout(bet: f64, ratio: f64) -> f64 {
    1.0 - bet + bet * ratio
}

/// Evidence that a level is much better: values in which chance alone has it once, at least.
const BETTER: f64 = 1_000.0;

/// Evidence that a level is good: values in which chance alone has it once, at least.
const GOOD: f64 = 10_000.0;

/// Bets, as in [`super::evidence`]; small ones are of no use, as successes tell less than failures do.
const BETS: [f64; 3] = [0.25, 0.55, 0.9];

/// The bet that finds where a stretch of good values begins.
const SMALL_BET: f64 = 0.15;

const SEED: f64 = 1.0 / BETS.len() as f64;

/// The worst level to recover to, so that there is always a worse one.
const MOST_BAD: f64 = 0.99;

const MOST: f64 = 1e100;
