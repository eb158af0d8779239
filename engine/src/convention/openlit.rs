//! OpenLIT: GenAI spans, with plain text where messages are expected and Python's `repr` for tools.
//!
//! `gen_ai.tool.name` on model spans is the tool that the model requested; functions run in plain spans of their names. Attributes
//! are set when a call has ended well, so failed calls often have nothing but their name.

use super::draft::{Draft, name};
use super::lines::{Concept, line};
use super::raw::{RawSpan, RawValue};
use super::{Convention, Mark, operation_named};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "openlit",
    title: "OpenLIT",
    session: "`trace.set_metadata({\"session.id\": \"...\"})` on the span of `openlit.start_trace(...)`; with LangGraph the `thread_id` is sent",
    agent: "the framework's own name of the agent, else `gen_ai.agent.name` on a span around the turn",
    marks: &[Mark::Scope("openlit")],
    lines: &[
        line(Concept::ToolArguments, 15, "gen_ai.tool.args"),
        line(Concept::ToolResult, 15, "gen_ai.tool.output"),
        // A team of Agno is led by an agent of its own.
        line(Concept::Operation(|_| Some(Operation::InvokeAgent)), 17, TEAM),
    ],
    also: &[
        "Where tools have no spans of their own, a span named like the called tool is its execution: its times and whether it failed.",
        "A span without an operation, as of a call that failed, is told by its name: `invoke_agent NAME` and the like.",
        "A cost of 0 is absent: it stands for a model of unknown price.",
        "A team of Agno (`gen_ai.agno.team.agents`) is an agent of the name in `gen_ai.workflow.name`.",
        "That an agent of Agno is OK says nothing, as it is so after a run that failed, too: its last model call says it.",
    ],
    operation,
    read,
    ..Convention::NONE
};

/// The agents in a team of Agno.
const TEAM: &str = "gen_ai.agno.team.agents";

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    if raw.attributes.get("gen_ai.operation.name").is_some() {
        return None;
    }
    let (first, _) = raw.name.split_once(' ')?;
    Some((78, operation_named(first)?))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let attributes = &raw.attributes;
    if attributes.get(TEAM).is_some() {
        draft.agent_name.offer(50, attributes.get("gen_ai.workflow.name").and_then(name));
    }
    // Agno answers with the error's text instead of raising it.
    let is_agno = attributes.str("gen_ai.provider.name") == Some("agno");
    if is_agno && draft.operation.get() == Some(&Operation::InvokeAgent) {
        draft.always_ok.offer(80, true);
    }
    let is_free = match attributes.get("gen_ai.usage.cost") {
        Some(RawValue::Int(cost)) => *cost == 0,
        Some(RawValue::Double(cost)) => *cost <= 0.0,
        Some(_) | None => false,
    };
    if is_free {
        draft.cost.take();
    }
}
