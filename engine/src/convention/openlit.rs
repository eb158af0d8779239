//! OpenLIT: GenAI spans, with plain text where messages are expected and Python's `repr` for tools.
//!
//! `gen_ai.tool.name` on model spans is what the model asked for; functions run in plain spans of their names.

use super::lines::{Line, Says, line};
use super::{Convention, Mark};

/// The convention.
pub(super) struct OpenLit;

const LINES: &[Line] = &[
    line(Says::ToolArguments, 15, "gen_ai.tool.args"),
    line(Says::ToolResult, 15, "gen_ai.tool.output"),
];

impl Convention for OpenLit {
    fn name(&self) -> &'static str {
        "openlit"
    }

    fn title(&self) -> &'static str {
        "OpenLIT"
    }

    fn session(&self) -> &'static str {
        "`trace.set_metadata({\"session.id\": \"...\"})` on the span of `openlit.start_trace(...)`; with LangGraph the `thread_id` is sent"
    }

    fn agent(&self) -> &'static str {
        "`gen_ai.agent.name` on a span around the turn"
    }

    fn marks(&self) -> &'static [Mark] {
        &[Mark::Scope("openlit")]
    }

    fn lines(&self) -> &'static [Line] {
        LINES
    }

    fn also(&self) -> &'static [&'static str] {
        &[
            "Where tools have no spans of their own, a span named like the called tool is its execution: its times and whether it failed.",
        ]
    }
}
