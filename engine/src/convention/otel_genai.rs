//! OpenTelemetry GenAI semantic conventions in all their generations.
//!
//! Recognised by `gen_ai.*` attributes. Since 1.37 texts and calls are `gen_ai.input.messages` and
//! `gen_ai.output.messages`, on the span, on its `gen_ai.client.inference.operation.details` event or in the log record
//! of that name; 1.28 to 1.36 have one event or log record per message; up to 1.27 there are `gen_ai.prompt` and
//! `gen_ai.completion`. Input tokens include cached ones, output tokens reasoning.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::draft::{Draft, number};
use super::json::Json;
use super::lines::{Concept, has_event, line, present};
use super::raw::{RawAttributes, RawLog, RawSpan, RawValue};
use super::{Convention, LogDraft, Trigger, messages, operation_named, text};
use crate::math::Quanta;
use crate::span::{Operation, Pause, Status};

/// The event of a model call that failed.
pub(super) const EXCEPTION: &str = "gen_ai.client.operation.exception";

/// The events of an agent that waits for a person, and of one that continues.
const PAUSED: &str = "gen_ai.agent.paused";
const RESUMED: &str = "gen_ai.agent.resumed";

/// The event with a model call's messages if they are not on its span.
const DETAILS: &str = "gen_ai.client.inference.operation.details";

/// Operations on an agent's run that a service stores.
const RUN_OPERATIONS: [&str; 3] = ["start_thread_run", "get_thread_run", "submit_tool_outputs"];

