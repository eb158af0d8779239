//! The spans of a trace, packed: what waits for its trace to be done is many times what is worked on.
//!
//! A span is its id and a few dozen bytes, in order of arrival: what it is, which of the optional facts follow, then these,
//! numbers as varints, times relative to the span before it, names as places in a table of the trace, short texts as they are.
//! Long texts stay where they were decoded. Snapshots hold this as it is, so what is written here is read by later releases.

mod resting;
#[cfg(test)]
mod tests;

pub(in crate::engine) use self::resting::ReadId;

use std::iter;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::seen::{Asked, Model, Said, Seen, Session, Sign, Told, Tool};
use crate::engine::bytes::{self, Writer};
use crate::engine::math::Quanta;
use crate::engine::span::{
    Attempt, Operation, Resource, Span, SpanId, Status, Text, Timestamp, Tokens,
};

/// Spans by id, each once.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Spans {
    ids: Vec<SpanId>,
    // Invariant: what `push` has written, one span after the other.
    bytes: Vec<u8>,
    // Names one after the other, and where each ends.
    text: String,
    ends: Vec<u32>,
    // Long texts in the order in which they were written.
    #[serde(default)]
    texts: Vec<Arc<str>>,
    // Likewise those that only people and models read; none once they were forgone.
    #[serde(default)]
    extra: Vec<Arc<str>>,
    #[serde(default)]
    forgone: bool,
    values: Vec<u64>,
    origins: Vec<Origin>,
    attempts: Vec<Attempt>,
    before: Before,
}

/// What came of adding a span.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Added {
    /// It was not there.
    New,
    /// It holds in place of another of its id.
    Instead,
    /// One of its id is there that holds.
    Known,
}

/// Where spans come from.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Origin {
    resource: Arc<Resource>,
    scope: u64,
}

/// The span before, which the next one is told by.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Before {
    start: u64,
    parent: Option<SpanId>,
}

/// Reads spans in order of arrival.
struct Reader<'a> {
    spans: &'a Spans,
    at: usize,
    bytes: &'a [u8],
    texts: &'a [Arc<str>],
    extra: &'a [Arc<str>],
    values: &'a [u64],
    before: Before,
    // Whether the texts of the span stand where they are read; else they are among the names.
    in_place: bool,
}

/// Names are looked for among so many that came first, and so many that came last.
const FIRST: usize = 48;
const LAST: usize = 16;

/// Bytes from which on a text is not copied.
const LONG_BYTES: usize = 256;

/// How a text is written that stands in its place: not at all, long, or else its length, from this number on.
const NO_TEXT: u64 = 0;
const LONG_TEXT: u64 = 1;
const SHORT_TEXT: u64 = 2;

/// A long one that only people and models read: beyond the length of any short one.
const EXTRA_TEXT: u64 = SHORT_TEXT + LONG_BYTES as u64;

/// Operations and states by their numbers.
const OPERATIONS: [Operation; 8] = [
    Operation::Chat,
    Operation::CreateAgent,
    Operation::Embeddings,
    Operation::Evaluation,
    Operation::ExecuteTool,
    Operation::InvokeAgent,
    Operation::Other,
    Operation::Retrieval,
];
const STATUSES: [Status; 3] = [Status::Unset, Status::Ok, Status::Error];

/// Bytes of the longest number.
const LONGEST: usize = 10;

/// Flags beside operation and status.
const FAILED: u64 = 1 << 5;
const PARENT: u64 = 1 << 6;
const SAME_PARENT: u64 = 1 << 7;
/// The first snapshots had texts among the names; with this flag they stand in their place.
const IN_PLACE: u64 = 1 << 8;
/// Later ones had times in nanoseconds; with this flag they stand in the unit that makes them short.
const IN_UNITS: u64 = 1 << 9;

impl Spans {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether there is one of this id.
    pub fn contains(&self, id: SpanId) -> bool {
        self.ids.contains(&id)
    }

    /// Adds a span, with or without the texts that only people and models read. Of two spans of one id the greater
    /// holds, whichever came first.
    pub fn add(&mut self, span: &Span, texts: bool) -> Added {
        self.add_from(span, &span.resource, texts)
    }

