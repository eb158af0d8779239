//! AutoGen: GenAI spans of agents and tools, with names alone; model calls have none.

use super::raw::RawSpan;
use super::{Convention, Mark};
use crate::span::Operation;

/// The convention.
pub(super) struct AutoGen;

impl Convention for AutoGen {
    fn name(&self) -> &'static str {
        "autogen"
    }

    fn title(&self) -> &'static str {
        "AutoGen 0.7"
    }

    fn session(&self) -> &'static str {
        "put `session.id` on a span around the run: the library sends no id"
    }

    fn agent(&self) -> &'static str {
        "the agent's `name`"
    }

    fn marks(&self) -> &'static [Mark] {
        &[Mark::Scope("autogen")]
    }

    fn also(&self) -> &'static [&'static str] {
        &["Spans of its message runtime (`autogen process ...` and the like) are no behaviour."]
    }

    fn operation(&self, raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
        let runtime = raw.attributes.get("messaging.operation").is_some();
        (runtime || raw.name.starts_with("autogen ")).then_some((85, Operation::Other))
    }
}
