//! A distribution of scores from which scores can be subtracted exactly.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::facts::ScoreHistogram;
use crate::math::Quanta;

/// Upper bounds, inclusive, of the buckets of every score histogram; one more bucket follows.
pub const SCORE_BOUNDS: [f64; 8] = [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0];

/// Bucket counts, and the exact sum.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Histogram {
    buckets: [u64; SCORE_BOUNDS.len() + 1],
    count: u64,
    sum: i128,
}

impl Histogram {
    /// Adds a score.
    pub(super) fn observe(&mut self, score: Quanta) {
        self.buckets[bucket(score)] += 1;
        self.count += 1;
        self.sum += i128::from(score.0);
    }

    /// Subtracts a score that was observed.
    pub(super) fn forget(&mut self, score: Quanta) {
        self.buckets[bucket(score)] -= 1;
        self.count -= 1;
        self.sum -= i128::from(score.0);
    }

    /// The histogram as it is sent; `None` if it is empty.
    pub(super) fn message(&self) -> Option<ScoreHistogram> {
        (self.count > 0).then(|| ScoreHistogram {
            buckets: self.buckets.as_slice().into(),
            count: self.count,
            sum_quanta: self.sum,
            exemplars: SmallVec::new(),
        })
    }
}

/// The bucket that a score is in.
pub(super) fn bucket(score: Quanta) -> usize {
    let score = score.to_f64();
    SCORE_BOUNDS.partition_point(|bound| *bound < score)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_inclusive_and_forgetting_undoes_observing() {
        let mut histogram = Histogram::default();
        for score in [0.1, 0.11, 1.0, 1.5] {
            histogram.observe(Quanta::from_f64(score).unwrap());
        }
        let message = histogram.message().unwrap();
        assert_eq!(*message.buckets, [1, 1, 0, 0, 0, 0, 0, 1, 1]);
        for score in [0.1, 0.11, 1.0, 1.5] {
            histogram.forget(Quanta::from_f64(score).unwrap());
        }
        assert_eq!(histogram, Histogram::default());
        assert_eq!(histogram.message(), None);
    }
}