pub(super) const CONVENTION: Convention = Convention {
    name: "otel_genai",
    title: "OpenTelemetry GenAI semantic conventions, 1.26 and later",
    session: "set `gen_ai.conversation.id` on the agent's span; libraries rarely do it by themselves",
    agent: "`gen_ai.agent.name` on the agent's span",
    lines: &[
        line(Concept::Operation(operation_named), 20, "gen_ai.operation.name"),
        line(Concept::Operation(mcp), 76, "mcp.method.name"),
        line(Concept::Operation(|_| Some(Operation::ExecuteTool)), 80, "gen_ai.tool.call.id"),
        line(Concept::Operation(|_| Some(Operation::ExecuteTool)), 81, "gen_ai.tool.name"),
        line(Concept::Operation(|_| Some(Operation::Chat)), 90, "gen_ai.request.model"),
        line(Concept::Operation(|_| Some(Operation::Chat)), 91, "gen_ai.response.model"),
        line(Concept::Operation(|_| Some(Operation::Evaluation)), 95, "gen_ai.evaluation.name"),
        line(Concept::User, 20, "user.id"),
        line(Concept::User, 70, "enduser.id"),
        line(Concept::User, 80, "gen_ai.user"),
        line(Concept::AgentName, 10, "gen_ai.agent.name"),
        line(Concept::Workflow, 10, "gen_ai.workflow.name"),
        line(Concept::AgentId, 10, "gen_ai.agent.id"),
        line(Concept::AgentVersion, 10, "gen_ai.agent.version"),
        line(Concept::Environment, 20, "deployment.environment.name"),
        line(Concept::Environment, 30, "deployment.environment"),
        line(Concept::Failed(present), 10, "error.type"),
        line(Concept::ErrorType, 10, "error.type"),
        line(Concept::Failed(error_among), 70, "gen_ai.response.finish_reasons"),
        line(Concept::Failed(ended_in_error), 71, "gen_ai.output.messages"),
        line(Concept::Stopped(stopped), 70, "gen_ai.response.finish_reasons"),
        line(Concept::Stopped(stopped), 72, "gen_ai.agent.finish_reason"),
        line(Concept::ToolName, 10, "gen_ai.tool.name"),
        line(Concept::ToolCallId, 10, "gen_ai.tool.call.id"),
        line(Concept::ToolArguments, 10, "gen_ai.tool.call.arguments"),
        line(Concept::ToolResult, 10, "gen_ai.tool.call.result"),
        line(Concept::Model, 10, "gen_ai.response.model"),
        line(Concept::Model, 50, "gen_ai.request.model"),
        line(Concept::RequestedModel, 10, "gen_ai.request.model"),
        line(Concept::Provider, 10, "gen_ai.provider.name"),
        line(Concept::Provider, 20, "gen_ai.system"),
        line(Concept::ResponseId, 10, "gen_ai.response.id"),
        line(Concept::InputTokens, 10, "gen_ai.usage.input_tokens"),
        line(Concept::InputTokens, 50, "gen_ai.usage.prompt_tokens"),
        line(Concept::CachedTokens, 10, "gen_ai.usage.cache_read.input_tokens"),
        line(Concept::CachedTokens, 20, "gen_ai.usage.cache_read_input_tokens"),
        line(Concept::CacheWrittenTokens, 10, "gen_ai.usage.cache_creation.input_tokens"),
        line(Concept::CacheWrittenTokens, 20, "gen_ai.usage.cache_creation_input_tokens"),
        line(Concept::OutputTokens, 10, "gen_ai.usage.output_tokens"),
        line(Concept::OutputTokens, 50, "gen_ai.usage.completion_tokens"),
        line(Concept::CacheWrittenTokens, 15, "gen_ai.usage.cache_write.input_tokens"),
        line(Concept::CacheWrittenTokens, 25, "gen_ai.usage.cache_write_input_tokens"),
        line(Concept::TotalTokens, 10, "gen_ai.usage.total_tokens"),
        line(Concept::Cost, 20, "gen_ai.usage.cost"),
        line(Concept::Cost, 22, "gen_ai.usage.cost.total"),
        // What LiteLLM writes.
        line(Concept::Cost, 23, "gen_ai.cost.total_cost"),
        // In dollars, despite its name.
        line(Concept::Cost, 24, "gen_ai.cost.total_tokens"),
        line(Concept::Currency, 10, "gen_ai.usage.cost.currency"),
        line(Concept::Currency, 20, "gen_ai.cost.currency"),
        line(Concept::Compacted, 10, "gen_ai.conversation.compacted"),
        line(Concept::Failed(cut_short), 72, "gen_ai.agent.finish_reason"),
        line(Concept::Failed(json_rpc_error), 74, "rpc.response.status_code"),
        line(Concept::Input, 20, "gen_ai.input.messages"),
        line(Concept::Input, 67, "gen_ai.prompt"),
        line(Concept::Output, 20, "gen_ai.output.messages"),
        line(Concept::Output, 67, "gen_ai.completion"),
        line(Concept::Retrieved, 10, "gen_ai.retrieval.documents"),
        line(Concept::PreviousSession, 10, "session.previous_id"),
        line(Concept::FirstChunk, 10, "gen_ai.response.time_to_first_chunk"),
        line(Concept::Guardrail, 10, "gen_ai.guardrail.name"),
        line(Concept::Guardrail, 20, "gen_ai.guardrail.id"),
        line(Concept::GuardrailResult, 10, "gen_ai.guardrail.verdict.type"),
        line(Concept::GuardrailResult, 20, "gen_ai.guardrail.status"),
        line(Concept::GuardrailResult, 30, "gen_ai.guardrail.action.type"),
        line(Concept::GuardrailResult, 40, "gen_ai.guardrail.action"),
        line(Concept::GuardrailResult, 50, "gen_ai.guardrail.decision"),
        line(Concept::GuardrailResult, 60, "gen_ai.guardrail.triggered"),
    ],
    also: &[
        "Messages on the span event or in the log record `gen_ai.client.inference.operation.details`, before or after its span.",
        "One message per span event or log record: `gen_ai.user.message`, `gen_ai.assistant.message`, `gen_ai.tool.message`, `gen_ai.choice` (1.28 to 1.36).",
        "Span events `gen_ai.content.prompt` and `gen_ai.content.completion` (up to 1.27).",
        "The span event or log record `gen_ai.client.operation.exception`: the model call failed.",
        "`gen_ai.conversation.compacted` on a model call: what is called again after it is no repeat of what was called before.",
        "`gen_ai.usage.reasoning.output_tokens` is a part of the output tokens and not added to them; `gen_ai.usage.cost.input`, `.output` and so on, and Sentry's `gen_ai.cost.input_tokens` and `.output_tokens`, are added up where no total is.",
        "`gen_ai.agent.finish_reason`: `error`, `max_iterations`, `max_steps`, `max_turns` and `timeout` are failures, `guardrail` is none. A negative `rpc.response.status_code` is an error of JSON-RPC, as MCP has them.",
        "The span events or log records `gen_ai.agent.paused` and `gen_ai.agent.resumed`: an agent that waits for somebody is not stalled, and its turn is not over; at `assemble.trace_max_age` it is.",
        "`finish_reason` in `gen_ai.output.messages`: what ended in an `error` failed.",
        "`gen_ai.react.round` is not needed: a round is a model call, and the spans of rounds are steps.",
        "A span with `mcp.method.name` and no parent is a server's side of a call, in a trace of its own: no behaviour of an agent.",
        "`mcp.session.id` is a transport's session and never read; a tool span inside one of the same name counts once, and so does one of another library inside or beside it whose name lacks a prefix, as that of an MCP server's tool does (`shop__get_weather`, `get_weather`).",
    ],
    phantoms: &["(merged tools)"],
    generic_names: &["agent", "default", "invoke_agent", "OpenAI Agent", "unknown"],
    looks_for: &[
        Trigger::Event,
        Trigger::Key("mcp.method.name"),
        Trigger::Keys("gen_ai.thread."),
        Trigger::Span(super::evaluation::RESULT),
        Trigger::Keys("gen_ai.usage.cost."),
        Trigger::Keys("gen_ai.cost."),
    ],
    operation,
    read,
    log,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    if raw.name == super::evaluation::RESULT {
        return Some((15, Operation::Evaluation));
    }
    // Azure's agents are polled for their state; the response with the token usage is the model's.
    let named = raw.attributes.str("gen_ai.operation.name");
    let is_asked = named.is_some_and(|name| RUN_OPERATIONS.contains(&name));
    if is_asked && raw.attributes.get("gen_ai.usage.output_tokens").is_none() {
        return Some((17, Operation::Other));
    }
    // The server side of a call, which nothing links to the calling agent.
    let alone = raw.parent.is_none() && raw.attributes.get("mcp.method.name").is_some();
    alone.then_some((16, Operation::Other))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    for (rank, parts) in [(30, USAGE_COSTS), (32, SENTRY_COSTS)] {
        draft.cost.offer(rank, sum_of(&raw.attributes, parts));
    }
    draft.failed |= raw.status == Status::Unset && has_event(raw, EXCEPTION);
    let is_tool = draft.operation.get() == Some(&Operation::ExecuteTool);
    for event in &raw.events {
        let attributes = &event.attributes;
        match &*event.name {
            name @ (PAUSED | RESUMED) => {
                let at = if event.time.0 == 0 { raw.end } else { event.time };
                let last = &mut draft.remarks().pause;
                *last = (*last).max(Some(Pause { at, waits: name == PAUSED }));
            }
            DETAILS => {
                details(attributes, draft);
            }
            "gen_ai.content.prompt" => ask(draft, 72, attributes.get("gen_ai.prompt")),
            "gen_ai.content.completion" => say(draft, 72, attributes.get("gen_ai.completion")),
            _ if is_tool => {}
            // The last of several is the turn's; those before it are history.
            "gen_ai.user.message" => {
                if let Some(content) = attributes.get("content") {
                    let asked = messages::asked(content);
                    draft.last_asked = Some(asked.by_user.unwrap_or(true));
                    draft.event_input =
                        asked.text.map(Cow::into_owned).or_else(|| draft.event_input.take());
                }
            }
            "gen_ai.tool.message" => {
                draft.last_asked = Some(false);
                if let Some(content) = attributes.get("content") {
                    let results = messages::asked(content).results;
                    draft.event_results = (!results.is_empty()).then_some(results);
                }
            }
            "gen_ai.choice" => {
                say(draft, 71, attributes.get("message").or_else(|| attributes.get("content")));
            }
            _ => {}
        }
    }
    let input = draft.event_input.take();
    draft.input.offer(71, text::ranked(71, input.map(Cow::Owned)));
    let (asked, results) = (draft.last_asked.take(), draft.event_results.take());
    draft.asked_by_user.offer(71, asked);
    draft.tool_results.offer(71, results);
}

