//! Claude Code and the Claude Agent SDK: `span.type` and bare attribute names. Input tokens exclude cached ones.

use super::draft::{Draft, count, flag, name};
use super::lines::{Line, Says, line};
use super::raw::{RawSpan, RawValue};
use super::{Convention, Mark, text};
use crate::engine::span::Operation;

/// The convention.
pub(super) struct ClaudeCode;

const LINES: &[Line] = &[
    line(Says::Operation(operation), 75, "span.type"),
    line(Says::User, 85, "user.email"),
    line(Says::Failed(no), 35, "success"),
    line(Says::Failed(super::lines::present), 36, "error"),
    line(Says::ToolName, 40, "tool_name"),
    line(Says::ToolCallId, 40, "tool_use_id"),
    line(Says::ToolArguments, 76, "tool_input"),
    line(Says::ToolArguments, 77, "full_command"),
    line(Says::ToolArguments, 78, "file_path"),
    line(Says::Model, 75, "model"),
    line(Says::CachedTokens, 70, "cache_read_tokens"),
    line(Says::OutputTokens, 70, "output_tokens"),
    line(Says::Cost, 60, "cost_usd"),
    line(Says::Input, 73, "user_prompt"),
    line(Says::Input, 74, "new_context"),
    line(Says::Output, 73, "response.model_output"),
];

impl Convention for ClaudeCode {
    fn name(&self) -> &'static str {
        "claude_code"
    }

    fn title(&self) -> &'static str {
        "Claude Code, Claude Agent SDK"
    }

    fn session(&self) -> &'static str {
        "`session.id` is sent by itself; for texts and tool inputs set `OTEL_LOG_USER_PROMPTS=1` and `OTEL_LOG_TOOL_DETAILS=1`"
    }

    fn agent(&self) -> &'static str {
        "`OTEL_SERVICE_NAME`; sub-agents have names of their own"
    }

    fn marks(&self) -> &'static [Mark] {
        &[Mark::Key("span.type")]
    }

    fn lines(&self) -> &'static [Line] {
        LINES
    }

    fn generic_names(&self) -> &'static [&'static str] {
        &["claude_code.interaction", "interaction"]
    }

    fn also(&self) -> &'static [&'static str] {
        &[
            "`subagent_type` names the agent on agent spans; on the tool span that began it, another one is at work.",
            "`input_tokens` plus `cache_read_tokens` and `cache_creation_tokens`.",
            "The span event `tool.output`: `output`, `content` or `diff` is the result.",
        ]
    }

    fn read<'v>(&self, raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
        if draft.operation.get() == Some(&Operation::InvokeAgent) {
            draft.agent_name.offer(70, raw.attributes.get("subagent_type").and_then(name));
        }
        let tokens = |key: &str| raw.attributes.get(key).and_then(count);
        let cached =
            tokens("cache_read_tokens").unwrap_or(0) + tokens("cache_creation_tokens").unwrap_or(0);
        draft
            .input_tokens
            .offer(70, tokens("input_tokens").map(|input| input.saturating_add(cached)));
        let output = raw.events.iter().find(|event| event.name == "tool.output");
        let output = output.and_then(|event| {
            ["output", "content", "diff"].iter().find_map(|key| event.attributes.get(key))
        });
        draft.result_hash.offer(76, output.and_then(text::result));
    }
}

fn operation(kind: &str) -> Option<Operation> {
    match kind.trim_start_matches("claude_code.") {
        "interaction" => Some(Operation::InvokeAgent),
        "llm_request" => Some(Operation::Chat),
        "tool" => Some(Operation::ExecuteTool),
        "tool.execution" | "tool.blocked_on_user" | "hook" => Some(Operation::Other),
        _ => None,
    }
}

fn no(value: &RawValue<'_>) -> bool {
    flag(value) == Some(false)
}
