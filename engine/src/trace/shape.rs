//! The shape of a trace: who is below whom, and what is the agent's own behaviour.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::ops::Deref;

use super::rows::Spans;
use super::span_view::{Model, Said, SpanView, Tool};
use super::whose::agent_name;
use crate::span::{Operation, SpanId, Status, Timestamp};

/// The spans of a trace in order of (start, end, id), and how they hang together.
pub(super) struct Shape<'a> {
    /// All spans.
    pub(super) spans: Vec<SpanView<'a>>,
    // By place.
    positions: Vec<Position>,
    // Places from the outermost inwards.
    inwards: Vec<usize>,
    // What model calls are told by.
    model: Operation,
    // Some model call has one below it.
    nested: bool,
}

/// Where a span stands among the others.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// The span above, if it is known.
    above: Option<usize>,
    /// How many known spans are above; those of a cycle each once.
    depth: usize,
    /// It or one above it evaluates: not the agent's behaviour.
    evaluates: bool,
    /// Some model call is below.
    has_models: bool,
    /// Of model calls that have none below themselves, how many are below.
    models_below: usize,
}

/// A model call: what a span says of it, or what several say together.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelCall<'s> {
    pub(super) span: &'s SpanView<'s>,
    pub(super) end: Timestamp,
    pub(super) failed: bool,
    pub(super) stopped: bool,
    pub(super) model: Option<Model<'s>>,
    pub(super) input: Option<Said<'s>>,
    pub(super) output: Option<Said<'s>>,
    pub(super) at: usize,
    // A log record says something of it.
    recorded: bool,
}

/// A tool call; likewise.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToolSpan<'s> {
    pub(super) span: &'s SpanView<'s>,
    pub(super) end: Timestamp,
    status: Status,
    pub(super) failed: bool,
    pub(super) tool: Option<Tool<'s>>,
    pub(super) output: Option<Said<'s>>,
    // A log record says something of it.
    recorded: bool,
}

impl<'s> ModelCall<'s> {
    /// What a span says.
    fn of(span: &'s SpanView<'s>) -> Self {
        Self {
            span,
            end: span.end,
            failed: span.failed,
            stopped: span.stopped,
            model: span.model(),
            input: span.input(),
            output: span.output(),
            at: span.at,
            recorded: span.is_record(),
        }
    }
}

impl<'s> ToolSpan<'s> {
    /// What a span says.
    fn of(span: &'s SpanView<'s>) -> Self {
        Self {
            span,
            end: span.end,
            status: span.status,
            failed: span.failed,
            tool: span.tool(),
            output: span.output(),
            recorded: span.is_record(),
        }
    }

    /// Whether a log record tells it, and no more than that it began.
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

impl<'a> Shape<'a> {
    pub(super) fn new(rows: &'a Spans) -> Self {
        let mut spans: Vec<SpanView<'_>> = Vec::with_capacity(rows.len());
        spans.extend(rows.iter());
        // They are large, and often in order.
        if !spans.is_sorted_by_key(place_in_time) {
            spans.sort_by_cached_key(place_in_time);
        }
        spans.iter_mut().enumerate().for_each(|(at, span)| span.at = at);
        let mut places: Vec<(SpanId, usize)> =
            spans.iter().map(|span| (span.span_id, span.at)).collect();
        places.sort_unstable();
        let place = |id: SpanId| {
            let found = places.binary_search_by_key(&id, |(id, _)| *id).ok()?;
            places.get(found).map(|(_, at)| *at)
        };
        // Those that hang on one span mostly stand together.
        let mut last = (None, None);
        let above = spans.iter().map(|span| {
            if span.parent != last.0 {
                last = (span.parent, span.parent.and_then(place));
            }
            Position::on(last.1)
        });
        let mut positions: Vec<Position> = above.collect();
        descend(&mut positions, |at| spans[at].operation == Operation::Evaluation);
        let mut inwards: Vec<usize> = (0..spans.len()).collect();
        inwards.sort_unstable_by_key(|at| {
            (positions[*at].depth, spans[*at].start, spans[*at].span_id)
        });
        let mut shape = Self { spans, positions, inwards, model: Operation::Chat, nested: false };
        // Where no model call has a span, agent spans that say what all of theirs used stand for them.
        if !shape.behaviour().any(|span| span.operation == Operation::Chat) {
            shape.model = Operation::InvokeAgent;
        }
        shape.count_models();
        shape
    }

