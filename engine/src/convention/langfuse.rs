//! Langfuse's SDKs: observations.
//!
//! Names are span names; inputs, outputs and usage are JSON or plain text. The status stays unset on errors, which the level shows.
//! Usage parts exclude one another, unless they are the provider's own totals.

use super::draft::{Draft, lower, name};
use super::finish::is_interrupt;
use super::json::Json;
use super::lines::{Concept, line};
use super::raw::{RawSpan, RawValue};
use super::{Convention, Trigger, langchain, messages};
use crate::span::Operation;

/// Keys that the callbacks for LangChain put on its runs.
const OF_LANGCHAIN: [&str; 3] = [
    "langfuse.observation.metadata.langfuse_session_id",
    "langfuse.observation.metadata.lc_agent_name",
    "langfuse.observation.metadata.ls_integration",
];

/// Langfuse's own judges run in environments with this prefix.
const OWN_ENVIRONMENT: &str = "langfuse-";

pub(super) const CONVENTION: Convention = Convention {
    name: "langfuse",
    title: "Langfuse SDKs (Python 3 and later, JavaScript 4 and later)",
    session: "`with propagate_attributes(session_id=\"...\"):` (Python), `propagateAttributes({ sessionId }, ...)` (JavaScript)",
    agent: "the name of the observation of type `agent`, else the trace's name",
    lines: &[
        line(Concept::Operation(of_kind), 5, "langfuse.observation.type"),
        line(Concept::User, 10, "langfuse.user.id"),
        line(Concept::User, 78, "langfuse.observation.metadata.langfuse_user_id"),
        line(Concept::User, 79, "langfuse.trace.metadata.langfuse_user_id"),
        line(Concept::AgentName, 52, "langfuse.observation.metadata.lc_agent_name"),
        line(Concept::AgentName, 53, "langfuse.trace.metadata.lc_agent_name"),
        line(Concept::Workflow, 30, "langfuse.trace.name"),
        line(Concept::AgentVersion, 20, "langfuse.version"),
        line(Concept::Environment, 10, "langfuse.environment"),
        line(Concept::Failed(error_level), 20, "langfuse.observation.level"),
        line(Concept::ToolArguments, 50, "langfuse.observation.input"),
        line(Concept::ToolResult, 50, "langfuse.observation.output"),
        line(Concept::Model, 30, "langfuse.observation.model.name"),
        line(Concept::Cost, 10, "langfuse.observation.cost_details"),
        line(Concept::Input, 5, "langfuse.trace.input"),
        line(Concept::Input, 15, "langfuse.observation.input"),
        line(Concept::Output, 5, "langfuse.trace.output"),
        line(Concept::Output, 15, "langfuse.observation.output"),
        line(Concept::Task, 30, "langfuse.experiment.item.id"),
        line(Concept::Run, 30, "langfuse.experiment.id"),
        line(Concept::ExpectedOutput, 20, "langfuse.experiment.item.expected_output"),
    ],
    also: &[
        "`langfuse.observation.usage_details`: `prompt_tokens` and `completion_tokens` are totals; else the parts `input*` and `output*` are added up.",
        "Of LangChain, the observation that `lc_agent_name` in its metadata names is the agent's run, and the name of a root is the workflow.",
        "A `langfuse.observation.status_message` that is LangGraph's interrupt is no failure: the run waits for a person.",
        "Spans of environments that begin with `langfuse-` are Langfuse's own judges and no behaviour of an agent.",
    ],
    looks_for: &[
        Trigger::Key("langfuse.environment"),
        Trigger::Key("langfuse.observation.metadata.langfuse_session_id"),
        Trigger::Key("langfuse.observation.metadata.langgraph_node"),
        Trigger::Key("langfuse.observation.metadata.lc_agent_name"),
        Trigger::Key("langfuse.observation.metadata.ls_integration"),
        Trigger::Key("langfuse.observation.status_message"),
        Trigger::Key("langfuse.observation.usage_details"),
    ],
    operation,
    read,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    let environment = raw.attributes.str("langfuse.environment");
    if environment.is_some_and(|environment| environment.starts_with(OWN_ENVIRONMENT)) {
        return Some((1, Operation::Evaluation));
    }
    let kind = raw.attributes.str("langfuse.observation.type")?;
    if !matches!(kind, "agent" | "chain" | "span") {
        return None;
    }
    let agent = raw.attributes.get("langfuse.observation.metadata.lc_agent_name");
    Some((4, langchain::part(&raw.name, agent.and_then(name).as_deref())?))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    if OF_LANGCHAIN.iter().any(|key| raw.attributes.get(key).is_some()) {
        langchain::root_chain(raw, draft);
    }
    let message = raw.attributes.str("langfuse.observation.status_message");
    if message.is_some_and(is_interrupt) {
        draft.remarks().interrupted = true;
    }
    let usage = raw.attributes.get("langfuse.observation.usage_details");
    if let Some(usage) = usage.and_then(messages::parsed) {
        // Anthropic's counts, which LangChain passes on unchanged, are beside the input.
        let beside = ["cache_read_input_tokens", "cache_creation_input_tokens"]
            .map(|key| usage.get(key).and_then(Json::as_u64));
        let read = tokens(&usage, "prompt_tokens", "input").map(|input| {
            let is_whole = usage.get("prompt_tokens").is_some();
            let beside = beside.iter().flatten().filter(|_| !is_whole);
            beside.fold(input, |sum, part| sum.saturating_add(*part))
        });
        draft.input_tokens.offer(5, read);
        draft.cache_written_tokens.offer(5, beside[1]);
        draft.output_tokens.offer(5, tokens(&usage, "completion_tokens", "output"));
        let cached = ["input_cached_tokens", "cache_read_input_tokens", "input_cache_read"];
        let cached = cached.iter().find_map(|key| usage.get(key)?.as_u64());
        draft.cached_tokens.offer(5, cached);
    }
}

fn of_kind(kind: &str) -> Option<Operation> {
    Some(match &*lower(kind) {
        "generation" => Operation::Chat,
        "tool" => Operation::ExecuteTool,
        "agent" => Operation::InvokeAgent,
        "embedding" => Operation::Embeddings,
        "retriever" => Operation::Retrieval,
        "evaluator" => Operation::Evaluation,
        "span" | "event" | "chain" | "guardrail" => Operation::Other,
        _ => return None,
    })
}

fn error_level(level: &RawValue<'_>) -> bool {
    matches!(level.as_str(), Some("ERROR" | "FATAL" | "CRITICAL"))
}

/// Tokens of one side: the provider's total, else the sum of Langfuse's parts, which exclude one another.
fn tokens(usage: &Json<'_>, total: &str, part: &str) -> Option<u64> {
    if let Some(total) = usage.get(total).and_then(Json::as_u64) {
        return Some(total);
    }
    let parts = usage.as_object()?.iter().filter(|(key, _)| key.starts_with(part));
    parts.filter_map(|(_, count)| count.as_u64()).reduce(u64::saturating_add)
}