fn log(raw: &RawLog<'_>, event: &str, draft: &mut LogDraft) {
    let body = || messages::parsed(&raw.body).unwrap_or_else(|| Json::of(&raw.body));
    match event {
        DETAILS => {
            if let Some(input) = raw.attributes.get("gen_ai.input.messages") {
                let asked = messages::asked(input);
                draft.input = asked.text.map(Cow::into_owned);
                draft.tool_results = asked.results;
                draft.asked_by_user = asked.by_user;
            }
            if let Some(output) = raw.attributes.get("gen_ai.output.messages") {
                let said = messages::said(output);
                draft.output = said.text.map(Cow::into_owned);
                draft.tool_calls = said.calls;
            }
        }
        EXCEPTION => {
            draft.failed = true;
            draft.error_type = raw.attributes.str("exception.type").map(str::to_owned);
        }
        PAUSED | RESUMED => draft.waits = Some(event == PAUSED),
        "gen_ai.user.message" => {
            draft.input = text::content_of(&body());
            draft.asked_by_user = Some(true);
        }
        "gen_ai.tool.message" => {
            let message = Json::List(vec![with_role(body(), "tool")]);
            let message = RawValue::Str(message.to_string().into());
            draft.tool_results = messages::asked(&message).results;
            draft.asked_by_user = Some(false);
        }
        "gen_ai.choice" => {
            let body = body();
            let message = body.get("message").unwrap_or(&body).clone();
            draft.output = text::content_of(&message);
            let message = Json::List(vec![with_role(message, "assistant")]);
            draft.tool_calls = messages::said(&RawValue::Str(message.to_string().into())).calls;
        }
        // The rest of the history, repeated with every call.
        "gen_ai.system.message" | "gen_ai.assistant.message" => {}
        _ => return,
    }
    draft.recognised = true;
}

