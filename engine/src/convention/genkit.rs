//! Genkit for JavaScript, Go and Python.
//!
//! `genkit:metadata:subtype` is the kind of an action, `genkit:type` that of other spans. A model's usage is in its output, beside
//! the provider's own response (`raw`). `generate` is a loop over model and tool calls, and each turn of it is inside the previous
//! one.

use std::borrow::Cow;

use super::draft::{Draft, name};
use super::json::Json;
use super::lines::{Concept, line};
use super::raw::{RawSpan, RawValue};
use super::{Convention, Mark, messages, otel_genai, usage};
use crate::span::{Operation, Tokens};

pub(super) const CONVENTION: Convention = Convention {
    name: "genkit",
    title: "Genkit (JavaScript, Go, Python)",
    session: "an agent's session id is sent by itself; else `session.id` on a span around the flow",
    agent: "the agent's `name`, else the name of the root flow",
    marks: &[Mark::Key("genkit:type")],
    lines: &[
        line(Concept::Operation(|kind| Some(operation(kind))), 62, "genkit:metadata:subtype"),
        line(Concept::Operation(|kind| Some(operation(kind))), 63, "genkit:type"),
        line(Concept::Session, 110, "genkit:metadata:agent:sessionId"),
        line(Concept::Failed(error), 62, "genkit:state"),
        line(Concept::ToolName, 62, "genkit:name"),
        line(Concept::ToolArguments, 62, "genkit:input"),
        line(Concept::ToolResult, 62, "genkit:output"),
        line(Concept::Model, 62, "genkit:name"),
        line(Concept::RequestedModel, 62, "genkit:name"),
    ],
    also: &[
        "`genkit:input` and `genkit:output` are texts and messages on spans of models, agents and flows, and on a root.",
        "`genkit:name` is the agent's name on spans of agents, and that of the workflow on spans of flows.",
        "In a model's `genkit:output`: `usage`, `finishReason`, and `model` and `usage` of the provider's answer in `raw`.",
    ],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let attributes = &raw.attributes;
    let named = attributes.get("genkit:name").and_then(name);
    let kind = ["genkit:metadata:subtype", "genkit:type"];
    let is_flow = kind.iter().find_map(|key| attributes.str(key)) == Some("flow");
    // Spans in between repeat their messages.
    let speaks = match draft.operation.get() {
        Some(Operation::Chat | Operation::InvokeAgent) => true,
        Some(Operation::Other) => is_flow || raw.parent.is_none(),
        Some(_) | None => false,
    };
    if let Some(input) = attributes.get("genkit:input").filter(|_| speaks) {
        draft.offer_input(75, || messages::asked(input));
    }
    if let Some(output) = attributes.get("genkit:output").filter(|_| speaks) {
        draft.offer_output(75, || messages::said(output));
    }
    match draft.operation.get() {
        Some(Operation::InvokeAgent) => draft.agent_name.offer(62, named),
        Some(Operation::Other) if is_flow => draft.workflow.offer(62, named),
        Some(Operation::Chat) => {
            if let Some(output) = attributes.get("genkit:output").and_then(messages::parsed) {
                offer_usage(&output, draft);
            }
        }
        Some(_) | None => {}
    }
}

/// Offers what a model's output contains beside its message.
fn offer_usage(output: &Json<'_>, draft: &mut Draft<'_>) {
    let of_provider = |key: &str| output.get("raw")?.get(key);
    let model = of_provider("model").and_then(Json::as_str).map(str::to_owned);
    draft.model.offer(61, model.map(Cow::from));
    // The provider's usage has more detail, if it is of a known shape.
    let own = of_provider("usage").map(usage::tokens);
    let own = own.filter(|tokens| tokens.input.and(tokens.output).is_some());
    let tokens = own.or_else(|| output.get("usage").map(usage::tokens));
    draft.offer_tokens(62, tokens.unwrap_or_else(Tokens::default));
    let reason = output.get("finishReason").and_then(Json::as_str);
    draft.stopped |= reason.is_some_and(|reason| {
        reason == "blocked" || otel_genai::stopped(&RawValue::Str(reason.into()))
    });
}

fn operation(kind: &str) -> Operation {
    match kind {
        "model" => Operation::Chat,
        "tool" | "tool.v2" => Operation::ExecuteTool,
        "agent" => Operation::InvokeAgent,
        "embedder" => Operation::Embeddings,
        "retriever" | "reranker" => Operation::Retrieval,
        "evaluator" => Operation::Evaluation,
        _ => Operation::Other,
    }
}

fn error(state: &RawValue<'_>) -> bool {
    state.as_str() == Some("error")
}
