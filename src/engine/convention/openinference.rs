//! OpenInference: Phoenix, Arize and the instrumentations of that family.
//!
//! Recognised by `openinference.span.kind`. Messages are flattened over attributes
//! (`llm.output_messages.0.message.content`); `input.value` and `output.value` are the texts of agents and chains, and a
//! tool's arguments and result. `tool.parameters` is a schema, not arguments.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::draft::{Draft, count, name, number};
use super::raw::{RawAttributes, RawScope, RawSpan, RawValue};
use super::{Convention, arguments, messages, text};
use crate::engine::math::Quanta;
use crate::engine::span::{Operation, ToolFacts};

/// The convention.
pub(super) struct OpenInference;

/// Messages of one span beyond which the rest is not read.
const MAX_MESSAGES: usize = 10_000;

impl Convention for OpenInference {
    fn name(&self) -> &'static str {
        "openinference"
    }

    fn read(&self, raw: &RawSpan<'_>, _: &RawScope<'_>, draft: &mut Draft) {
        let attributes = &raw.attributes;
        let Some(kind) = attributes.str("openinference.span.kind") else { return };
        let operation = match kind.to_ascii_uppercase().as_str() {
            "LLM" => Operation::Chat,
            "TOOL" => Operation::ExecuteTool,
            "AGENT" => Operation::InvokeAgent,
            "EMBEDDING" => Operation::Embeddings,
            "RETRIEVER" | "RERANKER" => Operation::Retrieval,
            "EVALUATOR" => Operation::Evaluation,
            _ => Operation::Other,
        };
        draft.convention.offer(10, self.name());
        draft.operation.offer(10, operation);
        let first = |keys: &[&str]| keys.iter().find_map(|key| attributes.get(key)).and_then(name);
        draft.agent_name.offer(20, first(&["agent.name"]));
        draft.user.offer(20, first(&["user.id"]));
        draft.model.offer(20, first(&["llm.response.model_name"]));
        draft.model.offer(60, first(&["llm.model_name", "llm.request.model_name"]));
        draft.input_tokens.offer(20, attributes.get("llm.token_count.prompt").and_then(count));
        draft.output_tokens.offer(20, attributes.get("llm.token_count.completion").and_then(count));
        draft.cost.offer(
            30,
            attributes.get("llm.cost.total").and_then(number).and_then(Quanta::from_f64),
        );
        if operation == Operation::ExecuteTool {
            draft.tool_name.offer(20, first(&["tool.name"]));
            draft.tool_call_id.offer(20, first(&["tool.id", "tool_call.id"]));
            draft.arguments.offer(60, text::arguments(attributes, "input.value"));
            draft.result_hash.offer(60, text::result(attributes, "output.value"));
            draft.phantoms.insert("final_answer");
        } else {
            content(attributes, draft);
        }
        let exception = raw.events.iter().any(|event| event.name == "exception");
        draft.failed |= exception;
    }
}

/// Texts and calls: the flattened messages first, then the values.
fn content(attributes: &RawAttributes<'_>, draft: &mut Draft) {
    let asked = flattened(attributes, "llm.input_messages.");
    let answered = flattened(attributes, "llm.output_messages.");
    let last = |messages: &BTreeMap<usize, Message<'_>>, roles: &[&str]| {
        messages
            .values()
            .rev()
            .find(|message| roles.contains(&message.role))
            .and_then(Message::text)
    };
    draft.input.offer(30, text::ranked(30, last(&asked, &["user", "human"])));
    draft.output.offer(30, text::ranked(30, last(&answered, &["assistant", "ai", "model"])));
    let calls: Vec<ToolFacts> = answered.values().flat_map(Message::tool_calls).collect();
    draft.tool_calls.offer(30, (!calls.is_empty()).then_some(calls));
    if let Some(value) =
        attributes.get("input.value").filter(|_| asked.is_empty() && draft.input.wants(40))
    {
        draft.input.offer(40, text::ranked(40, messages::user_text(value)));
    }
    if let Some(value) = attributes.get("output.value").filter(|_| answered.is_empty()) {
        if draft.output.wants(40) {
            draft.output.offer(40, text::ranked(40, messages::assistant_text(value)));
        }
        if draft.tool_calls.wants(40)
            && *draft.operation.get().unwrap_or(&Operation::Other) == Operation::Chat
        {
            let calls = messages::tool_calls(value);
            draft.tool_calls.offer(40, (!calls.is_empty()).then_some(calls));
        }
    }
}

/// One message, as far as it is on the span.
#[derive(Default)]
struct Message<'a> {
    role: &'a str,
    content: Option<&'a str>,
    parts: BTreeMap<usize, &'a str>,
    calls: BTreeMap<usize, Call<'a>>,
}

#[derive(Default)]
struct Call<'a> {
    id: Option<&'a str>,
    name: Option<&'a str>,
    arguments: Option<&'a RawValue<'a>>,
}

impl Message<'_> {
    fn text(&self) -> Option<String> {
        let parts = || self.parts.values().copied().collect::<Vec<_>>().join("\n");
        let text =
            self.content.filter(|content| !content.is_empty()).map_or_else(parts, str::to_owned);
        (!text.is_empty()).then_some(text)
    }

    fn tool_calls(&self) -> impl Iterator<Item = ToolFacts> + '_ {
        self.calls.values().filter(|call| call.name.is_some()).map(|call| ToolFacts {
            name: call.name.map(Arc::from),
            call_id: call.id.map(Arc::from),
            arguments: call.arguments.map(arguments::canonical),
            result_hash: None,
            phantom: false,
        })
    }
}

/// Collects `PREFIX N .message.` attributes by N.
fn flattened<'a>(attributes: &'a RawAttributes<'a>, prefix: &str) -> BTreeMap<usize, Message<'a>> {
    let mut messages: BTreeMap<usize, Message<'a>> = BTreeMap::new();
    for (key, value) in &attributes.0 {
        let Some((number, field)) = key.strip_prefix(prefix).and_then(numbered) else { continue };
        let Some(field) = field.strip_prefix("message.").filter(|_| number < MAX_MESSAGES) else {
            continue;
        };
        let message = messages.entry(number).or_default();
        let text = value.as_str();
        match field {
            "role" => message.role = text.unwrap_or_default(),
            "content" => message.content = text,
            _ => nested(message, field, value),
        }
    }
    messages
}

/// `contents.M.message_content.text` and `tool_calls.M.tool_call.(id|function.name|function.arguments)`.
fn nested<'a>(message: &mut Message<'a>, field: &str, value: &'a RawValue<'a>) {
    let text = value.as_str();
    if let Some((number, "message_content.text")) =
        field.strip_prefix("contents.").and_then(numbered)
    {
        if let Some(text) = text {
            message.parts.insert(number, text);
        }
        return;
    }
    let Some((number, field)) = field.strip_prefix("tool_calls.").and_then(numbered) else {
        return;
    };
    let call = message.calls.entry(number).or_default();
    match field {
        "tool_call.id" => call.id = text,
        "tool_call.function.name" => call.name = text,
        "tool_call.function.arguments" => call.arguments = Some(value),
        _ => {}
    }
}

fn numbered(key: &str) -> Option<(usize, &str)> {
    let (number, rest) = key.split_once('.')?;
    Some((number.parse().ok()?, rest))
}