/// Costs of the parts of a call, which add up to its cost.
const USAGE_COSTS: &[&str] = &[
    "gen_ai.usage.cost.input",
    "gen_ai.usage.cost.output",
    "gen_ai.usage.cost.cache_read",
    "gen_ai.usage.cost.cache_write",
];

/// Costs of the parts of a call, as Sentry's SDKs name them.
const SENTRY_COSTS: &[&str] = &["gen_ai.cost.input_tokens", "gen_ai.cost.output_tokens"];

/// The sum of the costs that are present; `None` without the first two, as it would be less than the real cost.
fn sum_of(attributes: &RawAttributes<'_>, parts: &[&str]) -> Option<Quanta> {
    let dollars = |key: &&str| attributes.get(key).and_then(number).filter(|cost| *cost >= 0.0);
    let (needed, more) = parts.split_at(parts.len().min(2));
    let needed: Option<Vec<f64>> = needed.iter().map(dollars).collect();
    let more = more.iter().filter_map(dollars);
    Quanta::from_f64(needed?.into_iter().chain(more).sum())
}

/// Whether an agent was stopped before it was done; a stop by a guardrail is not a failure of the agent.
fn cut_short(reason: &RawValue<'_>) -> bool {
    let reason = reason.as_str().map(str::to_ascii_lowercase);
    matches!(
        reason.as_deref(),
        Some("error" | "max_iterations" | "max_steps" | "max_turns" | "timeout")
    )
}

