//! Haystack, by OpenInference: spans are named after the class of what ran, and an agent has the kind of any other component.

use super::raw::RawSpan;
use super::{Convention, Mark};
use crate::span::Operation;

/// The convention.
pub(super) struct HaystackOi;

impl Convention for HaystackOi {
    fn name(&self) -> &'static str {
        "haystack_openinference"
    }

    fn title(&self) -> &'static str {
        "Haystack (by OpenInference)"
    }

    fn session(&self) -> &'static str {
        "`with using_session(session_id=\"...\"):` of OpenInference around the run"
    }

    fn agent(&self) -> &'static str {
        "`gen_ai.agent.name` on a span around the run"
    }

    fn marks(&self) -> &'static [Mark] {
        &[Mark::Scope("openinference.instrumentation.haystack")]
    }

    fn also(&self) -> &'static [&'static str] {
        &[
            "A chain whose class ends in `Agent` is an agent. What it calls has no spans: for model calls and tools use Haystack's own tracing.",
        ]
    }

    fn operation(&self, raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
        let class = ["run", "run_async"]
            .iter()
            .find_map(|method| raw.name.strip_suffix(method)?.strip_suffix('.'))?;
        let chain = raw.attributes.str("openinference.span.kind") == Some("CHAIN");
        (chain && class.ends_with("Agent")).then_some((9, Operation::InvokeAgent))
    }
}
