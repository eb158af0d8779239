//! The spans of a trace, packed: what waits for its trace to be done is many times what is worked on.
//!
//! A span is its id and a few dozen bytes, in order of arrival: what it is, which of the optional facts follow, then these,
//! numbers as varints, times relative to the span before it, names as places in a table of the trace, short texts as they are.
//! Long texts stay where they were decoded. Snapshots hold this as it is, so what is written here is read by later releases.

mod read;
#[cfg(test)]
mod tests;

use self::read::Reader;

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::seen::{Model, Seen, Sign, Tool};
use crate::engine::bytes::Writer;
use crate::engine::span::{Attempt, Operation, Resource, Span, SpanId, Status, Text, Tokens};

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
    // Bytes of these.
    #[serde(skip)]
    extra_bytes: usize,
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
        Reader::new(self)
    }

    /// What tells whether the trace is worth reading.
    pub fn signs(&self) -> impl Iterator<Item = Sign> {
        self.iter().map(|seen| seen.sign())
    }

    /// What the spans are about.
    pub fn operations(&self) -> impl Iterator<Item = Operation> {
        self.iter().map(|seen| seen.operation)
    }

    /// Fills in what is not written down.
    pub fn count_texts(&mut self) {
        self.extra_bytes = self.extra.iter().map(|text| text.len()).sum();
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
        (self.extra, self.extra_bytes, self.forgone) = (Vec::new(), 0, true);
    }

    /// Bytes of the long texts that only people and models read.
    pub fn extra_bytes(&self) -> usize {
        self.extra_bytes
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
                if extra {
                    self.extra_bytes += shared.len();
                    self.extra.push(shared);
                } else {
                    self.texts.push(shared);
                }
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
