//! OpenLLMetry (Traceloop): the spans of its decorators, and its model spans from before the GenAI messages.
//!
//! `traceloop.entity.input` holds the call of the decorated function as `{"args":[..],"kwargs":{..}}`,
//! `traceloop.entity.output` what the function returned, as JSON. `traceloop.entity.name` names an agent or a tool, by the span's kind.

use std::borrow::Cow;
use std::sync::Arc;

use super::draft::{Draft, name};
use super::flat::Messages;
use super::json::Json;
use super::lines::{Concept, line};
use super::raw::{RawAttributes, RawSpan, RawValue};
use super::{Convention, Trigger, messages, operation_named, text};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "openllmetry",
    title: "OpenLLMetry (Traceloop SDK)",
    session: "`Traceloop.set_association_properties({\"session_id\": \"...\"})`, or `@conversation(conversation_id=\"...\")`; in JavaScript `traceloop.withAssociationProperties({ session_id })`",
    agent: "`@agent(name=\"...\")`, else `@workflow(name=\"...\")`",
    lines: &[
        line(Concept::Operation(kind), 70, "traceloop.span.kind"),
        line(Concept::Operation(operation_named), 72, "llm.request.type"),
        // A task of CrewAI, whatever its operation: an agent's span is inside.
        line(Concept::Operation(|_| Some(Operation::Other)), 19, "crewai.task.id"),
        // A team of Agno is led by an agent of its own.
        line(Concept::Operation(|_| Some(Operation::InvokeAgent)), 16, "agno.team.name"),
        line(Concept::AgentName, 45, "agno.team.name"),
        line(Concept::User, 30, "traceloop.association.properties.user_id"),
        line(Concept::User, 81, "llm.user"),
        line(Concept::AgentName, 47, "traceloop.association.properties.lc_agent_name"),
        line(Concept::Workflow, 40, "traceloop.workflow.name"),
        line(Concept::AgentVersion, 30, "traceloop.entity.version"),
        line(Concept::Failed(failure), 60, "gen_ai.task.status"),
        line(Concept::Failed(agno_failure), 61, "traceloop.entity.output"),
        line(Concept::ToolName, 60, "traceloop.entity.name"),
        line(Concept::ToolArguments, 70, "traceloop.entity.input"),
        line(Concept::ToolResult, 70, "traceloop.entity.output"),
        line(Concept::CachedTokens, 21, "gen_ai.usage.cache_read_input_tokens"),
        line(Concept::Input, 60, "traceloop.entity.input"),
        line(Concept::Input, 78, "crewai.task.description"),
        line(Concept::Output, 60, "traceloop.entity.output"),
        line(Concept::Output, 78, "crewai.crew.result"),
    ],
    also: &[
        "`traceloop.entity.name` is the agent's name on spans of kind `agent`.",
        "A task of CrewAI (`crewai.task.id`) is a step, whatever its operation.",
        "The name in a LangChain tool message in `traceloop.entity.output` goes before the span's.",
        "`gen_ai.prompt.N.*` and `gen_ai.completion.N.*`, as sent before the GenAI messages.",
        "A step of LlamaIndex with `tool.name` and `tool.arguments` is a tool call; in its `traceloop.entity.output` are `tool_id`, `tool_output.raw_output` and `.is_error`.",
        "A crew of CrewAI: the descriptions in `crewai.crew.tasks` are its input.",
        "A tool of Agno whose result is `status='failure' ...` failed, whatever the span's status; a team is an agent.",
        "`db.query.result.id` of the span events `db.query.result`: documents found.",
    ],
    generic_names: &["crewai.workflow"],
    looks_for: &[
        Trigger::Event,
        Trigger::Key("traceloop.entity.name"),
        Trigger::Key("traceloop.entity.output"),
        Trigger::Key("crewai.crew.tasks"),
        Trigger::Keys("gen_ai.prompt."),
        Trigger::Keys("gen_ai.completion."),
    ],
    operation,
    read,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    is_step_with_tool(raw).then_some((69, Operation::ExecuteTool))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let attributes = &raw.attributes;
    let found = raw.events.iter().filter(|event| event.name == "db.query.result");
    let found: Vec<_> = found
        .filter_map(|event| event.attributes.get("db.query.result.id"))
        .filter_map(name)
        .map(Arc::from)
        .collect();
    if !found.is_empty() {
        draft.attempt().retrieved.offer(30, found);
    }
    match draft.operation.get() {
        Some(Operation::InvokeAgent) if attributes.str("traceloop.span.kind") == Some("agent") => {
            draft.agent_name.offer(40, attributes.get("traceloop.entity.name").and_then(name));
        }
        Some(Operation::InvokeAgent) => read_crew(attributes, draft),
        Some(Operation::ExecuteTool) if is_step_with_tool(raw) => read_step(attributes, draft),
        // LangChain.js names the span after the tool's class.
        Some(Operation::ExecuteTool) => {
            let named = attributes.get("traceloop.entity.output").and_then(messages::name_of_tool);
            draft.tool_name.offer(55, named.map(Cow::from));
        }
        Some(Operation::Chat) => {
            let asked = Messages::of(attributes, "gen_ai.prompt.");
            let answered = Messages::of(attributes, "gen_ai.completion.");
            if !asked.is_empty() {
                draft.offer_input(66, || asked.asked());
            }
            if !answered.is_empty() {
                draft.offer_output(66, || answered.said());
            }
        }
        Some(_) | None => {}
    }
}

