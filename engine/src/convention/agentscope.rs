//! AgentScope's own tracing, with the names of the GenAI conventions.
//!
//! The span of a failed tool is OK, too; only its result shows the failure. The parts of a result have an id and a time each.

use super::lines::{Concept, line};
use super::messages;
use super::raw::RawValue;
use super::{Convention, Mark};

pub(super) const CONVENTION: Convention = Convention {
    name: "agentscope",
    title: "AgentScope (`TracingMiddleware`)",
    session: "the `session_id` of the agent's state is sent by itself",
    agent: "`Agent(name=\"...\")`",
    marks: &[Mark::Scope("agentscope")],
    lines: &[line(Concept::Failed(failed), 75, "gen_ai.tool.call.result")],
    also: &[
        "`state` in a tool's result: `error` and `denied` are failures, whatever the span's status.",
    ],
    ..Convention::NONE
};

/// Whether a tool's result says that it failed.
fn failed(result: &RawValue<'_>) -> bool {
    let result = messages::parsed(result);
    let state = result.as_ref().and_then(|result| result.get("state")?.as_str());
    matches!(state, Some("error" | "denied"))
}
