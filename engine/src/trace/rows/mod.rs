//! The spans of a trace: a row for each, in order of arrival.
//!
//! A row has what nearly every span has. Scope, resource, parent and agent are stored once for all spans that share them; rare
//! facts are stored beside the rows.

#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

pub(super) use self::view::Rest;
use super::bytes::{Bytes, of_resource, of_session};
use super::details::{ModelRow, TextRow, ToolRow};
use super::shape::Position;
use super::span_view::SpanView;
use super::symbol::{Symbol, Symbols};
use crate::span::{
    Attempt, IdHash, ModelFacts, Operation, Pause, Remarks, Resource, SessionName, Span, SpanId,
    Status, Timestamp, Tokens, ToolFacts,
};

/// Spans by id, each once.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Spans {
    rows: Vec<SpanRow>,
    // Usually two: that of the root, and that of all other spans.
    origins: SmallVec<[Origin; 2]>,
    beside: Option<Box<Beside>>,
    // The index of the rows by id, if there are many.
    #[serde(skip)]
    places: Option<Box<Places>>,
    #[serde(skip)]
    bytes: Bytes,
    // Number of the spans of no known operation.
    #[serde(skip)]
    others: u32,
    // Whether texts that only people and models read are dropped.
    drops_readable_texts: bool,
}

/// The result of adding a span.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Added {
    /// The span was not known.
    New,
    /// The span replaced another one with its id.
    Replaced,
    /// The span was dropped, as another one with its id is kept.
    Dropped,
}

/// The row of a span.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(in crate::trace) struct SpanRow {
    pub(in crate::trace) span_id: SpanId,
    pub(in crate::trace) start: Timestamp,
    pub(in crate::trace) end: Timestamp,
    // The name of the tool or model if the row has its call (for a model with the requested one), else that of the span.
    name: Option<Symbol>,
    // If the row has a tool call, the hash of the call's id, or zero; if a model call, its tokens: input in the low bits, output in
    // the high ones.
    number: u64,
    // Index of its origin.
    origin: u32,
    flags: u16,
    operation: Operation,
    status: Status,
}

/// What spans near each other share.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Origin {
    scope: u64,
    parent: Option<SpanId>,
    resource: Arc<Resource>,
    who: Option<Box<Who>>,
}

/// The agent, session and user that a span names.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
struct Who {
    agent_name: Option<Symbol>,
    agent_id: Option<Symbol>,
    further: Option<Box<Further>>,
    session: Option<SessionName>,
    session_in_json: Option<Box<SessionName>>,
    user: Option<Arc<str>>,
}

/// Rarer facts of spans that name an agent.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Further {
    workflow: Option<Symbol>,
    agent_version: Option<Symbol>,
    environment: Option<Symbol>,
}

/// Rows by id.
#[derive(Clone, Debug)]
struct Places(BTreeMap<SpanId, u32>);

/// Rare facts of spans, in the order of their rows.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Beside {
    // Of the model calls in rows.
    answers: Vec<Answer>,
    rare: Vec<Rare>,
}

/// The facts of a model call that do not fit into its row: the hash of the response id, and the number of tokens read from a cache
/// if the flags say that it is known.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Answer {
    row: u32,
    cached: u32,
    id: Option<IdHash>,
}

/// Facts of a span that do not fit into its row.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Rare {
    row: u32,
    name: Option<Symbol>,
    pub(super) tool: Option<ToolRow>,
    pub(super) model: Option<Box<ModelRow>>,
    pub(super) attempt: Option<Box<Attempt>>,
    pub(super) remarks: Option<Box<Remarks>>,
    pub(super) input: Option<TextRow>,
    pub(super) output: Option<TextRow>,
}

/// All facts of a span.
struct Whole {
    row: SpanRow,
    origin: Origin,
    answer: Option<Answer>,
    rare: Option<Rare>,
}

/// Nothing.
static NOTHING_FURTHER: Further =
    Further { workflow: None, agent_version: None, environment: None };

/// Number of rows from which on they have an index; small in tests, so that these run with and without one.
const LONG: usize = if cfg!(test) { 4 } else { 128 };

/// Number of the latest origins that are searched for an equal one.
const LAST: usize = 16;

/// Number of the latest different spans with a parent that are searched for an equal one.
const NEAR: usize = 4;

