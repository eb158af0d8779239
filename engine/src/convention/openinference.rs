//! OpenInference: Phoenix, Arize and the instrumentations of that family.
//!
//! Recognised by `openinference.span.kind`. Messages are flattened over attributes
//! (`llm.output_messages.0.message.content`); `input.value` and `output.value` are the texts of agents and chains, and a
//! tool's arguments and result. `tool.parameters` is a schema, not arguments. The SDK's limit of attributes may have
//! pushed out the oldest, which are the session and the values, while messages stay.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::draft::{Draft, lower, name};
use super::flat::Messages;
use super::json::Json;
use super::lines::{Concept, line};
use super::raw::{RawAttributes, RawSpan};
use super::{Convention, Mark, is_random, messages};
use crate::span::Operation;

/// The parameters of a model call, as JSON; for a failed call they alone name the model.
const PARAMETERS: &str = "llm.invocation_parameters";

/// Documents of one span after which the rest is not read.
const MAX_DOCUMENTS: usize = 10_000;

pub(super) const CONVENTION: Convention = Convention {
    name: "openinference",
    title: "OpenInference (Phoenix, Arize; OpenAI, Anthropic, LangChain, CrewAI, Agno, smolagents and others)",
    session: "`with using_session(session_id=\"...\"):` (Python), `setSession(context.active(), { sessionId })` (JavaScript); raise `OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT`, or long conversations push it out",
    agent: "the framework's own name of the agent, or `agent.name` on a span of kind `AGENT`",
    marks: &[
        Mark::Key("openinference.span.kind"),
        Mark::Scope("openinference."),
        Mark::Scope("@arizeai/openinference"),
    ],
    lines: &[
        line(Concept::Operation(operation), 10, "openinference.span.kind"),
        line(Concept::AgentName, 20, "agent.name"),
        line(Concept::ToolName, 20, "tool.name"),
        line(Concept::ToolCallId, 20, "tool.id"),
        line(Concept::ToolCallId, 21, "tool_call.id"),
        line(Concept::ToolArguments, 60, "input.value"),
        line(Concept::ToolResult, 60, "output.value"),
        line(Concept::Model, 20, "llm.response.model_name"),
        line(Concept::Model, 60, "llm.model_name"),
        line(Concept::Model, 61, "llm.request.model_name"),
        line(Concept::RequestedModel, 20, "llm.request.model_name"),
        line(Concept::Provider, 30, "llm.provider"),
        line(Concept::Provider, 31, "llm.system"),
        line(Concept::InputTokens, 20, "llm.token_count.prompt"),
        line(Concept::CachedTokens, 30, "llm.token_count.prompt_details.cache_read"),
        line(Concept::CacheWrittenTokens, 30, "llm.token_count.prompt_details.cache_write"),
        line(Concept::TotalTokens, 30, "llm.token_count.total"),
        line(Concept::OutputTokens, 20, "llm.token_count.completion"),
        line(Concept::Cost, 30, "llm.cost.total"),
    ],
    also: &[
        "`llm.input_messages.N.message.*` and `llm.output_messages.N.message.*`; where there are none, `input.value` and `output.value`.",
        "`retrieval.documents.N.document.id` and `reranker.output_documents.N.document.id`.",
        "`graph.node.id` names an agent that has no `agent.name`, if it is a word and not an id; else the span's name does, without `.run`.",
        "`model` in `llm.invocation_parameters`, where no other attribute names the model.",
        "Scores: `annotations.N.annotation.*`, `evaluations.N.evaluation.*`, also under `trace.` and `session.`, about what the span links to.",
    ],
    phantoms: &["final_answer"],
    generic_names: &[
        "Agent workflow",
        "ClaudeAgent.prompt",
        "ClaudeAgent.query",
        "ClaudeAgent.turn",
        "ClaudeAgentSDK.ClaudeSDKClient.receive_response",
        "ClaudeAgentSDK.query",
        "ClaudeAgentSDK.Subagent",
        "CodeAgent",
        "MultiStepAgent",
        "ToolCallingAgent",
    ],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let attributes = &raw.attributes;
    match draft.operation.get() {
        Some(Operation::ExecuteTool) => return,
        Some(Operation::InvokeAgent) => {
            let node = attributes.get("graph.node.id").and_then(name);
            draft.agent_name.offer(60, node.filter(|node| !is_random(node)));
            // smolagents and Agno name the span after the agent's method.
            draft.agent_name.offer(95, raw.name.strip_suffix(".run").map(Cow::from));
        }
        Some(Operation::Retrieval) => {
            draft.attempt().retrieved.offer(20, documents(attributes));
        }
        Some(_) | None => {}
    }
    if draft.operation.get() == Some(&Operation::Chat)
        && attributes.get("llm.model_name").is_none()
        && let Some(parameters) = attributes.get(PARAMETERS).and_then(messages::parsed)
    {
        let asked = parameters.get("model").and_then(Json::as_str);
        draft.model.offer(63, asked.map(|model| Cow::Owned(model.to_owned())));
    }
    let asked = Messages::of(attributes, "llm.input_messages.");
    let answered = Messages::of(attributes, "llm.output_messages.");
    if !asked.is_empty() {
        draft.offer_input(30, || asked.asked());
    }
    if !answered.is_empty() {
        draft.offer_output(30, || answered.said());
    }
    if let Some(value) = attributes.get("input.value") {
        // The flattened messages do not say that a result is an error.
        if value.as_str().is_some_and(|text| text.contains("is_error")) {
            let results = messages::asked(value).results;
            draft.tool_results.offer(25, (!results.is_empty()).then_some(results));
        }
        if asked.is_empty() {
            draft.offer_input(40, || messages::asked(value));
        }
    }
    if let Some(value) = attributes.get("output.value").filter(|_| answered.is_empty()) {
        draft.offer_output(40, || messages::said(value));
    }
}

/// The operations for the values of `openinference.span.kind`, which other libraries use, too.
pub(super) fn operation(kind: &str) -> Option<Operation> {
    Some(match &*lower(kind) {
        "llm" => Operation::Chat,
        "tool" => Operation::ExecuteTool,
        "agent" => Operation::InvokeAgent,
        "embedding" => Operation::Embeddings,
        "retriever" | "reranker" => Operation::Retrieval,
        "evaluator" => Operation::Evaluation,
        "chain" | "guardrail" | "prompt" => Operation::Other,
        _ => return None,
    })
}

/// Ids of the documents that a retriever or a reranker returned, in order.
fn documents(attributes: &RawAttributes<'_>) -> Option<Vec<Arc<str>>> {
    let mut documents: BTreeMap<usize, Arc<str>> = BTreeMap::new();
    for (key, value) in attributes.iter() {
        let rest = ["retrieval.documents.", "reranker.output_documents."]
            .iter()
            .find_map(|prefix| key.strip_prefix(prefix));
        if let Some((number, "document.id")) = rest.and_then(|rest| rest.split_once('.'))
            && let Some(number) = number.parse().ok().filter(|number| *number < MAX_DOCUMENTS)
            && let Some(id) = name(value)
        {
            documents.insert(number, Arc::from(id));
        }
    }
    (!documents.is_empty()).then(|| documents.into_values().collect())
}
