//! The draft of a span, which conventions fill: for each concept the best value so far.
//!
//! Several conventions may read one span. Each offers its values with a rank, and the lowest rank wins, so the order of the
//! conventions does not matter.

use std::borrow::Cow;
use std::sync::Arc;

use super::caps::Caps;
use super::json::{self, Json};
use super::messages::{InputFacts, OutputFacts};
use super::raw::{RawSpan, RawValue};
use super::{messages, text};
use crate::math::Quanta;
use crate::span::{
    Arguments, Attempt, Guardrail, Operation, Pause, Remarks, Text, Tokens, ToolFacts, ToolResult,
    Violation,
};

/// The best value of a concept so far, by rank; of equal ranks the first.
#[derive(Clone, Debug)]
pub(super) struct Ranked<T>(Option<(u8, T)>);

/// The values that conventions offer for a span.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft<'v> {
    /// The convention that decided on the operation.
    pub(super) convention: Ranked<&'static str>,
    pub(super) operation: Ranked<Operation>,
    pub(super) agent_name: Ranked<Cow<'v, str>>,
    pub(super) workflow: Ranked<Cow<'v, str>>,
    pub(super) agent_id: Ranked<Cow<'v, str>>,
    pub(super) agent_version: Ranked<Cow<'v, str>>,
    pub(super) environment: Ranked<Cow<'v, str>>,
    pub(super) user: Ranked<Cow<'v, str>>,
    pub(super) session: Ranked<SessionDraft<'v>>,
    pub(super) tool_name: Ranked<Cow<'v, str>>,
    pub(super) tool_call_id: Ranked<Cow<'v, str>>,
    pub(super) arguments: Ranked<Arguments>,
    pub(super) result_hash: Ranked<u64>,
    /// Whether results are kept as texts too.
    pub(super) keep_texts: bool,
    pub(super) result: Ranked<Text>,
    pub(super) model: Ranked<Cow<'v, str>>,
    pub(super) requested_model: Ranked<Cow<'v, str>>,
    /// Whether the model is self-hosted.
    pub(super) local: Ranked<bool>,
    pub(super) response_id: Ranked<Cow<'v, str>>,
    pub(super) input_tokens: Ranked<u64>,
    pub(super) cached_tokens: Ranked<u64>,
    pub(super) cache_written_tokens: Ranked<u64>,
    pub(super) total_tokens: Ranked<u64>,
    pub(super) output_tokens: Ranked<u64>,
    pub(super) cost: Ranked<Quanta>,
    /// Whether the cost is in another currency than dollars.
    pub(super) foreign: Ranked<bool>,
    pub(super) compacted: Ranked<bool>,
    pub(super) first_chunk_nanos: Ranked<u64>,
    pub(super) tool_calls: Ranked<Vec<ToolFacts>>,
    pub(super) tool_results: Ranked<Vec<ToolResult>>,
    pub(super) asked_by_user: Ranked<bool>,
    pub(super) input: Ranked<Text>,
    pub(super) output: Ranked<Text>,
    /// Whether some attribute says that the span failed.
    pub(super) failed: bool,
    /// Whether that was the failure of a part, after which the span continued.
    pub(super) succeeded_anyway: Ranked<bool>,
    pub(super) error_type: Ranked<Cow<'v, str>>,
    /// Whether a status of OK says nothing about the span, as its library gives it to all spans.
    pub(super) always_ok: Ranked<bool>,
    /// Whether its parts report the failure, too, and they alone show whether the whole failed.
    pub(super) repeated: Ranked<bool>,
    /// Whether some attribute says that something stopped the span.
    pub(super) stopped: bool,
    /// For a streamed response to the request of another span, the time until it came.
    pub(super) streamed_nanos: Option<u64>,
    attempt: Option<Box<AttemptDraft<'v>>>,
    remarks: Option<Box<RemarksDraft<'v>>>,
    /// From message events: the last user's text, the last tool's results, and whether the last message is a user's.
    pub(super) event_input: Option<String>,
    pub(super) event_results: Option<Vec<ToolResult>>,
    pub(super) last_asked: Option<bool>,
}

/// A session id, and the attribute that it was found in.
#[derive(Clone, Debug)]
pub(super) struct SessionDraft<'v> {
    pub(super) attribute: &'v str,
    pub(super) id: Cow<'v, str>,
}

