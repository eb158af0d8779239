//! Upsonic's own tracing: spans of agents, pipelines and tools around GenAI spans of model calls, with texts under Langfuse's keys.

use super::lines::{Concept, line};
use super::raw::{RawSpan, RawValue};
use super::{Convention, Trigger};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "upsonic",
    title: "Upsonic (`instrument=True`)",
    session: "`Agent(..., session_id=\"...\")`",
    agent: "`Agent(..., name=\"...\")`",
    lines: &[
        line(Concept::AgentName, 75, "upsonic.agent.name"),
        line(Concept::ToolName, 75, "upsonic.tool.name"),
        line(Concept::ToolCallId, 75, "upsonic.tool.call_id"),
        line(Concept::Failed(is_false), 79, "upsonic.tool.success"),
        line(Concept::Input, 87, "upsonic.input"),
        line(Concept::Output, 87, "upsonic.output"),
    ],
    also: &[
        "Spans with `upsonic.tool.name` are tools, those with `upsonic.agent.name` that are named `agent.run` or the like agents. A tool that raised is told as one that went well.",
    ],
    looks_for: &[Trigger::Key("upsonic.agent.name"), Trigger::Key("upsonic.tool.name")],
    operation,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    let has = |key| raw.attributes.get(key).is_some();
    let is_agent = raw.name.starts_with("agent.") && has("upsonic.agent.name");
    let agent = is_agent.then_some(Operation::InvokeAgent);
    let tool = has("upsonic.tool.name").then_some(Operation::ExecuteTool);
    Some((84, tool.or(agent)?))
}

fn is_false(success: &RawValue<'_>) -> bool {
    matches!(success, RawValue::Bool(false))
}
