//! Model and tool calls, assembled from spans and records, and which of these describe the same call.

use std::ops::Deref;
use std::sync::Arc;

use super::candidates::{CLOSER, Candidates};
use super::span_view::{ArgumentsView, Model, SpanView, TextView, Tool};
use crate::span::{IdHash, SpanId, Status, Timestamp, Tokens, is_same_value, placed};

/// A model call, assembled from one span or several.
#[derive(Clone, Debug)]
pub(super) struct ModelCall<'s> {
    pub(super) span: &'s SpanView<'s>,
    pub(super) end: Timestamp,
    pub(super) failed: bool,
    /// The kind of error, if the call failed.
    pub(super) error_type: Option<&'s Arc<str>>,
    pub(super) stopped: bool,
    pub(super) at: usize,
    /// Whether a log record is among its sources.
    pub(super) recorded: bool,
    // Present if the call has several sources; otherwise its span has everything.
    sources: Option<Box<ModelSources<'s>>>,
}

/// The combined facts of the sources of a model call.
#[derive(Clone, Copy, Debug)]
struct ModelSources<'s> {
    model: Option<Model<'s>>,
    input: Option<TextView<'s>>,
    output: Option<TextView<'s>>,
}

/// A tool call, assembled from one span or several.
#[derive(Clone, Debug)]
pub(super) struct ToolSpan<'s> {
    pub(super) span: &'s SpanView<'s>,
    pub(super) end: Timestamp,
    status: Status,
    pub(super) failed: bool,
    /// The kind of error, if the call failed.
    pub(super) error_type: Option<&'s Arc<str>>,
    /// Whether a log record is among its sources.
    pub(super) recorded: bool,
    /// The id of the series that this call belongs to: that of the call, or of the parallel agent, that contains it.
    pub(super) within: Option<usize>,
    // The scopes of other libraries that also recorded the call.
    also: Vec<u64>,
    // Present if the call has several sources; otherwise its span has everything.
    sources: Option<Box<ToolSources<'s>>>,
}

/// The combined facts of the sources of a tool call.
#[derive(Clone, Copy, Debug)]
struct ToolSources<'s> {
    tool: Option<Tool<'s>>,
    output: Option<TextView<'s>>,
}

impl<'s> ModelCall<'s> {
    /// The model call of a span.
    pub(super) fn of(span: &'s SpanView<'s>) -> Self {
        Self {
            span,
            end: span.end,
            failed: span.failed,
            error_type: span.error_type(),
            stopped: span.stopped,
            at: span.at,
            recorded: span.is_record(),
            sources: None,
        }
    }

    /// The facts of the call.
    pub(super) fn model(&self) -> Option<Model<'s>> {
        self.sources.as_ref().map_or_else(|| self.span.model(), |sources| sources.model)
    }

    /// The tokens of the call.
    fn tokens(&self) -> Option<Tokens> {
        match &self.sources {
            None => self.span.tokens(),
            Some(sources) => Some(sources.model?.tokens),
        }
    }

    /// Whether it is known how many tokens the call used.
    pub(super) fn is_counted(&self) -> bool {
        let tokens = self.tokens().unwrap_or_default();
        tokens.input.is_some() || tokens.output.is_some()
    }

    /// The position in the order of calls: a call during which another one begins comes before it, as when a library runs tools,
    /// and with them other agents, within the call that requested them.
    pub(super) fn order(&self) -> (Timestamp, Timestamp, SpanId) {
        (self.start, self.end, self.span_id)
    }

    /// The hash of the response id.
    pub(super) fn response_id(&self) -> Option<IdHash> {
        match &self.sources {
            None => self.span.response_id(),
            Some(sources) => sources.model?.response_id,
        }
    }

    /// The facts of the call, if they are more than a name, tokens and what ends the input.
    pub(super) fn details(&self) -> Option<Model<'s>> {
        self.sources.as_ref().map_or_else(|| self.span.model_details(), |sources| sources.model)
    }

    pub(super) fn input(&self) -> Option<TextView<'s>> {
        self.sources.as_ref().map_or_else(|| self.span.input(), |sources| sources.input)
    }

    pub(super) fn output(&self) -> Option<TextView<'s>> {
        self.sources.as_ref().map_or_else(|| self.span.output(), |sources| sources.output)
    }
}

