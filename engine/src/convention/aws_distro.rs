//! The instrumentations in AWS's distribution of OpenTelemetry for Python, which Bedrock AgentCore uses: GenAI spans.
//!
//! The span of a workflow of OpenAI's Agents SDK has the first error of any span below it, including a tool error after which the
//! run continued.

use super::draft::Draft;
use super::raw::RawSpan;
use super::{Convention, Mark};

pub(super) const CONVENTION: Convention = Convention {
    name: "aws_distro",
    title: "AWS Distro for OpenTelemetry (OpenAI Agents SDK)",
    session: "`session.id` on a span around the run, or as baggage",
    agent: "`Agent(name=\"...\")`",
    marks: &[Mark::Scope(SCOPE)],
    also: &[
        "What a span `invoke_workflow` says of a failure is that of any span below it: the agent's says whether the run failed.",
    ],
    read,
    ..Convention::NONE
};

const SCOPE: &str = "amazon.opentelemetry.distro.instrumentation.openai_agents";

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let operation = raw.attributes.str("gen_ai.operation.name");
    draft.repeated.offer(80, operation == Some("invoke_workflow"));
}
