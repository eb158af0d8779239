//! Attributes of your own, mapped in the configuration; they go before every convention.

use std::collections::BTreeMap;

use super::draft::{Draft, count, name, number};
use super::raw::{RawSpan, RawValue};
use super::{messages, operation_named, text};
use crate::engine::math::Quanta;

/// Concepts that can be mapped.
pub const CONCEPTS: &[&str] = &[
    "agent_name",
    "agent_version",
    "cost_usd",
    "environment",
    "input",
    "input_tokens",
    "model",
    "operation",
    "output",
    "output_tokens",
    "session",
    "tool_arguments",
    "tool_name",
    "tool_result",
    "user",
];

/// Reads the mapped attributes of a span.
pub(super) fn read(mapping: &BTreeMap<String, Vec<String>>, raw: &RawSpan<'_>, draft: &mut Draft) {
    for (concept, keys) in mapping {
        let Some((key, value)) = keys.iter().find_map(|key| Some((key, raw.attributes.get(key)?)))
        else {
            continue;
        };
        take(concept, (key, value), raw, draft);
    }
}

fn take(concept: &str, (key, value): (&str, &RawValue<'_>), raw: &RawSpan<'_>, draft: &mut Draft) {
    match concept {
        "agent_name" => draft.agent_name.offer(0, name(value)),
        "agent_version" => draft.agent_version.offer(0, name(value)),
        "cost_usd" => draft.cost.offer(0, number(value).and_then(Quanta::from_f64)),
        "environment" => draft.environment.offer(0, name(value)),
        "input" => draft.input.offer(0, text::ranked(0, messages::user_text(value))),
        "input_tokens" => draft.input_tokens.offer(0, count(value)),
        "model" => draft.model.offer(0, name(value)),
        "operation" => {
            let operation = value.as_str().and_then(operation_named);
            draft.convention.offer(0, operation.map(|_| "custom"));
            draft.operation.offer(0, operation);
        }
        "output" => draft.output.offer(0, text::ranked(0, messages::assistant_text(value))),
        "output_tokens" => draft.output_tokens.offer(0, count(value)),
        "session" => draft.session.offer(0, name(value)),
        "tool_arguments" => draft.arguments.offer(0, text::arguments(&raw.attributes, key)),
        "tool_name" => draft.tool_name.offer(0, name(value)),
        "tool_result" => draft.result_hash.offer(0, text::result(&raw.attributes, key)),
        "user" => draft.user.offer(0, name(value)),
        // The configuration is checked against `CONCEPTS` when it is read.
        _ => {}
    }
}