impl<'s> ToolSpan<'s> {
    /// The tool call of a span.
    pub(super) fn of(span: &'s SpanView<'s>) -> Self {
        Self {
            span,
            end: span.end,
            status: span.status,
            failed: span.failed,
            error_type: span.error_type(),
            recorded: span.is_record(),
            within: None,
            also: Vec::new(),
            sources: None,
        }
    }

    /// The facts of the call.
    pub(super) fn tool(&self) -> Option<Tool<'s>> {
        self.sources.as_ref().map_or_else(|| self.span.tool(), |sources| sources.tool)
    }

    pub(super) fn output(&self) -> Option<TextView<'s>> {
        self.sources.as_ref().map_or_else(|| self.span.output(), |sources| sources.output)
    }

    /// Fails if a part of the call has.
    pub(super) fn fail_with(&mut self, part: &Self) {
        self.failed |= part.failed;
        self.error_type = self.error_type.or(part.error_type);
    }

    /// Whether a log record reports that the call began, and no source reports more.
    pub(super) fn is_begun(&self) -> bool {
        self.is_record() && self.status == Status::Unset && !self.failed
    }
}

impl<'s> Deref for ModelCall<'s> {
    type Target = SpanView<'s>;

    fn deref(&self) -> &SpanView<'s> {
        self.span
    }
}

impl<'s> Deref for ToolSpan<'s> {
    type Target = SpanView<'s>;

    fn deref(&self) -> &SpanView<'s> {
        self.span
    }
}

/// Whether two spans, of different libraries, record one call in parallel: one contains the time of the other, and they do not
/// contradict each other.
pub(super) fn beside(one: &ModelCall<'_>, other: &ModelCall<'_>) -> bool {
    let (one_id, other_id) = (one.response_id(), other.response_id());
    one.scope() != other.scope()
        && at_once((one.start, one.end), (other.start, other.end))
        && !(one_id.is_some() && other_id.is_some())
        && agree(one, other)
}

/// Whether one of two time spans contains the other, within a millisecond; or within a few if they overlap, as the preparations of
/// two libraries before a call take time, one after the other.
fn at_once(one: (Timestamp, Timestamp), other: (Timestamp, Timestamp)) -> bool {
    let within = |inner: (Timestamp, Timestamp), outer: (Timestamp, Timestamp), slack: u64| {
        inner.0.0.saturating_add(slack) >= outer.0.0 && inner.1.0 <= outer.1.0.saturating_add(slack)
    };
    let overlap = one.0 < other.1 && other.0 < one.1;
    let slack = if overlap { AROUND } else { MILLISECOND };
    within(one, other, slack) || within(other, one, slack)
}

const MILLISECOND: u64 = 1_000_000;

/// How far the times of two spans of one call may be apart.
pub(super) const AROUND: u64 = 5 * MILLISECOND;

/// The time that a client may take from the end of a call until it writes the record.
pub(super) const LATE: u64 = 1_000_000_000;

/// The index of the call that is the same as this one, if one of them is from a log record and the other from a span: among those
/// in progress at the same time that do not contradict it, the one with the nearest end. None if not all could be compared.
pub(super) fn told_of(
    candidates: &mut Candidates,
    calls: &[ModelCall<'_>],
    call: &ModelCall<'_>,
) -> Option<usize> {
    let overlap = |one: &ModelCall<'_>, other: &ModelCall<'_>| {
        one.start.0 <= other.end.0.saturating_add(LATE)
            && other.start.0 <= one.end.0.saturating_add(LATE)
    };
    let same = |other: &ModelCall<'_>| {
        other.is_record() != call.is_record()
            && !(other.recorded && call.recorded)
            && overlap(other, call)
            && other.failed == call.failed
            && agree(other, call)
    };
    let mut nearest = None;
    candidates.find(|at, steps| {
        *steps += CLOSER / 4;
        let apart = calls[at].end.0.abs_diff(call.end.0);
        if nearest.is_none_or(|(nearest, _)| apart < nearest) && same(&calls[at]) {
            nearest = Some((apart, at));
        }
        false
    });
    nearest.filter(|_| !candidates.is_cut()).map(|(_, at)| at)
}

/// Whether two calls report the same numbers of tokens.
pub(super) fn counted_alike(one: &ModelCall<'_>, other: &ModelCall<'_>) -> bool {
    counted(one).is_some() && counted(one) == counted(other)
}

