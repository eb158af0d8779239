//! Small readers that several conventions share.

use std::sync::Arc;

use serde_json::Value;

use super::draft::meant;
use super::raw::{RawAttributes, RawValue};
use super::{arguments, messages};
use crate::engine::span::{Arguments, Text};

/// The canonical arguments under a key, unless they stand for nothing.
pub(super) fn arguments(attributes: &RawAttributes<'_>, key: &str) -> Option<Arguments> {
    Some(arguments::canonical(present(attributes, key)?))
}

/// The hash of the result under a key, unless it stands for nothing.
pub(super) fn result(attributes: &RawAttributes<'_>, key: &str) -> Option<u64> {
    Some(arguments::result_hash(present(attributes, key)?))
}

/// A text with its rank.
pub(super) fn ranked(rank: u8, text: Option<String>) -> Option<Text> {
    let text = text?;
    meant(&text)?;
    Some(Text { rank, text: Arc::from(text) })
}

/// The text of a message's body: its `content`, or the body itself where that is plain text.
pub(super) fn content_of(body: &Value) -> Option<String> {
    let wrapped = match body {
        Value::String(text) => return Some(text.clone()).filter(|text| !text.is_empty()),
        Value::Object(map) => map.get("content")?,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => return None,
    };
    if let Some(text) = wrapped.as_str() {
        return Some(text.to_owned()).filter(|text| !text.is_empty());
    }
    let message = serde_json::json!([{"role": "assistant", "content": wrapped}]);
    messages::assistant_text(&RawValue::Str(message.to_string().into()))
        .filter(|_| !wrapped.is_null())
}

fn present<'a>(attributes: &'a RawAttributes<'_>, key: &str) -> Option<&'a RawValue<'a>> {
    let value = attributes.get(key)?;
    match value.as_str() {
        Some(text) => meant(text).map(|_| value),
        None => Some(value),
    }
}
