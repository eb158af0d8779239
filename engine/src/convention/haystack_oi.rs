//! Haystack, by OpenInference: spans are named after the class of what ran, and an agent has the kind of any other component.

use super::raw::RawSpan;
use super::{Convention, Mark};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "haystack_openinference",
    title: "Haystack (by OpenInference)",
    session: "`with using_session(session_id=\"...\"):` of OpenInference around the run",
    agent: "`gen_ai.agent.name` on a span around the run",
    marks: &[Mark::Scope("openinference.instrumentation.haystack")],
    also: &[
        "A chain whose class ends in `Agent` is an agent. What it calls has no spans: for model calls and tools use Haystack's own tracing.",
    ],
    operation,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    let class = ["run", "run_async"]
        .iter()
        .find_map(|method| raw.name.strip_suffix(method)?.strip_suffix('.'))?;
    let chain = raw.attributes.str("openinference.span.kind") == Some("CHAIN");
    (chain && class.ends_with("Agent")).then_some((9, Operation::InvokeAgent))
}
