//! OpenLIT, where spans of agents stand for steps: the SDK's trace and turns of OpenAI's Agents SDK, and the methods of the flow by
//! which an agent of CrewAI runs. None of them names an agent.

use super::draft::Draft;
use super::raw::RawSpan;
use super::{Convention, Mark};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "openlit_steps",
    title: "OpenLIT (OpenAI Agents SDK, CrewAI)",
    session: "as with OpenLIT",
    agent: "the agent's `name`, or its `role` in CrewAI",
    marks: &[
        Mark::Scope("openlit.instrumentation.openai_agents"),
        Mark::Scope("openlit.instrumentation.crewai"),
    ],
    also: &[
        "A span of the operation `invoke_agent` that names no agent is a step.",
        "That a step or the workflow is OK says nothing, as it is so after a run that failed, too: the agent's span says it.",
    ],
    operation,
    read,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    is_step(raw).then_some((9, Operation::Other))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let is_workflow = raw.attributes.str("gen_ai.operation.name") == Some("invoke_workflow");
    draft.always_ok.offer(80, is_workflow || is_step(raw));
}

/// Whether a span is marked as an agent's and names none.
fn is_step(raw: &RawSpan<'_>) -> bool {
    raw.attributes.str("gen_ai.operation.name") == Some("invoke_agent")
        && raw.attributes.get("gen_ai.agent.name").is_none()
}
