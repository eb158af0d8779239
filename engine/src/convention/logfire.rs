//! Logfire's instrumentations of OpenAI, of its Agents SDK and of others.
//!
//! The span's name is a message template, `Function: {name}`; names and values are plain attributes.

use super::draft::{Draft, name};
use super::lines::{Concept, line, nanos, present};
use super::raw::{RawSpan, RawValue};
use super::{Convention, Mark, messages, usage};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "logfire",
    title: "Logfire (`instrument_openai`, `instrument_openai_agents`, ...)",
    session: "`with trace(\"...\", group_id=\"...\"):` of the Agents SDK, or `session.id` as baggage or attribute of the root span",
    agent: "the agent's `name` in the Agents SDK, or `gen_ai.agent.name` on a span of your own",
    marks: &[Mark::Key("logfire.msg_template"), Mark::Scope("logfire")],
    lines: &[
        // Before Pydantic AI's line, by which a span that names an agent is that agent's.
        line(Concept::Operation(step), 24, "sdk_span_type"),
        line(Concept::Operation(template), 40, "logfire.msg_template"),
        line(Concept::Session, 100, "group_id"),
        line(Concept::AgentName, 46, "agent_name"),
        line(Concept::Failed(present), 40, "error"),
        line(Concept::Failed(error_level), 41, "logfire.level_num"),
        line(Concept::ToolName, 45, "name"),
        line(Concept::ToolArguments, 57, "input"),
        line(Concept::ToolResult, 57, "output"),
        line(Concept::ResponseId, 30, "response_id"),
        line(Concept::Input, 57, "raw_input"),
        line(Concept::Input, 68, "request_data"),
        line(Concept::Output, 59, "response"),
        line(Concept::Output, 68, "response_data"),
    ],
    also: &[
        "`name` is the agent's on spans of the template `Agent run: {name!r}`.",
        "`events`: the choice in the list of message events is the answer.",
        "On model spans `output` is the answer, and `usage`, or `usage` in `response_data`, has the tokens, also those read from a cache.",
        "`streaming response from ...` is the answer to the request before it, which is one model call with it; `duration` is the time that it took.",
    ],
    generic_names: &["Agent run: {name!r}", "{agent}"],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let template = raw.attributes.str("logfire.msg_template").unwrap_or(&raw.name);
    if template.starts_with("Agent run") {
        draft.agent_name.offer(45, raw.attributes.get("name").and_then(name));
    }
    if template.starts_with(STREAMED) {
        draft.streamed_nanos = raw.attributes.get("duration").and_then(nanos).or(Some(0));
    }
    if draft.operation.get() == Some(&Operation::Chat) {
        read_model(raw, draft);
    }
}

/// Offers what no line finds on a model span.
fn read_model<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let attributes = &raw.attributes;
    if let Some(events) = attributes.get("events") {
        draft.offer_input(69, || messages::asked(events));
        draft.offer_output(66, || messages::choices(events));
    }
    // Of other spans, such as the user's own, `output` may be anything.
    if let Some(output) = attributes.get("output") {
        draft.offer_output(69, || messages::said(output));
    }
    if let Some(usage) = attributes.get("usage").and_then(messages::parsed) {
        draft.offer_tokens(58, usage::tokens(&usage));
    }
    let answer = attributes.get("response_data").filter(|_| draft.input_tokens.wants(69));
    if let Some(usage) =
        answer.and_then(messages::parsed).as_ref().and_then(|data| data.get("usage"))
    {
        draft.offer_tokens(69, usage::tokens(usage));
    }
}

/// The template of the log that Logfire writes when a streamed response ends, as a span without a duration.
const STREAMED: &str = "streaming response from";

/// A step of the Agents SDK of an unknown kind.
fn step(kind: &str) -> Option<Operation> {
    ["task", "turn"].contains(&kind).then_some(Operation::Other)
}

fn template(template: &str) -> Option<Operation> {
    let starts = |start: &str| template.starts_with(start);
    if starts("Agent run") {
        Some(Operation::InvokeAgent)
    } else if starts("Function:") {
        Some(Operation::ExecuteTool)
    } else if ["Responses API", "Chat Completion", "Chat completion", "Message with", STREAMED]
        .iter()
        .any(|start| starts(start))
    {
        Some(Operation::Chat)
    } else if starts("Embedding") {
        Some(Operation::Embeddings)
    } else {
        None
    }
}

/// Logfire's levels are OpenTelemetry's severity numbers: errors begin at 17.
fn error_level(level: &RawValue<'_>) -> bool {
    matches!(level, RawValue::Int(17..))
}
