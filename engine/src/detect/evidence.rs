//! Evidence that a level rose: the mixture of Shiryaev-Roberts e-detectors, and where the change began.
//!
//! ```text
//! R_k <- (R_k + w_k b) (1 - f_k + f_k x / m)        M = sum of R_k
//! ```
//!
//! `x` is the value, `m` the greatest mean that it has if nothing changed, given everything before it, and `b` the time that
//! the value spends (see [`super::budget`]). The factor is what a bet of the share `f_k` on "more than `m`" pays: if nothing
//! changed, its mean is at most 1, whatever the distribution of `x` in `[0,1]`. On values that are 0 or 1 it is the likelihood ratio of
//! `m + f_k (1 - m)` against `m`.

use serde::{Deserialize, Serialize};

use super::baseline::ValueSum;
use super::budget::days;
use crate::span::Timestamp;

/// Bets: the shares of the capital that are set on a rise. Small ones win on small rises, large ones on large rises.
pub(super) const BETS: [f64; COUNT] = [0.015, 0.06, 0.15, 0.33, 0.6, 0.95];

/// The part of the evidence that each bet has.
pub(super) const WEIGHTS: [f64; COUNT] = [0.04, 0.11, 0.18, 0.23, 0.22, 0.22];

const COUNT: usize = 6;

/// The most evidence, so that it stays finite however long an outage lasts.
const MOST: f64 = 1e100;

/// Evidence of a change, by bet: sums over all moments at which it may have begun.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub(super) struct Evidence([f64; COUNT]);

impl Evidence {
    /// Takes the next value, as its ratio over the greatest mean of no change, and the days that it spends on the bets from the first
    /// one on.
    pub(super) fn observe(&mut self, ratio: f64, seed: f64, first: usize) {
        self.pay(seed, first, |bet| payout(bet, ratio));
    }

    /// Takes a value that replaces one that was counted before; both are ratios over the greatest mean of no change.
    pub(super) fn observe_after(&mut self, ratio: f64, counted: f64, seed: f64, first: usize) {
        self.pay(seed, first, |bet| payout(bet, ratio) / payout(bet, counted));
    }

    fn pay(&mut self, seed: f64, first: usize, paid: impl Fn(f64) -> f64) {
        for (index, sum) in self.0.iter_mut().enumerate() {
            let spent = if index < first { 0.0 } else { WEIGHTS[index] * seed };
            *sum = ((*sum + spent) * paid(BETS[index])).min(MOST);
        }
    }

    /// Gives half of it away, and keeps the other half.
    pub(super) fn halve(&mut self) -> Self {
        self.0.iter_mut().for_each(|sum| *sum /= 2.0);
        *self
    }

    /// Adds what another has: bets on the same change.
    pub(super) fn add(&mut self, other: Self) {
        for (sum, other) in self.0.iter_mut().zip(other.0) {
            *sum = (*sum + other).min(MOST);
        }
    }

    /// Spends days on a change that begins with the next value.
    pub(super) fn seed(&mut self, days: f64) {
        self.observe(1.0, days, 0);
    }

    /// The least mean number of days in which chance alone gets this far once, if nothing changed.
    pub(super) fn days(&self) -> f64 {
        self.0.iter().sum()
    }
}

/// A value over the greatest means of no change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratios {
    pub(super) usual: f64,
    pub(super) tolerated: f64,
}

/// For each bet, the stretch of values up to the last one that speaks most strongly for a change, by cumulative sums.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Starts {
    capitals: [f64; COUNT],
    marks: [Mark; COUNT],
    /// What the smallest bet has won on a rise over a level between the usual one and the worst tolerated one, in the stretch that
    /// began then.
    risen: f64,
    risen_since: Timestamp,
}

/// The beginning of a stretch: its time, and the sum of the pending values before it.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Mark {
    pub(super) at: Timestamp,
    pub(super) before: ValueSum,
}

impl Default for Starts {
    fn default() -> Self {
        Self {
            capitals: [1.0; COUNT],
            marks: [Mark::default(); COUNT],
            risen: 1.0,
            risen_since: Timestamp::default(),
        }
    }
}

impl Starts {
    /// Takes the next value, as its ratios, and the mark of a stretch that begins with it, for the bets from the first one on.
    pub(super) fn observe(&mut self, ratios: Ratios, mark: Mark, first: usize) {
        let ratio = ratios.tolerated;
        for (index, (capital, begin)) in self.capitals.iter_mut().zip(&mut self.marks).enumerate() {
            if *capital <= 1.0 {
                if ratio <= 1.0 || index < first {
                    continue;
                }
                *capital = 1.0;
                *begin = mark;
            }
            *capital = (*capital * payout(BETS[index], ratio)).min(MOST);
        }
        if self.risen <= 1.0 {
            (self.risen, self.risen_since) = (1.0, mark.at);
        }
        let between = f64::midpoint(ratios.usual, ratios.tolerated);
        self.risen = (self.risen * payout(BETS[first], between)).min(MOST);
    }

    /// Whether the values so far may be learned: no stretch speaks for a change, and none shorter than `wait` days speaks for half
    /// of one. A rise to little more than is tolerated has many moments without evidence before it is found, and would be usual by
    /// then.
    pub(super) fn allow_learning(&self, at: Timestamp, wait: f64) -> bool {
        let waited = || days(at.0.saturating_sub(self.risen_since.0)) >= wait;
        self.are_none() && (self.risen <= 1.0 || waited())
    }

    /// Whether no stretch speaks for a change.
    pub(super) fn are_none(&self) -> bool {
        self.capitals.iter().all(|capital| *capital <= 1.0)
    }

    /// The mark of the stretch that speaks most strongly for a change; `None` if none does.
    pub(super) fn best(&self) -> Option<Mark> {
        let mut best: Option<(f64, Mark)> = None;
        for (weight, (capital, mark)) in
            WEIGHTS.into_iter().zip(self.capitals.iter().zip(self.marks))
        {
            let worth = weight * capital;
            if *capital > 1.0 && best.is_none_or(|(most, _)| worth > most) {
                best = Some((worth, mark));
            }
        }
        best.map(|(_, mark)| mark)
    }
}

/// What a bet pays on a value.
fn payout(bet: f64, ratio: f64) -> f64 {
    1.0 - bet + bet * ratio
}
