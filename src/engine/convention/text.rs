//! Small readers that several conventions share.

use std::sync::Arc;

use serde_json::Value;

use super::draft::meant;
use super::raw::RawValue;
use super::{arguments, messages};
use crate::engine::span::{Arguments, Text};

/// Canonical arguments, unless they stand for nothing.
pub(super) fn arguments(value: &RawValue<'_>) -> Option<Arguments> {
    present(value).then(|| arguments::canonical(value))
}

/// The hash of a result, unless it stands for nothing.
pub(super) fn result(value: &RawValue<'_>) -> Option<u64> {
    present(value).then(|| arguments::result_hash(value))
}

/// A value as a text: a string as it is, anything else as JSON.
pub(super) fn plain(rank: u8, value: &RawValue<'_>) -> Option<Text> {
    let text = match value {
        RawValue::Str(text) => text.clone().into_owned(),
        RawValue::Null
        | RawValue::Bool(_)
        | RawValue::Int(_)
        | RawValue::Double(_)
        | RawValue::Bytes(_)
        | RawValue::Array(_)
        | RawValue::Map(_) => messages::parsed(value)?.to_string(),
    };
    ranked(rank, Some(text))
}

/// A text with its rank, without the space around it.
pub(super) fn ranked(rank: u8, text: Option<String>) -> Option<Text> {
    Some(Text { rank, text: Arc::from(meant(&text?)?) })
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
    messages::said(&RawValue::Str(message.to_string().into())).text.filter(|_| !wrapped.is_null())
}

fn present(value: &RawValue<'_>) -> bool {
    value.as_str().is_none_or(|text| meant(text).is_some())
}
