//! An optional number in the size of a number.

use serde::{Deserialize, Serialize};

/// A number or none: the bits of `i64::MIN` stand for none, and that number itself is stored as the next greater one.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(from = "Option<u64>", into = "Option<u64>")]
pub(super) struct OptionalNumber(u64);

impl OptionalNumber {
    const NOTHING: u64 = i64::MIN.cast_unsigned();
}

/// None.
impl Default for OptionalNumber {
    fn default() -> Self {
        Self(Self::NOTHING)
    }
}

impl From<Option<u64>> for OptionalNumber {
    fn from(number: Option<u64>) -> Self {
        Self(match number {
            None => Self::NOTHING,
            Some(Self::NOTHING) => Self::NOTHING + 1,
            Some(number) => number,
        })
    }
}

impl From<OptionalNumber> for Option<u64> {
    fn from(OptionalNumber(number): OptionalNumber) -> Self {
        (number != OptionalNumber::NOTHING).then_some(number)
    }
}
