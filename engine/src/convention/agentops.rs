//! AgentOps: its decorators (`@session`, `@agent`, `@operation`, `@tool`) and its instrumentations.
//!
//! `agentops.span.kind` is the kind of a span, `operation.name` its name. Model calls have the names of OpenLLMetry. The span of a
//! call that a model requested (`tool_call.NAME`) has no kind, and is no tool span. A session that an exception ends is
//! `Indeterminate`.

use super::draft::{Draft, name};
use super::lines::{Concept, line};
use super::raw::{RawSpan, RawValue};
use super::{Convention, Mark};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "agentops",
    title: "AgentOps SDK",
    session: "put `session.id` on a span around the run: what the SDK calls a session is a trace",
    agent: "`@agent(name=\"...\")`, else the name of the root span, as in `@session(name=\"...\")`",
    marks: &[Mark::Key("agentops.span.kind")],
    lines: &[
        line(Concept::Operation(kind), 67, "agentops.span.kind"),
        line(Concept::AgentName, 67, "agent.name"),
        line(Concept::Workflow, 67, "workflow.name"),
        line(Concept::Failed(failed), 76, "agentops.session.end_state"),
        line(Concept::Failed(failed), 77, "tool.status"),
        line(Concept::ToolName, 67, "tool.name"),
        line(Concept::ToolCallId, 67, "tool.id"),
        line(Concept::ToolArguments, 66, "agentops.tool.input"),
        line(Concept::ToolArguments, 71, "tool.parameters"),
        line(Concept::ToolResult, 66, "agentops.tool.output"),
        line(Concept::ToolResult, 71, "tool.result"),
        line(Concept::Output, 79, "agentops.entity.output"),
    ],
    also: &[
        "`operation.name` is the name of agents and tools, and on a root that of the workflow.",
        "`agentops.session.end_state`: `Error`, `Fail` and `Indeterminate` are failures.",
    ],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let named = raw.attributes.get("operation.name").and_then(name);
    match draft.operation.get() {
        Some(Operation::InvokeAgent) => draft.agent_name.offer(70, named),
        Some(Operation::ExecuteTool) => draft.tool_name.offer(70, named),
        Some(Operation::Other) if raw.parent.is_none() => draft.workflow.offer(69, named),
        Some(_) | None => {}
    }
}

fn kind(kind: &str) -> Option<Operation> {
    Some(match kind {
        "agent" => Operation::InvokeAgent,
        "tool" => Operation::ExecuteTool,
        "llm" => Operation::Chat,
        "session" | "workflow" | "task" | "operation" | "chain" | "text" | "guardrail" | "http"
        | "unknown" => Operation::Other,
        _ => return None,
    })
}

fn failed(state: &RawValue<'_>) -> bool {
    matches!(state.as_str(), Some("Error" | "Fail" | "Indeterminate" | "error" | "failed"))
}
