//! Libraries that send a span's kind as `gen_ai.span.kind`, with the values of OpenInference: Dify, Alibaba's LoongSuite, traceAI.
//!
//! Dify sends nothing else that separates a tool from a step. Beside it are the names of the GenAI conventions and of
//! OpenInference.

use super::draft::lower;
use super::lines::{Concept, line};
use super::{Convention, Mark, openinference};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "span_kind",
    title: "`gen_ai.span.kind` (Dify, LoongSuite, traceAI)",
    session: "Dify: the conversation's id is sent by itself; LoongSuite: `gen_ai.session.id` on a span around the run; traceAI: `with using_session(\"...\"):`",
    agent: "`gen_ai.agent.name`, else the service's name, which in Dify is the app's",
    marks: &[Mark::Key("gen_ai.span.kind"), Mark::Key("fi.span.kind")],
    lines: &[
        line(Concept::Operation(kind), 65, "gen_ai.span.kind"),
        line(Concept::Operation(kind), 71, "fi.span.kind"),
        line(Concept::User, 82, "gen_ai.user.id"),
        line(Concept::ToolName, 22, "tool.name"),
        line(Concept::ToolArguments, 60, "input.value"),
        line(Concept::ToolArguments, 71, "tool.parameters"),
        line(Concept::ToolResult, 60, "output.value"),
        line(Concept::Model, 64, "gen_ai.model_name"),
        line(Concept::Input, 40, "input.value"),
        line(Concept::Output, 40, "output.value"),
    ],
    also: &[
        "LoongSuite names every agent of the Claude Agent SDK `claude-agent`, which is no name. That such an agent failed for good is not sent: only the text of the answer tells it.",
    ],
    generic_names: &["claude-agent"],
    ..Convention::NONE
};

fn kind(kind: &str) -> Option<Operation> {
    const STEPS: [&str; 6] = ["workflow", "task", "step", "entry", "memory", "unknown"];
    let step = || STEPS.contains(&&*lower(kind)).then_some(Operation::Other);
    openinference::operation(kind).or_else(step)
}
