//! VoltAgent's own spans, with bare attribute names.
//!
//! `span.type` is the kind of a span; spans without it are runs of agents or workflows, according to `entity.type`. Below a
//! sub-agent, `entity.name` is still that of the calling agent. One model span is around all steps of a run, and its `llm.usage.*`
//! are those of the last step alone; the total is on the agent's span.

use super::draft::{Draft, name};
use super::lines::{Concept, line};
use super::raw::RawSpan;
use super::{Convention, Mark};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "voltagent",
    title: "VoltAgent (`@voltagent/core` 2)",
    session: "`conversationId` of the call",
    agent: "the agent's `name`",
    marks: &[Mark::Scope("@voltagent/core")],
    lines: &[
        line(Concept::Operation(|kind| Some(operation(kind))), 68, "span.type"),
        line(Concept::Operation(entity), 69, "entity.type"),
        line(Concept::Session, 112, "conversation.id"),
        line(Concept::AgentName, 68, "subagent.name"),
        line(Concept::ToolName, 68, "tool.name"),
        line(Concept::ToolCallId, 68, "tool.call.id"),
        line(Concept::ToolArguments, 68, "input"),
        line(Concept::ToolResult, 68, "output"),
        line(Concept::Model, 68, "llm.model"),
        line(Concept::Model, 69, "ai.model.name"),
        line(Concept::InputTokens, 68, "usage.prompt_tokens"),
        line(Concept::CachedTokens, 68, "usage.cached_tokens"),
        line(Concept::OutputTokens, 68, "usage.completion_tokens"),
        line(Concept::Input, 71, "llm.messages"),
        line(Concept::Input, 72, "input"),
        line(Concept::Output, 71, "output"),
    ],
    also: &[
        "`entity.name` is the agent's name where `entity.type` is `agent`, unless `subagent.name` is there, and that of the workflow where it is `workflow`.",
        "`llm.usage.*` are those of a run's last step and not read: the tokens are `usage.*` of the agent's span.",
    ],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let named = raw.attributes.get("entity.name").and_then(name);
    match raw.attributes.str("entity.type") {
        Some("agent") => draft.agent_name.offer(69, named),
        Some("workflow") => draft.workflow.offer(68, named),
        Some(_) | None => {}
    }
}

fn operation(kind: &str) -> Operation {
    match kind {
        "agent" => Operation::InvokeAgent,
        "llm" => Operation::Chat,
        "tool" => Operation::ExecuteTool,
        "embedding" => Operation::Embeddings,
        "retriever" => Operation::Retrieval,
        "scorer" => Operation::Evaluation,
        _ => Operation::Other,
    }
}

fn entity(kind: &str) -> Option<Operation> {
    Some(match kind {
        "agent" => Operation::InvokeAgent,
        "workflow" => Operation::Other,
        _ => return None,
    })
}
