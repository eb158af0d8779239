//! AG2: GenAI spans of agents, model calls and tools, and beside each model call a span with its usage.

use super::Convention;
use super::lines::{Concept, line};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "ag2",
    title: "AG2 1 (`TelemetryMiddleware`)",
    session: "put `session.id` on a span around the run: the library sends no id",
    agent: "`TelemetryMiddleware(agent_name=\"...\")`",
    lines: &[
        // Its model and tokens are those of the model call beside it, or the sum of a sub-task's calls.
        line(Concept::Operation(usage), 18, "ag2.span.type"),
    ],
    also: &[
        "Spans `record_usage ...`, of type `usage`, are no model calls: they repeat what one used, or add up those of a sub-task. What AG2 spends on compacting a history or aggregating memory is on such spans alone, and is not counted.",
    ],
    ..Convention::NONE
};

fn usage(kind: &str) -> Option<Operation> {
    (kind == "usage").then_some(Operation::Other)
}
