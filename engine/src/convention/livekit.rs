//! LiveKit Agents: a session of turns is one trace.
//!
//! Version 1.8 has the names of the GenAI conventions beside its own, with `pii` in the names of content; 1.2 and 1.3 have only its
//! own. The label of an agent without an id is that of its class, in older versions with the module.

use super::lines::{Concept, line};
use super::raw::{RawSpan, RawValue};
use super::{Convention, Mark};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "livekit",
    title: "LiveKit Agents 1",
    session: "a session is one trace; to join several, set `session.id` on a span around them",
    agent: "the agent's `id`, else its class",
    marks: &[Mark::Scope("livekit-agents")],
    lines: &[
        line(Concept::AgentName, 69, "lk.agent_label"),
        line(Concept::Failed(is_true), 75, "lk.function_tool.is_error"),
        line(Concept::ToolName, 69, "lk.function_tool.name"),
        line(Concept::ToolCallId, 69, "lk.function_tool.id"),
        line(Concept::ToolArguments, 72, "lk.pii.function_tool.arguments"),
        line(Concept::ToolArguments, 73, "lk.function_tool.arguments"),
        line(Concept::ToolResult, 72, "lk.pii.function_tool.output"),
        line(Concept::ToolResult, 73, "lk.function_tool.output"),
        line(Concept::Input, 81, "lk.pii.user_input"),
        line(Concept::Input, 82, "lk.user_input"),
        line(Concept::Output, 81, "lk.pii.response.text"),
        line(Concept::Output, 82, "lk.response.text"),
    ],
    also: &[
        "Spans without an operation by their names: `agent_session` is an agent, `function_tool` a tool, `llm_request` a model call with the attempts (`llm_request_run`) below it.",
    ],
    operation,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    let operation = match &*raw.name {
        "agent_session" => Operation::InvokeAgent,
        "function_tool" => Operation::ExecuteTool,
        "llm_request" => Operation::Chat,
        _ => return None,
    };
    Some((85, operation))
}

fn is_true(value: &RawValue<'_>) -> bool {
    matches!(value, RawValue::Bool(true))
}