/// Flags of a row: the span failed; the row has a tool call or a model call; these numbers of a model call are known; it is known
/// what ends the model's input, and that is a user's message.
const FAILED: u16 = 1;
const TOOL: u16 = 1 << 1;
const MODEL: u16 = 1 << 2;
const INPUT_TOKENS: u16 = 1 << 3;
const OUTPUT_TOKENS: u16 = 1 << 4;
const ENDS: u16 = 1 << 5;
const ENDS_WITH_USER: u16 = 1 << 6;

/// Flag of a row: it is known whether the parent is in another process.
const PARENT_KNOWN: u16 = 1 << 7;

/// Flag of a row: the parent is in another process.
const PARENT_REMOTE: u16 = 1 << 8;

/// Flag of a row: something stopped the span early.
const STOPPED: u16 = 1 << 9;

/// Flag of a row: the span is the streamed response to the request of another span.
const STREAMED: u16 = 1 << 10;

/// Flag of a row: it is known how many of the model call's tokens were read from a cache.
const CACHED_TOKENS: u16 = 1 << 11;

/// How much later than its root a span may end without outlasting it: clocks differ, and streamed spans end a little late.
const LEEWAY: Duration = Duration::from_millis(100);

/// The kind of a span with a parent: resource, scope, operation and, for agents and for spans of no known operation, the name.
#[derive(Clone, Copy, Debug)]
pub struct Hanging<'a> {
    /// The resource.
    pub resource: &'a Arc<Resource>,
    /// Hash of the scope's name.
    pub scope: u64,
    /// The operation.
    pub operation: Operation,
    /// The name of the span; empty for tool and model calls.
    pub name: &'a str,
    /// The parent.
    pub parent: SpanId,
    /// Whether the parent is in another process; `None`: not sent.
    pub remote: Option<bool>,
    /// Whether the span is an agent's, or names its workflow.
    pub is_run: bool,
    /// Whether the parent is in the trace.
    pub has_parent: bool,
}

impl Spans {
    /// The number of spans.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// The number of spans of no known operation, such as those of HTTP clients and databases.
    pub fn others(&self) -> usize {
        place(self.others)
    }

    /// Whether there are no spans.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether there is a span with this id.
    pub fn contains(&self, id: SpanId) -> bool {
        self.place_of(id).is_some()
    }

    /// Adds a span of this resource, with or without the texts that only people and models read. Of two spans with one id the
    /// greater is kept, whatever the order of arrival.
    pub fn add(
        &mut self,
        span: &Span,
        resource: &Arc<Resource>,
        symbols: &mut Symbols,
        texts: bool,
    ) -> Added {
        let held = self.place_of(span.span_id);
        let texts = texts && !self.drops_readable_texts;
        let Some(at) = held else {
            self.put(span, resource, symbols, texts);
            return Added::New;
        };
        let mut own = Self::default();
        own.put(span, resource, symbols, texts);
        let holds =
            |held: SpanView<'_>| own.iter().any(|other| held.whole().holds_against(&other.whole()));
        if self.at(at).is_some_and(holds) {
            return Added::Dropped;
        }
        own.into_wholes().next().into_iter().for_each(|instead| self.replace(at, instead));
        Added::Replaced
    }

