//! Two versions compared: an interval for the difference of their means that holds however often it is read.
//!
//! ```text
//! lambda_t = min(sqrt(2 ln(2/a) / (var_(t-1) t ln(1 + t))), 1/2)
//! mean_t   = (1/2 + sum of x) / (t + 1)
//! var_t    = (1/4 + sum of (x_i - mean_i)^2) / (t + 1)
//! center   = sum of lambda_i x_i / sum of lambda_i
//! radius   = (ln(2/a) + sum of (x_i - mean_(i-1))^2 (-ln(1 - lambda_i) - lambda_i)) / sum of lambda_i
//! ```
//!
//! Source: I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86 (2024), theorem 2,
//! the predictable plug-in empirical Bernstein confidence sequence; for values in `[0,1]` with one mean, of any distribution. With
//! probability `1 - a` the mean is in `center +- radius` at all times at once, so the comparison may stop at any time for any
//! reason. Each of two versions has half of `alpha`; the difference then lies between the difference of the near ends and that of
//! the far ends with probability `1 - alpha`, whatever the order of their values.

use serde::{Deserialize, Serialize};

use super::DriftOptions;
use crate::math::{Quanta, ratio};

/// The values of one version, summed up.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct MeanSequence {
    count: u64,
    sum: i128,
    /// Sum of squared distances from the running mean.
    squares: f64,
    /// Sum of `lambda`.
    bets: f64,
    /// Sum of `lambda x`.
    staked: f64,
    /// Sum of the variance terms in the radius.
    toll: f64,
}

/// An interval for a mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// In `[0,1]`.
    pub lower: f64,
    /// In `[0,1]`.
    pub upper: f64,
}

/// The difference of the mean of a candidate from that of a baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Difference of the means of the values, in `[-1,1]`.
    pub estimate: f64,
    /// The lower end of its interval.
    pub lower: f64,
    /// The upper end of its interval.
    pub upper: f64,
    /// Values of the baseline.
    pub baseline: u64,
    /// Values of the candidate.
    pub candidate: u64,
}

/// The difference between two versions; `None` while one of them has no value.
pub fn difference(
    baseline: &MeanSequence,
    candidate: &MeanSequence,
    options: &DriftOptions,
) -> Option<Difference> {
    let (low, high) = (baseline.interval(options)?, candidate.interval(options)?);
    Some(Difference {
        estimate: candidate.mean()? - baseline.mean()?,
        lower: high.lower - low.upper,
        upper: high.upper - low.lower,
        baseline: baseline.count,
        candidate: candidate.count,
    })
}

impl MeanSequence {
    /// Adds the next value; returns whether it did: a value outside `[0,1]` would void the guarantee.
    pub fn observe(&mut self, value: Quanta, options: &DriftOptions) -> bool {
        if !(0..=Quanta::ONE).contains(&value.0) {
            return false;
        }
        let x = value.to_f64();
        // Bet and mean come from the values before this one.
        let (mean, t) = (self.regularised_mean(), self.count as f64 + 1.0);
        let variance = (0.25 + self.squares) / t;
        let bet = (2.0 * budget(options) / (variance * t * t.ln_1p())).sqrt().min(MAX_BET);
        self.bets += bet;
        self.staked += bet * x;
        self.toll += (x - mean).powi(2) * (-(-bet).ln_1p() - bet);
        self.count += 1;
        self.sum += i128::from(value.0);
        self.squares += (x - self.regularised_mean()).powi(2);
        true
    }

    /// The interval of the mean, or `None` before the first value; each version has half of `alpha`.
    pub fn interval(&self, options: &DriftOptions) -> Option<Interval> {
        (self.count > 0).then(|| {
            let center = self.staked / self.bets;
            let radius = (budget(options) + self.toll) / self.bets;
            Interval {
                lower: (center - radius).clamp(0.0, 1.0),
                upper: (center + radius).clamp(0.0, 1.0),
            }
        })
    }

    /// Mean of the values, or `None` before the first.
    pub fn mean(&self) -> Option<f64> {
        let whole = i128::from(self.count) * i128::from(Quanta::ONE);
        (self.count > 0).then(|| ratio(self.sum, whole))
    }

