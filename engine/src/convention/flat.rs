//! Messages flattened over attributes: `PREFIX N . FIELD`, as OpenInference and older OpenLLMetry send them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::arguments;
use super::messages::{InputFacts, OutputFacts};
use super::raw::{RawAttributes, RawValue};
use crate::span::{IdHash, ToolFacts, ToolResult};

/// Messages of one span after which the rest is not read.
const MAX_MESSAGES: usize = 10_000;

/// One message, with the fields that are on the span.
#[derive(Default)]
struct Message<'a> {
    role: &'a str,
    content: Option<&'a str>,
    answers: Option<&'a str>,
    parts: BTreeMap<usize, &'a str>,
    calls: BTreeMap<usize, Call<'a>>,
}

#[derive(Default)]
struct Call<'a> {
    id: Option<&'a str>,
    name: Option<&'a str>,
    arguments: Option<&'a RawValue<'a>>,
}

/// Messages by their number.
pub(super) struct Messages<'a>(BTreeMap<usize, Message<'a>>);

impl<'a> Messages<'a> {
    /// Collects the messages under a prefix.
    pub(super) fn of(attributes: &'a RawAttributes<'a>, prefix: &str) -> Self {
        let mut messages: BTreeMap<usize, Message<'a>> = BTreeMap::new();
        for (key, value) in attributes.iter() {
            // Prefixes end in a dot; most other keys have no dot at that place.
            let dotted = key.as_bytes().get(prefix.len() - 1) == Some(&b'.');
            let rest = if dotted { key.strip_prefix(prefix) } else { None };
            let numbered = rest.and_then(numbered);
            let Some((number, field)) = numbered.filter(|(number, _)| *number < MAX_MESSAGES)
            else {
                continue;
            };
            let message = messages.entry(number).or_default();
            let field = field.strip_prefix("message.").unwrap_or(field);
            let text = value.as_str();
            match field {
                "role" => message.role = text.unwrap_or_default(),
                "content" => message.content = text,
                "tool_call_id" => message.answers = text,
                _ => nested(message, field, value),
            }
        }
        Self(messages)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The messages as a model's input.
    pub(super) fn asked(&self) -> InputFacts<'a> {
        let is_user = |message: &&Message<'_>| {
            matches!(message.role, "user" | "human") && !message.is_result()
        };
        let last_first = || self.0.values().rev();
        let mut results: Vec<ToolResult> = last_first()
            .take_while(|message| message.is_result())
            .map(|message| ToolResult {
                call_id: message.answers.map(IdHash::from),
                failed: false,
                hash: message
                    .content
                    .and_then(|text| arguments::result_hash(&RawValue::Str(text.into()))),
            })
            .collect();
        results.reverse();
        InputFacts {
            text: last_first().find(is_user).and_then(Message::text),
            results,
            by_user: last_first().next().map(|_| {
                let mut speakers = last_first().filter(|message| !message.instructs());
                speakers.next().is_none_or(|message| is_user(&message))
            }),
            loose: false,
        }
    }

    /// The messages as a model's output.
    pub(super) fn said(&self) -> OutputFacts<'a> {
        let own = || {
            self.0.values().filter(|message| matches!(message.role, "assistant" | "ai" | "model"))
        };
        OutputFacts {
            text: own().rev().find_map(Message::text),
            calls: self.0.values().flat_map(Message::tool_calls).collect(),
            loose: false,
        }
    }
}

impl<'a> Message<'a> {
    /// Whether it has the result of a tool; some libraries send it as the user's.
    fn is_result(&self) -> bool {
        self.role == "tool" || self.answers.is_some()
    }

    /// Whether it is an instruction, which is by none of the participants.
    fn instructs(&self) -> bool {
        matches!(self.role, "system" | "developer")
    }

    fn text(&self) -> Option<Cow<'a, str>> {
        let parts = || self.parts.values().copied().collect::<Vec<_>>().join("\n").into();
        let text = self.content.filter(|content| !content.is_empty()).map_or_else(parts, Cow::from);
        (!text.is_empty()).then_some(text)
    }

    fn tool_calls(&self) -> impl Iterator<Item = ToolFacts> + '_ {
        self.calls.values().filter(|call| call.name.is_some()).map(|call| ToolFacts {
            name: call.name.map(Arc::from),
            call_id: call.id.map(IdHash::from),
            arguments: call.arguments.and_then(|value| arguments::canonical(value, true)),
            result_hash: None,
            phantom: false,
        })
    }
}

/// `contents.M.message_content.text`, `content.M` and `tool_calls.M.(tool_call.)(function.)(id|name|arguments)`.
fn nested<'a>(message: &mut Message<'a>, field: &str, value: &'a RawValue<'a>) {
    let text = value.as_str();
    let part = match field.strip_prefix("contents.").and_then(numbered) {
        Some((number, "message_content.text")) => Some(number),
        Some(_) | None => field.strip_prefix("content.").and_then(|number| number.parse().ok()),
    };
    if let Some(number) = part {
        if let Some(text) = text {
            message.parts.insert(number, text);
        }
        return;
    }
    let Some((number, field)) = field.strip_prefix("tool_calls.").and_then(numbered) else {
        return;
    };
    let call = message.calls.entry(number).or_default();
    let field = field.strip_prefix("tool_call.").unwrap_or(field);
    match field.strip_prefix("function.").unwrap_or(field) {
        "id" => call.id = text,
        "name" => call.name = text,
        "arguments" => call.arguments = Some(value),
        _ => {}
    }
}

fn numbered(key: &str) -> Option<(usize, &str)> {
    let (number, rest) = key.split_once('.')?;
    Some((number.parse().ok()?, rest))
}
