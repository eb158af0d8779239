//! Netra's SDK: spans of its decorators (`@agent`, `@workflow`, `@task`), whose status stays unset. Those of model clients have the names
//! of OpenLLMetry.

use super::draft::{Draft, lower};
use super::lines::{Concept, line};
use super::raw::{RawSpan, RawValue};
use super::{Convention, Mark};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "netra",
    title: "Netra SDK",
    session: "`Netra.set_session_id(\"...\")`",
    agent: "`@agent(name=\"...\")`, else the name of the root span, as in `@workflow(name=\"...\")`",
    marks: &[Mark::Key("netra.span.type"), Mark::Key("netra.entity.type")],
    lines: &[
        line(Concept::Operation(kind), 82, "netra.span.type"),
        line(Concept::Operation(kind), 83, "netra.entity.type"),
        line(Concept::AgentName, 73, "netra.agent.name"),
        line(Concept::User, 35, "netra.user_id"),
        line(Concept::Failed(is_told), 78, "netra.entity.error"),
        line(Concept::ToolArguments, 88, "input"),
        line(Concept::ToolResult, 88, "output"),
        line(Concept::Input, 89, "input"),
        line(Concept::Output, 89, "output"),
    ],
    also: &["A `task` is a tool if its `netra.span.type` says so, else a step."],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    draft.offer_root(raw);
}

fn kind(kind: &str) -> Option<Operation> {
    Some(match &*lower(kind) {
        "agent" => Operation::InvokeAgent,
        "tool" => Operation::ExecuteTool,
        "generation" => Operation::Chat,
        "embedding" => Operation::Embeddings,
        "span" | "usage" | "workflow" | "task" => Operation::Other,
        _ => return None,
    })
}

fn is_told(error: &RawValue<'_>) -> bool {
    error.as_str().is_some()
}
