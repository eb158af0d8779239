//! OpenTelemetry GenAI semantic conventions, 1.37 and later; and the message log records of the versions before.
//!
//! Recognised by `gen_ai.*` attributes. Texts and calls are `gen_ai.input.messages` and `gen_ai.output.messages`, on the
//! span, on its `gen_ai.client.inference.operation.details` event or in the log record of that name.

use super::draft::{Draft, count, name, number};
use super::raw::{RawAttributes, RawLog, RawScope, RawSpan};
use super::{Convention, LogDraft, messages, operation_named, text};
use crate::engine::math::Quanta;
use crate::engine::span::Operation;

/// The convention.
pub(super) struct OtelGenAi;

/// Carries a model call's messages where they are not on its span.
const DETAILS: &str = "gen_ai.client.inference.operation.details";

impl Convention for OtelGenAi {
    fn name(&self) -> &'static str {
        "otel_genai"
    }

    fn read(&self, raw: &RawSpan<'_>, _: &RawScope<'_>, draft: &mut Draft) {
        let attributes = &raw.attributes;
        if let Some(operation) = attributes.str("gen_ai.operation.name").and_then(operation_named) {
            draft.convention.offer(20, self.name());
            draft.operation.offer(20, operation);
        } else if attributes
            .get("gen_ai.tool.call.id")
            .or_else(|| attributes.get("gen_ai.tool.name"))
            .is_some()
        {
            draft.convention.offer(80, self.name());
            draft.operation.offer(80, Operation::ExecuteTool);
        } else if attributes
            .get("gen_ai.request.model")
            .or_else(|| attributes.get("gen_ai.response.model"))
            .is_some()
        {
            draft.convention.offer(90, self.name());
            draft.operation.offer(90, Operation::Chat);
        }
        let first = |keys: &[&str]| keys.iter().find_map(|key| attributes.get(key)).and_then(name);
        draft.agent_name.offer(10, first(&["gen_ai.agent.name"]));
        draft.agent_version.offer(10, first(&["gen_ai.agent.version"]));
        draft.tool_name.offer(10, first(&["gen_ai.tool.name"]));
        draft.tool_call_id.offer(10, first(&["gen_ai.tool.call.id"]));
        draft.arguments.offer(10, text::arguments(attributes, "gen_ai.tool.call.arguments"));
        draft.result_hash.offer(10, text::result(attributes, "gen_ai.tool.call.result"));
        draft.model.offer(10, first(&["gen_ai.response.model"]));
        draft.model.offer(50, first(&["gen_ai.request.model"]));
        draft.response_id.offer(10, first(&["gen_ai.response.id"]));
        usage(attributes, draft);
        content(attributes, draft, 20);
        for event in raw.events.iter().filter(|event| event.name == DETAILS) {
            content(&event.attributes, draft, 70);
        }
        draft.failed |= attributes.str("error.type").is_some() || ended_in_error(attributes);
        draft.phantoms.insert("(merged tools)");
    }

    fn log(&self, raw: &RawLog<'_>, event: &str, draft: &mut LogDraft) {
        let body = || messages::json(&raw.body);
        match event {
            DETAILS => {
                draft.input =
                    raw.attributes.get("gen_ai.input.messages").and_then(messages::user_text);
                if let Some(output) = raw.attributes.get("gen_ai.output.messages") {
                    draft.output = messages::assistant_text(output);
                    draft.tool_calls = messages::tool_calls(output);
                }
                draft.recognised = true;
            }
            "gen_ai.user.message" => {
                draft.input = text::content_of(&body());
                draft.recognised = true;
            }
            "gen_ai.choice" => {
                let body = body();
                let message = body.get("message").unwrap_or(&body);
                draft.output = text::content_of(message);
                draft.tool_calls = messages::calls_of_message(message);
                draft.recognised = true;
            }
            // The rest of the history, repeated with every call.
            "gen_ai.system.message" | "gen_ai.assistant.message" | "gen_ai.tool.message" => {
                draft.recognised = true;
            }
            _ => {}
        }
    }
}

/// Tokens and dollars; input includes cached tokens, output reasoning.
fn usage(attributes: &RawAttributes<'_>, draft: &mut Draft) {
    for (rank, input, output) in [
        (10, "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"),
        (50, "gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens"),
    ] {
        draft.input_tokens.offer(rank, attributes.get(input).and_then(count));
        draft.output_tokens.offer(rank, attributes.get(output).and_then(count));
    }
    draft
        .cost
        .offer(20, attributes.get("gen_ai.usage.cost").and_then(number).and_then(Quanta::from_f64));
}

fn content(attributes: &RawAttributes<'_>, draft: &mut Draft, rank: u8) {
    if let Some(input) = attributes.get("gen_ai.input.messages").filter(|_| draft.input.wants(rank))
    {
        draft.input.offer(rank, text::ranked(rank, messages::user_text(input)));
    }
    if let Some(output) = attributes.get("gen_ai.output.messages") {
        if draft.output.wants(rank) {
            draft.output.offer(rank, text::ranked(rank, messages::assistant_text(output)));
        }
        if draft.tool_calls.wants(rank) {
            let calls = messages::tool_calls(output);
            draft.tool_calls.offer(rank, (!calls.is_empty()).then_some(calls));
        }
    }
}

/// A finish reason of `error`, in a list or in the JSON text of one.
fn ended_in_error(attributes: &RawAttributes<'_>) -> bool {
    let Some(reasons) = attributes.get("gen_ai.response.finish_reasons").map(messages::json) else {
        return false;
    };
    let listed = |reasons: &[serde_json::Value]| reasons.iter().any(|reason| reason == "error");
    let text =
        || reasons.as_str().is_some_and(|text| text == "error" || text.contains("\"error\""));
    reasons.as_array().map_or_else(text, |reasons| listed(reasons))
}
