//! OpenLLMetry (Traceloop): the spans of its decorators, and its model spans from before the GenAI messages.
//!
//! `traceloop.entity.input` holds the call of the decorated function as `{"args":[..],"kwargs":{..}}`,
//! `traceloop.entity.output` what the function returned, as JSON. `traceloop.entity.name` names an agent or a tool, by the span's kind.

use std::borrow::Cow;
use std::sync::Arc;

use super::draft::{Draft, name};
use super::flat::Messages;
use super::lines::{Line, Says, line};
use super::raw::{RawSpan, RawValue};
use super::{Convention, Trigger, messages, operation_named};
use crate::span::Operation;

/// The convention.
pub(super) struct OpenLlmetry;

const LINES: &[Line] = &[
    line(Says::Operation(kind), 70, "traceloop.span.kind"),
    line(Says::Operation(operation_named), 72, "llm.request.type"),
    line(Says::User, 30, "traceloop.association.properties.user_id"),
    line(Says::User, 81, "llm.user"),
    line(Says::AgentName, 47, "traceloop.association.properties.lc_agent_name"),
    line(Says::Workflow, 40, "traceloop.workflow.name"),
    line(Says::AgentVersion, 30, "traceloop.entity.version"),
    line(Says::Failed(failure), 60, "gen_ai.task.status"),
    line(Says::ToolName, 60, "traceloop.entity.name"),
    line(Says::ToolArguments, 70, "traceloop.entity.input"),
    line(Says::ToolResult, 70, "traceloop.entity.output"),
    line(Says::CachedTokens, 21, "gen_ai.usage.cache_read_input_tokens"),
    line(Says::Input, 60, "traceloop.entity.input"),
    line(Says::Output, 60, "traceloop.entity.output"),
];

impl Convention for OpenLlmetry {
    fn name(&self) -> &'static str {
        "openllmetry"
    }

    fn title(&self) -> &'static str {
        "OpenLLMetry (Traceloop SDK)"
    }

    fn session(&self) -> &'static str {
        "`Traceloop.set_association_properties({\"session_id\": \"...\"})`, or `@conversation(conversation_id=\"...\")`; in JavaScript `traceloop.withAssociationProperties({ session_id })`"
    }

    fn agent(&self) -> &'static str {
        "`@agent(name=\"...\")`, else `@workflow(name=\"...\")`"
    }

    fn lines(&self) -> &'static [Line] {
        LINES
    }

    fn also(&self) -> &'static [&'static str] {
        &[
            "`traceloop.entity.name` is the agent's name on spans of kind `agent`.",
            "A task of CrewAI (`crewai.task.id`) is a step, whatever its operation.",
            "The name in a LangChain tool message in `traceloop.entity.output` goes before the span's.",
            "`gen_ai.prompt.N.*` and `gen_ai.completion.N.*`, as sent before the GenAI messages.",
            "`db.query.result.id` of the span events `db.query.result`: documents found.",
        ]
    }

    fn generic_names(&self) -> &'static [&'static str] {
        &["crewai.workflow"]
    }

    fn looks_for(&self) -> &'static [Trigger] {
        &[
            Trigger::Event,
            Trigger::Key("crewai.task.id"),
            Trigger::Key("traceloop.entity.name"),
            Trigger::Key("traceloop.entity.output"),
            Trigger::Keys("gen_ai.prompt."),
            Trigger::Keys("gen_ai.completion."),
        ]
    }

    fn operation(&self, raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
        // A task of CrewAI has the operation of an agent, which is below it.
        raw.attributes.get("crewai.task.id").map(|_| (19, Operation::Other))
    }

    fn read<'v>(&self, raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
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
            Some(Operation::InvokeAgent)
                if attributes.str("traceloop.span.kind") == Some("agent") =>
            {
                draft.agent_name.offer(40, attributes.get("traceloop.entity.name").and_then(name));
            }
            // LangChain.js names the span after the tool's class.
            Some(Operation::ExecuteTool) => {
                let named =
                    attributes.get("traceloop.entity.output").and_then(messages::name_of_tool);
                draft.tool_name.offer(55, named.map(Cow::from));
            }
            Some(Operation::Chat) => {
                let asked = Messages::of(attributes, "gen_ai.prompt.");
                let answered = Messages::of(attributes, "gen_ai.completion.");
                if !asked.is_empty() {
                    draft.ask(66, || asked.asked());
                }
                if !answered.is_empty() {
                    draft.say(66, || answered.said());
                }
            }
            Some(_) | None => {}
        }
    }
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
