//! Quarkus LangChain4j, whose spans of services are told by their names alone.
//!
//! Model calls and tools have the names of the GenAI conventions; in older versions tools, too, have names alone.

use std::borrow::Cow;

use super::draft::Draft;
use super::raw::RawSpan;
use super::{Convention, Mark};
use crate::span::Operation;

/// The convention.
pub(super) struct Quarkus;

const SERVICES: &str = "langchain4j.aiservices.";
const TOOLS: &str = "langchain4j.tools.";

impl Convention for Quarkus {
    fn name(&self) -> &'static str {
        "quarkus"
    }

    fn title(&self) -> &'static str {
        "Quarkus LangChain4j"
    }

    fn session(&self) -> &'static str {
        "put `session.id` on a span around the call: a `@MemoryId` is not sent"
    }

    fn agent(&self) -> &'static str {
        "the class of the AI service"
    }

    fn marks(&self) -> &'static [Mark] {
        &[Mark::Scope("io.quarkus.opentelemetry")]
    }

    fn also(&self) -> &'static [&'static str] {
        &["Spans `langchain4j.aiservices.CLASS.METHOD` are agents, `langchain4j.tools.NAME` tools."]
    }

    fn operation(&self, raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
        let service = raw.name.starts_with(SERVICES).then_some(Operation::InvokeAgent);
        let tool = || raw.name.starts_with(TOOLS).then_some(Operation::ExecuteTool);
        Some((85, service.or_else(tool)?))
    }

    fn read<'v>(&self, raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
        let tool = raw.name.strip_prefix(TOOLS).map(Cow::from);
        draft.tool_name.offer(85, tool);
        let method = raw.name.strip_prefix(SERVICES).and_then(|name| name.rsplit_once('.'));
        draft.agent_name.offer(85, method.map(|(class, _)| Cow::from(class)));
    }
}
