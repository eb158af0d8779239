//! LiteLLM's callback `otel`.
//!
//! Below a span of the application it writes the last call onto that span, including its status, and sends each answered call as a
//! span below it, in the provider's own terms: `llm.openai.usage`, as Python writes a dict.

use super::draft::{Draft, name};
use super::raw::{RawSpan, RawValue};
use super::{Convention, Mark, messages, usage};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "litellm",
    title: "LiteLLM (callback `otel`)",
    session: "`session.id` on a span of your own around the calls",
    agent: "`gen_ai.agent.name` on a span of your own around the calls, named `invoke_agent ...`",
    marks: &[Mark::Key(CALL), Mark::Scope("litellm")],
    also: &[
        "Spans with `llm.<provider>.model` and without `litellm.call_id` are model calls: `llm.<provider>.id`, `.messages`, `.usage`, and `.choices` or `.content`.",
        "A span named `invoke_agent ...` that LiteLLM wrote an answered call onto is still the agent's, and the status OK on it says nothing. What it tells of a failure is that of a call: it is the agent's if that call was the last, which has no `gen_ai.response.id` but that of `litellm.call_id`. A call that was never answered has no span: set `USE_OTEL_LITELLM_REQUEST_SPAN=true`, and each call has one of its own.",
    ],
    operation,
    read,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    if is_call(raw) {
        Some((30, Operation::Chat))
    } else {
        is_caller(raw).then_some((5, Operation::InvokeAgent))
    }
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    if is_caller(raw) {
        draft.always_ok.offer(80, true);
        draft.succeeded_anyway.offer(80, is_answered(raw) && !raised(raw));
    }
    if !is_call(raw) {
        return;
    }
    draft.model.offer(70, said(raw, "model").and_then(name));
    draft.response_id.offer(70, said(raw, "id").and_then(name));
    if let Some(usage) = said(raw, "usage").and_then(messages::parsed) {
        draft.offer_tokens(70, usage::tokens(&usage));
    }
    if let Some(asked) = said(raw, "messages") {
        draft.offer_input(70, || messages::asked(asked));
    }
    if let Some(answer) = said(raw, "choices").or_else(|| said(raw, "content")) {
        draft.offer_output(70, || messages::said(answer));
    }
}

/// The id of the call that a span records, or that was written onto it.
const CALL: &str = "litellm.call_id";

/// Whether a span is a call in the provider's terms.
fn is_call(raw: &RawSpan<'_>) -> bool {
    raw.attributes.get(CALL).is_none() && said(raw, "model").is_some()
}

/// Whether a span is an agent's onto which a call was written.
fn is_caller(raw: &RawSpan<'_>) -> bool {
    raw.name.starts_with("invoke_agent")
        && [CALL, "gen_ai.response.model"].iter().all(|key| raw.attributes.get(key).is_some())
}

/// Whether the last call that was written onto a span was answered: a failed one has only LiteLLM's own id.
fn is_answered(raw: &RawSpan<'_>) -> bool {
    let id = |key: &str| raw.attributes.get(key).and_then(name);
    id("gen_ai.response.id") != id(CALL)
}

/// Whether a span ended with an exception that belongs to no call.
fn raised(raw: &RawSpan<'_>) -> bool {
    let mut exceptions = raw.events.iter().filter(|event| event.name == "exception");
    let of_call = |kind: &str| kind.starts_with("litellm.");
    exceptions.any(|event| !event.attributes.str("exception.type").is_some_and(of_call))
}

/// What a provider said under a name: `usage` in `llm.openai.usage`.
fn said<'v>(raw: &'v RawSpan<'_>, part: &str) -> Option<&'v RawValue<'v>> {
    let is_part = |key: &str| {
        let rest = key.strip_prefix("llm.").and_then(|rest| rest.split_once('.'));
        rest.is_some_and(|(_, name)| name == part)
    };
    raw.attributes.iter().find(|(key, _)| is_part(key)).map(|(_, value)| value)
}
