//! OpenLIT: GenAI spans, with plain text where messages are expected and Python's `repr` for tools.
//!
//! `gen_ai.tool.name` on model spans is what the model asked for; functions run in plain spans of their names.

use super::lines::{Says, line};
use super::{Convention, Mark};

pub(super) const CONVENTION: Convention = Convention {
    name: "openlit",
    title: "OpenLIT",
    session: "`trace.set_metadata({\"session.id\": \"...\"})` on the span of `openlit.start_trace(...)`; with LangGraph the `thread_id` is sent",
    agent: "`gen_ai.agent.name` on a span around the turn",
    marks: &[Mark::Scope("openlit")],
    lines: &[
        line(Says::ToolArguments, 15, "gen_ai.tool.args"),
        line(Says::ToolResult, 15, "gen_ai.tool.output"),
    ],
    also: &[
        "Where tools have no spans of their own, a span named like the called tool is its execution: its times and whether it failed.",
    ],
    ..Convention::NONE
};