    /// The spans in order of arrival.
    pub(super) fn iter(&self) -> impl Iterator<Item = SpanView<'_>> {
        self.parts().enumerate().filter_map(|(at, (row, answer, rare))| {
            let origin = self.origins.get(place(row.origin))?;
            Some(SpanView { at, ..row.seen(origin, answer, rare) })
        })
    }

    /// The operations of the spans.
    pub fn operations(&self) -> impl Iterator<Item = Operation> {
        self.rows.iter().map(|row| row.operation)
    }

    /// The tool names of tool spans that have one, each with whether the arguments are known.
    pub fn called_tools(&self) -> impl Iterator<Item = (&str, bool)> {
        self.parts().filter_map(|(row, _, rare)| {
            if row.has(TOOL) {
                return Some((row.name.as_deref()?, false));
            }
            let tool = rare?.tool.as_ref()?;
            Some((tool.name.as_deref()?, tool.arguments.is_some()))
        })
    }

    /// The names of the tools that models called; empty: no name.
    pub fn said_tools(&self) -> impl Iterator<Item = &str> {
        let models = self.rare().iter().filter_map(|rare| rare.model.as_ref());
        models.flat_map(|model| &model.calls).map(|tool| tool.name.as_deref().unwrap_or_default())
    }

    /// The number of calls in the output of models.
    pub fn calls_of_models(&self) -> usize {
        self.rare()
            .iter()
            .filter_map(|rare| rare.model.as_ref())
            .map(|model| model.calls.len())
            .sum()
    }

    /// Whether the input of the first model call ends with something other than a user's message.
    pub fn goes_on(&self) -> bool {
        let goes_on = |asked: Option<bool>| asked == Some(false);
        let of_rare =
            |rare: &Rare| rare.model.as_ref().is_some_and(|model| goes_on(model.asked_by_user));
        // Usually no input does.
        if !self.rows.iter().any(|row| goes_on(row.asked_by_user()))
            && !self.rare().iter().any(of_rare)
        {
            return false;
        }
        let models = self.parts().filter_map(|(row, _, rare)| {
            let model = rare.and_then(|rare| rare.model.as_ref());
            let asked = model.map_or_else(|| row.asked_by_user(), |model| model.asked_by_user);
            (row.has(MODEL) || model.is_some())
                .then_some(((row.start, row.end, row.span_id), asked))
        });
        models.min_by_key(|(place, _)| *place).is_some_and(|(_, asked)| goes_on(asked))
    }

    /// Whether a span has no parent.
    pub fn has_root(&self) -> bool {
        self.rows.iter().any(|row| {
            self.origins.get(place(row.origin)).is_some_and(|origin| origin.parent.is_none())
        })
    }

    /// Whether a span of this scope has no parent.
    pub fn has_root_of(&self, scope: u64) -> bool {
        let mut origins = self.rows.iter().filter_map(|row| self.origins.get(place(row.origin)));
        origins.any(|origin| origin.parent.is_none() && origin.scope == scope)
    }

    /// The last time that the agent stopped to wait or continued, according to the spans.
    pub fn pause(&self) -> Option<Pause> {
        self.rare().iter().filter_map(|rare| rare.remarks.as_ref()?.pause).max()
    }

    /// When the last of the spans ended.
    pub fn end(&self) -> Option<Timestamp> {
        self.rows.iter().map(|row| row.end).max()
    }

    /// When the last span without a parent ended.
    pub fn root_end(&self) -> Option<Timestamp> {
        let is_root = |row: &&SpanRow| {
            self.origins.get(place(row.origin)).is_some_and(|origin| origin.parent.is_none())
        };
        self.rows.iter().filter(is_root).map(|row| row.end).max()
    }

    /// Whether a span other than an evaluator's ended later than the last one without a parent, by more than [`LEEWAY`].
    pub fn outlast_root(&self) -> bool {
        let Some(end) = self.root_end().map(|end| end.after(LEEWAY)) else { return false };
        self.rows.iter().any(|row| row.end > end && row.operation != Operation::Evaluation)
    }

    /// Whether a parent is missing.
    pub fn lack_parent(&self) -> bool {
        self.hanging().any(|span| !span.has_parent)
    }

    /// Whether a span or a resource mentions an attempt at a task.
    pub fn say_attempt(&self) -> bool {
        self.rare().iter().any(|rare| rare.attempt.is_some())
            || self.origins.iter().any(|origin| origin.resource.attempt.is_some())
    }

    /// Whether a span has remarks.
    pub fn say_remarks(&self) -> bool {
        self.rare().iter().any(|rare| rare.remarks.is_some())
    }

    /// Whether the agent reports that it is in a loop.
    pub fn reports_loop(&self) -> bool {
        self.iter().any(|span| span.reports_loop())
    }

    /// The spans that have a parent, in the trace or not; among equal ones near each other only the first.
    pub fn hanging(&self) -> impl Iterator<Item = Hanging<'_>> {
        let (mut near, mut turn, mut last) = ([(u64::MAX, ptr::null()); NEAR], 0, None);
        self.rows.iter().filter_map(move |row| {
            let origin = self.origins.get(place(row.origin))?;
            let parent = origin.parent?;
            let named = matches!(row.operation, Operation::InvokeAgent | Operation::Other);
            let own = row.name.as_deref().filter(|_| named && !row.has(TOOL | MODEL));
            let name = own.unwrap_or_default();
            let flags = row.flags & (PARENT_KNOWN | PARENT_REMOTE);
            // Equal names are shared, so their addresses distinguish them.
            let kind = u64::from(flags) << 8 | row.operation as u64;
            let like = (u64::from(row.origin) << 24 | kind, name.as_ptr());
            if near.contains(&like) {
                return None;
            }
            near[turn % NEAR] = like;
            turn += 1;
            let known = last.filter(|(origin, _)| *origin == row.origin);
            let (_, has_parent) = known.unwrap_or_else(|| (row.origin, self.contains(parent)));
            last = Some((row.origin, has_parent));
            let remote = row.remote_parent();
            let (resource, scope, operation) = (&origin.resource, origin.scope, row.operation);
            let workflow =
                || origin.who.as_ref().is_some_and(|who| who.further().workflow.is_some());
            let is_run = operation == Operation::InvokeAgent || workflow();
            Some(Hanging { resource, scope, operation, name, parent, remote, is_run, has_parent })
        })
    }

    /// The resources and scopes of the spans, each pair once or more.
    pub fn sources(&self) -> impl Iterator<Item = (&Arc<Resource>, u64)> {
        self.origins.iter().map(|origin| (&origin.resource, origin.scope))
    }

    /// Whether all spans have the same resource.
    pub fn are_of_one_process(&self) -> bool {
        self.origins
            .first()
            .is_none_or(|first| self.origins.iter().all(|origin| origin.resource == first.resource))
    }

    /// Drops the texts that only people and models read, also those of later spans.
    pub fn drop_readable_texts(&mut self) {
        self.drops_readable_texts = true;
        self.beside
            .iter_mut()
            .flat_map(|beside| &mut beside.rare)
            .for_each(Rare::drop_readable_texts);
        self.measure();
    }

    /// Drops all texts, but still keeps those of later spans; the fact that there were some is kept.
    pub fn drop_texts(&mut self) {
        self.beside.iter_mut().flat_map(|beside| &mut beside.rare).for_each(Rare::drop_texts);
        self.measure();
    }

    /// The bytes of memory that they take.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// All texts.
    pub(super) fn texts(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rare().iter().flat_map(Rare::texts).map(|(text, _)| text)
    }

    fn measure(&mut self) {
        self.bytes = Bytes::default();
        self.bytes = self.bytes.and(self.origin_bytes());
        self.rows.iter().for_each(|row| self.bytes = self.bytes.and(row.bytes()));
        if let Some(beside) = &self.beside {
            self.bytes = self.bytes.and(size_of_val(&*beside.answers));
            beside.rare.iter().for_each(|rare| self.bytes += rare.bytes());
        }
    }

    /// Fills in what is not serialised.
    pub fn restored(&mut self, symbols: &mut Symbols) {
        for name in self.rows.iter_mut().filter_map(|row| row.name.as_mut()) {
            *name = symbols.of_model(name.text(), name.requested().map(Symbol::text));
        }
        self.others = self.operations().map(|other| u32::from(other == Operation::Other)).sum();
        self.index();
        self.measure();
    }

    /// Reserves memory for this many spans, if there are none yet: usually no more will arrive.
    pub fn expect(&mut self, spans: usize) {
        if self.rows.is_empty() {
            self.rows.reserve_exact(spans);
        }
    }

    /// Releases memory that is reserved for more spans.
    pub fn fit(&mut self) {
        fit(&mut self.rows);
        self.origins.shrink_to_fit();
        if let Some(beside) = &mut self.beside {
            fit(&mut beside.answers);
            fit(&mut beside.rare);
        }
    }

    /// Whether there are so many rows that they have an index.
    pub(super) fn are_many(&self) -> bool {
        self.places.is_some()
    }

    /// The row of the span with this id.
    pub(super) fn place_of(&self, id: SpanId) -> Option<usize> {
        match &self.places {
            None => self.rows.iter().position(|row| row.span_id == id),
            Some(places) => places.0.get(&id).map(|at| place(*at)),
        }
    }

    /// Makes the index, if there are enough rows for one.
    fn index(&mut self) {
        if self.rows.len() >= LONG {
            let ids = self.rows.iter().map(|row| row.span_id);
            self.places = Some(Box::new(Places(ids.zip(0..).collect())));
        }
    }

    /// The rows, each with the extra facts of its model call and its rare facts.
    fn parts(&self) -> impl Iterator<Item = (&SpanRow, Option<&Answer>, Option<&Rare>)> {
        let mut rare = self.rare();
        let mut answers = self.beside.as_ref().map_or(&[][..], |beside| &beside.answers);
        (0_u32..).zip(&self.rows).map(move |(at, row)| {
            let first = rare.split_first().filter(|(first, _)| first.row == at);
            let first = first.map(|(first, rest)| {
                rare = rest;
                first
            });
            let answer = answers.split_first().filter(|(answer, _)| answer.row == at);
            let answer = answer.map(|(answer, rest)| {
                answers = rest;
                answer
            });
            (row, answer, first)
        })
    }

    fn rare(&self) -> &[Rare] {
        self.beside.as_ref().map_or(&[], |beside| &beside.rare)
    }

    fn at(&self, at: usize) -> Option<SpanView<'_>> {
        let row = self.rows.get(at)?;
        let (answer, rare) = self.beside(at);
        Some(row.seen(self.origins.get(place(row.origin))?, answer, rare))
    }

    /// The facts beside a row.
    fn beside(&self, at: usize) -> (Option<&Answer>, Option<&Rare>) {
        let (Some(beside), Ok(number)) = (&self.beside, u32::try_from(at)) else {
            return (None, None);
        };
        let Beside { answers, rare } = &**beside;
        let answer = answers.binary_search_by_key(&number, |answer| answer.row);
        let facts = rare.binary_search_by_key(&number, |rare| rare.row);
        (answer.ok().and_then(|at| answers.get(at)), facts.ok().and_then(|at| rare.get(at)))
    }

    /// Adds a span with a new id.
    fn put(&mut self, span: &Span, resource: &Arc<Resource>, symbols: &mut Symbols, texts: bool) {
        let named = matches!(span.operation, Operation::InvokeAgent | Operation::Other)
            || (texts && span.operation == Operation::Chat);
        let name = Some(&span.name).filter(|name| named && !name.is_empty());
        let name = name.map(|name| symbols.of(name));
        let mut row = SpanRow::of(span);
        row.origin = self.origin_of(span, resource, symbols);
        let mut answer = None;
        match (&span.tool, &span.model) {
            (Some(tool), None) if ToolRow::fits(tool) => {
                row.call(tool);
                row.name = tool.name.as_ref().map(|name| symbols.of(name));
            }
            (None, Some(model)) if ModelRow::fits(model, texts) => {
                answer = row.model(model);
                let requested = model.requested.as_ref();
                row.name = model.model.as_ref().map(|name| symbols.of_model(name, requested));
            }
            (None, None) => {}
            (tool, model) => {
                let rare = self.rare_of_next();
                rare.tool = tool.as_ref().map(|facts| ToolRow::of(facts, symbols, texts));
                rare.model = model.as_ref().map(|facts| ModelRow::of(facts, symbols, texts).into());
            }
        }
        if !row.has(TOOL | MODEL) {
            row.name = name;
        } else if name.is_some() {
            self.rare_of_next().name = name;
        }
        self.put_rare(span, texts);
        self.push(row, answer);
    }

    /// Adds the rare facts of a span, except calls, to the next row.
    fn put_rare(&mut self, span: &Span, texts: bool) {
        if span.attempt.is_some() || span.remarks.is_some() {
            let rare = self.rare_of_next();
            (rare.attempt, rare.remarks) = (span.attempt.clone(), span.remarks.clone());
        }
        let read = span.operation != Operation::ExecuteTool;
        let output = span.output.as_ref().filter(|_| texts || read);
        if span.input.is_some() || output.is_some() {
            let rare = self.rare_of_next();
            let input = span.input.as_ref().map(|text| TextRow::of(text, texts, true));
            rare.input = input.map(|input| input.marked(span.input_hash));
            rare.output = output.map(|text| TextRow::of(text, true, !read));
        }
    }

    /// The rare facts of the next row.
    fn rare_of_next(&mut self) -> &mut Rare {
        let row = self.next();
        let rare = &mut self.beside.get_or_insert_default().rare;
        if rare.last().is_none_or(|last| last.row != row) {
            let (held, rows) = (rare.len(), self.rows.len());
            if held == rare.capacity() {
                // If half of the spans have some, all later ones may.
                let to_come = if 2 * held >= rows { self.rows.capacity() - rows } else { 0 };
                rare.reserve_exact(to_come.max(held).max(1));
            }
            rare.push(Rare { row, ..Rare::default() });
        }
        let last = rare.len() - 1;
        &mut rare[last]
    }

    /// The number of the next row.
    fn next(&self) -> u32 {
        // Invariant: traces are bounded far below four billion spans.
        u32::try_from(self.rows.len()).unwrap_or(u32::MAX)
    }

    /// Adds a row whose rare facts have been added.
    fn push(&mut self, row: SpanRow, answer: Option<Answer>) {
        let at = self.next();
        if let Some(answer) = answer {
            self.beside.get_or_insert_default().answers.push(Answer { row: at, ..answer });
            self.bytes = self.bytes.and(size_of::<Answer>());
        }
        let rare = self.rare().last().filter(|last| last.row == at).map(Rare::bytes);
        self.bytes += rare.unwrap_or_default();
        self.bytes = self.bytes.and(row.bytes());
        if let Some(places) = &mut self.places {
            places.0.insert(row.span_id, at);
        }
        self.others += u32::from(row.operation == Operation::Other);
        self.rows.push(row);
        if self.rows.len() == LONG {
            self.index();
        }
    }

    /// Replaces the span in a row. The time does not depend on the number of rows, unless the row was the only one of its origin.
    fn replace(&mut self, at: usize, instead: Whole) {
        let Whole { mut row, origin, answer, rare } = instead;
        let Ok(number) = u32::try_from(at) else { return };
        let own = self.own_bytes(at);
        let former = self.rows[at].origin;
        row.origin = former;
        let moves = self.origins.get(place(former)) != Some(&origin);
        if moves {
            let known = self.known_origin(|other| *other == origin);
            row.origin = known.unwrap_or_else(|| self.add_origin(origin));
        }
        self.others += u32::from(row.operation == Operation::Other);
        self.others -= u32::from(self.rows[at].operation == Operation::Other);
        self.rows[at] = row;
        if self.beside.is_some() || answer.is_some() || rare.is_some() {
            let Beside { answers, rare: facts } = &mut **self.beside.get_or_insert_default();
            let answer = answer.map(|answer| Answer { row: number, ..answer });
            let rare = rare.map(|rare| Rare { row: number, ..rare });
            put_at(answers, number, |answer| answer.row, answer);
            put_at(facts, number, |rare| rare.row, rare);
        }
        self.bytes = self.bytes.without(own);
        self.bytes += self.own_bytes(at);
        if moves && !self.rows.iter().any(|row| row.origin == former) {
            self.remove_origin(former);
        }
    }

    /// Removes an origin that no row has.
    fn remove_origin(&mut self, origin: u32) {
        self.bytes = self.bytes.without(Bytes::default().and(self.origin_bytes()));
        self.origins.remove(place(origin));
        self.bytes = self.bytes.and(self.origin_bytes());
        let after = self.rows.iter_mut().filter(|row| row.origin > origin);
        after.for_each(|row| row.origin -= 1);
    }

    /// The bytes of all origins.
    fn origin_bytes(&self) -> usize {
        let before = [None].into_iter().chain(self.origins.iter().map(Some));
        self.origins.iter().zip(before).map(|(origin, before)| origin.bytes(before)).sum()
    }

    /// The bytes of a row and of the facts beside it.
    fn own_bytes(&self, at: usize) -> Bytes {
        let (answer, rare) = self.beside(at);
        let row = self.rows.get(at).map_or(0, SpanRow::bytes);
        let answer = answer.map_or(0, size_of_val);
        rare.map(Rare::bytes).unwrap_or_default().and(row).and(answer)
    }

    /// The index of a span's origin.
    fn origin_of(&mut self, span: &Span, resource: &Arc<Resource>, symbols: &mut Symbols) -> u32 {
        let known = self.known_origin(|origin| origin.is_of(span, resource));
        known.unwrap_or_else(|| self.add_origin(Origin::of(span, resource, symbols)))
    }

    /// The index of the origin for which `is_meant` holds, if it is among the last ones.
    fn known_origin(&self, is_meant: impl Fn(&Origin) -> bool) -> Option<u32> {
        let back = self.origins.iter().rev().take(LAST).position(is_meant)?;
        u32::try_from(self.origins.len() - 1 - back).ok()
    }

    fn add_origin(&mut self, origin: Origin) -> u32 {
        let before = self.origins.last();
        self.bytes = self.bytes.and(origin.bytes(before));
        self.origins.push(origin);
        u32::try_from(self.origins.len() - 1).unwrap_or(u32::MAX)
    }

    /// All facts of each span.
    fn into_wholes(self) -> impl Iterator<Item = Whole> {
        let Beside { answers, rare } = self.beside.map(|beside| *beside).unwrap_or_default();
        let (mut answers, mut rare) = (answers.into_iter().peekable(), rare.into_iter().peekable());
        let origins = self.origins;
        (0_u32..).zip(self.rows).filter_map(move |(at, row)| {
            let origin = origins.get(place(row.origin))?.clone();
            let answer = answers.next_if(|answer| answer.row == at);
            let rare = rare.next_if(|rare| rare.row == at);
            Some(Whole { row, origin, answer, rare })
        })
    }
}

