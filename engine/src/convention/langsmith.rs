//! LangSmith's OpenTelemetry export.
//!
//! Every span has `gen_ai.prompt` and `gen_ai.completion`, whatever it is. `langsmith.trace.session_name` is the project,
//! not a session.

use super::draft::Draft;
use super::lines::{Concept, has_event, line};
use super::raw::RawSpan;
use super::{Convention, Trigger, langchain, messages, operation_named, usage};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "langsmith",
    title: "LangSmith SDK (`LANGSMITH_OTEL_ENABLED`)",
    session: "`config={\"metadata\": {\"session_id\": \"...\"}}`, or `configurable: {\"thread_id\": \"...\"}` with LangGraph",
    agent: "`name=\"...\"` for `create_agent`, `create_react_agent` or `compile`; else the name of the root run",
    lines: &[
        line(Concept::Operation(operation_named), 60, "langsmith.span.kind"),
        line(Concept::User, 75, "langsmith.metadata.user_id"),
        line(Concept::AgentName, 48, "langsmith.metadata.lc_agent_name"),
        line(Concept::ToolArguments, 67, "gen_ai.prompt"),
        line(Concept::ToolResult, 67, "gen_ai.completion"),
    ],
    also: &[
        "A root of kind `chain` is the workflow; the chain that `langsmith.metadata.lc_agent_name` names is the agent's run.",
        "`langsmith.metadata.usage_metadata` on model calls: also the tokens read from a cache and put into one.",
        "An `exception` event is a failure whatever the status: it is sent of runs that failed alone, and the status of those is OK.",
    ],
    looks_for: &[Trigger::Key("langsmith.span.kind")],
    operation,
    read,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    raw.attributes.str("langsmith.span.kind").filter(|kind| *kind == "chain")?;
    let agent = raw.attributes.str("langsmith.metadata.lc_agent_name");
    Some((19, langchain::part(&raw.name, agent)?))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    if raw.attributes.get("langsmith.span.kind").is_some() {
        langchain::root_chain(raw, draft);
        draft.failed |= has_event(raw, "exception");
        if draft.operation.get() == Some(&Operation::Chat) {
            let usage = raw.attributes.get("langsmith.metadata.usage_metadata");
            let usage = usage.and_then(messages::parsed);
            draft.offer_tokens(15, usage.as_ref().map(usage::tokens).unwrap_or_default());
        }
    }
}
