//! Codex CLI: log records alone. Only the order of the records joins a prompt with its results; their only time is that at which
//! they were observed.

use std::borrow::Cow;

use super::arguments;
use super::custom::list;
use super::dialect::{Dialect, EventKind, Helper, RecordFacts};
use super::draft::{count, without_placeholder};
use super::raw::{RawLog, RawValue};
use super::{Convention, LogConvention, Mark};

pub(super) const CONVENTION: Convention = Convention {
    name: "codex",
    title: "Codex CLI",
    session: "`conversation.id` is sent by itself; for the user's text set `log_user_prompt = true` in `[otel]`",
    agent: "the service's name: `codex_exec` and the like, by the way it was started",
    marks: &[Mark::Scope(SCOPE)],
    also: &[
        "Log records: `codex.user_prompt` begins a turn. A model call is the `codex.sse_event` that has token counts, or an error; a `codex.api_request` that failed is a failed one, so each attempt counts.",
        "Tool calls are `codex.tool_decision` and `codex.tool_result` of one `call_id`. A command that the client says went well did, whatever its exit status. A call that a person refused (`source` is `User`) is none.",
        "`input_token_count` includes cached tokens, `output_token_count` reasoning. The answer's text is never sent.",
    ],
    dialect: Some(dialect),
    ..Convention::NONE
};

fn dialect() -> Dialect {
    let names = LogConvention {
        name: "codex".to_owned(),
        scope: SCOPE.to_owned(),
        prompts: list(["user_prompt"]),
        model_calls: list(["sse_event"]),
        model_errors: list(["api_request", "websocket_request"]),
        tool_decisions: list(["tool_decision"]),
        tool_calls: list(["tool_result"]),
        session: list(["conversation.id"]),
        input: list(["prompt"]),
        model: list(["model"]),
        input_tokens: list(["input_token_count"]),
        cached_tokens: list(["cached_token_count"]),
        cache_written_tokens: list(["cache_write_token_count"]),
        output_tokens: list(["output_token_count"]),
        duration_ms: list(["duration_ms"]),
        tool_name: list(["tool_name"]),
        call_id: list(["call_id"]),
        tool_arguments: list(["arguments"]),
        success: list(["success"]),
        error_type: list(["http.response.status_code"]),
        ..LogConvention::default()
    };
    Dialect { prefix: "codex.", mend, ..Dialect::of(names) }
}

fn mend(raw: &RawLog<'_>, facts: &mut RecordFacts<'_>) -> bool {
    let failed = raw.attributes.str("error.message").is_some();
    match facts.kind {
        // A stream has an event for each part and two for its end; one of these has the token counts.
        Some(EventKind::Model) if failed => facts.kind = Some(EventKind::ModelError),
        Some(EventKind::Model) => return facts.tokens.input.is_some(),
        // A request that succeeded is reported by the end of its stream.
        Some(EventKind::ModelError) => {
            let status = raw.attributes.get("http.response.status_code").and_then(count);
            return failed || status.is_some_and(|status| status >= 400);
        }
        Some(EventKind::ToolBegun) => {
            let decision = raw.attributes.str("decision").filter(|decision| is_refusal(decision));
            let source = raw.attributes.str("source");
            facts.failed = decision.is_some();
            facts.refused = source.is_some_and(|source| source.eq_ignore_ascii_case("user"))
                && decision.is_some_and(|decision| !decision.starts_with("timed_out"));
        }
        Some(EventKind::Tool) => {
            let agent = raw.attributes.str("agent_name").and_then(without_placeholder);
            let other = agent.filter(|agent| *agent != "/root");
            facts.helper = other.map(|agent| Helper::Agent(agent.to_owned().into()));
            let output = raw.attributes.str("output").map(without_measures);
            facts.result = output.and_then(|text| arguments::result_hash(&RawValue::Str(text)));
        }
        Some(EventKind::Prompt | EventKind::Answer | EventKind::Loop) | None => {}
    }
    facts.tool = mcp_tool(raw).map(Cow::Owned);
    facts.failed |= facts.kind == Some(EventKind::ModelError);
    true
}

/// The name of a server's tool, with the server's name before it.
fn mcp_tool(raw: &RawLog<'_>) -> Option<String> {
    let server = raw.attributes.str("tool_namespace").filter(|name| name.starts_with("mcp__"))?;
    let tool = raw.attributes.str("tool_name").filter(|name| !name.starts_with("mcp__"))?;
    Some(format!("{}__{tool}", server.trim_end_matches('_')))
}

/// Whether a decision prevented the tool call.
fn is_refusal(decision: &str) -> bool {
    ["denied", "abort", "rejected", "timed_out"].iter().any(|refusal| decision.starts_with(refusal))
}

/// A command's output without the client's measurements, which differ each time.
fn without_measures(output: &str) -> Cow<'_, str> {
    let measured = ["Chunk ID: ", "Wall time: "];
    let Some((head, _)) = output.split_once("Output:\n") else { return output.into() };
    if !measured.iter().any(|start| head.starts_with(start)) {
        return output.into();
    }
    let kept = |line: &&str| !measured.iter().any(|start| line.starts_with(start));
    let told: Vec<&str> = head.lines().filter(kept).collect();
    let rest = &output[head.len()..];
    format!("{}\n{rest}", told.join("\n")).into()
}

const SCOPE: &str = "codex_otel";
