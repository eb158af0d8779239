//! BeeAI by OpenInference. In TypeScript there is, below the run, a span without duration for each event, whose kind is that of its
//! subject; in Python there are spans of calls, and spans of events beside them.

use std::borrow::Cow;

use super::draft::{Draft, name};
use super::raw::{RawSpan, RawValue};
use super::{Convention, Mark, messages, text};
use crate::span::{Arguments, Operation};

pub(super) const CONVENTION: Convention = Convention {
    name: "beeai",
    title: "BeeAI (by OpenInference)",
    session: "`setSession(context.active(), { sessionId })`, in Python `with using_session(session_id=\"...\"):` of OpenInference around the run",
    agent: "in Python `name=\"...\"`, in TypeScript `agent.name` on a span of kind `AGENT` around the run",
    marks: &[
        Mark::Scope("@arizeai/openinference-instrumentation-beeai"),
        Mark::Scope("openinference.instrumentation.beeai"),
    ],
    also: &[
        "Of the spans of events, whose `target` ends in the event's name, those of `success` and `error` are the call of a model or a tool; all others, and those of agents, are steps. How long a call took is not told.",
        "A tool that names none is called after the part of `target` before the event. `finalAnswer`, by which an agent ends its run, is no call.",
        "In Python, spans of events (`metadata.path`) are steps. What a tool was asked is `input` in `input.value`, beside `options`.",
    ],
    phantoms: &["finalAnswer"],
    generic_names: &["beeai-framework-main"],
    operation,
    read,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    if raw.attributes.get("metadata.path").is_some() {
        return Some((9, Operation::Other));
    }
    let (target, event) = event(raw)?;
    let is_call = ["success", "error"].contains(&event) && !target.starts_with("agent.");
    (!is_call).then_some((9, Operation::Other))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    if draft.operation.get() == Some(&Operation::ExecuteTool) {
        draft.arguments.offer(58, asked_in_python(raw, draft.keep_texts));
    }
    let Some((target, event)) = event(raw) else { return };
    let attribute = |key: &str| raw.attributes.get(key);
    // The status of a model call that failed is OK.
    draft.failed |= event == "error";
    draft.error_type.offer(60, attribute("exception.type").and_then(name));
    match draft.operation.get() {
        Some(Operation::ExecuteTool) => {
            let named = target.rsplit('.').next().map(Cow::from);
            draft.tool_name.offer(90, named);
            let asked = attribute("tool.parameters");
            draft
                .arguments
                .offer(59, asked.and_then(|asked| text::arguments(asked, draft.keep_texts)));
        }
        // The flattened messages have no calls.
        Some(Operation::Chat) => {
            let calls = attribute("output.value").map(|said| messages::said(said).calls);
            draft.tool_calls.offer(29, calls.filter(|calls| !calls.is_empty()));
        }
        Some(_) | None => {}
    }
}

/// The arguments of a tool; Python's spans also have the options.
fn asked_in_python(raw: &RawSpan<'_>, keep_texts: bool) -> Option<Arguments> {
    let called = messages::parsed(raw.attributes.get("input.value")?)?;
    let with_options = called.as_object()?.len() == 2 && called.get("options").is_some();
    let asked = called.get("input").filter(|_| with_options)?.to_string();
    text::arguments(&RawValue::Str(asked.into()), keep_texts)
}

/// The subject of the event of a span, and its name.
fn event<'v>(raw: &'v RawSpan<'_>) -> Option<(&'v str, &'v str)> {
    raw.attributes.str("target")?.rsplit_once('.')
}
