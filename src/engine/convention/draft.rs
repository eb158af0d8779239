//! A span while conventions are read: for each concept the best witness so far.
//!
//! Conventions may overlap on one span. Each offers what it knows with a rank, and the lowest rank holds, so the
//! order in which they are asked does not matter.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::raw::RawValue;
use crate::engine::math::Quanta;
use crate::engine::span::{Arguments, Operation, Text, ToolFacts};

/// A concept's best value so far, by rank; of equal ranks the first.
#[derive(Clone, Debug)]
pub(super) struct Ranked<T>(Option<(u8, T)>);

/// What conventions say of a span.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    /// Which convention decided on the operation.
    pub(super) convention: Ranked<&'static str>,
    pub(super) operation: Ranked<Operation>,
    pub(super) agent_name: Ranked<Arc<str>>,
    pub(super) agent_version: Ranked<Arc<str>>,
    pub(super) environment: Ranked<Arc<str>>,
    pub(super) user: Ranked<Arc<str>>,
    pub(super) session: Ranked<Arc<str>>,
    pub(super) tool_name: Ranked<Arc<str>>,
    pub(super) tool_call_id: Ranked<Arc<str>>,
    pub(super) arguments: Ranked<Arguments>,
    pub(super) result_hash: Ranked<u64>,
    pub(super) model: Ranked<Arc<str>>,
    pub(super) response_id: Ranked<Arc<str>>,
    pub(super) input_tokens: Ranked<u64>,
    pub(super) output_tokens: Ranked<u64>,
    pub(super) cost: Ranked<Quanta>,
    pub(super) tool_calls: Ranked<Vec<ToolFacts>>,
    pub(super) input: Ranked<Text>,
    pub(super) output: Ranked<Text>,
    /// Some attribute says that it failed.
    pub(super) failed: bool,
    /// Names that stand for no tool.
    pub(super) phantoms: BTreeSet<&'static str>,
}

/// Texts and names that stand for nothing.
const PLACEHOLDERS: [&str; 4] = ["<not specified>", "<REDACTED>", "<elided>", "N/A"];

impl<T> Ranked<T> {
    /// Takes the value if nothing of this rank or better is there.
    pub(super) fn offer(&mut self, rank: u8, value: impl Into<Option<T>>) {
        let held = self.0.as_ref().map(|(rank, _)| *rank);
        if held.is_none_or(|held| rank < held)
            && let Some(value) = value.into()
        {
            self.0 = Some((rank, value));
        }
    }

    /// Returns whether an offer of this rank would be taken: what is costly to read is read only then.
    pub(super) fn wants(&self, rank: u8) -> bool {
        self.0.as_ref().is_none_or(|(held, _)| rank < *held)
    }

    pub(super) fn get(&self) -> Option<&T> {
        self.0.as_ref().map(|(_, value)| value)
    }

    pub(super) fn take(self) -> Option<T> {
        self.0.map(|(_, value)| value)
    }
}

impl<T> Default for Ranked<T> {
    fn default() -> Self {
        Self(None)
    }
}

/// A text that says something.
pub(super) fn meant(text: &str) -> Option<&str> {
    let text = text.trim();
    (!text.is_empty() && !PLACEHOLDERS.contains(&text)).then_some(text)
}

/// A name, from a string or a number.
pub(super) fn name(value: &RawValue<'_>) -> Option<Arc<str>> {
    match value {
        RawValue::Str(text) => meant(text).map(Arc::from),
        RawValue::Int(number) => Some(Arc::from(number.to_string())),
        RawValue::Null
        | RawValue::Bool(_)
        | RawValue::Double(_)
        | RawValue::Bytes(_)
        | RawValue::Array(_)
        | RawValue::Map(_) => None,
    }
}

/// A number, from a number or a string that is one; never NaN or infinite.
pub(super) fn number(value: &RawValue<'_>) -> Option<f64> {
    let number = match value {
        RawValue::Int(number) => Some(*number as f64),
        RawValue::Double(number) => Some(*number),
        RawValue::Bool(flag) => Some(if *flag { 1.0 } else { 0.0 }),
        RawValue::Str(text) => text.trim().parse().ok(),
        RawValue::Null | RawValue::Bytes(_) | RawValue::Array(_) | RawValue::Map(_) => None,
    };
    number.filter(|number: &f64| number.is_finite())
}

/// A count, from a number or a string that is one.
pub(super) fn count(value: &RawValue<'_>) -> Option<u64> {
    match value {
        RawValue::Int(number) => u64::try_from(*number).ok(),
        RawValue::Str(text) => text.trim().parse().ok(),
        RawValue::Double(number)
            if *number >= 0.0 && *number < 9e15 && number.fract().abs() < f64::EPSILON =>
        {
            format!("{number:.0}").parse().ok()
        }
        RawValue::Null
        | RawValue::Bool(_)
        | RawValue::Double(_)
        | RawValue::Bytes(_)
        | RawValue::Array(_)
        | RawValue::Map(_) => None,
    }
}
