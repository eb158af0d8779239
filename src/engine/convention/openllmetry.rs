//! OpenLLMetry (Traceloop): the decorators' own spans. Its model spans speak the GenAI convention.
//!
//! Recognised by `traceloop.span.kind`. `traceloop.entity.input` holds the call of the decorated function as
//! `{"args":[..],"kwargs":{..}}`, `traceloop.entity.output` what it returned, as JSON.

use serde_json::Value;

use super::draft::{Draft, name};
use super::raw::{RawScope, RawSpan};
use super::{Convention, messages, text};
use crate::engine::span::Operation;

/// The convention.
pub(super) struct OpenLlmetry;

impl Convention for OpenLlmetry {
    fn name(&self) -> &'static str {
        "openllmetry"
    }

    fn read(&self, raw: &RawSpan<'_>, _: &RawScope<'_>, draft: &mut Draft) {
        let attributes = &raw.attributes;
        let Some(kind) = attributes.str("traceloop.span.kind") else { return };
        let operation = match kind {
            "agent" => Operation::InvokeAgent,
            "tool" => Operation::ExecuteTool,
            _ => Operation::Other,
        };
        draft.convention.offer(70, self.name());
        draft.operation.offer(70, operation);
        let entity = attributes.get("traceloop.entity.name").and_then(name);
        let user = attributes.get("traceloop.association.properties.user_id").and_then(name);
        draft.user.offer(30, user);
        if operation == Operation::ExecuteTool {
            draft.tool_name.offer(60, entity);
            draft.arguments.offer(70, text::arguments(attributes, "traceloop.entity.input"));
            draft.result_hash.offer(70, text::result(attributes, "traceloop.entity.output"));
            return;
        }
        if operation == Operation::InvokeAgent {
            draft.agent_name.offer(40, entity);
        }
        let asked = attributes.get("traceloop.entity.input").and_then(messages::parsed);
        draft.input.offer(60, text::ranked(60, asked.as_ref().and_then(first_argument)));
        if let Some(output) = attributes.get("traceloop.entity.output") {
            draft.output.offer(60, text::ranked(60, messages::assistant_text(output)));
        }
    }
}

/// The text that the decorated function was called with: its only argument, by place or by name.
fn first_argument(call: &Value) -> Option<String> {
    let by_place = call.get("args").and_then(Value::as_array).into_iter().flatten();
    let by_name = call
        .get("kwargs")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(|kwargs| kwargs.values());
    let mut texts = by_place.chain(by_name).filter_map(Value::as_str);
    texts.next().map(str::to_owned)
}