    /// The agent's own behaviour, in order.
    pub(super) fn behaviour(&self) -> impl Iterator<Item = &SpanView<'a>> {
        self.spans.iter().filter(|span| !self.positions[span.at].evaluates)
    }

    /// The agent's own behaviour from the outermost inwards: fewest known ancestors, then start, then id.
    pub(super) fn outermost_first(&self) -> impl Iterator<Item = &SpanView<'a>> {
        self.all_outermost_first().filter(|span| !self.positions[span.at].evaluates)
    }

    /// All spans, evaluators included, from the outermost inwards.
    pub(super) fn all_outermost_first(&self) -> impl Iterator<Item = &SpanView<'a>> {
        self.inwards.iter().map(|at| &self.spans[*at])
    }

    /// The earliest span without a parent.
    pub(super) fn root(&self) -> Option<&SpanView<'a>> {
        self.behaviour().find(|span| span.parent.is_none())
    }

    /// Model calls without a model call below them, in order; two spans of one call count once.
    ///
    /// Two libraries may watch one call: one span inside the other, two spans of one answer, or one beside the other.
    /// What one of them does not say the other one does.
    pub(super) fn model_calls(&self) -> Vec<ModelCall<'_>> {
        let mut answers: BTreeMap<u64, usize> = BTreeMap::new();
        let models = || self.behaviour().filter(|span| self.is_model(span));
        let mut calls: Vec<ModelCall<'_>> = Vec::with_capacity(models().count());
        for span in models() {
            if self.positions[span.at].models_below > 0 {
                continue;
            }
            let mut call = self.completed(span);
            let id = call.model.as_ref().and_then(|model| model.response_id);
            let again = id.and_then(|id| answers.get(&id).copied());
            let again = again.or_else(|| calls.iter().position(|other| beside(other, &call)));
            let again = again.or_else(|| told_of(&calls, &call));
            match again {
                Some(at) => {
                    if worth(&calls[at]) < worth(&call) {
                        std::mem::swap(&mut calls[at], &mut call);
                    }
                    calls[at].recorded |= call.recorded;
                    complete(&mut calls[at], &call);
                    // Only the record knows that somebody else made the call: it is where that puts it.
                    if self.is_aside(call.at) {
                        calls[at].at = call.at;
                    }
                }
                None => calls.push(call),
            }
            let at = again.unwrap_or_else(|| calls.len().saturating_sub(1));
            answers.extend(id.map(|id| (id, at)));
        }
        calls
    }

    /// Model spans around several calls that say what all of them used, where the calls themselves do not; by the
    /// places of those calls.
    pub(super) fn totals(&self, calls: &[ModelCall<'_>]) -> Vec<(ModelCall<'_>, BTreeSet<usize>)> {
        let counted = |call: &ModelCall<'_>| {
            call.model
                .as_ref()
                .is_some_and(|model| model.tokens.input.is_some() || model.tokens.output.is_some())
        };
        let mut totals: Vec<(ModelCall<'_>, BTreeSet<usize>)> = Vec::new();
        if !self.nested {
            return totals;
        }
        let outer = self.outermost_first().filter(|span| self.is_model(span)).map(ModelCall::of);
        for outer in outer.filter(counted) {
            let above = |at: usize| totals.iter().any(|(_, below)| below.contains(&at));
            let below = calls.iter().filter(|call| {
                call.at != outer.at && self.ancestors(call.at).any(|above| above.at == outer.at)
            });
            let below: Vec<&ModelCall<'_>> = below.collect();
            if !below.is_empty() && below.iter().all(|call| !counted(call) && !above(call.at)) {
                let below = below.iter().map(|call| call.at).collect();
                totals.push((outer, below));
            }
        }
        totals
    }

    /// Spans of no known operation by name: where tools have no spans of their own, the functions that ran.
    pub(super) fn functions(&self) -> BTreeMap<&str, Vec<&SpanView<'a>>> {
        let mut functions: BTreeMap<&str, Vec<&SpanView<'a>>> = BTreeMap::new();
        for span in self.behaviour().filter(|span| span.operation == Operation::Other) {
            functions.entry(span.name()).or_default().push(span);
        }
        functions
    }

    /// Tool calls of tool spans, in order; a span inside another of the same call counts once, and so do the records of a call.
    pub(super) fn tool_spans(&self) -> Vec<ToolSpan<'_>> {
        let tools = || self.behaviour().filter(|span| span.operation == Operation::ExecuteTool);
        let mut ids: Vec<u64> = tools().filter_map(|span| span.tool()?.call_id).collect();
        ids.sort_unstable();
        let again = ids.windows(2).any(|pair| pair[0] == pair[1]);
        // Ids of calls, and the places of those that have them; only where one comes again.
        let mut by_id: BTreeSet<(u64, usize)> = BTreeSet::new();
        let mut calls: Vec<ToolSpan<'_>> = Vec::with_capacity(tools().count());
        for span in tools() {
            let own = ToolSpan::of(span);
            let tool = own.tool.unwrap_or_default();
            if tool.phantom {
                // Where a call and its execution have spans, it is the latter that fails.
                let above = self.positions[span.at].above;
                let call = calls.iter_mut().find(|call| Some(call.at) == above);
                call.filter(|_| span.failed).into_iter().for_each(|call| call.failed = true);
                continue;
            }
            if tool.name.is_some() && self.ancestors(span.at).any(|above| is_tool(above, tool.name))
            {
                continue;
            }
            let id = tool.call_id.filter(|_| again);
            let known = id.map(|id| by_id.range((id, 0)..=(id, usize::MAX)));
            let same = known.into_iter().flatten().map(|(_, at)| *at).find(|at| {
                let other = &calls[*at];
                other.recorded
                    || own.recorded
                    || other.tool.is_some_and(|other| other.name == tool.name)
            });
            match same {
                Some(at) => complete_tool(&mut calls[at], &own),
                None => {
                    by_id.extend(id.map(|id| (id, calls.len())));
                    calls.push(own);
                }
            }
        }
        calls
    }

    /// The last model call; of a turn that records tell, the last that the agent itself made.
    pub(super) fn last_model<'m, 's>(
        &self,
        models: &'m [ModelCall<'s>],
    ) -> Option<&'m ModelCall<'s>> {
        let last = |call: &&ModelCall<'_>| (call.end, call.span_id);
        let own = models.iter().filter(|call| !self.is_aside(call.at)).max_by_key(last);
        own.or_else(|| models.iter().max_by_key(last))
    }

    /// The name of the agent that did something: the one that the span itself names, else the nearest above its place.
    pub(super) fn doer<'s>(&'s self, span: &SpanView<'s>, at: usize) -> Option<&'s str> {
        let above = self.ancestors(at);
        let mut agents = above.filter(|above| above.operation == Operation::InvokeAgent);
        agent_name(span).or_else(|| agents.find_map(|agent| agent_name(agent)))
    }

    /// Whether a record says that somebody else than the turn's agent did what is at this place.
    fn is_aside(&self, at: usize) -> bool {
        self.ancestors(at).any(|above| above.is_record() && above.parent.is_some())
    }

    /// Whether what is at this place is part of a tool call.
    pub(super) fn is_inside_tool(&self, at: usize) -> bool {
        self.ancestors(at).any(|above| above.operation == Operation::ExecuteTool)
    }

    fn is_model(&self, span: &SpanView<'_>) -> bool {
        span.operation == self.model && (span.operation == Operation::Chat || span.has_model())
    }

    /// A model call with what the model spans around it say, as far as they are around this one alone.
    fn completed<'s>(&'s self, span: &'s SpanView<'a>) -> ModelCall<'s> {
        let mut call = ModelCall::of(span);
        let around = self.ancestors(span.at).filter(|above| self.is_model(above));
        for outer in around.filter(|above| self.positions[above.at].models_below == 1) {
            complete(&mut call, &ModelCall::of(outer));
        }
        call
    }

    fn count_models(&mut self) {
        for at in 0..self.spans.len() {
            if self.is_model(&self.spans[at]) {
                self.climb(at, |above| above.has_models = true);
            }
        }
        for at in 0..self.spans.len() {
            if self.is_model(&self.spans[at]) && !self.positions[at].has_models {
                self.climb(at, |above| above.models_below += 1);
            }
        }
        let nested =
            |span: &SpanView<'_>| self.positions[span.at].has_models && self.is_model(span);
        self.nested = self.spans.iter().any(nested);
    }

    /// Changes what is known of the spans above the one at a place.
    fn climb(&mut self, at: usize, change: impl Fn(&mut Position)) {
        let Position { mut above, depth, .. } = self.positions[at];
        for _ in 0..depth {
            let Some(at) = above else { return };
            change(&mut self.positions[at]);
            above = self.positions[at].above;
        }
    }

    /// The known spans above the one at a place, the nearest first; ends at a cycle.
    fn ancestors(&self, at: usize) -> impl Iterator<Item = &SpanView<'a>> {
        let Position { above, depth, .. } = self.positions[at];
        let above = iter::successors(above, |at| self.positions[*at].above).take(depth);
        above.map(|at| &self.spans[at])
    }
}

