//! Google's GenAI SDK, by OpenInference.
//!
//! The flattened messages do not show whether a function failed, and lack the functions that the SDK called by itself: those are in
//! the response, as a history that begins with the model's input.

use std::iter;

use super::draft::Draft;
use super::flat::Messages;
use super::json::Json;
use super::raw::RawSpan;
use super::{Convention, Mark, messages};
use crate::span::{IdHash, Operation, SpanId, ToolFacts, ToolResult};

pub(super) const CONVENTION: Convention = Convention {
    name: "google_genai_openinference",
    title: "Google GenAI SDK (by OpenInference)",
    session: "`with using_session(session_id=\"...\"):` of OpenInference around the run",
    agent: "`agent.name` on a span of kind `AGENT` around the calls",
    marks: &[Mark::Scope("openinference.instrumentation.google_genai")],
    also: &[
        "`function_response` in `input.value`: a function that failed, as Google's API tells a model.",
        "`automatic_function_calling_history` in `output.value`: the functions that the SDK called by itself, after what the model was asked. Of the model calls of such a span the last one alone tells its usage, and they count as one.",
    ],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    if draft.operation.get() != Some(&Operation::Chat) {
        return;
    }
    let attribute = |key: &str| raw.attributes.get(key);
    let input = attribute("input.value");
    let mut results = input.map(|input| messages::asked(input).results).unwrap_or_default();
    if let Some(response) = attribute("output.value").and_then(messages::parsed) {
        let asked = input.and_then(messages::parsed);
        let asked = asked.as_ref().and_then(|asked| asked.get("contents"));
        let (mut calls, called) = called_by_itself(raw.span_id, asked, &response);
        if !calls.is_empty() {
            calls.extend(Messages::of(&raw.attributes, "llm.output_messages.").said().calls);
            draft.tool_calls.offer(20, calls);
            results.extend(called);
        }
    }
    draft.tool_results.offer(20, (!results.is_empty()).then_some(results));
}

/// The functions that the SDK called by itself, and their results. If the API gave a call no id, call and result get one by their
/// position, if there are as many of both.
fn called_by_itself(
    span: SpanId,
    asked: Option<&Json<'_>>,
    response: &Json<'_>,
) -> (Vec<ToolFacts>, Vec<ToolResult>) {
    let before = match asked {
        Some(Json::List(contents)) => contents.len(),
        Some(_) | None => 1,
    };
    let history = response.get("automatic_function_calling_history").and_then(Json::as_list);
    let history = history.and_then(|history| history.get(before..)).unwrap_or_default();
    let (mut calls, mut results) = messages::exchanged(history);
    if calls.len() == results.len() {
        for (at, (call, result)) in iter::zip(&mut calls, &mut results).enumerate() {
            if call.call_id.is_none() && result.call_id.is_none() {
                let id = Some(IdHash::from(&*format!("{span} {at}")));
                (call.call_id, result.call_id) = (id, id);
            }
        }
    }
    (calls, results)
}
