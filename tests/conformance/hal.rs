//! Princeton's agent reliability: consistency, predictability, robustness, safety.

use super::Check;

pub(super) fn check_of(_family: &str) -> Option<Check> {
    None
}