impl Origin {
    fn of(span: &Span, resource: &Arc<Resource>, symbols: &mut Symbols) -> Self {
        let who = Who::says(span).then(|| Box::new(Who::of(span, symbols)));
        Self { scope: span.scope, parent: span.parent, resource: Arc::clone(resource), who }
    }

    /// The bytes that it takes, given the previous origin, which usually has the same resource.
    fn bytes(&self, before: Option<&Self>) -> usize {
        let has_own = before.is_none_or(|before| before.resource != self.resource);
        let resource = if has_own { of_resource(&self.resource) } else { 0 };
        size_of::<Self>() + resource + self.who.as_deref().map_or(0, Who::bytes)
    }

    /// Whether it is the origin of a span with this resource.
    fn is_of(&self, span: &Span, resource: &Arc<Resource>) -> bool {
        self.parent == span.parent
            && self.scope == span.scope
            && self.resource == *resource
            && match &self.who {
                None => !Who::says(span),
                Some(who) => who.is_of(span),
            }
    }
}

impl SpanRow {
    /// The row of a span, without origin, name and call.
    fn of(span: &Span) -> Self {
        let mut row = Self {
            span_id: span.span_id,
            start: span.start,
            end: span.end,
            name: None,
            number: 0,
            origin: 0,
            flags: 0,
            operation: span.operation,
            status: span.status,
        };
        row.set(FAILED, span.failed);
        row.set(STOPPED, span.stopped);
        row.set(STREAMED, span.streamed);
        row.set(PARENT_KNOWN, span.remote_parent.is_some());
        row.set(PARENT_REMOTE, span.remote_parent == Some(true));
        row
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.as_deref().map_or(0, str::len)
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    fn set(&mut self, flag: u16, set: bool) {
        self.flags |= if set { flag } else { 0 };
    }

    /// Sets a tool call that fits into the row, without its name.
    fn call(&mut self, tool: &ToolFacts) {
        self.flags |= TOOL;
        self.number = tool.call_id.map_or(0, IdHash::number);
    }

    /// Sets a model call that fits into the row, without its name; returns the facts that do not fit, if there are any.
    fn model(&mut self, model: &ModelFacts) -> Option<Answer> {
        let Tokens { input, output, cached, .. } = model.tokens;
        self.flags |= MODEL;
        self.set(INPUT_TOKENS, input.is_some());
        self.set(OUTPUT_TOKENS, output.is_some());
        self.set(CACHED_TOKENS, cached.is_some());
        self.set(ENDS, model.asked_by_user.is_some());
        self.set(ENDS_WITH_USER, model.asked_by_user == Some(true));
        self.number = input.unwrap_or(0) | output.unwrap_or(0) << 32;
        let (id, told) = (model.response_id, cached.is_some());
        let cached = cached.and_then(|cached| u32::try_from(cached).ok()).unwrap_or(0);
        (told || id.is_some()).then_some(Answer { row: 0, cached, id })
    }

    /// The tokens of the model call in the row, which has this answer.
    fn tokens(&self, answer: &Answer) -> Tokens {
        Tokens {
            input: self.has(INPUT_TOKENS).then_some(self.number & u64::from(u32::MAX)),
            cached: self.has(CACHED_TOKENS).then_some(answer.cached.into()),
            cache_written: None,
            output: self.has(OUTPUT_TOKENS).then_some(self.number >> 32),
        }
    }

    fn remote_parent(&self) -> Option<bool> {
        self.has(PARENT_KNOWN).then(|| self.has(PARENT_REMOTE))
    }

    fn asked_by_user(&self) -> Option<bool> {
        self.has(ENDS).then(|| self.has(ENDS_WITH_USER))
    }

    fn seen<'a>(
        &'a self,
        origin: &'a Origin,
        answer: Option<&Answer>,
        rare: Option<&'a Rare>,
    ) -> SpanView<'a> {
        SpanView {
            operation: self.operation,
            status: self.status,
            failed: self.has(FAILED),
            stopped: self.has(STOPPED),
            streamed: self.has(STREAMED),
            rest: Rest { row: self, origin, answer: answer.copied().unwrap_or_default(), rare },
            at: 0,
            position: Position::default(),
        }
    }
}

