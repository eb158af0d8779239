//! pass^k: would an agent succeed at a task `k` times in a row?
//!
//! ```text
//! pass^k = mean over tasks with at least k runs of C(successes, k) / C(runs, k)
//! ```
//!
//! Source: tau-bench (Yao et al., 2024), section 3.

use std::collections::BTreeMap;

use super::outcome::Outcomes;
use super::score::Mean;
use crate::math::{Quanta, ratio};

/// Means for `k` from 1 to 8.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct PassHatK([Mean; 8]);

impl PassHatK {
    /// Adds a task.
    pub(super) fn observe(&mut self, task: Outcomes) {
        self.0.iter_mut().zip(shares(task)).for_each(|(mean, share)| mean.observe(share));
    }

    /// Subtracts a task that was observed.
    pub(super) fn forget(&mut self, task: Outcomes) {
        self.0.iter_mut().zip(shares(task)).for_each(|(mean, share)| mean.forget(share));
    }

    /// pass^k by `k`, for each `k` for which some task has enough runs.
    pub(super) fn results(&self) -> BTreeMap<u32, f64> {
        let means = (1..).zip(&self.0);
        means.filter_map(|(k, mean)| Some((k, mean.result()?.value))).collect()
    }
}

/// `C(successes, k) / C(runs, k)` for each `k` from 1 to the number of runs.
fn shares(task: Outcomes) -> impl Iterator<Item = Quanta> {
    let mut share = 1.0;
    (0..task.runs).map(move |drawn| {
        let left = task.successes.saturating_sub(drawn);
        share *= ratio(i128::from(left), i128::from(task.runs - drawn));
        Quanta::from_f64(share).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn luck_does_not_last() {
        let mut pass = PassHatK::default();
        pass.observe(Outcomes { runs: 4, successes: 3 });
        pass.observe(Outcomes { runs: 2, successes: 2 });
        let results = pass.results();
        assert_eq!(results.len(), 4);
        assert!((results[&1] - 0.875).abs() < 1e-12);
        assert!((results[&2] - 0.75).abs() < 1e-12);
        assert!((results[&3] - 0.25).abs() < 1e-12);
        assert!(results[&4].abs() < 1e-12);
    }
}
