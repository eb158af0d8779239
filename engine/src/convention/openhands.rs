//! OpenHands' SDK: spans of Laminar's SDK, whose root is the whole conversation.

use super::draft::Draft;
use super::raw::RawSpan;
use super::{Convention, Trigger};

/// The span of a call that OpenHands could not make, because its tool is unknown or its arguments are wrong.
const INVALID: &str = "InvalidToolCall";

pub(super) const CONVENTION: Convention = Convention {
    name: "openhands",
    title: "OpenHands SDK 1",
    session: "the conversation's id is sent by itself",
    agent: "the service's name, which is that of the script, or `gen_ai.agent.name` on a span around the conversation",
    also: &[
        "Spans are those of Laminar's SDK. A conversation is one trace, whatever the number of its turns; a tool is named after the class of its action.",
        "A span `InvalidToolCall` is a call that failed: of an unknown tool, or with wrong arguments.",
    ],
    generic_names: &["conversation"],
    looks_for: &[Trigger::Span(INVALID)],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    draft.failed |= raw.name == INVALID && raw.attributes.get("lmnr.span.type").is_some();
}
