//! AutoGen: GenAI spans of agents and tools, with names alone; model calls have none.

use super::raw::RawSpan;
use super::{Convention, Mark};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "autogen",
    title: "AutoGen 0.7",
    session: "put `session.id` on a span around the run: the library sends no id",
    agent: "the agent's `name`",
    marks: &[Mark::Scope("autogen")],
    also: &["Spans of its message runtime (`autogen process ...` and the like) are no behaviour."],
    operation,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    let runtime = raw.attributes.get("messaging.operation").is_some();
    (runtime || raw.name.starts_with("autogen ")).then_some((85, Operation::Other))
}
