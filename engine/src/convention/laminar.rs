//! Laminar's SDK: spans of `@observe` and of its own instrumentations.
//!
//! Inputs are the arguments of the function, by name, and outputs what it returned, as JSON.

use super::draft::Draft;
use super::lines::{Concept, line};
use super::raw::RawSpan;
use super::{Convention, Trigger};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "laminar",
    title: "Laminar SDK (`lmnr`)",
    session: "`Laminar.set_trace_session_id(\"...\")`",
    agent: "the name of the root span, as in `@observe(name=\"...\")`",
    lines: &[
        line(Concept::Operation(operation), 74, "lmnr.span.type"),
        line(Concept::User, 31, "lmnr.association.properties.user_id"),
        line(Concept::ToolArguments, 83, "lmnr.span.input"),
        line(Concept::ToolResult, 83, "lmnr.span.output"),
        line(Concept::Input, 80, "lmnr.span.input"),
        line(Concept::Output, 80, "lmnr.span.output"),
    ],
    also: &[
        "A root of type `DEFAULT`, as all are in JavaScript that have none, is the workflow. Tools are spans of type `TOOL`.",
    ],
    looks_for: &[Trigger::Key("lmnr.span.type"), Trigger::Key("lmnr.span.path")],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let is_root = match raw.attributes.str("lmnr.span.type") {
        Some(kind) => kind == "DEFAULT",
        None => raw.attributes.get("lmnr.span.path").is_some(),
    };
    if is_root {
        draft.offer_root(raw);
    }
}

fn operation(kind: &str) -> Option<Operation> {
    match kind {
        "LLM" => Some(Operation::Chat),
        "TOOL" => Some(Operation::ExecuteTool),
        // `EVALUATION` is the whole of an experiment's item, including the evaluated run.
        "EVALUATOR" | "HUMAN_EVALUATOR" => Some(Operation::Evaluation),
        _ => None,
    }
}
