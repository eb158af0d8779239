//! OpenAI's Agents SDK, by OpenInference and by traceAI: the SDK's trace is a span of kind `AGENT`, though it is the workflow around the
//! agents. It is the root, unless a span of the application or of another process is around the run.

use std::borrow::Cow;

use super::draft::Draft;
use super::finish::is_tripped;
use super::raw::RawSpan;
use super::{Convention, Mark};
use crate::span::{Operation, Status};

pub(super) const CONVENTION: Convention = Convention {
    name: "openai_agents",
    title: "OpenAI Agents SDK (by OpenInference, traceAI)",
    session: "`with using_session(session_id=\"...\"):` of OpenInference around the run",
    agent: "`Agent(name=\"...\")`",
    marks: &[
        Mark::Scope("openinference.instrumentation.openai_agents"),
        Mark::Scope("@arizeai/openinference-instrumentation-openai-agents"),
        Mark::Scope("traceai_openai_agents"),
    ],
    also: &[
        "A span of kind `AGENT` that names no agent is the workflow: the name of the SDK's trace, which `workflow_name` sets.",
        "The workflow's status says nothing, as it is OK after a run that failed, too: the agent's says it.",
        "A `turn` that failed ended the run of its agent, which then failed whatever its own status, unless another run began after it and went well.",
        "A run that a guardrail ended (`InputGuardrailTripwireTriggered`, `OutputGuardrailTripwireTriggered`) has not failed: that is the guardrail's decision.",
    ],
    operation,
    read,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    is_trace(raw).then_some((9, Operation::Other))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    if is_trace(raw) {
        draft.workflow.offer(80, Cow::from(&*raw.name));
        draft.always_ok.offer(80, true);
    }
    let is_failed_turn = raw.name == "turn" && raw.status == Status::Error;
    if is_failed_turn && !is_tripped(raw) {
        draft.remarks().failed_run = true;
    }
}

/// Whether a span is a trace of the SDK.
fn is_trace(raw: &RawSpan<'_>) -> bool {
    let names = ["agent.name", "graph.node.id", "gen_ai.agent.name"];
    let mut kinds = ["openinference.span.kind", "gen_ai.span.kind", "fi.span.kind"].iter();
    kinds.any(|key| raw.attributes.str(key) == Some("AGENT"))
        && !names.iter().any(|key| raw.attributes.get(key).is_some())
}
