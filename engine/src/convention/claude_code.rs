//! Claude Code and the Claude Agent SDK: log records, joined by the id of their prompt, and spans with `span.type` and bare attribute
//! names. Input tokens exclude cached ones.

use std::borrow::Cow;

use super::custom::list;
use super::dialect::{Dialect, EventKind, Helper, RecordFacts};
use super::draft::{Draft, count, flag, name, without_placeholder};
use super::json;
use super::lines::{Concept, line};
use super::raw::{RawLog, RawSpan, RawValue};
use super::{Convention, LogConvention, Mark, text};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "claude_code",
    title: "Claude Code, Claude Agent SDK",
    session: "`session.id` is sent by itself; for texts and tool inputs set `OTEL_LOG_USER_PROMPTS=1` and `OTEL_LOG_TOOL_DETAILS=1`",
    agent: "`OTEL_SERVICE_NAME`; sub-agents have names of their own",
    marks: &[Mark::Key("span.type"), Mark::Scope("com.anthropic.claude_code")],
    lines: &[
        line(Concept::Operation(of_kind), 75, "span.type"),
        line(Concept::User, 85, "user.email"),
        line(Concept::Failed(no), 35, "success"),
        line(Concept::Failed(super::lines::present), 36, "error"),
        line(Concept::ErrorType, 40, "error_type"),
        line(Concept::ToolName, 40, "tool_name"),
        line(Concept::ToolCallId, 40, "tool_use_id"),
        line(Concept::ToolArguments, 76, "tool_input"),
        line(Concept::ToolArguments, 77, "full_command"),
        line(Concept::ToolArguments, 78, "file_path"),
        line(Concept::Model, 75, "model"),
        line(Concept::ResponseId, 75, "request_id"),
        line(Concept::CachedTokens, 70, "cache_read_tokens"),
        line(Concept::CacheWrittenTokens, 70, "cache_creation_tokens"),
        line(Concept::OutputTokens, 70, "output_tokens"),
        line(Concept::Cost, 60, "cost_usd"),
        line(Concept::Input, 73, "user_prompt"),
        line(Concept::Input, 74, "new_context"),
        line(Concept::Output, 73, "response.model_output"),
    ],
    also: &[
        "`subagent_type` names the agent on agent spans, and on a tool's span the one that the tool began: what is below that span is its work.",
        "`tool_name` is the name of a server's tool, as `gen_ai.tool.name` is without the server.",
        "`input_tokens` plus `cache_read_tokens` and `cache_creation_tokens`.",
        "`claude_code.tool.execution` is no call of its own: the tool span above it fails with it.",
        "The span event `tool.output`: `output`, `content` or `diff` is the result.",
        "Log records: `user_prompt` begins the turn of its `prompt.id`; model calls are `api_request` and `api_error`, their texts `assistant_response`, joined by `request_id` or, without one, by `event.sequence`; tool calls are `tool_decision` and `tool_result` of one `tool_use_id`. An attempt that is made again leaves no record. A call that a person refused (`decision` is `reject`, `source` begins with `user_`) is none; one that settings or a hook refused has failed. A command of the client's own (`command_source` is `builtin`) is a turn only where it calls a model.",
        "In log records, `agent_id` is the sub-agent that made a call: the one whose name a model call's record tells together with this id.",
        "With spans and records of one call it counts once, and each completes the other.",
    ],
    phantoms: &[EXECUTION],
    generic_names: &["claude_code.interaction", "interaction"],
    operation,
    read,
    dialect: Some(dialect),
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    Some((76, of_kind(&raw.name)?))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    if raw.name == EXECUTION {
        draft.tool_name.offer(1, Cow::Borrowed(EXECUTION));
    }
    // For a server's tool, the conventional attribute has the bare name, by which the model does not call it.
    let of_server = |name: &&str| name.starts_with("mcp__");
    let tool = raw.attributes.str("tool_name").filter(of_server);
    draft.tool_name.offer(9, tool.map(Cow::Borrowed));
    let agent = raw.attributes.get("subagent_type").and_then(name);
    match draft.operation.get() {
        Some(Operation::InvokeAgent) => draft.agent_name.offer(70, agent),
        Some(Operation::ExecuteTool) if agent.is_some() => {
            draft.remarks().begins.offer(70, agent);
        }
        Some(_) | None => {}
    }
    let tokens = |key: &str| raw.attributes.get(key).and_then(count);
    let read = tokens("cache_read_tokens").unwrap_or(0);
    let cached = read.saturating_add(tokens("cache_creation_tokens").unwrap_or(0));
    draft.input_tokens.offer(70, tokens("input_tokens").map(|input| input.saturating_add(cached)));
    let output = raw.events.iter().find(|event| event.name == "tool.output");
    let output = output.and_then(|event| {
        ["output", "content", "diff"].iter().find_map(|key| event.attributes.get(key))
    });
    draft.result_hash.offer(76, output.and_then(text::result));
}