/// The values that conventions offer for the attempt that a span is part of.
#[derive(Clone, Debug, Default)]
pub(super) struct AttemptDraft<'v> {
    pub(super) task: Ranked<Cow<'v, str>>,
    pub(super) run: Ranked<Cow<'v, str>>,
    pub(super) trial: Ranked<Cow<'v, str>>,
    pub(super) success: Ranked<bool>,
    pub(super) abstained: Ranked<bool>,
    pub(super) perturbation: Ranked<Cow<'v, str>>,
    pub(super) perturbation_id: Ranked<Cow<'v, str>>,
    pub(super) baseline: Ranked<bool>,
    pub(super) expected_output: Ranked<Cow<'v, str>>,
    pub(super) expected_tools: Ranked<Vec<Arc<str>>>,
    pub(super) retrieved: Ranked<Vec<Arc<str>>>,
    pub(super) cited: Ranked<Vec<Arc<str>>>,
    pub(super) violations: Vec<Violation>,
}

/// The values that conventions offer apart from calls.
#[derive(Clone, Debug, Default)]
pub(super) struct RemarksDraft<'v> {
    pub(super) previous_session: Ranked<Cow<'v, str>>,
    pub(super) guardrail: Ranked<Cow<'v, str>>,
    pub(super) guardrail_result: Ranked<Cow<'v, str>>,
    pub(super) begins: Ranked<Cow<'v, str>>,
    pub(super) pause: Option<Pause>,
    pub(super) interrupted: bool,
    pub(super) failed_run: bool,
}

/// Texts and names that mean no value.
const PLACEHOLDERS: [&str; 7] = [
    "<not specified>",
    "<REDACTED>",
    "[REDACTED]",
    "<elided>",
    "N/A",
    "HIDDEN:non-empty",
    "HIDDEN:empty",
];

impl<'v> Draft<'v> {
    /// Makes an empty draft; with `keep_texts`, results are kept as texts too.
    pub(super) fn new(keep_texts: bool) -> Self {
        Self { keep_texts, ..Self::default() }
    }

    /// Returns the draft of the attempt, created on first use, as few spans mention one.
    pub(super) fn attempt(&mut self) -> &mut AttemptDraft<'v> {
        self.attempt.get_or_insert_default()
    }

    /// Takes the attempt; `None` if nothing was offered.
    pub(super) fn take_attempt(&mut self, caps: &Caps<'_>) -> Option<Box<Attempt>> {
        self.attempt.take()?.finish(caps)
    }

    /// Returns the draft of the remarks, created on first use, as few spans have any.
    pub(super) fn remarks(&mut self) -> &mut RemarksDraft<'v> {
        self.remarks.get_or_insert_default()
    }

    /// Whether the span ended early for a person to answer.
    pub(super) fn is_interrupted(&self) -> bool {
        self.remarks.as_ref().is_some_and(|remarks| remarks.interrupted)
    }

    /// Takes the remarks, with names as `shared` returns them; `None` if there are none.
    pub(super) fn take_remarks(&mut self, caps: &Caps<'_>) -> Option<Box<Remarks>> {
        let mut said = self.remarks.take()?;
        let previous = said.previous_session.take();
        let take =
            |from: &mut Ranked<Cow<'_, str>>| from.take().map(|name| Arc::from(caps.name(&name)));
        let (name, result) = (take(&mut said.guardrail), take(&mut said.guardrail_result));
        let remarks = Remarks {
            previous_session: previous.map(|id| Arc::from(caps.id(&id))),
            guardrail: (name.is_some() || result.is_some()).then_some(Guardrail { name, result }),
            begins: take(&mut said.begins),
            pause: said.pause,
            accepted_edit: None,
            error_type: None,
            interrupted: said.interrupted,
            refused: false,
            failed_run: said.failed_run,
        };
        (remarks != Remarks::default()).then(|| Box::new(remarks))
    }

    /// Offers the tokens of a model call.
    pub(super) fn offer_tokens(&mut self, rank: u8, tokens: Tokens) {
        self.input_tokens.offer(rank, tokens.input);
        self.cached_tokens.offer(rank, tokens.cached);
        self.cache_written_tokens.offer(rank, tokens.cache_written);
        self.output_tokens.offer(rank, tokens.output);
    }

    /// Offers the name of a trace's root that does no work itself as that of the workflow.
    pub(super) fn offer_root(&mut self, raw: &'v RawSpan<'_>) {
        let is_step = matches!(self.operation.get(), None | Some(Operation::Other));
        if raw.parent.is_none() && is_step {
            self.workflow.offer(80, Cow::from(&*raw.name));
        }
    }

    /// Takes the workflow's name. The input is not one: some libraries name a run by it, which would be another agent for each text.
    pub(super) fn take_workflow(&mut self) -> Option<Cow<'v, str>> {
        let asked = self.input.get().map(|input| &*input.text);
        self.workflow.take().filter(|name| asked != Some(&**name))
    }

    /// Offers an input: its text, and what it shows about the turn.
    pub(super) fn offer_input(&mut self, rank: u8, read: impl FnOnce() -> InputFacts<'v>) {
        let model = self.operation.get() == Some(&Operation::Chat);
        if !(self.input.wants(rank) || model && self.asked_by_user.wants(rank)) {
            return;
        }
        let asked = read();
        self.input.offer(rank, text::of_message(rank, asked.loose, asked.text));
        self.asked_by_user.offer(rank, asked.by_user);
        self.tool_results.offer(rank, (!asked.results.is_empty()).then_some(asked.results));
    }

    /// Offers an output: its text and its calls.
    pub(super) fn offer_output(&mut self, rank: u8, read: impl FnOnce() -> OutputFacts<'v>) {
        let model = self.operation.get() == Some(&Operation::Chat);
        if !(self.output.wants(rank) || model && self.tool_calls.wants(rank)) {
            return;
        }
        let said = read();
        self.output.offer(rank, text::of_message(rank, said.loose, said.text));
        self.tool_calls.offer(rank, (!said.calls.is_empty()).then_some(said.calls));
    }
}

