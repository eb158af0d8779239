//! Braintrust's own attributes, as its SDKs for Java, Go and others send them by OTLP: `braintrust.span_attributes` is the kind of
//! a span, beside its input, output, metadata and metrics, each as JSON.

use std::borrow::Cow;

use super::draft::Draft;
use super::json::Json;
use super::lines::{Concept, line};
use super::raw::RawSpan;
use super::{Convention, Trigger, messages, usage};
use crate::span::{Operation, Tokens};

/// The destination of a span at Braintrust; all spans have it.
const PARENT: &str = "braintrust.parent";

/// What a span is about, as JSON.
const ABOUT: &str = "braintrust.span_attributes";

pub(super) const CONVENTION: Convention = Convention {
    name: "braintrust",
    title: "Braintrust SDKs (OpenTelemetry)",
    session: "`session.id` on a span around the run",
    agent: "the name of the root span, or `gen_ai.agent.name` on a span of your own around the run",
    lines: &[
        line(Concept::ToolArguments, 84, "braintrust.input_json"),
        line(Concept::ToolArguments, 85, "braintrust.input"),
        line(Concept::ToolResult, 84, "braintrust.output_json"),
        line(Concept::ToolResult, 85, "braintrust.output"),
        line(Concept::Input, 84, "braintrust.input_json"),
        line(Concept::Input, 85, "braintrust.input"),
        line(Concept::Output, 84, "braintrust.output_json"),
        line(Concept::Output, 85, "braintrust.output"),
    ],
    also: &[
        "`type` in `braintrust.span_attributes`: `llm`, `tool` and `score`; a root of another type is the workflow. A tool of LangChain4j that threw tells no type.",
        "On model calls, the tokens in `braintrust.metrics` and `model` in `braintrust.metadata`.",
    ],
    looks_for: &[Trigger::Key(ABOUT), Trigger::Key(PARENT)],
    operation,
    read,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    let about = part(raw, ABOUT);
    let operation = match about.as_ref().and_then(|about| about.get("type")?.as_str()) {
        Some("llm") => Operation::Chat,
        Some("tool") => Operation::ExecuteTool,
        Some("score") => Operation::Evaluation,
        Some(_) => return None,
        None => tool_that_threw(raw).then_some(Operation::ExecuteTool)?,
    };
    Some((77, operation))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    if raw.attributes.get(ABOUT).is_none() {
        return;
    }
    draft.offer_root(raw);
    if draft.operation.get() == Some(&Operation::Chat) {
        let metrics = part(raw, "braintrust.metrics");
        draft.offer_tokens(77, metrics.as_ref().map(tokens).unwrap_or_default());
        let metadata = part(raw, "braintrust.metadata");
        let model = metadata.as_ref().and_then(|metadata| metadata.get("model")?.as_str());
        draft.model.offer(77, model.map(|model| Cow::Owned(model.to_owned())));
    }
}

/// Whether a span is a tool of LangChain4j that threw an exception, which has no other sign of it.
fn tool_that_threw(raw: &RawSpan<'_>) -> bool {
    let exceptions = raw.events.iter().filter(|event| event.name == "exception");
    let mut kinds = exceptions.filter_map(|event| event.attributes.str("exception.type"));
    raw.attributes.get(PARENT).is_some()
        && kinds.any(|kind| kind == "dev.langchain4j.exception.ToolExecutionException")
}

/// The JSON of an attribute.
fn part<'v>(raw: &'v RawSpan<'_>, key: &str) -> Option<Json<'v>> {
    raw.attributes.get(key).and_then(messages::parsed)
}

fn tokens(metrics: &Json<'_>) -> Tokens {
    let count = |key: &str| metrics.get(key).and_then(Json::as_u64);
    let told = usage::tokens(metrics);
    Tokens {
        cached: told.cached.or_else(|| count("prompt_cached_tokens")),
        cache_written: told.cache_written.or_else(|| count("prompt_cache_creation_tokens")),
        ..told
    }
}
