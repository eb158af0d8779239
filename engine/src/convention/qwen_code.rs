//! Qwen Code: log records, joined by the id of their prompt, and since 0.24 the spans that they name. Output tokens include thoughts.

use std::borrow::Cow;

use xxhash_rust::xxh3::xxh3_64;

use super::custom::list;
use super::dialect::{Dialect, EventKind, Helper, RecordFacts, Turn, by_prompt};
use super::draft::Draft;
use super::raw::{RawLog, RawSpan};
use super::{Convention, LogConvention, Mark, Trigger, gemini_cli};

pub(super) const CONVENTION: Convention = Convention {
    name: "qwen_code",
    title: "Qwen Code",
    session: "`session.id`, answers and arguments of tools are sent by themselves; prompts are, unless `telemetry.logPrompts` is off",
    agent: "the service's name, `qwen-code`",
    marks: &[Mark::Scope(NAME)],
    also: &[
        "Log records: `qwen-code.user_prompt` begins the turn of its `prompt_id`; model calls are `api_response` and `api_error`, tool calls `tool_call`. An attempt that is made again leaves no record.",
        "With spans and records of one call it counts once, and each completes the other. The prompt's record names no trace: where spans tell the turn, its input is not known. That a hook (`qwen-code.hook`) failed says nothing of the run.",
        "What a sub-agent does is part of the turn that was going on; what the client does in the background (`SESSION#managed-...`) is a trace of its own in the same session. What `/compress` asks a model is part of the turn before it.",
    ],
    looks_for: &[Trigger::Span(HOOK)],
    read,
    dialect: Some(dialect),
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    draft.repeated.offer(80, raw.name == HOOK);
}

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
        has_spans: true,
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

/// Marks a call that shortens the conversation as one by a part of the client, whose answer is not the turn's. For a client that
/// may send spans, a prompt alone is no turn: its results may be in their trace.
fn mend(raw: &RawLog<'_>, facts: &mut RecordFacts<'_>) -> bool {
    let prompt = raw.attributes.str("prompt_id").unwrap_or_default();
    if prompt.starts_with(COMPRESSION) {
        facts.helper = Some(Helper::Component(Cow::Borrowed("compression")));
    }
    facts.refused = gemini_cli::is_refused(raw, facts);
    facts.is_command = facts.kind == Some(EventKind::Prompt) && prompt.contains(NUMBERED);
    true
}

/// The beginning of the ids of prompts by which the client shortens the conversation.
const COMPRESSION: &str = "compress-";

const NAME: &str = "qwen-code";

/// What is between the session's id and the number of a prompt in the prompt's id, where the client may send spans.
const NUMBERED: &str = "########";

/// The span of a user's script that the client runs beside a call.
const HOOK: &str = "qwen-code.hook";
