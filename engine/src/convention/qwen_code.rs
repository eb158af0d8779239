//! Qwen Code: log records alone, joined by the id of their prompt. Output tokens include thoughts.

use std::borrow::Cow;

use xxhash_rust::xxh3::xxh3_64;

use super::raw::RawLog;
use super::spoken::{Dialect, Helper, Keys, RecordFacts, Tells, Turn, by_prompt, keys};
use super::{Convention, Mark};

pub(super) const CONVENTION: Convention = Convention {
    name: "qwen_code",
    title: "Qwen Code",
    session: "`session.id`, answers and arguments of tools are sent by themselves; prompts are, unless `telemetry.logPrompts` is off",
    agent: "the service's name, `qwen-code`",
    marks: &[Mark::Scope(NAME)],
    also: &[
        "Log records: `qwen-code.user_prompt` begins the turn of its `prompt_id`; model calls are `api_response` and `api_error`, tool calls `tool_call`. An attempt that is made again leaves no record.",
        "What a sub-agent does is part of the turn that was going on; what the client does in the background (`SESSION#managed-...`) is a trace of its own in the same session. What `/compress` asks a model is part of the turn before it.",
    ],
    dialect: Some(dialect),
    ..Convention::NONE
};

fn dialect() -> Dialect {
    let event = |name, tells| (Cow::Borrowed(name), tells);
    Dialect {
        name: Cow::Borrowed("qwen_code"),
        scope: Cow::Borrowed(NAME),
        prefix: Cow::Borrowed("qwen-code."),
        events: vec![
            event("user_prompt", Tells::Prompt),
            event("api_response", Tells::Model),
            event("api_error", Tells::ModelError),
            event("tool_call", Tells::Tool),
            event("loop_detected", Tells::Loop),
        ],
        keys: Keys {
            session: keys!("session.id"),
            prompt: keys!("prompt_id"),
            input: keys!("prompt"),
            output: keys!("response_text"),
            model: keys!("model"),
            response_id: keys!(),
            input_tokens: keys!("input_token_count"),
            cached_tokens: keys!("cached_content_token_count"),
            output_tokens: keys!("output_token_count"),
            duration_ms: keys!("duration_ms"),
            tool: keys!("function_name"),
            arguments: keys!("function_args"),
            success: keys!("success"),
            error_type: keys!("error.type", "error_type", "status_code"),
            result_size: keys!("content_length"),
            sub_agent: keys!("subagent_name"),
            ..Keys::default()
        },
        has_spans: false,
        other_version: false,
        turn,
        mend,
    }
}

/// The turn of a prompt. The ids of sub-agents' calls and of work in the background begin with the session's: `SESSION#AGENT-RUN#ROUND`.
fn turn(session: &str, prompt: Option<&str>) -> Turn {
    if prompt.is_some_and(|prompt| prompt.starts_with(COMPRESSION)) {
        return Turn::Order;
    }
    let behind = prompt
        .and_then(|prompt| prompt.strip_prefix(session)?.strip_prefix('#'))
        .filter(|behind| !behind.starts_with('#'));
    match behind {
        None => by_prompt(session, prompt),
        Some(behind) if behind.starts_with("managed-") => {
            let run = behind.rsplit_once('#').map_or(behind, |(run, _)| run);
            Turn::Apart(xxh3_64(run.as_bytes()))
        }
        Some(_) => Turn::Order,
    }
}

/// Marks a call that makes the conversation shorter as one of a part of the client, whose answer is not the turn's.
fn mend(raw: &RawLog<'_>, heard: &mut RecordFacts<'_>) -> bool {
    let prompt = raw.attributes.str("prompt_id").unwrap_or_default();
    if prompt.starts_with(COMPRESSION) {
        heard.aside = Some(Helper::Part(Cow::Borrowed("compression")));
    }
    true
}

/// The beginning of the ids of prompts by which the client has the conversation made shorter.
const COMPRESSION: &str = "compress-";

const NAME: &str = "qwen-code";
