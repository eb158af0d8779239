//! Microsoft Agent Framework and Semantic Kernel: GenAI spans; texts in message log records; the root repeats the
//! tokens of the calls below it.

use super::draft::Draft;
use super::raw::RawSpan;
use super::{Convention, Mark, Trigger};

/// The convention.
pub(super) struct AgentFramework;

impl Convention for AgentFramework {
    fn name(&self) -> &'static str {
        "agent_framework"
    }

    fn title(&self) -> &'static str {
        "Microsoft Agent Framework, Semantic Kernel"
    }

    fn session(&self) -> &'static str {
        "put `session.id` on a span around the run: a local session's id is not exported, only that of a service-managed thread (`gen_ai.conversation.id`)"
    }

    fn agent(&self) -> &'static str {
        "the agent's `name`"
    }

    fn marks(&self) -> &'static [Mark] {
        &[Mark::Scope("agent_framework"), Mark::Scope("semantic_kernel")]
    }

    fn generic_names(&self) -> &'static [&'static str] {
        &["UnnamedAgent"]
    }

    fn also(&self) -> &'static [&'static str] {
        &[
            "Spans of workflows (`workflow.run`, `executor.process`, `message.send`) are steps, not behaviour.",
            "A part `function_approval_request` in `gen_ai.output.messages`: the run waits for a person, and tools that the model called have not run.",
        ]
    }

    fn looks_for(&self) -> &'static [Trigger] {
        &[Trigger::Key("gen_ai.output.messages")]
    }

    fn read<'v>(&self, raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
        // In a text its quotes would be escaped.
        let output = raw.attributes.str("gen_ai.output.messages");
        if output.is_some_and(|output| output.contains("\"function_approval_request\"")) {
            draft.remarks().interrupted = true;
        }
    }
}
