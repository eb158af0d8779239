//! LangWatch's SDK: a span has a type, and its input and output are JSON of the form `{"type": "...", "value": ...}`.

use std::borrow::Cow;

use super::draft::Draft;
use super::json::Json;
use super::lines::{Concept, line};
use super::messages::{self, InputFacts, OutputFacts};
use super::raw::{RawAttributes, RawSpan, RawValue};
use super::{Convention, Trigger, arguments, text};
use crate::span::Operation;

const INPUT: &str = "langwatch.input";
const OUTPUT: &str = "langwatch.output";

pub(super) const CONVENTION: Convention = Convention {
    name: "langwatch",
    title: "LangWatch SDK",
    session: "`langwatch.get_current_trace().update(metadata={\"thread_id\": \"...\"})`",
    agent: "the name of the span of type `agent`, else of the root",
    lines: &[
        line(Concept::Operation(operation), 77, "langwatch.span.type"),
        line(Concept::User, 33, "langwatch.user.id"),
        line(Concept::Retrieved, 66, "langwatch.rag_contexts"),
    ],
    also: &[
        "`value` in `langwatch.input` and `langwatch.output`: messages or texts, and a tool's arguments and result.",
        "`user_id` in `metadata`. A root of no type of its own is the workflow.",
    ],
    generic_names: &["span"],
    looks_for: &[Trigger::Key("langwatch.span.type"), Trigger::Key(INPUT), Trigger::Key(OUTPUT)],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let attributes = &raw.attributes;
    if attributes.get("langwatch.span.type").is_some() {
        let metadata = attributes.get("metadata").and_then(messages::parsed);
        let user = metadata.as_ref().and_then(|told| told.get("user_id")?.as_str());
        draft.user.offer(86, user.map(|user| Cow::Owned(user.to_owned())));
        draft.offer_root(raw);
    }
    if draft.operation.get() == Some(&Operation::ExecuteTool) {
        read_tool(attributes, draft);
        return;
    }
    if attributes.get(INPUT).is_some() {
        draft.offer_input(81, || value(attributes, INPUT).as_ref().map(asked).unwrap_or_default());
    }
    if attributes.get(OUTPUT).is_some() {
        draft.offer_output(81, || value(attributes, OUTPUT).as_ref().map(said).unwrap_or_default());
    }
}

fn read_tool(attributes: &RawAttributes<'_>, draft: &mut Draft<'_>) {
    if let Some(input) = value(attributes, INPUT) {
        draft.arguments.offer(84, text::arguments(&input, draft.keep_texts));
    }
    if let Some(output) = value(attributes, OUTPUT) {
        draft.failed |= arguments::is_failure(&output);
        draft.result_hash.offer(84, text::result(&output));
        draft.result.offer(84, text::plain(84, &output).filter(|_| draft.keep_texts));
    }
}

/// The value of an input or an output, without its type; `None` if there is none of this form.
fn value(attributes: &RawAttributes<'_>, key: &str) -> Option<RawValue<'static>> {
    let told = messages::parsed(attributes.get(key)?)?;
    told.get("type").and_then(Json::as_str)?;
    let value = told.get("value").filter(|value| **value != Json::Null)?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Some(RawValue::Str(text.into()))
}

fn asked(value: &RawValue<'_>) -> InputFacts<'static> {
    let asked = messages::asked(value);
    InputFacts {
        text: asked.text.map(|text| Cow::Owned(text.into_owned())),
        results: asked.results,
        by_user: asked.by_user,
        loose: asked.loose,
    }
}

fn said(value: &RawValue<'_>) -> OutputFacts<'static> {
    let said = messages::said(value);
    OutputFacts {
        text: said.text.map(|text| Cow::Owned(text.into_owned())),
        calls: said.calls,
        loose: said.loose,
    }
}

fn operation(kind: &str) -> Option<Operation> {
    match kind {
        "agent" => Some(Operation::InvokeAgent),
        "llm" => Some(Operation::Chat),
        "tool" => Some(Operation::ExecuteTool),
        "rag" => Some(Operation::Retrieval),
        "evaluation" => Some(Operation::Evaluation),
        _ => None,
    }
}
