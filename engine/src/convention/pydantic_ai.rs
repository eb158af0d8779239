//! Pydantic AI, format versions 1 to 3.
//!
//! Version 1 and 2 name spans `agent run` and `running tool` and keep the tool's values in `tool_arguments` and `tool_response`;
//! version 3 uses the GenAI convention. `all_messages` repeats the whole session and is read only for a run that failed: a model
//! call that failed has no messages of its own.

use super::draft::Draft;
use super::lines::{Concept, line};
use super::messages;
use super::raw::{RawSpan, RawValue};
use super::{Convention, Mark};
use crate::span::{Operation, Status};

pub(super) const CONVENTION: Convention = Convention {
    name: "pydantic_ai",
    title: "Pydantic AI (`Agent.instrument_all()`, `logfire.instrument_pydantic_ai()`)",
    session: "pass `conversation_id=\"...\"` to `agent.run(...)`; without it each run makes its own",
    agent: "`Agent(..., name=\"...\")`",
    marks: &[Mark::Scope("pydantic-ai"), Mark::Key("agent_name"), Mark::Key("tool_arguments")],
    lines: &[
        line(Concept::AgentName, 44, "agent_name"),
        line(Concept::ToolArguments, 30, "tool_arguments"),
        line(Concept::ToolResult, 30, "tool_response"),
        line(Concept::Model, 70, "model_name"),
        line(Concept::Cost, 40, "operation.cost"),
        line(Concept::Output, 50, "final_result"),
    ],
    also: &[
        "Spans with `agent_name` and without an operation are agents, `running tool` spans are tools, `running tools` is the step around them.",
        "A `final_result` that lists `approvals`: the run waits for a person, and tools that the model called have not run.",
        "`pydantic_ai.all_messages` of a run that failed: the last user message, as a model call that failed has no messages.",
        "`events` (version 1): the last user message and the choice in the list of message events.",
    ],
    generic_names: &["agent", "agent run"],
    operation,
    read,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    let operation = match &*raw.name {
        "running tool" => Operation::ExecuteTool,
        name if name.starts_with("running") && name.contains(" tools") => Operation::Other,
        name if name.starts_with("running tool:") => Operation::ExecuteTool,
        "running tools" => Operation::Other,
        _ if raw.attributes.get("agent_name").is_some() => Operation::InvokeAgent,
        _ => return None,
    };
    Some((25, operation))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    if draft.operation.get() == Some(&Operation::Chat)
        && let Some(events) = raw.attributes.get("events")
    {
        draft.offer_input(51, || messages::asked(events));
        draft.offer_output(51, || messages::choices(events));
    }
    if draft.operation.get() == Some(&Operation::InvokeAgent)
        && raw.status == Status::Error
        && let Some(all) = raw.attributes.get("pydantic_ai.all_messages")
    {
        draft.offer_input(66, || messages::asked(all));
    }
    if draft.operation.get() == Some(&Operation::InvokeAgent)
        && raw.attributes.get("final_result").is_some_and(asks_for_approval)
    {
        draft.remarks().interrupted = true;
    }
}

/// Whether the result of a run is `DeferredToolRequests`, with calls for a person to approve.
fn asks_for_approval(result: &RawValue<'_>) -> bool {
    // Most results are texts that this check rules out quickly.
    let listed = result.as_str().is_some_and(|text| text.contains("\"approvals\""));
    let deferred = listed.then(|| messages::parsed(result)).flatten();
    let list = |key: &str| deferred.as_ref()?.get(key)?.as_list();
    list("calls").is_some() && list("approvals").is_some_and(|calls| !calls.is_empty())
}