    /// The same, of a span that comes from an equal resource.
    pub fn add_from(&mut self, span: &Span, resource: &Arc<Resource>, texts: bool) -> Added {
        let seen = Seen { resource, ..Seen::of(span, texts && !self.forgone) };
        let Some(at) = self.ids.iter().position(|id| *id == span.span_id) else {
            self.push(&seen, Some(span));
            return Added::New;
        };
        if self.iter().nth(at).is_some_and(|held| held.holds_against(&seen)) {
            return Added::Known;
        }
        let mut others = Self { forgone: self.forgone, ..Self::default() };
        for (place, held) in self.iter().enumerate() {
            if place == at { others.push(&seen, Some(span)) } else { others.push(&held, None) }
        }
        *self = others;
        Added::Instead
    }

    /// The spans in order of arrival.
    pub(super) fn iter(&self) -> impl Iterator<Item = Seen<'_>> {
        Reader {
            spans: self,
            at: 0,
            bytes: &self.bytes,
            texts: &self.texts,
            extra: &self.extra,
            values: &self.values,
            before: Before::default(),
            in_place: true,
        }
    }

    /// What tells whether the trace is worth reading.
    pub fn signs(&self) -> impl Iterator<Item = Sign> {
        self.iter().map(|seen| seen.sign())
    }

    /// What the spans are about.
    pub fn operations(&self) -> impl Iterator<Item = Operation> {
        self.iter().map(|seen| seen.operation)
    }

    /// Whether all come from one resource.
    pub fn are_of_one_process(&self) -> bool {
        self.origins.first().is_none_or(|first| {
            let same = |origin: &Origin| {
                Arc::ptr_eq(&origin.resource, &first.resource) || origin.resource == first.resource
            };
            self.origins.iter().all(same)
        })
    }

    /// Does without the long texts that only people and models read, now and later.
    pub fn forgo(&mut self) {
        (self.extra, self.forgone) = (Vec::new(), true);
    }

    /// Gives back room that is not used.
    pub fn shrink(&mut self) {
        self.ids.shrink_to_fit();
        self.bytes.shrink_to_fit();
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.texts.shrink_to_fit();
        self.extra.shrink_to_fit();
        self.origins.shrink_to_fit();
    }

    /// Writes a span; `span` is where it was decoded.
    fn push(&mut self, seen: &Seen<'_>, span: Option<&Span>) {
        let operation = OPERATIONS.iter().position(|known| *known == seen.operation);
        let status = STATUSES.iter().position(|known| *known == seen.status);
        let same = seen.parent == self.before.parent;
        let head = operation.unwrap_or(0) as u64
            | (status.unwrap_or(0) as u64) << 3
            | flag(FAILED, seen.failed)
            | flag(PARENT, seen.parent.is_some())
            | flag(SAME_PARENT, same)
            | IN_PLACE
            | IN_UNITS;
        let optional = [
            !seen.name.is_empty(),
            seen.agent_name.is_some(),
            seen.agent_version.is_some(),
            seen.environment.is_some(),
            seen.session.is_some(),
            seen.session_in_json.is_some(),
            seen.user.is_some(),
            seen.tool.is_some(),
            seen.model.is_some(),
            seen.attempt.is_some(),
            seen.input.is_some(),
            seen.output.is_some(),
        ];
        self.ids.push(seen.span_id);
        self.number(head);
        self.number(flags(&optional));
        let origin = self.origin(seen);
        self.number(origin);
        if let Some(parent) = seen.parent.filter(|_| !same) {
            self.bytes.extend_from_slice(&parent.0);
        }
        let mut to = Writer(std::mem::take(&mut self.bytes));
        to.apart(self.before.start, seen.start.0);
        to.time(seen.end.0.wrapping_sub(seen.start.0));
        self.bytes = to.0;
        self.before = Before { start: seen.start.0, parent: seen.parent };
        let name = Some(seen.name).filter(|name| !name.is_empty());
        let names = [name, seen.agent_name, seen.agent_version, seen.environment];
        names.into_iter().flatten().for_each(|name| self.name(name));
        for session in [seen.session, seen.session_in_json].into_iter().flatten() {
            self.name(session.attribute);
            self.name(session.id);
        }
        seen.user.into_iter().for_each(|user| self.name(user));
        seen.tool.iter().for_each(|tool| self.tool(tool));
        seen.model.iter().for_each(|model| self.model(model));
        if let Some(attempt) = seen.attempt {
            self.number(self.attempts.len() as u64);
            self.attempts.push(attempt.clone());
        }
        let shared = |of: fn(&Span) -> &Option<Text>| Some(&of(span?).as_ref()?.text);
        let (input, output) = (shared(|span| &span.input), shared(|span| &span.output));
        let result = seen.operation == Operation::ExecuteTool;
        for (said, shared, extra) in [(seen.input, input, true), (seen.output, output, result)] {
            if let Some(said) = said {
                self.bytes.push(said.rank);
                self.text(said.text, shared, extra);
            }
        }
    }

    fn tool(&mut self, tool: &Tool<'_>) {
        self.number(flags(&[
            tool.name.is_some(),
            tool.call_id.is_some(),
            tool.arguments.is_some(),
            tool.result.is_some(),
            tool.phantom,
        ]));
        tool.name.into_iter().for_each(|name| self.name(name));
        tool.call_id.into_iter().for_each(|id| self.hash(id));
        if let Some(arguments) = tool.arguments {
            self.hash(arguments.hash);
            self.number(arguments.values.len() as u64);
            self.values.extend_from_slice(arguments.values);
            self.text(arguments.text, None, true);
        }
        tool.result.into_iter().for_each(|hash| self.hash(hash));
    }

    fn model(&mut self, model: &Model<'_>) {
        let Tokens { input, cached, output } = model.tokens;
        self.number(flags(&[
            model.name.is_some(),
            model.response_id.is_some(),
            input.is_some(),
            cached.is_some(),
            output.is_some(),
            model.cost.is_some(),
            !model.calls.is_empty() || !model.results.is_empty(),
            model.asked_by_user.is_some(),
            model.asked_by_user == Some(true),
        ]));
        model.name.into_iter().for_each(|name| self.name(name));
        model.response_id.into_iter().for_each(|id| self.hash(id));
        [input, cached, output].into_iter().flatten().for_each(|count| self.number(count));
        model.cost.into_iter().for_each(|cost| self.signed(cost.0));
        if model.calls.is_empty() && model.results.is_empty() {
            return;
        }
        self.number(model.calls.len() as u64);
        model.calls.iter().for_each(|call| self.tool(call));
        self.number(model.results.len() as u64);
        for told in &model.results {
            self.number(flags(&[told.call_id.is_some(), told.failed, told.hash.is_some()]));
            told.call_id.into_iter().chain(told.hash).for_each(|hash| self.hash(hash));
        }
    }

    /// The place of where a span comes from.
    fn origin(&mut self, seen: &Seen<'_>) -> u64 {
        let same = |origin: &Origin| {
            origin.scope == seen.scope
                && (Arc::ptr_eq(&origin.resource, seen.resource)
                    || origin.resource == *seen.resource)
        };
        let last = self.origins.len().saturating_sub(LAST);
        let found = self.origins.iter().skip(last).position(same);
        let at = found.map_or(self.origins.len(), |at| last + at);
        if found.is_none() {
            let resource = Arc::clone(seen.resource);
            self.origins.push(Origin { resource, scope: seen.scope });
        }
        at as u64
    }

    /// Writes a name: its place in the table.
    fn name(&mut self, name: &str) {
        let known = self.ends.len();
        let found = self
            .find(name, 0..known.min(FIRST))
            .or_else(|| self.find(name, known.saturating_sub(LAST).max(FIRST)..known));
        let at = found.unwrap_or_else(|| self.write_text(name));
        self.number(at as u64);
    }

    /// Where a name is among these places: most others are of another length.
    fn find(&self, name: &str, places: Range<usize>) -> Option<usize> {
        let before = places.start.checked_sub(1).and_then(|before| self.ends.get(before));
        let mut start = usize::try_from(before.copied().unwrap_or(0)).ok()?;
        for (at, end) in places.clone().zip(self.ends.get(places)?) {
            let end = usize::try_from(*end).ok()?;
            if end.wrapping_sub(start) == name.len()
                && self.text.as_bytes().get(start..end) == Some(name.as_bytes())
            {
                return Some(at);
            }
            start = end;
        }
        None
    }

    /// Writes a text, which is hardly ever there twice; `shared` is the same, if it is there.
    fn text(&mut self, text: Option<&str>, shared: Option<&Arc<str>>, extra: bool) {
        match text {
            None => self.number(NO_TEXT),
            Some(text) if text.len() < LONG_BYTES => {
                self.number(SHORT_TEXT + text.len() as u64);
                self.bytes.extend_from_slice(text.as_bytes());
            }
            Some(text) => {
                self.number(if extra { EXTRA_TEXT } else { LONG_TEXT });
                let shared = shared.map_or_else(|| Arc::from(text), Arc::clone);
                if extra { self.extra.push(shared) } else { self.texts.push(shared) }
            }
        }
    }

    fn write_text(&mut self, text: &str) -> usize {
        self.text.push_str(text);
        // Invariant: traces are bounded far below 4 GB of names; what is beyond would be empty.
        self.ends.push(u32::try_from(self.text.len()).unwrap_or(u32::MAX));
        self.ends.len() - 1
    }

    fn written(&self, at: usize) -> Option<&str> {
        let start = at.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        let (start, end) =
            (usize::try_from(start).ok()?, usize::try_from(*self.ends.get(at)?).ok()?);
        self.text.get(start..end)
    }

    fn hash(&mut self, hash: u64) {
        self.bytes.extend_from_slice(&hash.to_le_bytes());
    }

    fn signed(&mut self, number: i64) {
        self.number(((number << 1) ^ (number >> 63)).cast_unsigned());
    }

    fn number(&mut self, number: u64) {
        // As most are.
        if number < 0x80 {
            return self.bytes.push(low(number));
        }
        let (mut bytes, mut length) = ([0; LONGEST], 0);
        let mut left = number;
        for byte in &mut bytes {
            length += 1;
            *byte = low(left);
            left >>= 7;
            if left == 0 {
                break;
            }
            *byte |= 0x80;
        }
        self.bytes.extend_from_slice(bytes.get(..length).unwrap_or_default());
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Seen<'a>;

    fn next(&mut self) -> Option<Seen<'a>> {
        let span_id = *self.spans.ids.get(self.at)?;
        self.at += 1;
        self.span(span_id)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.spans.ids.len().saturating_sub(self.at);
        (left, Some(left))
    }
}

