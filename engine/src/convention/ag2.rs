//! AG2: GenAI spans of agents, model calls and tools, and beside each model call a span that books what it used.

use super::Convention;
use super::lines::{Line, Says, line};
use crate::span::Operation;

/// The convention.
pub(super) struct Ag2;

const LINES: &[Line] = &[
    // Its model and tokens are those of the model call beside it, or the sum of a sub-task's calls.
    line(Says::Operation(usage), 18, "ag2.span.type"),
];

impl Convention for Ag2 {
    fn name(&self) -> &'static str {
        "ag2"
    }

    fn title(&self) -> &'static str {
        "AG2 1 (`TelemetryMiddleware`)"
    }

    fn session(&self) -> &'static str {
        "put `session.id` on a span around the run: the library sends no id"
    }

    fn agent(&self) -> &'static str {
        "`TelemetryMiddleware(agent_name=\"...\")`"
    }

    fn lines(&self) -> &'static [Line] {
        LINES
    }

    fn also(&self) -> &'static [&'static str] {
        &[
            "Spans `record_usage ...`, of type `usage`, are no model calls: they repeat what one used, or add up those of a sub-task. What AG2 spends on compacting a history or aggregating memory is on such spans alone, and is not counted.",
        ]
    }
}

fn usage(kind: &str) -> Option<Operation> {
    (kind == "usage").then_some(Operation::Other)
}
