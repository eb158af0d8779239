//! Pipecat: a conversation of turns is one trace, in which model calls have the names of the GenAI conventions.

use super::lines::{Line, Says, line};
use super::{Convention, Mark};

/// The convention.
pub(super) struct Pipecat;

const LINES: &[Line] = &[
    line(Says::Session, 113, "conversation.id"),
    line(Says::Input, 77, "input"),
    line(Says::Output, 77, "output"),
];

impl Convention for Pipecat {
    fn name(&self) -> &'static str {
        "pipecat"
    }

    fn title(&self) -> &'static str {
        "Pipecat 1 (`enable_tracing`)"
    }

    fn session(&self) -> &'static str {
        "`PipelineTask(..., conversation_id=\"...\")`"
    }

    fn agent(&self) -> &'static str {
        "the service's name, or `additional_span_attributes={\"gen_ai.agent.name\": \"...\"}`"
    }

    fn marks(&self) -> &'static [Mark] {
        &[Mark::Scope("pipecat")]
    }

    fn lines(&self) -> &'static [Line] {
        LINES
    }

    fn also(&self) -> &'static [&'static str] {
        &[
            "Spans `stt` and `tts`, of speech, are no model calls. Tools have no spans and are not told of.",
        ]
    }
}