impl Who {
    /// Whether a span names an agent, a session or a user.
    fn says(span: &Span) -> bool {
        Self::names(span).iter().any(|name| name.is_some())
            || span.session.is_some()
            || span.session_in_json.is_some()
            || span.user.is_some()
    }

    fn of(span: &Span, symbols: &mut Symbols) -> Self {
        let [agent_name, workflow, agent_id, agent_version, environment] =
            Self::names(span).map(|name| name.as_ref().map(|name| symbols.of(name)));
        let further = Further { workflow, agent_version, environment };
        Self {
            agent_name,
            agent_id,
            further: (further != NOTHING_FURTHER).then(|| Box::new(further)),
            session: span.session.clone(),
            session_in_json: span.session_in_json.clone().map(Box::new),
            user: span.user.clone(),
        }
    }

    fn bytes(&self) -> usize {
        let further = self.further.as_deref().map_or(0, size_of_val);
        let sessions = [self.session.as_ref(), self.session_in_json.as_deref()];
        size_of::<Self>()
            + further
            + self.own_names().into_iter().flatten().map(|name| name.len()).sum::<usize>()
            + sessions.into_iter().flatten().map(of_session).sum::<usize>()
            + self.user.as_deref().map_or(0, str::len)
    }

    /// Whether a span names the same agent, session and user.
    #[inline(never)] // Few spans name any, and all are compared with their origins.
    fn is_of(&self, span: &Span) -> bool {
        let mut names = self.own_names().into_iter().zip(Self::names(span));
        names.all(|(own, name)| own.as_deref() == name.as_deref())
            && self.session == span.session
            && self.session_in_json.as_deref() == span.session_in_json.as_ref()
            && self.user == span.user
    }

