//! DSPy, by OpenInference: spans are named after the method that ran, and tools have no name but that.

use std::borrow::Cow;

use super::draft::Draft;
use super::raw::RawSpan;
use super::{Convention, Mark};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "dspy",
    title: "DSPy (by OpenInference)",
    session: "`with using_session(session_id=\"...\"):` of OpenInference around the run",
    agent: "`agent.name` or `gen_ai.agent.name` on a span around the run",
    marks: &[Mark::Scope("openinference.instrumentation.dspy")],
    also: &[
        "A tool's span is named `NAME.__call__`. `finish`, by which ReAct ends its run, is no call.",
    ],
    phantoms: &["finish"],
    generic_names: &["ReAct.forward", "dspy.ReAct"],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    if draft.operation.get() == Some(&Operation::ExecuteTool) {
        draft.tool_name.offer(90, raw.name.strip_suffix(".__call__").map(Cow::from));
    }
}
