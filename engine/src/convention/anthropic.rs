//! The Anthropic SDK's own spans: GenAI, beside those of other instrumentations of the same call.

use super::Convention;
use super::lines::{Concept, line};

pub(super) const CONVENTION: Convention = Convention {
    name: "anthropic",
    title: "Anthropic SDK",
    session: "put `session.id` on a span around the turn; the SDK sends `gen_ai.conversation.id` and `anthropic.session.id` for its own sessions",
    agent: "`gen_ai.agent.name` on a span around the turn",
    lines: &[line(Concept::ResponseId, 40, "anthropic.response.id")],
    also: &[
        "A model span inside that of another instrumentation is the same call: it counts once, and each completes the other. So is one beside it, and, with the same tokens, one that hangs from a span further out, as below LangChain, whose callbacks make no span current.",
        "Where no span is around LangChain's run, each call of the SDK makes a trace of its own, which counts for itself: nothing says which run it is of. Put a span around the turn.",
    ],
    ..Convention::NONE
};
