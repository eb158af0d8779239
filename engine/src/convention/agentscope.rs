//! AgentScope's own tracing, with the names of the GenAI conventions.
//!
//! Of a tool that failed the span is OK all the same: its result tells, whose parts have an id and a time each.

use super::lines::{Line, Says, line};
use super::messages;
use super::raw::RawValue;
use super::{Convention, Mark};

/// The convention.
pub(super) struct AgentScope;

const LINES: &[Line] = &[line(Says::Failed(failed), 75, "gen_ai.tool.call.result")];

impl Convention for AgentScope {
    fn name(&self) -> &'static str {
        "agentscope"
    }

    fn title(&self) -> &'static str {
        "AgentScope (`TracingMiddleware`)"
    }

    fn session(&self) -> &'static str {
        "the `session_id` of the agent's state is sent by itself"
    }

    fn agent(&self) -> &'static str {
        "`Agent(name=\"...\")`"
    }

    fn marks(&self) -> &'static [Mark] {
        &[Mark::Scope("agentscope")]
    }

    fn lines(&self) -> &'static [Line] {
        LINES
    }

    fn also(&self) -> &'static [&'static str] {
        &[
            "`state` in a tool's result: `error` and `denied` are failures, whatever the span's status.",
        ]
    }
}

/// Whether a tool's result says that it failed.
fn failed(result: &RawValue<'_>) -> bool {
    let result = messages::parsed(result);
    let state = result.as_ref().and_then(|result| result.get("state")?.as_str());
    matches!(state, Some("error" | "denied"))
}
