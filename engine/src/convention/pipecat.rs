//! Pipecat: a conversation of turns is one trace, in which model calls have the names of the GenAI conventions.

use super::lines::{Concept, line};
use super::{Convention, Mark};

pub(super) const CONVENTION: Convention = Convention {
    name: "pipecat",
    title: "Pipecat 1 (`enable_tracing`)",
    session: "`PipelineTask(..., conversation_id=\"...\")`",
    agent: "the service's name, or `additional_span_attributes={\"gen_ai.agent.name\": \"...\"}`",
    marks: &[Mark::Scope("pipecat")],
    lines: &[
        line(Concept::Session, 113, "conversation.id"),
        line(Concept::Input, 77, "input"),
        line(Concept::Output, 77, "output"),
    ],
    also: &[
        "Spans `stt` and `tts`, of speech, are no model calls. Tools have no spans and are not told of.",
    ],
    ..Convention::NONE
};
