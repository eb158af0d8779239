//! Judgeval, the SDK of Judgment Labs: spans of its decorators (`@Tracer.observe`) and of the model clients that it wraps, whose requests and
//! answers are whole in `gen_ai.prompt` and `gen_ai.completion`.

use super::draft::{Draft, count};
use super::lines::{Concept, line};
use super::raw::RawSpan;
use super::{Convention, Mark};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "judgeval",
    title: "Judgeval SDK (Judgment Labs)",
    session: "set the session in the SDK, which sends `judgment.session_id`",
    agent: "the name of the span of kind `agent`, else of the root",
    marks: &[Mark::Key("judgment.span_kind")],
    lines: &[
        line(Concept::Operation(kind), 73, "judgment.span_kind"),
        line(Concept::User, 32, "judgment.customer_user_id"),
        line(Concept::ToolArguments, 86, "judgment.input"),
        line(Concept::ToolResult, 86, "judgment.output"),
        line(Concept::Model, 77, "judgment.llm.model"),
        line(Concept::CachedTokens, 75, "judgment.usage.cache_read_input_tokens"),
        line(Concept::CacheWrittenTokens, 75, "judgment.usage.cache_creation_input_tokens"),
        line(Concept::OutputTokens, 75, "judgment.usage.output_tokens"),
        line(Concept::Cost, 70, "judgment.usage.total_cost_usd"),
        line(Concept::Input, 86, "judgment.input"),
        line(Concept::Output, 86, "judgment.output"),
    ],
    also: &[
        "`judgment.usage.non_cached_input_tokens` plus `cache_read_input_tokens` and `cache_creation_input_tokens`.",
    ],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    if raw.attributes.get("judgment.span_kind").is_none() {
        return;
    }
    draft.offer_root(raw);
    let tokens = |kind: &str| raw.attributes.get(kind).and_then(count);
    let cached = ["cache_read", "cache_creation"];
    let cached = cached.map(|kind| tokens(&format!("judgment.usage.{kind}_input_tokens")));
    let fresh = tokens("judgment.usage.non_cached_input_tokens");
    let sum = |fresh: u64| cached.into_iter().flatten().fold(fresh, u64::saturating_add);
    draft.input_tokens.offer(75, fresh.map(sum));
}

fn kind(kind: &str) -> Option<Operation> {
    Some(match kind {
        "agent" => Operation::InvokeAgent,
        "llm" => Operation::Chat,
        "tool" => Operation::ExecuteTool,
        "chain" | "span" | "function" => Operation::Other,
        _ => return None,
    })
}