/// The tokens read and written, if both are known.
fn counted(call: &ModelCall<'_>) -> Option<(u64, u64)> {
    let tokens = call.tokens()?;
    tokens.input.zip(tokens.output)
}

/// Whether both calls report the tokens that they used, and the numbers differ.
pub(super) fn counted_apart(one: &ModelCall<'_>, other: &ModelCall<'_>) -> bool {
    counted(one).zip(counted(other)).is_some_and(|(one, other)| one != other)
}

/// Whether two calls failed before they used any tokens, and were not of different models.
pub(super) fn failed_alike(one: &ModelCall<'_>, other: &ModelCall<'_>) -> bool {
    let silent = |call: &ModelCall<'_>| call.failed && known(call) == 0;
    let (model, other_model) = (one.model().unwrap_or_default(), other.model().unwrap_or_default());
    let names = model.name.zip(other_model.name);
    silent(one) && silent(other) && names.is_none_or(|(name, other)| name.text == other.text)
}

/// Whether the facts of both calls are known, and their tokens do not contradict each other.
fn agree(one: &ModelCall<'_>, other: &ModelCall<'_>) -> bool {
    let (Some(one), Some(other)) = (one.tokens(), other.tokens()) else { return false };
    let alike = |a: Option<u64>, b: Option<u64>| a.is_none() || b.is_none() || a == b;
    alike(one.input, other.input) && alike(one.output, other.output)
}

/// Whether two related spans of different libraries may be of one tool call: they have the same tool and time, and do not
/// contradict each other. Adds the steps that this takes.
pub(super) fn may_be_same(call: &ToolSpan<'_>, own: &ToolSpan<'_>, steps: &mut usize) -> bool {
    // Checked first, as it is the cheapest.
    let beside = call.scope() != own.scope()
        && at_once((call.start, call.end), (own.start, own.end))
        && !(call.recorded || own.recorded);
    if !beside {
        return false;
    }
    let Some((tool, other)) = call.tool().zip(own.tool()) else { return false };
    // Names are as long as their sender likes.
    let name = call.tool_name().map_or(0, |name| name.len());
    *steps += CLOSER + 2 * call.also.len() + name / 4;
    if call.also.contains(&own.scope()) {
        return false;
    }
    let mut within = |one: &ArgumentsView<'_>, other: &ArgumentsView<'_>| {
        let (within, compared) = are_among(one.values, other.values);
        *steps += 2 * compared;
        within
    };
    tool.name.zip(other.name).is_some_and(|(one, other)| {
        one == other || is_served_as(one, other) || is_served_as(other, one)
    }) && tool.call_id.zip(other.call_id).is_none_or(|(id, other)| id == other)
        && tool
            .arguments
            .zip(other.arguments)
            .is_none_or(|(one, other)| within(&one, &other) || within(&other, &one))
}

/// Whether all of some values are among others, whatever their keys, as libraries put the same values under different keys; and how
/// many were compared. Both are sorted.
fn are_among(some: &[u64], all: &[u64]) -> (bool, usize) {
    let mut at = 0;
    for value in some {
        while all.get(at).is_some_and(|other| other >> 32 < value >> 32) {
            at += 1;
        }
        if !all.get(at).is_some_and(|other| is_same_value(*value, *other)) {
            return (false, at);
        }
    }
    (true, at + some.len())
}

/// Whether a call of a tool may be served by a tool of this name: the call's name is this one with a prefix, such as that of a
/// server.
pub(super) fn is_served_as(call: &str, served: &str) -> bool {
    let is_mark = |byte: &u8| !byte.is_ascii_alphanumeric() && byte.is_ascii();
    let same = |one: &u8, other: &u8| one == other || (is_mark(one) && is_mark(other));
    let (call, served) = (call.as_bytes(), served.as_bytes());
    let prefix = call.len().checked_sub(served.len()).filter(|prefix| *prefix > 1);
    prefix.is_some_and(|prefix| {
        let (prefix, name) = call.split_at(prefix);
        prefix.last().is_some_and(is_mark)
            && !served.is_empty()
            && name.iter().zip(served).all(|(one, other)| same(one, other))
    })
}

