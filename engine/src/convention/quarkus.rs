//! Quarkus LangChain4j, whose spans of services are recognised by their names alone.
//!
//! Model calls and tools have the names of the GenAI conventions; in older versions tools, too, have names alone.

use std::borrow::Cow;

use super::draft::Draft;
use super::raw::RawSpan;
use super::{Convention, Mark};
use crate::span::Operation;

const SERVICES: &str = "langchain4j.aiservices.";
const TOOLS: &str = "langchain4j.tools.";

pub(super) const CONVENTION: Convention = Convention {
    name: "quarkus",
    title: "Quarkus LangChain4j",
    session: "put `session.id` on a span around the call: a `@MemoryId` is not sent",
    agent: "the class of the AI service",
    marks: &[Mark::Scope("io.quarkus.opentelemetry")],
    also: &[
        "Spans `langchain4j.aiservices.CLASS.METHOD` are agents, `langchain4j.tools.NAME` tools.",
    ],
    operation,
    read,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    let service = raw.name.starts_with(SERVICES).then_some(Operation::InvokeAgent);
    let tool = || raw.name.starts_with(TOOLS).then_some(Operation::ExecuteTool);
    Some((85, service.or_else(tool)?))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let tool = raw.name.strip_prefix(TOOLS).map(Cow::from);
    draft.tool_name.offer(85, tool);
    let method = raw.name.strip_prefix(SERVICES).and_then(|name| name.rsplit_once('.'));
    draft.agent_name.offer(85, method.map(|(class, _)| Cow::from(class)));
}