fn place_in_time(span: &SpanView<'_>) -> (Timestamp, Timestamp, SpanId) {
    (span.start, span.end, span.span_id)
}

impl Position {
    fn on(above: Option<usize>) -> Self {
        Self { above, depth: UNKNOWN, evaluates: false, has_models: false, models_below: 0 }
    }
}

/// Depths of what was not met yet, and of what is on the path that is being followed.
const UNKNOWN: usize = usize::MAX;
const ON_PATH: usize = usize::MAX - 1;

/// Fills in how many spans are above each, and whether it or one above it evaluates. Who is its own ancestor is above everything
/// else in its cycle, as is everything else in it.
fn descend(positions: &mut [Position], evaluates: impl Fn(usize) -> bool) {
    let mut path = Vec::new();
    for first in 0..positions.len() {
        let mut next = Some(first);
        while let Some(at) = next.filter(|at| positions[*at].depth == UNKNOWN) {
            positions[at].depth = ON_PATH;
            path.push(at);
            next = positions[at].above;
        }
        // A path ends at a root, at what is known, or in a cycle: at a step of its own.
        let (mut depth, mut inside) = match next {
            None => (0, false),
            Some(at) if positions[at].depth == ON_PATH => {
                let step = path.iter().position(|step| *step == at).unwrap_or(path.len());
                let cycle = path.split_off(step);
                let inside = cycle.iter().any(|at| evaluates(*at));
                for at in &cycle {
                    (positions[*at].depth, positions[*at].evaluates) = (cycle.len() - 1, inside);
                }
                (cycle.len(), inside)
            }
            Some(at) => (positions[at].depth + 1, positions[at].evaluates),
        };
        while let Some(at) = path.pop() {
            inside |= evaluates(at);
            (positions[at].depth, positions[at].evaluates) = (depth, inside);
            depth += 1;
        }
    }
}