impl AttemptDraft<'_> {
    fn finish(self, caps: &Caps<'_>) -> Option<Box<Attempt>> {
        let name = |held: Ranked<Cow<'_, str>>| held.0.map(|(_, name)| Arc::from(caps.name(&name)));
        let id = |held: Ranked<Cow<'_, str>>| held.0.map(|(_, id)| Arc::from(caps.id(&id)));
        let names = |held: Ranked<Vec<Arc<str>>>| {
            held.0.map(|(_, names)| caps.names(names)).unwrap_or_default()
        };
        let attempt = Attempt {
            task: id(self.task),
            run: id(self.run),
            trial: id(self.trial),
            success: self.success.0.map(|(_, success)| success),
            abstained: self.abstained.0.map(|(_, abstained)| abstained),
            perturbation: name(self.perturbation),
            perturbation_id: id(self.perturbation_id),
            baseline: self.baseline.0.map(|(_, baseline)| baseline),
            expected_output: self.expected_output.0.map(|(_, text)| Arc::from(caps.words(&text))),
            expected_tools: names(self.expected_tools),
            retrieved: names(self.retrieved),
            cited: names(self.cited),
            violations: caps.violations(self.violations),
        };
        (attempt != Attempt::default()).then(|| Box::new(attempt))
    }
}

impl<T> Ranked<T> {
    /// Takes the value if there is none of this rank or a better one.
    pub(super) fn offer(&mut self, rank: u8, value: impl Into<Option<T>>) {
        let held = self.0.as_ref().map(|(rank, _)| *rank);
        if held.is_none_or(|held| rank < held)
            && let Some(value) = value.into()
        {
            self.0 = Some((rank, value));
        }
    }

    /// Whether an offer of this rank would be accepted; values that are costly to read are read only then.
    pub(super) fn wants(&self, rank: u8) -> bool {
        self.0.as_ref().is_none_or(|(held, _)| rank < *held)
    }

    pub(super) fn get(&self) -> Option<&T> {
        self.0.as_ref().map(|(_, value)| value)
    }

    pub(super) fn take(&mut self) -> Option<T> {
        self.0.take().map(|(_, value)| value)
    }

    pub(super) fn take_ranked(&mut self) -> Option<(u8, T)> {
        self.0.take()
    }
}

impl<T> Default for Ranked<T> {
    fn default() -> Self {
        Self(None)
    }
}

/// A name that was written as JSON although there was none.
const NO_NAME: &str = "null";

/// The text without the space around it; `None` if it is empty or a placeholder.
pub(super) fn without_placeholder(text: &str) -> Option<&str> {
    // Most texts begin and end with visible characters.
    let seen = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_graphic);
    let (first, last) = (text.as_bytes().first(), text.as_bytes().last());
    let text = if seen(first) && seen(last) { text } else { text.trim() };
    (!text.is_empty() && !PLACEHOLDERS.contains(&text)).then_some(text)
}

/// Whether a text that begins with this byte and ends with visible characters is a name as it is.
#[inline]
pub(super) fn begins_name(first: u8) -> bool {
    /// By first byte: whether a text may be quoted, a placeholder or JSON's null.
    static OTHERS: [bool; 256] = {
        let mut others = [false; 256];
        others[b'"' as usize] = true;
        others[NO_NAME.as_bytes()[0] as usize] = true;
        let mut at = 0;
        while at < PLACEHOLDERS.len() {
            others[PLACEHOLDERS[at].as_bytes()[0] as usize] = true;
            at += 1;
        }
        others
    };
    first.is_ascii_graphic() && !OTHERS[usize::from(first)]
}