/// Whether a code is that of a JSON-RPC error, as in MCP: a number or its text; codes of other protocols are words.
fn json_rpc_error(code: &RawValue<'_>) -> bool {
    number(code).is_some_and(|code| code < 0.0)
}

fn details<'v>(attributes: &'v RawAttributes<'_>, draft: &mut Draft<'v>) {
    ask(draft, 70, attributes.get("gen_ai.input.messages"));
    say(draft, 70, attributes.get("gen_ai.output.messages"));
}

fn ask<'v>(draft: &mut Draft<'v>, rank: u8, value: Option<&'v RawValue<'_>>) {
    if let Some(value) = value {
        draft.offer_input(rank, || messages::asked(value));
    }
}

fn say<'v>(draft: &mut Draft<'v>, rank: u8, value: Option<&'v RawValue<'_>>) {
    if let Some(value) = value {
        draft.offer_output(rank, || messages::said(value));
    }
}

/// A message's body with the role that its event implies.
fn with_role<'v>(body: Json<'v>, role: &'v str) -> Json<'v> {
    let role = (Cow::Borrowed("role"), Json::Text(role.into()));
    match body {
        // If the body has a role of its own, that one wins.
        Json::Object(map) => Json::Object([role].into_iter().chain(map.into_entries()).collect()),
        content
        @ (Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) | Json::List(_)) => {
            Json::Object([role, (Cow::Borrowed("content"), content)].into_iter().collect())
        }
    }
}

fn mcp(method: &str) -> Option<Operation> {
    (method == "tools/call").then_some(Operation::ExecuteTool)
}

/// Whether a finish reason is other than the end of an answer or a call of tools; reasons are a list, the JSON text of one, or alone.
pub(super) fn stopped(reasons: &RawValue<'_>) -> bool {
    let is_stop = |reason: &str| {
        let reason = reason.to_ascii_lowercase().replace('-', "_");
        STOPS.contains(&reason.as_str())
    };
    match messages::parsed(reasons) {
        Some(Json::List(reasons)) => reasons.iter().filter_map(Json::as_str).any(is_stop),
        Some(reason) => reason.as_str().is_some_and(is_stop),
        None => reasons.as_str().is_some_and(is_stop),
    }
}

/// Finish reasons of OpenTelemetry and the providers for stopped calls, in lower case with underscores.
const STOPS: [&str; 18] = [
    "blocklist",
    "content_filter",
    "content_filtered",
    "guardrail",
    "guardrail_intervened",
    "length",
    "max_iterations",
    "max_output_tokens",
    "max_steps",
    "max_tokens",
    "max_turns",
    "model_context_window_exceeded",
    "prohibited_content",
    "recitation",
    "refusal",
    "safety",
    "spii",
    "timeout",
];

/// Whether an answer ended in an error.
fn ended_in_error(answers: &RawValue<'_>) -> bool {
    static REASON: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(r#""error""#));
    // Most texts need not be parsed: the reason is a word of its own.
    if answers.as_str().is_some_and(|text| REASON.find(text.as_bytes()).is_none()) {
        return false;
    }
    let is_error =
        |answer: &Json<'_>| answer.get("finish_reason").and_then(Json::as_str) == Some("error");
    let answers = messages::parsed(answers);
    answers.as_ref().and_then(Json::as_list).into_iter().flatten().any(is_error)
}

/// Whether a finish reason is `error`; reasons are a list, the JSON text of one, or alone.
fn error_among(reasons: &RawValue<'_>) -> bool {
    let is_error = |reason: &Json<'_>| reason.as_str() == Some("error");
    match messages::parsed(reasons) {
        Some(Json::List(reasons)) => reasons.iter().any(is_error),
        Some(reason) => is_error(&reason),
        None => reasons.as_str() == Some("error"),
    }
}