/// Whether two spans, of different libraries, watch one call from side by side: one lasts as long as the other or
/// longer, to a millisecond, and they do not contradict each other.
fn beside(one: &ModelCall<'_>, other: &ModelCall<'_>) -> bool {
    const MILLISECOND: u64 = 1_000_000;
    let within = |inner: &ModelCall<'_>, outer: &ModelCall<'_>| {
        inner.start.0.saturating_add(MILLISECOND) >= outer.start.0
            && inner.end.0 <= outer.end.0.saturating_add(MILLISECOND)
    };
    let (Some(a), Some(b)) = (&one.model, &other.model) else { return false };
    let agree = |a: Option<u64>, b: Option<u64>| a.is_none() || b.is_none() || a == b;
    let ids_differ = a.response_id.is_some() && b.response_id.is_some();
    one.scope != other.scope
        && one.parent == other.parent
        && (within(one, other) || within(other, one))
        && agree(a.tokens.input, b.tokens.input)
        && agree(a.tokens.output, b.tokens.output)
        && !ids_differ
}

/// The call that a record tells of too, or whose record this is: of those that have no other record, that were going on at the same
/// time and do not contradict it, the one that ended at most nearly the same time.
fn told_of(calls: &[ModelCall<'_>], call: &ModelCall<'_>) -> Option<usize> {
    // What a client takes from the end of a call until it writes that down.
    const LATE: u64 = 1_000_000_000;
    let overlap = |one: &ModelCall<'_>, other: &ModelCall<'_>| {
        one.start.0 <= other.end.0.saturating_add(LATE)
            && other.start.0 <= one.end.0.saturating_add(LATE)
    };
    let agree = |a: Option<u64>, b: Option<u64>| a.is_none() || b.is_none() || a == b;
    let same = |other: &ModelCall<'_>| {
        let (Some(a), Some(b)) = (&other.model, &call.model) else { return false };
        other.is_record() != call.is_record()
            && !(other.recorded && call.recorded)
            && overlap(other, call)
            && other.failed == call.failed
            && agree(a.tokens.input, b.tokens.input)
            && agree(a.tokens.output, b.tokens.output)
    };
    let candidates = calls.iter().enumerate().filter(|(_, other)| same(other));
    candidates.min_by_key(|(_, other)| other.end.0.abs_diff(call.end.0)).map(|(at, _)| at)
}

