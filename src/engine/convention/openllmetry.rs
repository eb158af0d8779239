//! OpenLLMetry (Traceloop): the decorators' own spans. Its model spans speak the GenAI convention.
//!
//! Recognised by `traceloop.span.kind`. `traceloop.entity.input` holds the call of the decorated function as
//! `{"args":[..],"kwargs":{..}}`, `traceloop.entity.output` what it returned, as JSON.

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
        if let Some(input) = attributes.get("traceloop.entity.input") {
            draft.input.offer(60, text::ranked(60, messages::user_text(input)));
        }
        if let Some(output) = attributes.get("traceloop.entity.output") {
            draft.output.offer(60, text::ranked(60, messages::assistant_text(output)));
        }
    }
}
