//! Texts and numbers of a file that must be within bounds; one that is not is an error with its place.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

pub(super) fn not_blank<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.trim().is_empty() { Err(D::Error::custom("this is empty")) } else { Ok(text) }
}

pub(super) fn from_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let count = u64::deserialize(deserializer)?;
    if count == 0 { Err(D::Error::custom("this must be at least 1")) } else { Ok(count) }
}

pub(super) fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(deserializer)?;
    let holds = (0.0..=1.0).contains(&value);
    if holds { Ok(value) } else { Err(D::Error::custom("this must be from 0 to 1")) }
}

pub(super) fn some_share<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<f64>, D::Error> {
    let holds = |value| (0.0..=1.0).contains(&value);
    number(deserializer, holds, "this must be from 0 to 1")
}

pub(super) fn some_positive<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<f64>, D::Error> {
    number(deserializer, |value| value > 0.0, "this must be over 0")
}

pub(super) fn some_not_negative<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<f64>, D::Error> {
    number(deserializer, |value| value >= 0.0, "this must be at least 0")
}

fn number<'de, D: Deserializer<'de>>(
    deserializer: D,
    holds: impl Fn(f64) -> bool,
    problem: &str,
) -> Result<Option<f64>, D::Error> {
    let value = Option::<f64>::deserialize(deserializer)?;
    if value.is_none_or(holds) { Ok(value) } else { Err(D::Error::custom(problem)) }
}