/// The name of a tool, from that of its span; a span of MCP has the method before it. LlamaIndex's method for calling any tool
/// names none.
pub(super) fn tool_named(span: &str) -> Option<&str> {
    if span.ends_with("Tool.call") || span.ends_with("Tool.acall") {
        return None;
    }
    let span = span.rsplit_once("tools/call ").map_or(span, |(_, tool)| tool);
    without_placeholder(span.trim_start_matches("execute_tool ").trim_end_matches(".tool").trim())
}

/// A name, from a string or a number; quotes of JSON are taken off, and its null is none.
pub(super) fn name<'v>(value: &'v RawValue<'_>) -> Option<Cow<'v, str>> {
    if let RawValue::Int(number) = value {
        return Some(number.to_string().into());
    }
    let text = value.as_str()?;
    if !text.starts_with('"') {
        return without_placeholder(text).filter(|text| *text != NO_NAME).map(Cow::from);
    }
    match json::read(text) {
        Some(Json::Text(Cow::Borrowed(inner))) => without_placeholder(inner).map(Cow::from),
        Some(Json::Text(inner)) => without_placeholder(&inner).map(|inner| inner.to_owned().into()),
        _ => without_placeholder(text).map(Cow::from),
    }
}

/// The name of a model, as [`name`] reads it.
pub(super) fn model<'v>(value: &'v RawValue<'_>) -> Option<Cow<'v, str>> {
    name(value).filter(|name| names_model(name.as_bytes()))
}

/// Whether a model may have this name; without a value, as after a failure, Micrometer writes `none`, and Splunk's instrumentations
/// `unknown_model`.
pub(super) fn names_model(name: &[u8]) -> bool {
    name != b"none" && name != b"unknown_model"
}

/// Whether a name is the id of a response of OpenAI's API. If a client continues from the previous response, libraries send its id
/// as that of the conversation, although it differs with every call.
pub(super) fn names_response(name: &str) -> bool {
    let id = name.strip_prefix("resp_");
    id.is_some_and(|id| id.len() >= 24 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Names, from a list of strings or of objects with an `id` or a `name`, as structure or as JSON.
pub(super) fn names(value: &RawValue<'_>) -> Option<Vec<Arc<str>>> {
    let named = |item: &Json<'_>| match item {
        Json::Text(text) => without_placeholder(text).map(Arc::from),
        Json::Number(number) => Some(Arc::from(number.to_string())),
        Json::Object(map) => ["id", "document_id", "name"]
            .iter()
            .find_map(|key| without_placeholder(map.get(key)?.as_str()?))
            .map(Arc::from),
        Json::Null | Json::Bool(_) | Json::List(_) => None,
    };
    let Some(Json::List(items)) = messages::parsed(value) else {
        return name(value).map(|name| vec![Arc::from(name)]);
    };
    let names: Vec<Arc<str>> = items.iter().filter_map(named).collect();
    (!names.is_empty()).then_some(names)
}

/// A word in lower case, copied only if it is not.
pub(super) fn lower(word: &str) -> Cow<'_, str> {
    if word.bytes().any(|byte| byte.is_ascii_uppercase()) {
        word.to_ascii_lowercase().into()
    } else {
        word.into()
    }
}

/// Yes or no, from a boolean, a number or a word.
pub(super) fn flag(value: &RawValue<'_>) -> Option<bool> {
    if let RawValue::Bool(flag) = value {
        return Some(*flag);
    }
    if let RawValue::Int(number) = value {
        return Some(*number != 0);
    }
    match &*lower(value.as_str()?.trim()) {
        "true" | "yes" | "1" => Some(true),
        "false" | "no" | "0" => Some(false),
        _ => None,
    }
}

/// A number, from a number or a string that is one; never NaN or infinite.
pub(super) fn number(value: &RawValue<'_>) -> Option<f64> {
    let number = match value {
        RawValue::Int(number) => Some(*number as f64),
        RawValue::Double(number) => Some(*number),
        RawValue::Bool(flag) => Some(if *flag { 1.0 } else { 0.0 }),
        RawValue::Str(text) => text.trim().parse().ok(),
        RawValue::Null | RawValue::Bytes(_) | RawValue::Array(_) | RawValue::Map(_) => None,
    };
    number.filter(|number: &f64| number.is_finite())
}

/// A count, from a number or a string that is one.
pub(super) fn count(value: &RawValue<'_>) -> Option<u64> {
    if let RawValue::Int(number) = value {
        return u64::try_from(*number).ok();
    }
    if let RawValue::Double(number) = value {
        let is_whole = number.fract().abs() < f64::EPSILON;
        let is_count = is_whole && (0.0..9e15).contains(number);
        return if is_count { format!("{number:.0}").parse().ok() } else { None };
    }
    value.as_str()?.trim().parse().ok()
}
