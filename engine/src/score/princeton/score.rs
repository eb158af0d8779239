//! A score with its number of samples, and means of scores.

use crate::math::{Quanta, ratio};

/// A score and its number of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// In `[0,1]`, higher is better.
    pub value: f64,
    /// Number of tasks, runs or answers that it covers; for an aggregate, that of its smallest part.
    pub samples: u64,
}

/// Mean of values, each quantised once.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Mean {
    count: u64,
    sum: i128,
}

impl Mean {
    pub(super) fn observe(&mut self, value: Quanta) {
        self.count += 1;
        self.sum += i128::from(value.0);
    }

    pub(super) fn forget(&mut self, value: Quanta) {
        self.count -= 1;
        self.sum -= i128::from(value.0);
    }

    /// The mean; `None` over nothing.
    pub(super) fn result(self) -> Option<Score> {
        let whole = i128::from(self.count) * i128::from(Quanta::ONE);
        (self.count > 0).then(|| Score { value: ratio(self.sum, whole), samples: self.count })
    }
}