fn dialect() -> Dialect {
    let names = LogConvention {
        name: "claude_code".to_owned(),
        scope: "com.anthropic.claude_code".to_owned(),
        prompts: list(["user_prompt"]),
        model_calls: list(["api_request"]),
        model_errors: list(["api_error"]),
        tool_decisions: list(["tool_decision"]),
        tool_calls: list(["tool_result"]),
        session: list(["session.id"]),
        prompt_id: list(["prompt.id"]),
        input: list(["prompt"]),
        output: list(["response"]),
        model: list(["model"]),
        response_id: list(["request_id"]),
        input_tokens: list(["input_tokens"]),
        cached_tokens: list(["cache_read_tokens"]),
        cache_written_tokens: list(["cache_creation_tokens"]),
        output_tokens: list(["output_tokens"]),
        cost_usd: list(["cost_usd"]),
        duration_ms: list(["duration_ms"]),
        tool_name: list(["tool_name"]),
        call_id: list(["tool_use_id"]),
        tool_arguments: list(["tool_input"]),
        success: list(["success"]),
        error_type: list(["error_type", "status_code"]),
        ..LogConvention::default()
    };
    Dialect {
        prefix: "claude_code.",
        answer: Some("assistant_response"),
        result_size: Some("tool_result_size_bytes"),
        sub_agent_id: Some("agent_id"),
        has_spans: true,
        mend,
        ..Dialect::of(names)
    }
}

fn mend(raw: &RawLog<'_>, facts: &mut RecordFacts<'_>) -> bool {
    let tokens = |key: &str| raw.attributes.get(key).and_then(count).unwrap_or(0);
    let cached = tokens("cache_read_tokens").saturating_add(tokens("cache_creation_tokens"));
    facts.tokens.input = facts.tokens.input.map(|input| input.saturating_add(cached));
    let source = raw.attributes.str("query_source").and_then(without_placeholder);
    let named = raw.attributes.str("agent.name").and_then(without_placeholder);
    // Without a name, the record of a sub-agent's answer says less about the agent than that of its call.
    let tells_whose = facts.kind != Some(EventKind::Answer) || named.is_some();
    let agent = source.and_then(|source| source.strip_prefix("agent:")).filter(|_| tells_whose);
    let unnamed = agent.map(|agent| agent.rsplit_once(':').map_or(agent, |(_, name)| name));
    // For a custom agent, this is its kind and not its name.
    let unnamed = unnamed.filter(|name| *name != "custom");
    let main = |source: &&str| *source == "sdk" || source.starts_with("repl_main_thread");
    facts.helper = if let Some(agent) = agent.and(named).or(unnamed) {
        Some(Helper::Agent(agent.to_owned().into()))
    } else {
        let part = source.filter(|source| !main(source));
        part.map(|part| Helper::Component(part.to_owned().into()))
    };
    if facts.kind == Some(EventKind::ToolBegun) {
        facts.failed = raw.attributes.str("decision") == Some("reject");
        // Others are the settings and hooks: `config`, `hook`.
        let by_person =
            raw.attributes.str("source").is_some_and(|source| source.starts_with("user_"));
        facts.refused = facts.failed && by_person;
    }
    facts.call_key = call_key(raw, facts.kind);
    facts.is_command = raw.attributes.str("command_source") == Some("builtin");
    facts.tool = mcp_tool(raw).map(Cow::Owned);
    true
}

/// The key that joins a model call and its answer if their records have no `request_id`, such as those of a gateway: the answer's
/// record is the session's next one after the call's.
fn call_key(raw: &RawLog<'_>, kind: Option<EventKind>) -> Option<String> {
    let sequence = raw.attributes.get("event.sequence").and_then(count)?;
    let call = match kind {
        Some(EventKind::Model) => sequence,
        Some(EventKind::Answer) => sequence.checked_sub(1)?,
        Some(_) | None => return None,
    };
    Some(format!("{} {call}", raw.attributes.str("session.id")?))
}

/// The name by which the model called a server's tool: the record's `tool_name` is `mcp_tool`, and server and tool are named beside it.
fn mcp_tool(raw: &RawLog<'_>) -> Option<String> {
    raw.attributes.str("tool_name").filter(|name| *name == "mcp_tool")?;
    let beside = |key: &str| raw.attributes.str(key).map(str::to_owned);
    let details = raw.attributes.str("tool_parameters").and_then(json::read);
    let detail = |key: &str| details.as_ref()?.get(key)?.as_str().map(str::to_owned);
    let server = beside("mcp_server_name").or_else(|| detail("mcp_server_name"))?;
    let tool = beside("mcp_tool_name").or_else(|| detail("mcp_tool_name"))?;
    Some(format!("mcp__{server}__{tool}"))
}

/// The span of the execution in a tool call: it is not a separate call, and the tool span above it fails with it.
const EXECUTION: &str = "claude_code.tool.execution";

fn of_kind(kind: &str) -> Option<Operation> {
    match kind.trim_start_matches("claude_code.") {
        "interaction" => Some(Operation::InvokeAgent),
        "llm_request" => Some(Operation::Chat),
        "tool" | "tool.execution" => Some(Operation::ExecuteTool),
        "tool.blocked_on_user" | "hook" => Some(Operation::Other),
        _ => None,
    }
}

fn no(value: &RawValue<'_>) -> bool {
    flag(value) == Some(false)
}
