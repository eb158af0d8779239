//! The Anthropic SDK's own spans: GenAI, beside those of other instrumentations of the same call.

use super::Convention;
use super::lines::{Line, Says, line};

/// The convention.
pub(super) struct Anthropic;

const LINES: &[Line] = &[line(Says::ResponseId, 40, "anthropic.response.id")];

impl Convention for Anthropic {
    fn name(&self) -> &'static str {
        "anthropic"
    }

    fn title(&self) -> &'static str {
        "Anthropic SDK"
    }

    fn session(&self) -> &'static str {
        "put `session.id` on a span around the turn; the SDK sends `gen_ai.conversation.id` and `anthropic.session.id` for its own sessions"
    }

    fn agent(&self) -> &'static str {
        "`gen_ai.agent.name` on a span around the turn"
    }

    fn lines(&self) -> &'static [Line] {
        LINES
    }

    fn also(&self) -> &'static [&'static str] {
        &[
            "A model span inside that of another instrumentation is the same call: it counts once, and each completes the other. So is one beside it, and, with the same tokens, one that hangs from a span further out, as below LangChain, whose callbacks make no span current.",
            "Where no span is around LangChain's run, each call of the SDK makes a trace of its own, which counts for itself: nothing says which run it is of. Put a span around the turn.",
        ]
    }
}