impl<'a> Reader<'a> {
    fn span(&mut self, span_id: SpanId) -> Option<Seen<'a>> {
        let head = self.number()?;
        self.in_place = head & IN_PLACE != 0;
        let has = self.number()?;
        let has = |at: u32| has & 1 << at != 0;
        let origin = self.spans.origins.get(self.place()?)?;
        let parent = match (head & PARENT != 0, head & SAME_PARENT != 0) {
            (false, _) => None,
            (true, true) => self.before.parent,
            (true, false) => Some(SpanId(self.take()?)),
        };
        let (start, end) = if head & IN_UNITS != 0 {
            let mut from = bytes::Reader(self.bytes);
            let start = from.apart(self.before.start);
            let end = start.wrapping_add(from.time());
            self.bytes = from.0;
            (start, end)
        } else {
            let start = self.before.start.wrapping_add(self.signed()?.cast_unsigned());
            (start, start.wrapping_add(self.number()?))
        };
        self.before = Before { start, parent };
        Some(Seen {
            span_id,
            parent,
            start: Timestamp(start),
            end: Timestamp(end),
            operation: *OPERATIONS.get(usize::try_from(head & 7).ok()?)?,
            status: *STATUSES.get(usize::try_from(head >> 3 & 3).ok()?)?,
            failed: head & FAILED != 0,
            scope: origin.scope,
            resource: &origin.resource,
            name: self.optional(has(0), Self::name)?.unwrap_or_default(),
            agent_name: self.optional(has(1), Self::name)?,
            agent_version: self.optional(has(2), Self::name)?,
            environment: self.optional(has(3), Self::name)?,
            session: self.optional(has(4), Self::session)?,
            session_in_json: self.optional(has(5), Self::session)?,
            user: self.optional(has(6), Self::name)?,
            tool: self.optional(has(7), Self::tool)?,
            model: self.optional(has(8), Self::model)?,
            attempt: self.optional(has(9), Self::attempt)?,
            input: self.optional(has(10), Self::said)?,
            output: self.optional(has(11), Self::said)?,
            at: 0,
        })
    }

    /// Reads what is there; `None` where that is not what was written.
    #[inline]
    fn optional<T>(
        &mut self,
        there: bool,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Option<T>> {
        if there { read(self).map(Some) } else { Some(None) }
    }

    fn session(&mut self) -> Option<Session<'a>> {
        Some(Session { attribute: self.name()?, id: self.name()? })
    }

    fn attempt(&mut self) -> Option<&'a Attempt> {
        self.spans.attempts.get(self.place()?)
    }

    fn said(&mut self) -> Option<Said<'a>> {
        let [rank] = self.take()?;
        Some(Said { rank, text: self.text()? })
    }

    fn tool(&mut self) -> Option<Tool<'a>> {
        let has = self.number()?;
        Some(Tool {
            name: self.optional(has & 1 != 0, Self::name)?,
            call_id: self.optional(has & 2 != 0, Self::hash)?,
            arguments: self.optional(has & 4 != 0, Self::arguments)?,
            result: self.optional(has & 8 != 0, Self::hash)?,
            phantom: has & 16 != 0,
        })
    }

    fn arguments(&mut self) -> Option<Asked<'a>> {
        let hash = self.hash()?;
        let count = self.place()?;
        let (values, rest) = self.values.split_at_checked(count)?;
        self.values = rest;
        Some(Asked { hash, values, text: self.text()? })
    }

    fn model(&mut self) -> Option<Model<'a>> {
        let has = self.number()?;
        let has = |at: u32| has & 1 << at != 0;
        let (name, response_id) =
            (self.optional(has(0), Self::name)?, self.optional(has(1), Self::hash)?);
        let tokens = Tokens {
            input: self.optional(has(2), Self::number)?,
            cached: self.optional(has(3), Self::number)?,
            output: self.optional(has(4), Self::number)?,
        };
        let cost = self.optional(has(5), Self::signed)?.map(Quanta);
        let (mut calls, mut results) = (Vec::new(), Vec::new());
        if has(6) {
            let count = self.place()?;
            calls = iter::repeat_with(|| self.tool()).take(count).collect::<Option<_>>()?;
            let count = self.place()?;
            results = iter::repeat_with(|| self.told()).take(count).collect::<Option<_>>()?;
        }
        let asked_by_user = has(7).then_some(has(8));
        Some(Model { name, response_id, tokens, cost, calls, results, asked_by_user })
    }

    fn told(&mut self) -> Option<Told> {
        let has = self.number()?;
        Some(Told {
            call_id: self.optional(has & 1 != 0, Self::hash)?,
            failed: has & 2 != 0,
            hash: self.optional(has & 4 != 0, Self::hash)?,
        })
    }

    fn name(&mut self) -> Option<&'a str> {
        let at = self.place()?;
        self.spans.written(at)
    }

    fn text(&mut self) -> Option<Option<&'a str>> {
        let how = self.number()?;
        if how == NO_TEXT {
            return Some(None);
        }
        if !self.in_place {
            return self.spans.written(usize::try_from(how - 1).ok()?).map(Some);
        }
        if how == LONG_TEXT {
            let (text, rest) = self.texts.split_first()?;
            self.texts = rest;
            return Some(Some(text));
        }
        if how == EXTRA_TEXT && self.spans.forgone {
            return Some(None);
        }
        if how == EXTRA_TEXT {
            let (text, rest) = self.extra.split_first()?;
            self.extra = rest;
            return Some(Some(text));
        }
        let (text, rest) = self.bytes.split_at_checked(usize::try_from(how - SHORT_TEXT).ok()?)?;
        self.bytes = rest;
        std::str::from_utf8(text).ok().map(Some)
    }

    fn hash(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    fn place(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    #[inline]
    fn number(&mut self) -> Option<u64> {
        // Most are places, flags and short times.
        if let [byte @ ..0x80, rest @ ..] = self.bytes {
            self.bytes = rest;
            return Some(u64::from(*byte));
        }
        self.long_number()
    }

    fn long_number(&mut self) -> Option<u64> {
        let mut number = 0;
        let mut shift = 0;
        loop {
            let [byte] = self.take()?;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(number);
            }
            shift += 7;
        }
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*taken)
    }
}

/// The flag, if it is to be set.
fn flag(flag: u64, set: bool) -> u64 {
    if set { flag } else { 0 }
}

/// A bit for each, the lowest for the first.
fn flags(set: &[bool]) -> u64 {
    set.iter().rev().fold(0, |all, set| all << 1 | u64::from(*set))
}

/// The lowest seven bits.
fn low(number: u64) -> u8 {
    u8::try_from(number & 0x7f).unwrap_or(0)
}
