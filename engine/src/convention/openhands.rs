//! OpenHands' SDK: spans of Laminar's SDK, whose root is the whole conversation.

use super::draft::Draft;
use super::raw::RawSpan;
use super::{Convention, Trigger};

/// The convention.
pub(super) struct OpenHands;

/// The span of a call that OpenHands could not make, as its tool is unknown or its arguments are wrong.
const INVALID: &str = "InvalidToolCall";

impl Convention for OpenHands {
    fn name(&self) -> &'static str {
        "openhands"
    }

    fn title(&self) -> &'static str {
        "OpenHands SDK 1"
    }

    fn session(&self) -> &'static str {
        "the conversation's id is sent by itself"
    }

    fn agent(&self) -> &'static str {
        "the service's name, which is that of the script, or `gen_ai.agent.name` on a span around the conversation"
    }

    fn also(&self) -> &'static [&'static str] {
        &[
            "Spans are those of Laminar's SDK. A conversation is one trace, whatever the number of its turns; a tool is named after the class of its action.",
            "A span `InvalidToolCall` is a call that failed: of an unknown tool, or with wrong arguments.",
        ]
    }

    fn generic_names(&self) -> &'static [&'static str] {
        &["conversation"]
    }

    fn looks_for(&self) -> &'static [Trigger] {
        &[Trigger::Span(INVALID)]
    }

    fn read<'v>(&self, raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
        draft.failed |= raw.name == INVALID && raw.attributes.get("lmnr.span.type").is_some();
    }
}
