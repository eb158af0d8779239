//! Small readers that several conventions share.

use std::borrow::Cow;
use std::sync::Arc;

use super::draft::without_placeholder;
use super::json::Json;
use super::raw::RawValue;
use super::{arguments, messages};
use crate::span::{Arguments, Text};

/// Canonical arguments, with their text if that is to be kept; `None` if the value is empty or unusable.
pub(super) fn arguments(value: &RawValue<'_>, keep_text: bool) -> Option<Arguments> {
    present(value).then(|| arguments::canonical(value, keep_text)).flatten()
}

/// The hash of a result; `None` if the value is empty or unusable.
pub(super) fn result(value: &RawValue<'_>) -> Option<u64> {
    present(value).then(|| arguments::result_hash(value)).flatten()
}

/// A value as a text: a string as it is, anything else as JSON.
pub(super) fn plain(rank: u8, value: &RawValue<'_>) -> Option<Text> {
    let text = match value.as_str() {
        Some(text) => Cow::Borrowed(text),
        None => messages::parsed(value)?.to_string().into(),
    };
    ranked(rank, Some(text))
}

/// A text with its rank, without the space around it; `None` if it is empty or a placeholder.
pub(super) fn ranked(rank: u8, text: Option<Cow<'_, str>>) -> Option<Text> {
    Some(Text { rank, text: Arc::from(without_placeholder(&text?)?) })
}

/// The text of a message with its rank, as [`ranked`] and [`message_rank`] have it.
pub(super) fn of_message(rank: u8, loose: bool, text: Option<Cow<'_, str>>) -> Option<Text> {
    ranked(message_rank(rank, loose), text)
}

/// The rank of the text of a message; a loose text is the written form of some other value.
pub(super) fn message_rank(rank: u8, loose: bool) -> u8 {
    if loose { Text::LOOSE } else { rank }
}

/// The text of a message's body: its `content`, or the body itself where that is plain text.
pub(super) fn content_of(body: &Json<'_>) -> Option<String> {
    let wrapped = match body {
        Json::Text(text) => return Some(text.to_string()).filter(|text| !text.is_empty()),
        Json::Object(map) => map.get("content")?,
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::List(_) => return None,
    };
    if let Some(text) = wrapped.as_str() {
        return Some(text.to_owned()).filter(|text| !text.is_empty());
    }
    if *wrapped == Json::Null {
        return None;
    }
    let message = format!(r#"[{{"role":"assistant","content":{wrapped}}}]"#);
    messages::said(&RawValue::Str(message.into())).text.map(Cow::into_owned)
}

fn present(value: &RawValue<'_>) -> bool {
    value.as_str().is_none_or(|text| without_placeholder(text).is_some())
}