    fn further(&self) -> &Further {
        self.further.as_deref().unwrap_or(&NOTHING_FURTHER)
    }

    fn own_names(&self) -> [&Option<Symbol>; 5] {
        let Further { workflow, agent_version, environment } = self.further();
        [&self.agent_name, workflow, &self.agent_id, agent_version, environment]
    }

    fn names(span: &Span) -> [&Option<Arc<str>>; 5] {
        let Span { agent_name, workflow, agent_id, agent_version, environment, .. } = span;
        [agent_name, workflow, agent_id, agent_version, environment]
    }
}

/// Replaces the entry of a row in a list that is sorted by row.
fn put_at<T>(list: &mut Vec<T>, number: u32, row: fn(&T) -> u32, new: Option<T>) {
    match (list.binary_search_by_key(&number, row), new) {
        (Ok(at), Some(new)) => list[at] = new,
        (Ok(at), None) => drop(list.remove(at)),
        (Err(at), Some(new)) => list.insert(at, new),
        (Err(_), None) => {}
    }
}

/// Moves items to a block of their exact size, as allocators seldom shrink a block in place; not if only a small part of it is
/// free, as they round sizes up by as much.
fn fit<T>(things: &mut Vec<T>) {
    if things.capacity() > things.len() + things.len() / 8 {
        let mut exact = Vec::with_capacity(things.len());
        exact.append(things);
        *things = exact;
    }
}

fn place(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