    /// The mean with one more value of one half.
    fn regularised_mean(&self) -> f64 {
        let whole = (i128::from(self.count) + 1) * i128::from(Quanta::ONE);
        ratio(self.sum + i128::from(Quanta::ONE / 2), whole)
    }
}

impl Difference {
    /// Whether the versions differ: 0 is not in the interval.
    pub fn excludes_zero(&self) -> bool {
        self.lower > 0.0 || self.upper < 0.0
    }
}

/// `ln(2/a)` with half of `alpha` for `a`.
fn budget(options: &DriftOptions) -> f64 {
    (4.0 / options.alpha).ln()
}

/// The greatest bet; a bet of 1 could lose everything.
const MAX_BET: f64 = 0.5;

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(values: &[f64]) -> MeanSequence {
        let mut sequence = MeanSequence::default();
        for value in values {
            let value = Quanta::from_f64(*value).unwrap();
            assert!(sequence.observe(value, &DriftOptions::default()));
        }
        sequence
    }

    #[test]
    fn before_a_value_there_is_no_interval() {
        let (none, one) = (MeanSequence::default(), sequence(&[0.5]));
        let options = DriftOptions::default();
        assert_eq!(none.interval(&options), None);
        assert_eq!(difference(&none, &one, &options), None);
        let difference = difference(&one, &one, &options).unwrap();
        assert!(!difference.excludes_zero());
        assert_eq!((difference.lower.to_bits(), difference.upper), ((-1.0_f64).to_bits(), 1.0));
    }

    #[test]
    fn values_out_of_range_are_not_taken() {
        let mut sequence = MeanSequence::default();
        for value in [-0.1, 1.1] {
            assert!(!sequence.observe(Quanta::from_f64(value).unwrap(), &DriftOptions::default()));
        }
        assert_eq!(sequence, MeanSequence::default());
    }

    /// The formula at the head of this file, each sum recomputed.
    fn recomputed(x: &[f64], a: f64) -> (f64, f64) {
        let count = |n: usize| f64::from(u32::try_from(n).unwrap());
        let mean = |t: usize| (0.5 + x[..t].iter().sum::<f64>()) / (count(t) + 1.0);
        let variance = |t: usize| {
            let squares: f64 = (1..=t).map(|i| (x[i - 1] - mean(i)).powi(2)).sum();
            (0.25 + squares) / (count(t) + 1.0)
        };
        let lambda = |t: usize| {
            let scale = variance(t - 1) * count(t) * (1.0 + count(t)).ln();
            (2.0 * (2.0 / a).ln() / scale).sqrt().min(0.5)
        };
        let bets: f64 = (1..=x.len()).map(lambda).sum();
        let staked: f64 = (1..=x.len()).map(|t| lambda(t) * x[t - 1]).sum();
        let toll = |t: usize| {
            let psi = -(1.0 - lambda(t)).ln() - lambda(t);
            (x[t - 1] - mean(t - 1)).powi(2) * psi
        };
        let tolls: f64 = (1..=x.len()).map(toll).sum();
        (staked / bets, ((2.0 / a).ln() + tolls) / bets)
    }

    #[test]
    fn the_sums_are_the_papers() {
        let values: Vec<f64> = (0..150).map(|index| f64::from(index * 7 % 11) / 10.0).collect();
        for length in [60, 100, 150] {
            let values = &values[..length];
            let interval = sequence(values).interval(&DriftOptions::default()).unwrap();
            let (center, radius) = recomputed(values, 0.025);
            assert!((interval.lower - (center - radius).max(0.0)).abs() < 1e-9, "{interval:?}");
            assert!((interval.upper - (center + radius).min(1.0)).abs() < 1e-9, "{interval:?}");
            assert!(interval.lower > 0.0 && interval.upper < 1.0, "{interval:?}");
        }
    }

    #[test]
    fn intervals_narrow_around_the_mean() {
        let values: Vec<f64> = (0..2000).map(|index| f64::from(index % 10) / 10.0).collect();
        let sequence = sequence(&values);
        let interval = sequence.interval(&DriftOptions::default()).unwrap();
        assert!(interval.lower < 0.45 && 0.45 < interval.upper);
        assert!(interval.upper - interval.lower < 0.12, "{interval:?}");
    }
}