/// Whether it is a call of this tool.
fn is_tool(span: &SpanView<'_>, name: Option<&str>) -> bool {
    let tool = Some(span).filter(|span| span.operation == Operation::ExecuteTool);
    tool.and_then(SpanView::tool).is_some_and(|tool| tool.name == name)
}

/// Fills in what a record says of a tool call. A record has all of the arguments, and a span the name that the model used.
fn complete_tool<'s>(call: &mut ToolSpan<'s>, other: &ToolSpan<'s>) {
    let recorded = other.recorded;
    if !call.recorded && !recorded {
        return;
    }
    call.recorded |= recorded;
    call.failed |= other.failed;
    // A span tells of a call that is over.
    let over = if recorded { other.status } else { Status::Ok };
    call.status = call.status.max(over);
    call.end = call.end.max(other.end);
    call.output = call.output.or(other.output);
    let (Some(tool), Some(more)) = (&mut call.tool, &other.tool) else { return };
    let (first, second) = if recorded { (more, &*tool) } else { (&*tool, more) };
    let arguments = first.arguments.or(second.arguments);
    let name = if recorded { tool.name.or(more.name) } else { more.name.or(tool.name) };
    (tool.arguments, tool.name) = (arguments, name);
    tool.result = tool.result.or(more.result);
}

/// Fills in what one span does not say of a call from another span of it.
fn complete<'s>(call: &mut ModelCall<'s>, other: &ModelCall<'s>) {
    call.input = call.input.or(other.input);
    call.output = call.output.or(other.output);
    call.failed |= other.failed;
    call.stopped |= other.stopped;
    let (Some(model), Some(more)) = (&mut call.model, &other.model) else { return };
    model.compacted |= more.compacted;
    model.first_chunk_nanos = model.first_chunk_nanos.or(more.first_chunk_nanos);
    model.name = model.name.or(more.name);
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

/// How good a witness a model span is: a span is better than a record, and then whichever knows more.
fn worth(call: &ModelCall<'_>) -> (bool, usize) {
    (!call.is_record(), known(call))
}

/// How much a model span knows of its call: of two spans for one call, the better counts.
fn known(call: &ModelCall<'_>) -> usize {
    let count = |model: &Model<'_>| {
        usize::from(model.tokens.input.is_some())
            + usize::from(model.tokens.output.is_some())
            + usize::from(model.cost.is_some())
    };
    call.model.as_ref().map_or(0, count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The ancestors of each, one after the other, until one comes again.
    fn slowly(above: &[Option<usize>], from: usize) -> Vec<usize> {
        let mut found = Vec::new();
        let mut next = above[from];
        while let Some(at) = next.filter(|at| *at != from && !found.contains(at)) {
            found.push(at);
            next = above[at];
        }
        found
    }

    proptest! {
        #[test]
        fn depths_are_numbers_of_ancestors_whatever_hangs_on_what(
            sent in prop::collection::vec((prop::option::of(0_usize..12), any::<bool>()), 1..12),
        ) {
            let above: Vec<Option<usize>> =
                sent.iter().map(|(above, _)| above.filter(|at| *at < sent.len())).collect();
            let mut positions: Vec<Position> = above.iter().copied().map(Position::on).collect();
            descend(&mut positions, |at| sent[at].1);
            for at in 0..sent.len() {
                let ancestors = slowly(&above, at);
                prop_assert_eq!(positions[at].depth, ancestors.len());
                prop_assert_eq!(positions[at].evaluates, sent[at].1 || ancestors.iter().any(|at| sent[*at].1));
            }
        }
    }
}
