//! Haystack's own tracing, by whatever OpenTelemetry tracer the application passes to it.
//!
//! A span is recognised by its name alone: if content is not traced (`HAYSTACK_CONTENT_TRACING_ENABLED`), a model call has no
//! attributes at all. A component's class shows what it does, and its name in the pipeline is the agent's.

use std::borrow::Cow;
use std::sync::Arc;

use super::draft::{Draft, name};
use super::json::Json;
use super::lines::{Concept, line, truth};
use super::messages::OutputFacts;
use super::raw::{RawSpan, RawValue};
use super::{Convention, Trigger, messages, otel_genai, usage};
use crate::span::Operation;

/// The input and the output of a model, by the kind of span.
const ASKED: [&str; 2] = ["haystack.agent.step.llm.input", "haystack.component.input"];
const ANSWERED: [&str; 2] = ["haystack.agent.step.llm.output", "haystack.component.output"];

const COMPONENT: &str = "haystack.component.run";

pub(super) const CONVENTION: Convention = Convention {
    name: "haystack",
    title: "Haystack (`opentelemetry-haystack`, or `OpenTelemetryTracer`)",
    session: "`session.id` on a span around the run; for texts and tokens set `HAYSTACK_CONTENT_TRACING_ENABLED=true`",
    agent: "the name that the `Agent` has in its pipeline, or `gen_ai.agent.name` on a span around the run",
    lines: &[
        line(Concept::Failed(truth), 64, "haystack.tool.error"),
        line(Concept::ToolName, 64, "haystack.tool.name"),
        line(Concept::ToolArguments, 64, "haystack.agent.step.tool.input"),
        line(Concept::ToolResult, 64, "haystack.agent.step.tool.output"),
        line(Concept::Input, 76, "haystack.agent.input"),
        line(Concept::Output, 76, "haystack.agent.output"),
    ],
    also: &[
        "Spans `haystack.agent.run`, `.step.llm` and `.step.tool`, `haystack.chat_generator.run`, and `haystack.component.run` by the end of the class in `haystack.component.type`: `Agent`, `Generator`, `Embedder`, `Retriever`, `Ranker`, `Evaluator`.",
        "`haystack.agent.step.llm.input` and `.output`, of components `haystack.component.input` and `.output`: messages, and in `meta` of the replies the model, the usage and the finish reason; ids of `documents` that were found.",
        "`haystack.component.name` names the agent on spans of components of the class `Agent`.",
    ],
    generic_names: &["haystack.agent.run", COMPONENT],
    looks_for: &[
        Trigger::Span("haystack.agent.run"),
        Trigger::Span("haystack.agent.step.llm"),
        Trigger::Span("haystack.agent.step.tool"),
        Trigger::Span("haystack.chat_generator.run"),
        Trigger::Span(COMPONENT),
    ],
    operation,
    read,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    let operation = match &*raw.name {
        "haystack.agent.run" => Operation::InvokeAgent,
        "haystack.agent.step.llm" | "haystack.chat_generator.run" => Operation::Chat,
        "haystack.agent.step.tool" => Operation::ExecuteTool,
        COMPONENT => of_class(raw.attributes.str("haystack.component.type")?),
        _ => return None,
    };
    Some((64, operation))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let attributes = &raw.attributes;
    let first = |keys: &[&str]| keys.iter().find_map(|key| attributes.get(key));
    match draft.operation.get() {
        Some(Operation::Chat) => {
            if let Some(asked) = first(&ASKED) {
                draft.offer_input(77, || messages::asked(asked));
            }
            if let Some(answered) = first(&ANSWERED) {
                draft.offer_output(77, || replies(answered));
                offer_reply(answered, draft);
            }
        }
        Some(Operation::InvokeAgent) if raw.name == COMPONENT => {
            draft.agent_name.offer(64, attributes.get("haystack.component.name").and_then(name));
            if let Some(asked) = attributes.get("haystack.component.input") {
                draft.offer_input(77, || messages::asked(asked));
            }
            if let Some(answered) = attributes.get("haystack.component.output") {
                draft.offer_output(77, || messages::said(answered));
            }
        }
        Some(Operation::Retrieval) => {
            let found = attributes.get("haystack.component.output").and_then(documents);
            if let Some(found) = found {
                draft.attempt().retrieved.offer(64, found);
            }
        }
        Some(_) | None => {}
    }
}

/// What a component does, by the end of its class's name.
fn of_class(class: &str) -> Operation {
    let ends = |end: &str| class.ends_with(end);
    if ends("Agent") {
        Operation::InvokeAgent
    } else if ends("Generator") && !ends("ImageGenerator") {
        Operation::Chat
    } else if ends("Embedder") {
        Operation::Embeddings
    } else if ends("Retriever") || ends("Ranker") {
        Operation::Retrieval
    } else if ends("Evaluator") {
        Operation::Evaluation
    } else {
        Operation::Other
    }
}

/// Reads the replies of a model: messages or, of generators that complete a prompt, plain texts.
fn replies<'v>(answered: &'v RawValue<'_>) -> OutputFacts<'v> {
    let parsed = messages::parsed(answered);
    let replies = parsed.as_ref().and_then(|parsed| parsed.get("replies")?.as_list());
    match replies.and_then(|replies| replies.last()?.as_text()) {
        Some(text) => OutputFacts { text: Some(text.clone()), ..OutputFacts::default() },
        None => messages::said(answered),
    }
}

/// Offers the facts of the last reply: its model, its usage, and why it ended.
fn offer_reply(answered: &RawValue<'_>, draft: &mut Draft<'_>) {
    let Some(parsed) = messages::parsed(answered) else { return };
    let last = |key: &str| parsed.get(key)?.as_list()?.last();
    // Generators that complete a prompt put them beside the texts; older versions have names with an underscore.
    let of_reply =
        last("replies").and_then(|reply| reply.get("meta").or_else(|| reply.get("_meta")));
    let Some(meta) = of_reply.or_else(|| last("meta")) else { return };
    let model = meta.get("model").and_then(Json::as_str).map(str::to_owned);
    draft.model.offer(64, model.map(Cow::from));
    if let Some(usage) = meta.get("usage") {
        draft.offer_tokens(64, usage::tokens(usage));
    }
    let reason = meta.get("finish_reason").and_then(Json::as_str);
    draft.stopped |=
        reason.is_some_and(|reason| otel_genai::stopped(&RawValue::Str(reason.into())));
}

/// Ids of the documents that a component returned, in order.
fn documents(output: &RawValue<'_>) -> Option<Vec<Arc<str>>> {
    let parsed = messages::parsed(output)?;
    let documents = parsed.get("documents")?.as_list()?.iter();
    let ids: Vec<Arc<str>> =
        documents.filter_map(|document| document.get("id")?.as_str()).map(Arc::from).collect();
    (!ids.is_empty()).then_some(ids)
}
