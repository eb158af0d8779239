//! DSPy, by OpenInference: spans are named after the method that ran, and tools have no name but that.

use std::borrow::Cow;

use super::draft::Draft;
use super::raw::RawSpan;
use super::{Convention, Mark};
use crate::span::Operation;

/// The convention.
pub(super) struct Dspy;

impl Convention for Dspy {
    fn name(&self) -> &'static str {
        "dspy"
    }

    fn title(&self) -> &'static str {
        "DSPy (by OpenInference)"
    }

    fn session(&self) -> &'static str {
        "`with using_session(session_id=\"...\"):` of OpenInference around the run"
    }

    fn agent(&self) -> &'static str {
        "`agent.name` or `gen_ai.agent.name` on a span around the run"
    }

    fn marks(&self) -> &'static [Mark] {
        &[Mark::Scope("openinference.instrumentation.dspy")]
    }

    fn also(&self) -> &'static [&'static str] {
        &[
            "A tool's span is named `NAME.__call__`. `finish`, by which ReAct ends its run, is no call.",
        ]
    }

    fn phantoms(&self) -> &'static [&'static str] {
        &["finish"]
    }

    fn read<'v>(&self, raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
        if draft.operation.get() == Some(&Operation::ExecuteTool) {
            draft.tool_name.offer(90, raw.name.strip_suffix(".__call__").map(Cow::from));
        }
    }
}
