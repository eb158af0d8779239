//! Gemini CLI: log records, and spans with fewer facts. A model call is reported several times; `gemini_cli.api_response` counts.
//! Output tokens exclude thoughts.

use std::borrow::Cow;

use super::custom::list;
use super::dialect::{Dialect, EventKind, Helper, RecordFacts, Turn, by_prompt};
use super::draft::{count, without_placeholder};
use super::json::{self, Json};
use super::raw::{RawLog, RawSpan};
use super::{Convention, LogConvention, Mark};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "gemini_cli",
    title: "Gemini CLI",
    session: "`session.id` is sent by itself; texts and arguments are, unless `GEMINI_TELEMETRY_LOG_PROMPTS=false`",
    agent: "the service's name, `gemini-cli`; its version is Node's and not read",
    marks: &[Mark::Scope(NAME)],
    also: &[
        "Log records: `gemini_cli.user_prompt` begins a turn, of its `prompt_id` if that is not the session's; model calls are `api_response` and `api_error`, one for each attempt, tool calls `tool_call`, but for those that a person refused (`decision` is `reject`).",
        "Spans (`user_prompt`, `llm_call`, `tool_call` and others) and `gen_ai.client.inference.operation.details` tell of the same calls and count as none.",
        "`loop_detected` is a loop that the agent reports itself: it is one even where arguments were not sent.",
    ],
    operation,
    dialect: Some(dialect),
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    raw.attributes.str("gen_ai.operation.name").map(|_| (5, Operation::Other))
}

fn dialect() -> Dialect {
    let names = LogConvention { name: "gemini_cli".to_owned(), scope: NAME.to_owned(), ..names() };
    Dialect {
        prefix: "gemini_cli.",
        result_size: Some("content_length"),
        other_version: true,
        turn,
        mend,
        ..Dialect::of(names)
    }
}

/// The names that it and clients derived from it use.
pub(super) fn names() -> LogConvention {
    LogConvention {
        prompts: list(["user_prompt"]),
        model_calls: list(["api_response"]),
        model_errors: list(["api_error"]),
        tool_calls: list(["tool_call"]),
        loops: list(["loop_detected"]),
        session: list(["session.id"]),
        prompt_id: list(["prompt_id"]),
        input: list(["prompt"]),
        model: list(["model"]),
        input_tokens: list(["input_token_count"]),
        cached_tokens: list(["cached_content_token_count"]),
        output_tokens: list(["output_token_count"]),
        duration_ms: list(["duration_ms"]),
        tool_name: list(["function_name"]),
        tool_arguments: list(["function_args"]),
        success: list(["success"]),
        error_type: list(["error.type", "error_type", "status_code"]),
        ..LogConvention::default()
    }
}

/// The turn of a prompt: by its id if that consists of the session's id and a number, as when a user can ask again; else by the
/// order.
fn turn(session: &str, prompt: Option<&str>) -> Turn {
    let numbered = |prompt: &&str| {
        prompt.strip_prefix(session).is_some_and(|number| number.starts_with("########"))
    };
    by_prompt(session, prompt.filter(numbered))
}

fn mend(raw: &RawLog<'_>, facts: &mut RecordFacts<'_>) -> bool {
    let tokens = |key: &str| raw.attributes.get(key).and_then(count).unwrap_or(0);
    let (thoughts, tools) = (tokens("thoughts_token_count"), tokens("tool_token_count"));
    facts.tokens.output = facts.tokens.output.map(|output| output.saturating_add(thoughts));
    facts.tokens.input = facts.tokens.input.map(|input| input.saturating_add(tools));
    facts.output = raw.attributes.str("response_text").and_then(answer).map(Cow::Owned);
    let part =
        raw.attributes.str("role").and_then(without_placeholder).filter(|role| *role != "main");
    if matches!(facts.kind, Some(EventKind::Model | EventKind::ModelError)) {
        facts.helper = part.map(|part| Helper::Component(part.to_owned().into()));
    }
    facts.refused = is_refused(raw, facts);
    true
}

/// Whether a person refused a tool call; only people decide in this way.
pub(super) fn is_refused(raw: &RawLog<'_>, facts: &RecordFacts<'_>) -> bool {
    facts.kind == Some(EventKind::Tool) && raw.attributes.str("decision") == Some("reject")
}

/// The text of a model's answer, from the chunks that its API sent.
fn answer(chunks: &str) -> Option<String> {
    let Some(Json::List(chunks)) = json::read(chunks) else { return None };
    let mut said = String::new();
    for chunk in &chunks {
        let Some(Json::List(candidates)) = chunk.get("candidates") else { continue };
        let parts = candidates.first().and_then(|first| first.get("content")?.get("parts"));
        let Some(Json::List(parts)) = parts else { continue };
        let is_thought = |part: &&Json<'_>| matches!(part.get("thought"), Some(Json::Bool(true)));
        let texts = parts.iter().filter(|part| !is_thought(part));
        texts.filter_map(|part| part.get("text")?.as_str()).for_each(|text| said.push_str(text));
    }
    (!said.is_empty()).then_some(said)
}

const NAME: &str = "gemini-cli";
