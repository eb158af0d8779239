//! Langfuse's SDKs: observations.
//!
//! Recognised by `langfuse.observation.type`. Names are span names; inputs, outputs and usage are JSON or plain text.
//! The status stays unset on errors: the level tells.

use serde_json::Value;

use super::draft::{Draft, name};
use super::raw::{RawScope, RawSpan};
use super::{Convention, messages, text};
use crate::engine::math::Quanta;
use crate::engine::span::Operation;

/// The convention.
pub(super) struct Langfuse;

/// Langfuse's own judges run in environments with this prefix.
const OWN_ENVIRONMENT: &str = "langfuse-";

impl Convention for Langfuse {
    fn name(&self) -> &'static str {
        "langfuse"
    }

    fn read(&self, raw: &RawSpan<'_>, _: &RawScope<'_>, draft: &mut Draft) {
        let attributes = &raw.attributes;
        let first = |key: &str| attributes.get(key).and_then(name);
        draft.user.offer(10, first("langfuse.user.id"));
        draft.agent_version.offer(20, first("langfuse.version"));
        draft.environment.offer(10, first("langfuse.environment"));
        for (key, rank) in [("langfuse.trace.input", 5), ("langfuse.observation.input", 15)] {
            let asked = attributes
                .get(key)
                .filter(|_| draft.input.wants(rank))
                .and_then(messages::user_text);
            draft.input.offer(rank, text::ranked(rank, asked));
        }
        for (key, rank) in [("langfuse.trace.output", 5), ("langfuse.observation.output", 15)] {
            let said = attributes
                .get(key)
                .filter(|_| draft.output.wants(rank))
                .and_then(messages::assistant_text);
            draft.output.offer(rank, text::ranked(rank, said));
        }
        let Some(kind) = attributes.str("langfuse.observation.type") else { return };
        let judges = attributes
            .str("langfuse.environment")
            .is_some_and(|own| own.starts_with(OWN_ENVIRONMENT));
        let operation = match kind {
            _ if judges => Operation::Evaluation,
            "generation" => Operation::Chat,
            "tool" => Operation::ExecuteTool,
            "agent" => Operation::InvokeAgent,
            "embedding" => Operation::Embeddings,
            "retriever" => Operation::Retrieval,
            "evaluator" => Operation::Evaluation,
            _ => Operation::Other,
        };
        draft.convention.offer(5, self.name());
        draft.operation.offer(5, operation);
        let level = attributes.str("langfuse.observation.level").unwrap_or_default();
        draft.failed |= ["ERROR", "FATAL", "CRITICAL"].contains(&level);
        draft.arguments.offer(50, text::arguments(attributes, "langfuse.observation.input"));
        draft.result_hash.offer(50, text::result(attributes, "langfuse.observation.output"));
        draft.model.offer(30, first("langfuse.observation.model.name"));
        let calls = attributes
            .get("langfuse.observation.output")
            .map(messages::tool_calls)
            .unwrap_or_default();
        draft.tool_calls.offer(50, (!calls.is_empty()).then_some(calls));
        let json = |key: &str| attributes.get(key).and_then(messages::parsed);
        if let Some(usage) = json("langfuse.observation.usage_details") {
            draft.input_tokens.offer(5, tokens(&usage, "prompt_tokens", "input"));
            draft.output_tokens.offer(5, tokens(&usage, "completion_tokens", "output"));
        }
        let cost =
            json("langfuse.observation.cost_details").and_then(|cost| cost.get("total")?.as_f64());
        draft.cost.offer(10, cost.and_then(Quanta::from_f64));
    }
}

/// Tokens of one side: the provider's total, else the sum of Langfuse's parts, which exclude one another.
fn tokens(usage: &Value, total: &str, part: &str) -> Option<u64> {
    if let Some(total) = usage.get(total).and_then(Value::as_u64) {
        return Some(total);
    }
    let parts = usage.as_object()?.iter().filter(|(key, _)| key.starts_with(part));
    parts.filter_map(|(_, count)| count.as_u64()).reduce(u64::saturating_add)
}