/// Whether a span is a step of LlamaIndex in which a tool is called.
fn is_step_with_tool(raw: &RawSpan<'_>) -> bool {
    ["traceloop.entity.name", "tool.name", "tool.arguments"]
        .iter()
        .all(|key| raw.attributes.get(key).is_some())
}

/// Offers the tool call of a step of LlamaIndex.
fn read_step<'v>(attributes: &'v RawAttributes<'_>, draft: &mut Draft<'v>) {
    draft.tool_name.offer(54, attributes.get("tool.name").and_then(name));
    draft.arguments.offer(
        69,
        attributes.get("tool.arguments").and_then(|value| text::arguments(value, draft.keep_texts)),
    );
    let Some(told) = attributes.get("traceloop.entity.output").and_then(messages::parsed) else {
        return;
    };
    let id = told.get("tool_id").and_then(Json::as_str).map(str::to_owned);
    draft.tool_call_id.offer(69, id.map(Cow::from));
    let Some(output) = told.get("tool_output") else { return };
    draft.failed |= output.get("is_error") == Some(&Json::Bool(true));
    if let Some(result) = output.get("raw_output") {
        let result =
            RawValue::Str(result.as_str().map_or_else(|| result.to_string(), str::to_owned).into());
        draft.result_hash.offer(69, text::result(&result));
        draft.result.offer(69, text::plain(69, &result).filter(|_| draft.keep_texts));
    }
}

/// Offers the input of a crew of CrewAI. Its usage metrics are not read: they count all calls since its models were made.
fn read_crew<'v>(attributes: &'v RawAttributes<'_>, draft: &mut Draft<'v>) {
    let tasks = attributes.get("crewai.crew.tasks").and_then(messages::parsed);
    let tasks = tasks.as_ref().and_then(Json::as_list).into_iter().flatten();
    let asked: Vec<&str> = tasks.filter_map(|task| task.get("description")?.as_str()).collect();
    draft.input.offer(78, text::ranked(78, Some(asked.join("\n").into())));
}

/// Whether a tool's result of Agno, which is the `repr` of an object, states a failure.
fn agno_failure(result: &RawValue<'_>) -> bool {
    result.as_str().is_some_and(|result| result.starts_with("status='failure' result="))
}

fn kind(kind: &str) -> Option<Operation> {
    Some(match kind {
        "agent" => Operation::InvokeAgent,
        "tool" => Operation::ExecuteTool,
        "workflow" | "task" | "session" | "unknown" => Operation::Other,
        _ => return None,
    })
}

fn failure(status: &RawValue<'_>) -> bool {
    matches!(status.as_str(), Some("failure" | "error"))
}
