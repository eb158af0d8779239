//! The quantum: scores, risks and dollars as integers in steps of 1e-12.
//!
//! A value is quantised once. Sums of quanta are `i128`, so adding and subtracting never
//! drifts and merging in any order gives the same bits; an aggregate is one numerator and
//! one denominator, and one division at the end.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A number in steps of 1e-12, within about +-9.2 million.
#[derive(Clone, Copy, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Quanta(pub i64);

impl Quanta {
    /// Number of quanta in one.
    pub const ONE: i64 = 1_000_000_000_000;

    /// Rounds to the nearest quantum; `None` for NaN, infinities and what does not fit.
    pub fn from_f64(value: f64) -> Option<Self> {
        let scaled = (value * Self::ONE as f64).round();
        // 2^63 is exactly representable; everything below it fits.
        if scaled.is_finite() && scaled.abs() < 9_223_372_036_854_775_808.0 {
            #[expect(clippy::cast_possible_truncation, reason = "checked to fit on the line above")]
            let quanta = scaled as i64;
            Some(Self(quanta))
        } else {
            None
        }
    }

    /// The value as a float.
    pub fn to_f64(self) -> f64 {
        ratio(i128::from(self.0), i128::from(Self::ONE))
    }
}

impl fmt::Debug for Quanta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_f64())
    }
}

/// One division of two integers; NaN for nothing over nothing.
pub fn ratio(numerator: i128, denominator: i128) -> f64 {
    // The same bits either way; 64 bits convert in one instruction.
    match (i64::try_from(numerator), i64::try_from(denominator)) {
        (Ok(numerator), Ok(denominator)) => numerator as f64 / denominator as f64,
        (_, _) => numerator as f64 / denominator as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_rounded_to_the_nearest_quantum() {
        assert_eq!(Quanta::from_f64(0.1), Some(Quanta(100_000_000_000)));
        assert_eq!(Quanta::from_f64(-1.0), Some(Quanta(-Quanta::ONE)));
        assert_eq!(Quanta::from_f64(f64::NAN), None);
        assert_eq!(Quanta::from_f64(f64::INFINITY), None);
        assert_eq!(Quanta::from_f64(1e8), None);
    }
}
