//! Google's Agent Development Kit, telemetry schemas 1 (legacy) and 2.
//!
//! Schema 2 speaks the GenAI convention. The legacy one has a root `invocation` without attributes, a model call as two
//! nested spans (`call_llm`, `generate_content`), and values in `gcp.vertex.agent.*`, where `{}` stands for what was
//! not captured. `(merged tools)` is no call.
//!
//! The JavaScript library writes the attributes of a call when it ends, and has no other sign of a failure.

use super::draft::Draft;
use super::json::{self, Json};
use super::lines::{Concept, line};
use super::raw::{RawSpan, RawValue};
use super::{Convention, Mark, arguments, messages, text};
use crate::span::{Operation, Status};

pub(super) const CONVENTION: Convention = Convention {
    name: "google_adk",
    title: "Google ADK, telemetry schemas 1 and 2",
    session: "the ADK session's id is sent by itself; for texts and arguments set `OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental` and `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=span_and_event`",
    agent: "`Agent(name=\"...\")`",
    marks: &[Mark::Scope("gcp.vertex.agent"), Mark::Key("gcp.vertex.agent.event_id")],
    lines: &[line(Concept::Cited, 50, "adk.experimental.grounding.source_uris")],
    also: &[
        "`gcp.vertex.agent.tool_call_args`, `.tool_response`, `.llm_request`, `.llm_response` (legacy); `{}` is absent.",
        "A span `call_llm` or `execute_tool ...` without any attribute failed, and so did a call whose response is the library's own word for an internal error (Java).",
        "Without an operation, spans `invocation` and `agent_run ...` or `invoke_agent ...`, `call_llm` and `execute_tool ...` by their names.",
    ],
    operation,
    read,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    let operation = match &*raw.name {
        "call_llm" | "generate_content" => Operation::Chat,
        name if name.starts_with("execute_tool") => Operation::ExecuteTool,
        name if name.starts_with("agent_run") || name.starts_with("invoke_agent") => {
            Operation::InvokeAgent
        }
        _ => return None,
    };
    Some((60, operation))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    draft.failed |= is_broken_off(raw);
    let said = |key: &str| raw.attributes.get(key).filter(|value| !is_empty(value));
    match draft.operation.get() {
        Some(Operation::ExecuteTool) => {
            let arguments = said("gcp.vertex.agent.tool_call_args");
            draft
                .arguments
                .offer(40, arguments.and_then(|value| text::arguments(value, draft.keep_texts)));
            let response = said("gcp.vertex.agent.tool_response");
            draft.failed |= response.and_then(RawValue::as_str).is_some_and(tells_of_throw);
            draft.failed |= response.is_some_and(arguments::is_failure);
            draft.result_hash.offer(40, response.and_then(text::result));
        }
        Some(Operation::Chat) => {
            if let Some(request) = said("gcp.vertex.agent.llm_request") {
                draft.offer_input(66, || messages::asked(request));
            }
            if let Some(response) = said("gcp.vertex.agent.llm_response") {
                draft.offer_output(66, || messages::said(response));
            }
        }
        Some(Operation::InvokeAgent) => {
            let name =
                raw.name.strip_prefix("agent_run").map(|name| name.trim().trim_matches(['[', ']']));
            draft.agent_name.offer(90, name.filter(|name| !name.is_empty()).map(Into::into));
        }
        Some(_) | None => {}
    }
}

/// Whether a call threw before it wrote any attribute.
fn is_broken_off(raw: &RawSpan<'_>) -> bool {
    let is_call = raw.name == "call_llm" || raw.name.starts_with("execute_tool ");
    is_call && raw.attributes.is_empty() && raw.status == Status::Unset
}

/// Whether a response is the substitute that the Java library writes for a tool that threw.
fn tells_of_throw(response: &str) -> bool {
    const MESSAGE: &str = "An internal error occurred.";
    // Most responses do not have it.
    let told = response.contains(MESSAGE).then(|| json::read(response)).flatten();
    told.as_ref().and_then(Json::as_object).is_some_and(|map| {
        let is = |key: &str, text| map.get(key).and_then(Json::as_str) == Some(text);
        map.len() == 2 && is("status", "error") && is("message", MESSAGE)
    })
}

fn is_empty(value: &RawValue<'_>) -> bool {
    value.as_str().is_some_and(|text| text.trim() == "{}")
}
