//! fast-agent's own spans around the calls of models and of MCP servers, which other libraries record.

use std::borrow::Cow;

use super::draft::Draft;
use super::lines::{Concept, line};
use super::raw::RawSpan;
use super::{Convention, Mark};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "fast_agent",
    title: "fast-agent",
    session: "put `session.id` on a span around the turn; fast-agent sends none",
    agent: "`@fast.agent(name=\"...\")`",
    marks: &[Mark::Scope("fast_agent")],
    lines: &[line(Concept::ToolName, 39, "namespaced_tool_name")],
    also: &[
        "`Agent: 'support' generate` is the name of an agent's span, `MCP Tool: ...` that of a tool's, without the prefix of the server's name in the spans of MCP below it. A tool that a server reports as failed is not told.",
    ],
    operation,
    read,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    let is_tool = raw.name.starts_with("MCP Tool: ");
    let tool = is_tool.then_some(Operation::ExecuteTool);
    let operation = tool.or_else(|| agent(raw).map(|_| Operation::InvokeAgent))?;
    Some((77, operation))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    draft.agent_name.offer(77, agent(raw).map(Cow::Borrowed));
}

/// The agent that a span's name names.
fn agent<'v>(raw: &'v RawSpan<'_>) -> Option<&'v str> {
    let named = raw.name.strip_prefix("Agent: '")?;
    named.split_once('\'').map(|(name, _)| name).filter(|name| !name.is_empty())
}
