//! Qwen Code: log records alone, joined by the id of their prompt. Output tokens include thoughts.

use std::borrow::Cow;

use xxhash_rust::xxh3::xxh3_64;

use super::custom::list;
use super::raw::RawLog;
use super::spoken::{Dialect, Helper, RecordFacts, Turn, by_prompt};
use super::{Convention, LogConvention, Mark, gemini_cli};

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
    let names = LogConvention {
        name: "qwen_code".to_owned(),
        scope: NAME.to_owned(),
        output: list(["response_text"]),
        sub_agent: list(["subagent_name"]),
        ..gemini_cli::names()
    };
    Dialect {
        prefix: "qwen-code.",
        result_size: Some("content_length"),
        turn,
        mend,
        ..Dialect::of(names)
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
    heard.refused = gemini_cli::is_refused(raw, heard);
    true
}

/// The beginning of the ids of prompts by which the client has the conversation made shorter.
const COMPRESSION: &str = "compress-";

const NAME: &str = "qwen-code";
