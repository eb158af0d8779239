//! Confidence consistency: is an agent equally confident of a task each time?
//!
//! ```text
//! CV     = s / mean          s: sample standard deviation
//! C_conf = exp(-CV)          two values at least, mean > 0
//! ```
//!
//! Source: Princeton, agent reliability, "Confidence Consistency".

use crate::math::{Quanta, ratio};

/// Greatest distance from zero of a value that counts as a confidence.
const GREATEST: i64 = 100 * Quanta::ONE;

/// Sums of the confidences of one task's runs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Confidences {
    count: u64,
    sum: i128,
    squares: i128,
}

/// The confidence, if it is plausible; only then can any number of squares be summed.
pub(super) fn plausible(confidence: Quanta) -> Option<Quanta> {
    (-GREATEST..=GREATEST).contains(&confidence.0).then_some(confidence)
}

impl Confidences {
    pub(super) fn observe(&mut self, confidence: Quanta) {
        let value = i128::from(confidence.0);
        self.count += 1;
        self.sum += value;
        self.squares += value * value;
    }

    pub(super) fn forget(&mut self, confidence: Quanta) {
        let value = i128::from(confidence.0);
        self.count -= 1;
        self.sum -= value;
        self.squares -= value * value;
    }

    /// `C_conf`; `None` with fewer than two values or a mean not above zero.
    pub(super) fn consistency(self) -> Option<f64> {
        let n = i128::from(self.count);
        if n < 2 || self.sum <= 0 {
            return None;
        }
        // The squared distances from the mean rounded down to a quantum, less the correction for the rest of the mean: this avoids
        // subtracting large floats.
        let (floor, rest) = (self.sum.div_euclid(n), self.sum.rem_euclid(n));
        let around_floor = self.squares - floor * floor * n - 2 * floor * rest;
        let squares = (ratio(around_floor, 1) - ratio(rest * rest, n)).max(0.0);
        let deviation = (squares / ratio(n - 1, 1)).sqrt();
        Some((-deviation / ratio(self.sum, n)).exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64]) -> Option<f64> {
        let mut confidences = Confidences::default();
        values.iter().for_each(|value| confidences.observe(Quanta::from_f64(*value).unwrap()));
        confidences.consistency()
    }

    #[test]
    fn equal_confidences_are_consistent() {
        assert!((of(&[0.7, 0.7, 0.7]).unwrap() - 1.0).abs() < 1e-12);
        assert!((of(&[0.9, 0.7]).unwrap() - 0.837_966_885_578_755_8).abs() < 1e-12);
    }

    #[test]
    fn a_single_or_a_negative_one_has_no_score() {
        assert_eq!(of(&[0.7]), None);
        assert_eq!(of(&[0.0, 0.0]), None);
        assert_eq!(of(&[-0.5, -0.1]), None);
    }
}
