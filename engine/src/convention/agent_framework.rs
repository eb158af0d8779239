//! Microsoft Agent Framework and Semantic Kernel: GenAI spans; texts in message log records; the root repeats the
//! tokens of the calls below it.

use super::draft::Draft;
use super::raw::RawSpan;
use super::{Convention, Mark, Trigger};

pub(super) const CONVENTION: Convention = Convention {
    name: "agent_framework",
    title: "Microsoft Agent Framework, Semantic Kernel",
    session: "put `session.id` on a span around the run: a local session's id is not exported, only that of a service-managed thread (`gen_ai.conversation.id`)",
    agent: "the agent's `name`",
    marks: &[Mark::Scope("agent_framework"), Mark::Scope("semantic_kernel")],
    also: &[
        "Spans of workflows (`workflow.run`, `executor.process`, `message.send`) are steps, not behaviour.",
        "A part `function_approval_request` in `gen_ai.output.messages`: the run waits for a person, and tools that the model called have not run.",
    ],
    generic_names: &["UnnamedAgent"],
    looks_for: &[Trigger::Key("gen_ai.output.messages")],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    // In a text its quotes would be escaped.
    let output = raw.attributes.str("gen_ai.output.messages");
    if output.is_some_and(|output| output.contains("\"function_approval_request\"")) {
        draft.remarks().interrupted = true;
    }
}