/// Completes a tool call from another library's span of it. An argument that is a bare value yields to named ones.
pub(super) fn join_tool<'s>(call: &mut ToolSpan<'s>, other: &ToolSpan<'s>) {
    call.also.push(other.scope());
    call.fail_with(other);
    call.status = call.status.max(other.status);
    call.end = call.end.max(other.end);
    let (tool, output) = (call.tool(), call.output());
    let sources = call.sources.get_or_insert_with(|| Box::new(ToolSources { tool, output }));
    sources.output = sources.output.or_else(|| other.output());
    let (Some(tool), Some(more)) = (&mut sources.tool, other.tool()) else { return };
    // The name with a prefix is the one that the model used.
    let longer = |name: &&Arc<str>| tool.name.is_none_or(|own| own.len() < name.len());
    tool.name = more.name.filter(longer).or(tool.name);
    // If the arguments are a bare value, its hash is that of the arguments.
    let is_bare = |asked: &ArgumentsView<'_>| asked.values[..] == [placed(asked.hash, 0)];
    let named = more.arguments.filter(|_| tool.arguments.as_ref().is_none_or(is_bare));
    tool.arguments = named.or(tool.arguments);
    tool.call_id = tool.call_id.or(more.call_id);
    tool.result = tool.result.or(more.result);
}

/// Completes a tool call from another source of it, if one of the two is a log record. A record has all of the arguments, a span
/// has the name that the model used.
pub(super) fn complete_tool<'s>(call: &mut ToolSpan<'s>, other: &ToolSpan<'s>) {
    let recorded = other.recorded;
    if !call.recorded && !recorded {
        return;
    }
    call.recorded |= recorded;
    call.fail_with(other);
    // A call that has a span has ended.
    let over = if recorded { other.status } else { Status::Ok };
    call.status = call.status.max(over);
    call.end = call.end.max(other.end);
    let (tool, output) = (call.tool(), call.output());
    let sources = call.sources.get_or_insert_with(|| Box::new(ToolSources { tool, output }));
    sources.output = sources.output.or_else(|| other.output());
    let (Some(tool), Some(more)) = (&mut sources.tool, other.tool()) else { return };
    let (first, second) = if recorded { (more, *tool) } else { (*tool, more) };
    let arguments = first.arguments.or(second.arguments);
    let name = if recorded { tool.name.or(more.name) } else { more.name.or(tool.name) };
    (tool.arguments, tool.name) = (arguments, name);
    tool.result = tool.result.or(more.result);
}

/// Fills in missing facts of a call from another span of the same call.
pub(super) fn complete<'s>(call: &mut ModelCall<'s>, other: &ModelCall<'s>) {
    call.failed |= other.failed;
    call.error_type = call.error_type.or(other.error_type);
    call.stopped |= other.stopped;
    let (model, input, output) = (call.model(), call.input(), call.output());
    let sources =
        call.sources.get_or_insert_with(|| Box::new(ModelSources { model, input, output }));
    sources.input = sources.input.or_else(|| other.input());
    sources.output = sources.output.or_else(|| other.output());
    let (Some(model), Some(more)) = (&mut sources.model, other.model()) else { return };
    model.compacted |= more.compacted;
    model.local |= more.local;
    model.first_chunk_nanos = model.first_chunk_nanos.or(more.first_chunk_nanos);
    model.name = model.name.or(more.name);
    model.requested = model.requested.or(more.requested);
    model.response_id = model.response_id.or(more.response_id);
    model.tokens.input = model.tokens.input.or(more.tokens.input);
    model.tokens.cached = model.tokens.cached.or(more.tokens.cached);
    model.tokens.cache_written = model.tokens.cache_written.or(more.tokens.cache_written);
    model.tokens.output = model.tokens.output.or(more.tokens.output);
    model.cost = model.cost.or(more.cost);
    model.asked_by_user = model.asked_by_user.or(more.asked_by_user);
    if model.calls.is_empty() {
        model.calls = more.calls;
    }
    if model.results.is_empty() {
        model.results = more.results;
    }
}

/// The rank of a source of a model call: a span is better than a log record, then the one with more facts is better.
pub(super) fn worth(call: &ModelCall<'_>) -> (bool, usize) {
    (!call.is_record(), known(call))
}

/// The number of facts that a source has about its model call.
fn known(call: &ModelCall<'_>) -> usize {
    let count = |model: &Model<'_>| {
        usize::from(model.tokens.input.is_some())
            + usize::from(model.tokens.output.is_some())
            + usize::from(model.cost.is_some())
    };
    call.model().as_ref().map_or(0, count)
}
