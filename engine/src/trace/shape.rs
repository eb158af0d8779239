//! The shape of a trace: which span is below which, and which are the agent's own behaviour.

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::mem;
use std::sync::Arc;

use smallvec::SmallVec;

use super::calls::{
    AROUND, LATE, ModelCall, ToolSpan, beside, complete, complete_tool, counted_alike,
    counted_apart, failed_alike, is_served_as, join_tool, may_be_same, told_of, worth,
};
use super::candidates::{CLOSER, Candidates};
use super::owner::{agent_name, is_own};
use super::rows::Spans;
use super::series::Series;
use super::span_view::{Model, SpanView};
use crate::loops::begins_before;
use crate::span::{Attempt, IdHash, Operation, Resource, SpanId, Timestamp};

/// The spans of a trace in order of (start, end, id), and how they are related.
pub(super) struct Shape<'a> {
    /// All spans.
    pub(super) spans: Vec<SpanView<'a>>,
    // Indices from the outermost inwards; empty if that is their order.
    inwards: Vec<usize>,
    // The operations of the agent's own behaviour, a bit for each.
    operations: u16,
    // Whether the spans have several scopes, as when two libraries record.
    mixed: bool,
    // Number of spans whose resources may differ: one if all have the same.
    differing: usize,
    // Whether some of the spans are from log records.
    pub(super) recorded: bool,
    // The operation of the spans that count as model calls.
    model: Operation,
    // Whether a model call has another one below it.
    nested: bool,
    // The indices of streamed responses, by those of their requests.
    answers: BTreeMap<usize, usize>,
    // Built when it is first needed whether a span is below another.
    jumps: OnceCell<Jumps>,
    // Built when spans of several libraries are first compared; one for each span.
    lines: OnceCell<Vec<Line>>,
    // Whether some calls were too many at once to be compared with each other.
    uncompared: Cell<bool>,
}

/// Where the ancestors of a span lead.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// The outermost span above it, or itself.
    outermost: usize,
    /// The nearest span above it from another library.
    foreign: Option<usize>,
}

/// The indices of spans further up, so that a few steps show whether a span is below another.
#[derive(Debug)]
struct Jumps {
    /// For each span one of its ancestors, or itself if it is a root or in a cycle.
    jumps: Vec<usize>,
    /// For each span of a cycle, one that represents all of them.
    cycles: Vec<Option<usize>>,
}

/// The position of a span among the others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Position {
    /// The parent, if it is known.
    above: Option<usize>,
    /// Number of known ancestors, at most [`DEEPEST`]; those of a cycle count once each.
    depth: usize,
    /// Whether it or an ancestor is an evaluator's, and so is not the agent's behaviour.
    pub(super) evaluates: bool,
    /// Number of model calls below that have none below themselves, up to [`SEVERAL`].
    models_below: u8,
}

/// The model calls of a trace; few traces have more.
pub(super) type ModelCalls<'s> = SmallVec<[ModelCall<'s>; 8]>;

/// Spans with the total usage of several model calls, each with the indices of these calls.
pub(super) type Totals<'s> = Vec<(ModelCall<'s>, BTreeSet<usize>)>;

/// The tool calls of a trace; few traces have more.
pub(super) type ToolSpans<'s> = SmallVec<[ToolSpan<'s>; 8]>;

impl<'a> Shape<'a> {
    pub(super) fn new(rows: &'a Spans) -> Self {
        let mut spans: Vec<SpanView<'_>> = Vec::with_capacity(rows.len());
        spans.extend(rows.iter());
        spans.sort_by_key(|span| (span.start, span.end, span.span_id));
        // Indices by row, if there are many.
        let mut places = if rows.are_many() { vec![0; rows.len()] } else { Vec::new() };
        for (at, span) in spans.iter_mut().enumerate() {
            let row = mem::replace(&mut span.at, at);
            places.get_mut(row).into_iter().for_each(|place| *place = at);
        }
        let place = |spans: &[SpanView<'_>], id: SpanId| {
            if places.is_empty() {
                return spans.iter().position(|span| span.span_id == id);
            }
            rows.place_of(id).map(|row| places[row])
        };
        // Spans with the same parent are usually adjacent.
        let mut last = (None, None);
        for at in 0..spans.len() {
            let parent = spans[at].parent();
            if parent != last.0 {
                last = (parent, parent.and_then(|id| place(&spans, id)));
            }
            spans[at].position = Position::on(last.1);
        }
        descend(&mut spans);
        let inward = |at: usize| (spans[at].position.depth, spans[at].start, spans[at].span_id);
        let mut inwards = places;
        inwards.clear();
        if !(0..spans.len()).is_sorted_by_key(inward) {
            inwards.extend(0..spans.len());
            inwards.sort_unstable_by_key(|at| inward(*at));
        }
        let (mut operations, mut mixed, mut recorded, mut differing) = (0, false, false, 1);
        let first = spans.first().map(|span| (span.scope(), span.resource()));
        for span in &spans {
            operations |= if span.position.evaluates { 0 } else { bit(span.operation) };
            recorded |= span.is_record();
            let Some((scope, resource)) = first else { continue };
            mixed |= span.scope() != scope;
            if !Arc::ptr_eq(span.resource(), resource) {
                differing = spans.len();
            }
        }
        // If no model call has a span, agent spans with the usage of all their calls count as model calls.
        let has_chat = operations & bit(Operation::Chat) != 0;
        let model = if has_chat { Operation::Chat } else { Operation::InvokeAgent };
        let mut shape = Self {
            spans,
            inwards,
            operations,
            mixed,
            differing,
            recorded,
            model,
            nested: false,
            answers: BTreeMap::new(),
            jumps: OnceCell::new(),
            lines: OnceCell::new(),
            uncompared: Cell::new(false),
        };
        shape.join_answers();
        shape.count_models();
        shape
    }

    /// The spans of the agent's own behaviour, in order.
    pub(super) fn behaviour(&self) -> impl Iterator<Item = &SpanView<'a>> + Clone {
        self.spans.iter().filter(|span| !span.position.evaluates)
    }

    /// When the agent's own behaviour began: what is below another span began no earlier than that, whatever the clock of its host says.
    pub(super) fn start(&self) -> Timestamp {
        let is_below =
            |span: &SpanView<'_>| self.ancestors(span.at).any(|above| !above.position.evaluates);
        let outermost = self.behaviour().find(|span| !is_below(span));
        // Of spans that hang on each other in a circle none is the outermost.
        let first = outermost.or_else(|| self.behaviour().next());
        first.map_or(Timestamp(0), |span| span.start)
    }

    /// Whether a span of the agent's own behaviour is of this operation.
    pub(super) fn has(&self, operation: Operation) -> bool {
        self.operations & bit(operation) != 0
    }

    /// Whether some of the calls found so far were too many at once to be compared with each other, and so may count twice.
    pub(super) fn has_uncompared(&self) -> bool {
        self.uncompared.get()
    }

    /// Whether the agent stopped early for a person to answer.
    pub(super) fn is_interrupted(&self) -> bool {
        self.behaviour().any(SpanView::is_interrupted)
    }

    /// The agent's first own report that it is in a loop.
    pub(super) fn reported_loop(&self) -> Option<&SpanView<'a>> {
        self.behaviour().filter(|_| self.recorded).find(|span| span.reports_loop())
    }

    /// The spans of the agent's own behaviour from the outermost inwards: fewest known ancestors, then start, then id.
    pub(super) fn outermost_first(&self) -> impl Iterator<Item = &SpanView<'a>> {
        self.all_outermost_first().filter(|span| !span.position.evaluates)
    }

    /// All spans, evaluators included, from the outermost inwards.
    pub(super) fn all_outermost_first(&self) -> impl Iterator<Item = &SpanView<'a>> {
        let place = |at: usize| self.inwards.get(at).copied().unwrap_or(at);
        (0..self.spans.len()).map(move |at| &self.spans[place(at)])
    }

    /// The resources of the agent's own behaviour from the outermost span inwards, each once or more.
    pub(super) fn resources(&self) -> impl Iterator<Item = &'a Resource> {
        self.outermost_first().take(self.differing).map(|span| &**span.resource())
    }

    /// The tenant of the spans.
    pub(super) fn tenant(&self) -> Option<&'a Arc<str>> {
        self.spans.iter().take(self.differing).find_map(|span| span.resource().tenant.as_ref())
    }

    /// The earliest span without a parent.
    pub(super) fn root(&self) -> Option<&SpanView<'a>> {
        self.behaviour().find(|span| span.parent().is_none())
    }

    /// The span without a parent that shows how the trace ended: if there are several, as when the context was lost, that of the
    /// agent, preferably one with a name of its own.
    pub(super) fn own_root(&self) -> Option<&SpanView<'a>> {
        let roots = || self.behaviour().filter(|span| span.parent().is_none());
        let mut first_ones = roots();
        let first = first_ones.next()?;
        if first.is_record() || first_ones.next().is_none() {
            return Some(first);
        }
        let agents = || roots().filter(|span| span.operation == Operation::InvokeAgent);
        agents().find(|span| agent_name(span).is_some()).or_else(|| agents().next()).or(Some(first))
    }

    /// Model calls without a model call below them, in order; two spans of one call count once.
    ///
    /// Two libraries may record one call: with one span inside the other, with two spans of one response, or in parallel. What one
    /// span of a call lacks is taken from the other.
    pub(super) fn model_calls(&self) -> ModelCalls<'_> {
        let mut answers: BTreeMap<IdHash, usize> = BTreeMap::new();
        let models = || self.behaviour().filter(|span| self.is_model(span));
        let mut calls = ModelCalls::with_capacity(models().count());
        let late = if self.recorded { LATE } else { AROUND };
        let mut candidates = Candidates::new(self.spans.len(), late);
        for span in models() {
            if span.position.models_below > 0 {
                continue;
            }
            let mut call = self.completed(span);
            let id = call.response_id();
            let again = id.and_then(|id| answers.get(&id).copied());
            // In one library, different usage means different responses: some servers reuse a few response ids.
            let again = again.filter(|at| {
                let other = &calls[*at];
                let apart = other.scope() == call.scope() && !(other.recorded || call.recorded);
                !apart || !counted_apart(other, &call)
            });
            let again = again.or_else(|| self.watched(&mut candidates, &calls, &call));
            match again {
                Some(at) => {
                    if worth(&calls[at]) < worth(&call) {
                        mem::swap(&mut calls[at], &mut call);
                    }
                    calls[at].recorded |= call.recorded;
                    complete(&mut calls[at], &call);
                    // Only the record shows that another agent made the call, so its position is used, preferably one that names
                    // the agent.
                    let aside = self.aside(call.at);
                    if aside.is_some() && aside >= self.aside(calls[at].at) {
                        calls[at].at = call.at;
                    }
                }
                None => calls.push(call),
            }
            let at = again.unwrap_or_else(|| calls.len().saturating_sub(1));
            answers.extend(id.map(|id| (id, at)));
            if self.mixed {
                candidates.add(at);
            }
        }
        self.note_cut(&candidates);
        calls
    }

    fn note_cut(&self, candidates: &Candidates) {
        self.uncompared.set(self.uncompared.get() || candidates.is_cut());
    }

    /// The index of the call that is the same as this one, as recorded by another library or a log record.
    fn watched(
        &self,
        candidates: &mut Candidates,
        calls: &[ModelCall<'_>],
        call: &ModelCall<'_>,
    ) -> Option<usize> {
        if !self.mixed {
            return None;
        }
        candidates.drop_ended(call.start, |at| calls[at].end);
        let beside = candidates.find(|at, steps| {
            let may_be = beside(&calls[at], call);
            *steps += if may_be { CLOSER } else { 0 };
            may_be && self.have_common_parent(&calls[at], call)
        });
        // Without records there is nothing more to compare.
        beside.or_else(|| self.recorded.then(|| told_of(candidates, calls, call)).flatten())
    }

    /// Whether two model spans have a common parent. If they have the same number of tokens, or both failed, it suffices that the
    /// parent of one is an ancestor of the other, or that only spans of its own library lead from a common ancestor to each: the
    /// spans of a library that no other one sees, such as LangChain's callbacks, do not become parents of other libraries' spans
    /// below them.
    fn have_common_parent(&self, one: &ModelCall<'_>, other: &ModelCall<'_>) -> bool {
        let around = || self.is_below(one.at, other.at) || self.is_below(other.at, one.at);
        let alike = || counted_alike(one, other) || (failed_alike(one, other) && !around());
        let hang = || {
            self.is_child_of_ancestor(one.span, other.span)
                || self.is_child_of_ancestor(other.span, one.span)
                || self.share_ancestry_by_library(one.span, other.span)
        };
        one.parent() == other.parent() || (alike() && hang())
    }

    /// Whether the parent of a span is an ancestor of another, or is absent and also the parent of the other's outermost span.
    fn is_child_of_ancestor(&self, one: &SpanView<'_>, other: &SpanView<'_>) -> bool {
        match one.position.above {
            Some(above) => self.is_below(other.at, above),
            None => one.parent().is_some() && self.outermost(other.at).parent() == one.parent(),
        }
    }

    /// Whether two spans are of two libraries that record the same work in parallel: from a common ancestor, present or absent,
    /// only spans of its own library lead down to each.
    fn share_ancestry_by_library(&self, one: &SpanView<'_>, other: &SpanView<'_>) -> bool {
        let (outermost, outer) = (self.outermost(one.at), self.outermost(other.at));
        let present = outermost.at == outer.at && ![one.at, other.at].contains(&outer.at);
        let absent = outermost.parent().is_some() && outermost.parent() == outer.parent();
        // A span of another library that is above both does not separate them.
        let led = |span: &SpanView<'_>, other: &SpanView<'_>| {
            let foreign = self.line(span.at).foreign;
            foreign.is_none_or(|foreign| self.is_below(other.at, foreign))
        };
        (present || absent) && led(one, other) && led(other, one)
    }

    /// The outermost ancestor of the span at an index, or that span itself: if its parent is absent, it is the absent parent of all
    /// of them.
    fn outermost(&self, at: usize) -> &SpanView<'a> {
        &self.spans[self.line(at).outermost]
    }

    fn line(&self, at: usize) -> Line {
        let lines = self.lines.get_or_init(|| {
            let alone = |at| Line { outermost: at, foreign: None };
            let mut lines: Vec<Line> = (0..self.spans.len()).map(alone).collect();
            for span in self.all_outermost_first() {
                let Position { above, depth, .. } = span.position;
                let Some(above) = above.filter(|_| depth > 0) else { continue };
                let Line { outermost, foreign } = lines[above];
                let is_foreign = self.spans[above].scope() != span.scope();
                let foreign = if is_foreign { Some(above) } else { foreign };
                lines[span.at] = Line { outermost, foreign };
            }
            lines
        });
        lines[at]
    }

    /// Spans around model calls that report the usage of all of them, where the calls themselves do not: model spans, and else the
    /// agents that made the calls.
    pub(super) fn totals(&self, calls: &[ModelCall<'_>]) -> Totals<'_> {
        if calls.iter().all(ModelCall::is_counted) {
            return Totals::new();
        }
        let mut totals = self.totals_of_models(calls);
        let told = totals.iter().flat_map(|(_, below)| below).copied().collect();
        totals.extend(self.totals_of_agents(calls, &told));
        totals
    }

    /// Model spans around other model calls. If two such spans are around a call, the outer one counts.
    fn totals_of_models(&self, calls: &[ModelCall<'_>]) -> Totals<'_> {
        if !self.nested {
            return Totals::new();
        }
        let outer = |span: &SpanView<'a>| self.is_model(span) && self.call_of(span).is_counted();
        let mut totals: Vec<bool> = self.spans.iter().map(outer).collect();
        let mut told = vec![false; self.spans.len()];
        for call in calls.iter().filter(|call| call.is_counted()) {
            self.climb(call.at, |above| {
                totals[above] = false;
                !mem::replace(&mut told[above], true)
            });
        }
        let inward = |span: &SpanView<'_>| (span.position.depth, span.start, span.span_id);
        let mut found: BTreeMap<_, (ModelCall<'_>, BTreeSet<usize>)> = BTreeMap::new();
        for call in calls {
            let around = self.around(call.at).filter(|above| totals[above.at]);
            let Some(outer) = around.min_by_key(|above| inward(above)) else { continue };
            let total = || (self.call_of(outer), BTreeSet::new());
            found.entry(inward(outer)).or_insert_with(total).1.insert(call.at);
        }
        found.into_values().collect()
    }

    /// Agents whose own model calls have no tokens and are in no total; their own numbers are ignored if all of these calls failed,
    /// as some libraries add up over several runs.
    fn totals_of_agents(&self, calls: &[ModelCall<'_>], told: &BTreeSet<usize>) -> Totals<'_> {
        let mut found: BTreeMap<usize, Vec<&ModelCall<'_>>> = BTreeMap::new();
        for call in calls {
            let agent = self.ancestors(call.at).find(|above| self.is_step(above));
            let agent = agent.filter(|above| above.operation == Operation::InvokeAgent);
            if let Some(agent) = agent.filter(|agent| agent.has_model()) {
                found.entry(agent.at).or_default().push(call);
            }
        }
        let is_told = |call: &&ModelCall<'_>| call.is_counted() || told.contains(&call.at);
        found.retain(|_, own| !own.iter().any(is_told) && !own.iter().all(|call| call.failed));
        let total = |(at, own): (usize, Vec<&ModelCall<'_>>)| {
            (ModelCall::of(&self.spans[at]), own.iter().map(|call| call.at).collect())
        };
        found.into_iter().map(total).collect()
    }

    /// Spans of no known operation by name; if tools have no spans of their own, these are the functions that ran.
    pub(super) fn functions(&self) -> BTreeMap<&str, Vec<&SpanView<'a>>> {
        let mut functions: BTreeMap<&str, Vec<&SpanView<'a>>> = BTreeMap::new();
        for span in self.behaviour().filter(|span| span.operation == Operation::Other) {
            functions.entry(span.name()).or_default().push(span);
        }
        functions
    }

    /// The tool calls of tool spans that ran, in order. A span inside another of the same tool is not another call; the records of
    /// a call, and the spans of another library beside it, are merged with it. It has failed if the last of the spans inside has.
    pub(super) fn tool_spans(&self) -> ToolSpans<'_> {
        let tools = self.behaviour().filter(|span| span.operation == Operation::ExecuteTool);
        let tools: SmallVec<[&SpanView<'_>; 8]> = tools.collect();
        let mut calls = ToolSpans::new();
        if tools.is_empty() {
            return calls;
        }
        let again = has_again(tools.iter().filter_map(|span| span.call_id()));
        // Ids of calls with the indices of the calls; filled only if an id occurs more than once.
        let mut by_id: BTreeSet<(IdHash, usize)> = BTreeSet::new();
        calls.reserve_exact(tools.len());
        // The indices of the spans that record calls, with those of the calls.
        let mut told: Vec<(usize, usize)> = Vec::with_capacity(tools.len());
        // By index of a call's span, the last span inside it.
        let mut inside: BTreeMap<usize, ToolSpan<'_>> = BTreeMap::new();
        let mut candidates = Candidates::new(self.spans.len(), AROUND);
        // A call that a person refused did not run, whatever its other spans and records say.
        let refused = tools.iter().filter(|span| span.is_refused());
        let refused: BTreeSet<IdHash> = refused.filter_map(|span| span.call_id()).collect();
        let runs = |span: &&SpanView<'_>| {
            let is_refused = span.call_id().is_some_and(|id| refused.contains(&id));
            // A tool that waits for a person runs after the answer.
            !span.is_interrupted() && !span.is_refused() && !is_refused
        };
        for own in tools.into_iter().filter(runs).map(ToolSpan::of) {
            if own.is_phantom() {
                // If a call and its execution both have spans, the failure is on the execution.
                let above = own.position.above;
                let call =
                    above.and_then(|above| calls.binary_search_by_key(&above, |call| call.at).ok());
                call.into_iter().for_each(|at| calls[at].fail_with(&own));
                continue;
            }
            if let Some(outermost) = self.call_around(&own) {
                inside.insert(outermost, own);
                continue;
            }
            let id = own.call_id().filter(|_| again);
            let known = id.map(|id| by_id.range((id, 0)..=(id, usize::MAX)));
            let known = known.into_iter().flatten().map(|(_, at)| *at);
            let same = self.told_again(&mut candidates, &calls, &own, known);
            if let Some(same) = same {
                told.push((own.at, calls[same].at));
                complete_tool(&mut calls[same], &own);
                candidates.add(same);
                continue;
            }
            if let Some(same) = self.told_beside(&mut candidates, &calls, &own) {
                told.push((own.at, calls[same].at));
                join_tool(&mut calls[same], &own);
                continue;
            }
            told.push((own.at, own.at));
            by_id.extend(id.map(|id| (id, calls.len())));
            if self.mixed {
                candidates.add(calls.len());
            }
            calls.push(own);
        }
        self.note_cut(&candidates);
        if calls.is_empty() {
            return calls;
        }
        let series = Series::of(self, &told);
        for call in &mut calls {
            inside.get(&call.at).into_iter().for_each(|inner| call.fail_with(inner));
            call.within = series.at(self, call.at, &told);
        }
        calls
    }

    /// The index of the outermost span of the call that this one is inside: at any depth below a span of the same tool, or directly
    /// below one with the same id. (Some models give the calls of different agents the same ids.) The server of a call, such as an
    /// MCP server, may be recorded by another library, under the tool's name without the prefix that the agent uses.
    fn call_around(&self, own: &ToolSpan<'_>) -> Option<usize> {
        let is_same = |above: &&SpanView<'_>| {
            above.operation == Operation::ExecuteTool && above.call_id() == own.call_id()
        };
        let same = own.call_id().and_then(|_| self.ancestors(own.at).take_while(is_same).last());
        let name = same.map_or_else(|| own.tool_name(), SpanView::tool_name);
        let name = self.served(own, name).or(name);
        let of_tool = self.ancestors(own.at).filter(|above| is_tool(above, name)).last();
        of_tool.filter(|_| name.is_some()).or(same).map(|outermost| outermost.at)
    }

    /// The name under which another library records the call that this one serves, with nothing at work between.
    fn served(&self, own: &ToolSpan<'_>, name: Option<&Arc<str>>) -> Option<&Arc<str>> {
        let name = name.filter(|_| self.mixed)?;
        let at_work = [Operation::Chat, Operation::InvokeAgent];
        let above = self.ancestors(own.at).take_while(|above| !at_work.contains(&above.operation));
        let others = above.filter(|above| {
            above.operation == Operation::ExecuteTool && above.scope() != own.scope()
        });
        others.filter_map(SpanView::tool_name).filter(|call| is_served_as(call, name)).last()
    }

    /// The index of the call that is the same as this one, among those with its id: a library has only one span for a call, as some
    /// use one id for all calls of a tool.
    fn told_again(
        &self,
        candidates: &mut Candidates,
        calls: &[ToolSpan<'_>],
        own: &ToolSpan<'_>,
        mut known: impl Iterator<Item = usize>,
    ) -> Option<usize> {
        if !self.mixed && !self.recorded {
            return None;
        }
        let same = known.find(|at| {
            let other = &calls[*at];
            let is_named = || other.tool().is_some_and(|other| other.name == own.tool_name());
            !candidates.step()
                || other.recorded
                || own.recorded
                || (other.scope() != own.scope() && is_named())
        });
        same.filter(|_| !candidates.is_cut())
    }

    /// The index of the call that is the same as this one, recorded in parallel by another library: a library has only one span for
    /// a call.
    fn told_beside(
        &self,
        candidates: &mut Candidates,
        calls: &[ToolSpan<'_>],
        own: &ToolSpan<'_>,
    ) -> Option<usize> {
        if !self.mixed {
            return None;
        }
        candidates.drop_ended(own.start, |at| calls[at].end);
        candidates.find(|at, steps| {
            let call = &calls[at];
            // Work inside a call that is not part of it is another call.
            may_be_same(call, own, steps)
                && (call.parent() == own.parent()
                    || self.is_child_of_ancestor(call, own)
                    || self.is_child_of_ancestor(own, call)
                    || self.share_ancestry_by_library(call, own))
                && !self.is_below(own.at, call.at)
        })
    }

    /// Whether a run without an agent or tool above it failed, and nothing began after that: an agent's run, or that of the
    /// outermost span of a library around model calls and agents.
    pub(super) fn ends_in_failure(&self) -> bool {
        let (agents, others): (Vec<_>, Vec<_>) = self
            .failed_at_end()
            .into_iter()
            .partition(|span| span.operation == Operation::InvokeAgent);
        !agents.is_empty() || self.is_run(&others)
    }

    /// Whether an agent without an agent or tool above it failed, and after that nothing began and no parallel work succeeded.
    pub(super) fn ends_in_agent_failure(&self) -> bool {
        let mut agents = self.failed_at_end();
        agents.retain(|span| span.operation == Operation::InvokeAgent);
        let went_well = |span: &&SpanView<'_>| {
            matches!(span.operation, Operation::Chat | Operation::InvokeAgent)
                && !span.failed
                && !self.is_called_by_any(span.at)
        };
        let survived = self.behaviour().filter(|_| !agents.is_empty()).filter(went_well);
        let survived = survived.map(|span| span.end).max();
        agents.iter().any(|span| Some(span.end) > survived)
    }

    /// Whether an item of a batch failed and did not succeed later. A batch is a trace whose root is not an agent's, in which an
    /// agent worked on several conversations or runs of tasks.
    pub(super) fn has_failed_batch_item(&self) -> bool {
        let is_outermost = |span: &&SpanView<'_>| {
            span.operation == Operation::InvokeAgent && !self.is_called_by_any(span.at)
        };
        let root = self.own_root().map(|root| root.operation);
        let failed = || self.behaviour().filter(|span| span.failed).any(|span| is_outermost(&span));
        if root == Some(Operation::InvokeAgent) || !failed() {
            return false;
        }
        let mut last: BTreeMap<Option<&str>, BTreeMap<_, (Timestamp, bool)>> = BTreeMap::new();
        for span in self.behaviour().filter(is_outermost) {
            let Some(item) = self.item(span) else { continue };
            let ended = (span.end, !span.failed);
            let items = last.entry(agent_name(span)).or_default();
            let last = items.entry(item).or_insert(ended);
            *last = ended.max(*last);
        }
        let lost = |items: &BTreeMap<_, (Timestamp, bool)>| {
            items.len() > 1 && items.values().any(|(_, succeeded)| !succeeded)
        };
        last.values().any(lost)
    }

    /// The conversation, and the run of a task, that a span is part of: those of the nearest span that names them, from it
    /// outwards.
    fn item<'s>(&'s self, span: &'s SpanView<'a>) -> Option<[Option<&'s str>; 4]> {
        let outwards = || iter::once(span).chain(self.ancestors(span.at));
        let session = outwards().find_map(SpanView::session).map(|session| &*session.id);
        let attempt = outwards().filter_map(SpanView::attempt).find(|said| said.task.is_some());
        let of =
            |of: fn(&Attempt) -> &Option<Arc<str>>| attempt.and_then(|said| of(said).as_deref());
        let item = [session, of(|said| &said.task), of(|said| &said.run), of(|said| &said.trial)];
        item.iter().any(Option::is_some).then_some(item)
    }

    /// The agents and steps without an agent or tool above them that failed, and after whose end nothing began.
    fn failed_at_end(&self) -> Vec<&SpanView<'a>> {
        let may_run = [Operation::InvokeAgent, Operation::Other];
        let mut failed = self.behaviour().filter(|span| span.failed).peekable();
        if failed.peek().is_none() {
            return Vec::new();
        }
        let working = [Operation::Chat, Operation::ExecuteTool, Operation::InvokeAgent];
        let begun = self.behaviour().filter(|span| working.contains(&span.operation));
        let last = begun.map(|span| span.start).max();
        let ends_in_failure = |span: &&SpanView<'_>| {
            may_run.contains(&span.operation)
                && Some(span.end) >= last
                && !self.is_called_by_any(span.at)
        };
        failed.filter(ends_in_failure).collect()
    }

    /// Whether the span at a place is below an agent or a tool.
    fn is_called_by_any(&self, at: usize) -> bool {
        let calls = |above: &SpanView<'_>| {
            matches!(above.operation, Operation::ExecuteTool | Operation::InvokeAgent)
        };
        self.ancestors(at).any(calls)
    }

    /// Whether one of these spans is a run: the outermost span of its library, with a model call or an agent below it.
    fn is_run(&self, spans: &[&SpanView<'a>]) -> bool {
        let is_outermost = |span: &&&SpanView<'a>| {
            !self.ancestors(span.at).any(|above| above.scope() == span.scope())
        };
        let outermost: BTreeSet<usize> =
            spans.iter().filter(is_outermost).map(|span| span.at).collect();
        let at_work = |span: &&SpanView<'_>| {
            matches!(span.operation, Operation::Chat | Operation::InvokeAgent)
        };
        let is_below = |at: usize| self.ancestors(at).any(|above| outermost.contains(&above.at));
        !outermost.is_empty() && self.behaviour().filter(at_work).any(|span| is_below(span.at))
    }

    /// Whether a part of the run failed with which the whole run fails, and no run after it succeeded; what happens inside tools
    /// does not count.
    pub(super) fn has_failed_run(&self) -> bool {
        let failed = |span: &SpanView<'_>| span.fails_run() && !self.is_inside_tool(span.at);
        self.behaviour().any(|span| failed(span) && !self.is_run_again(span.at))
    }

    /// Whether an agent without an agent or tool above it succeeded, and began after the end of the agent that contains the span at
    /// this index.
    fn is_run_again(&self, at: usize) -> bool {
        let is_agent = |span: &&SpanView<'_>| span.operation == Operation::InvokeAgent;
        let Some(own) = self.ancestors(at).find(is_agent) else { return false };
        let mut agents = self.behaviour().filter(is_agent);
        agents.any(|agent| {
            agent.start >= own.end && !agent.failed && !self.is_called_by_any(agent.at)
        })
    }

    /// Whether a span begins when this model call is over.
    pub(super) fn goes_on_after(&self, call: &ModelCall<'_>) -> bool {
        self.behaviour().any(|span| span.start >= call.end && span.span_id != call.span_id)
    }

    /// The last model call; in a turn from log records, the last one that the agent itself made, if it made any.
    pub(super) fn last_model<'m, 's>(
        &self,
        models: &'m [ModelCall<'s>],
    ) -> Option<&'m ModelCall<'s>> {
        let own = models.iter().filter(|call| !self.is_aside(call.at));
        own.max_by_key(|call| call.order())
            .or_else(|| models.iter().max_by_key(|call| call.order()))
    }

    /// Whether the last model call of the outermost agent that makes any failed. The calls of an agent that it calls as a tool are
    /// not its own. If calls run in parallel, one success is enough.
    pub(super) fn ended_in_failure(&self, models: &[ModelCall<'_>]) -> bool {
        if !models.iter().any(|call| call.failed) {
            return false;
        }
        let is_aside = |call: &ModelCall<'_>| self.is_aside(call.at);
        let all_aside = models.iter().all(is_aside);
        let own = models.iter().filter(|call| all_aside || !is_aside(call));
        let own = own.filter(|call| !self.is_called(call.at));
        let ranked: Vec<_> = own.map(|call| (self.steps_above(call.at), call)).collect();
        let Some(outermost) = ranked.iter().map(|(steps, _)| *steps).min() else { return false };
        let own = || ranked.iter().filter(|(steps, _)| *steps == outermost).map(|(_, call)| *call);
        let failed = |call: &ModelCall<'_>| call.failed && !self.is_survived(call);
        let Some(last) = own().max_by_key(|call| call.order()) else { return false };
        let beside = |call: &ModelCall<'_>| begins_before(last.start.0, call.end.0);
        failed(last) && !own().any(|call| !failed(call) && beside(call))
    }

    /// The numbers of tools and of agents above the span at an index.
    fn steps_above(&self, at: usize) -> (usize, usize) {
        let count =
            |operation| self.ancestors(at).filter(|above| above.operation == operation).count();
        (count(Operation::ExecuteTool), count(Operation::InvokeAgent))
    }

    /// Whether a model call around this one succeeded anyway, as when a gateway retries.
    pub(super) fn is_survived(&self, call: &ModelCall<'_>) -> bool {
        let succeeded = |above: &SpanView<'a>| self.is_model(above) && !above.failed;
        self.nested && self.around(call.span.at).any(succeeded)
    }

    /// The name of the agent that did the work of a span: the one that the span names, else the one with the span's agent id, else
    /// that of the nearest agent above, or the one that the nearest tool call above started.
    pub(super) fn doer<'s>(
        &'s self,
        ids: &BTreeMap<&'s str, &'s str>,
        span: &SpanView<'s>,
        at: usize,
    ) -> Option<&'s str> {
        let by_id = || ids.get(span.agent_id()?).copied();
        agent_name(span).or_else(by_id).or_else(|| self.ancestors(at).find_map(agent_below))
    }

    /// The names of agents by the ids that occur together with them on spans; ids with several names are left out.
    pub(super) fn agent_ids(&self) -> BTreeMap<&'a str, &'a str> {
        let told = self.behaviour().filter_map(|span| Some((span.agent_id()?, agent_name(span)?)));
        let mut names: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        told.for_each(|(id, name)| _ = names.entry(id).or_default().insert(name));
        names.retain(|_, names| names.len() == 1);
        names.into_iter().filter_map(|(id, mut names)| Some((id, names.pop_first()?))).collect()
    }

    /// Whether a log record shows that an agent other than the turn's did the work at this index.
    fn is_aside(&self, at: usize) -> bool {
        self.aside(at).is_some()
    }

    /// For a log record of work by an agent other than the turn's, whether it names that agent.
    fn aside(&self, at: usize) -> Option<bool> {
        let is_begun = |above: &&SpanView<'_>| above.is_record() && above.parent().is_some();
        let begun = self.recorded.then(|| self.ancestors(at).find(is_begun)).flatten();
        begun.map(|above| above.agent_name().is_some())
    }

    /// The index of the agent or tool that did the work at this index.
    pub(super) fn maker(&self, at: usize) -> Option<usize> {
        let makes = |above: &&SpanView<'_>| {
            matches!(above.operation, Operation::ExecuteTool | Operation::InvokeAgent)
        };
        self.ancestors(at).find(makes).map(|above| above.at)
    }

    /// The parent of a span whose parent has not arrived.
    pub(super) fn absent(&self, span: &SpanView<'_>) -> Option<SpanId> {
        if span.position.above.is_some() { None } else { span.parent() }
    }

    /// Whether the span at this place is part of a tool call.
    pub(super) fn is_inside_tool(&self, at: usize) -> bool {
        self.ancestors(at).any(|above| above.operation == Operation::ExecuteTool)
    }

    /// Whether the span at this place is part of a tool call that an agent made, or a workflow with a name of its own.
    pub(super) fn is_called(&self, at: usize) -> bool {
        let agents = self.has(Operation::InvokeAgent) && self.has(Operation::ExecuteTool);
        let mut above = self.ancestors(at).filter(|_| agents);
        above.any(|above| above.operation == Operation::ExecuteTool)
            && above.any(|above| {
                above.operation == Operation::InvokeAgent
                    || above.workflow().is_some_and(|name| is_own(&name))
            })
    }

    /// Finds the request of each streamed response: among those that the same library sent beside it and that ended before it
    /// began, the last one without a response.
    fn join_answers(&mut self) {
        let streamed: Vec<usize> =
            self.spans.iter().filter(|span| span.streamed).map(|span| span.at).collect();
        let mut alone = Vec::new();
        for at in streamed {
            let asked = self.behaviour().filter(|span| {
                !self.answers.contains_key(&span.at) && is_request_of(span, &self.spans[at])
            });
            match asked.max_by_key(|span| (span.end, span.at)).map(|span| span.at) {
                Some(asked) => _ = self.answers.insert(asked, at),
                None => alone.push(at),
            }
        }
        alone.into_iter().for_each(|at| self.spans[at].streamed = false);
    }

    /// The model call of a span, together with its response if that has a span of its own.
    fn call_of<'s>(&'s self, span: &'s SpanView<'a>) -> ModelCall<'s> {
        let asked = ModelCall::of(span);
        let Some(answer) = self.answers.get(&span.at) else { return asked };
        let mut call = ModelCall::of(&self.spans[*answer]);
        complete(&mut call, &asked);
        (call.span, call.at) = (span, span.at);
        call
    }

    fn is_model(&self, span: &SpanView<'_>) -> bool {
        !span.streamed
            && span.operation == self.model
            && (span.operation == Operation::Chat || span.has_model())
    }

    /// A model call, completed from the model spans that are around this call only.
    fn completed<'s>(&'s self, span: &'s SpanView<'a>) -> ModelCall<'s> {
        let mut call = self.call_of(span);
        if !self.nested {
            return call;
        }
        let around = self.around(span.at).filter(|above| self.is_model(above));
        for outer in around.filter(|above| above.position.models_below == 1) {
            complete(&mut call, &self.call_of(outer));
        }
        call
    }

    fn count_models(&mut self) {
        let inside = |span: &SpanView<'_>| {
            self.is_model(span) && self.around(span.at).any(|above| self.is_model(above))
        };
        let mut above = self.spans.iter().filter_map(|span| span.position.above);
        // Usually nothing is below a model call.
        self.nested =
            above.any(|at| self.is_model(&self.spans[at])) && self.spans.iter().any(inside);
        if !self.nested {
            return;
        }
        let models = || (0..self.spans.len()).filter(|at| self.is_model(&self.spans[*at]));
        let mut has_models = vec![false; self.spans.len()];
        for at in models() {
            self.climb(at, |above| !mem::replace(&mut has_models[above], true));
        }
        let mut below = vec![0; self.spans.len()];
        for at in models().filter(|at| !has_models[*at]) {
            self.climb(at, |above| {
                let is_first = below[above] < SEVERAL;
                below[above] += u8::from(is_first);
                is_first
            });
        }
        for (span, below) in self.spans.iter_mut().zip(below) {
            span.position.models_below = below;
        }
    }

    /// Visits the indices of the spans around the one at an index, the nearest first, until a visit reports that those further out
    /// were already visited from another span. In a cycle, whose spans are below each other, all are visited.
    fn climb(&self, at: usize, mut visit: impl FnMut(usize) -> bool) {
        for above in self.around(at) {
            if !visit(above.at) && !self.is_in_cycle(above.at) {
                return;
            }
        }
    }

    /// Whether the span at a place is above itself.
    fn is_in_cycle(&self, at: usize) -> bool {
        let Position { above, depth, .. } = self.spans[at].position;
        above.is_some_and(|above| self.spans[above].position.depth == depth)
    }

    /// Whether the span at one index is below the one at another. The time does not grow with the depth.
    fn is_below(&self, at: usize, above: usize) -> bool {
        let least = self.spans[above].position.depth;
        let Jumps { jumps, cycles } = self.jumps.get_or_init(|| self.jumps());
        let mut reached = at;
        while self.spans[reached].position.depth > least && cycles[reached].is_none() {
            let jump = jumps[reached];
            let fits = self.spans[jump].position.depth >= least;
            let next = self.spans[reached].position.above.unwrap_or(reached);
            reached = if fits { jump } else { next };
        }
        let same = cycles[above].is_some() && cycles[reached] == cycles[above];
        at != above && (reached == above || same)
    }

    fn jumps(&self) -> Jumps {
        let mut jumps: Vec<usize> = (0..self.spans.len()).collect();
        let mut cycles = vec![None; self.spans.len()];
        let depth = |at: usize| self.spans[at].position.depth;
        for span in self.all_outermost_first() {
            let Some(above) = span.position.above else { continue };
            if !self.is_in_cycle(span.at) {
                let (jump, further) = (jumps[above], jumps[jumps[above]]);
                let even = depth(above) - depth(jump) == depth(jump) - depth(further);
                jumps[span.at] = if even { further } else { above };
            } else if cycles[span.at].is_none() {
                cycles[span.at] = Some(span.at);
                self.ancestors(span.at).for_each(|other| cycles[other.at] = Some(span.at));
            }
        }
        Jumps { jumps, cycles }
    }

    /// Whether a span is a step of its own: model calls within it are not part of those around it, as when a library runs tools,
    /// and with them other agents, within the call that requested them.
    fn is_step(&self, span: &SpanView<'_>) -> bool {
        self.model == Operation::Chat
            && matches!(span.operation, Operation::ExecuteTool | Operation::InvokeAgent)
    }

    /// The known ancestors of the span at an index up to the next tool or agent, the nearest first.
    fn around(&self, at: usize) -> impl Iterator<Item = &SpanView<'a>> {
        self.ancestors(at).take_while(|above| !self.is_step(above))
    }

    /// The known ancestors of the span at an index, the nearest first; ends at a cycle.
    pub(super) fn ancestors(&self, at: usize) -> impl Iterator<Item = &SpanView<'a>> {
        let Position { above, depth, .. } = self.spans[at].position;
        let above = iter::successors(above, |at| self.spans[*at].position.above).take(depth);
        above.map(|at| &self.spans[at])
    }
}

/// The agent at work below a span: the span's own, or the one that the tool call started.
pub(super) fn agent_below<'s>(span: &SpanView<'s>) -> Option<&'s str> {
    match span.operation {
        Operation::InvokeAgent => agent_name(span),
        Operation::ExecuteTool => span.begins(),
        Operation::Chat
        | Operation::CreateAgent
        | Operation::Embeddings
        | Operation::Evaluation
        | Operation::Other
        | Operation::Retrieval => None,
    }
}

/// Counting stops here: only "more than one" matters.
const SEVERAL: u8 = 2;

/// The bit of an operation in a set.
fn bit(operation: Operation) -> u16 {
    1 << operation as u8
}

impl Position {
    fn on(above: Option<usize>) -> Self {
        Self { above, depth: UNKNOWN, ..Self::default() }
    }

    fn put(&mut self, depth: usize, evaluates: bool) {
        (self.depth, self.evaluates) = (depth, evaluates);
    }

    /// The depth of a child of this span, and whether the child is inside an evaluator's span.
    fn below(self) -> (usize, bool) {
        (self.depth + 1, self.evaluates)
    }
}

/// Depths of spans that were not visited yet, and of those on the current path.
const UNKNOWN: usize = usize::MAX;
const ON_PATH: usize = usize::MAX - 1;

/// Most ancestors of a span; a deeper one is attached beside its parent, so that a walk outwards is short.
const DEEPEST: usize = 256;

/// Fills in for each span how many ancestors it has, and whether it or one of these is an evaluator's. In a cycle, each span is
/// above all others or, in a long one, above the nearest.
fn descend(spans: &mut [SpanView<'_>]) {
    let mut path = Vec::new();
    for first in 0..spans.len() {
        let above = spans[first].position.above.map(|at| spans[at].position);
        // Most spans come after their parents.
        if spans[first].position.depth == UNKNOWN && above.is_none_or(|above| above.depth < ON_PATH)
        {
            hang(spans, first);
            continue;
        }
        let mut next = Some(first);
        while let Some(at) = next.filter(|at| spans[*at].position.depth == UNKNOWN) {
            spans[at].position.depth = ON_PATH;
            path.push(at);
            next = spans[at].position.above;
        }
        // A path ends at a root, at a span of known depth or, in a cycle, at one of its own spans.
        if let Some(at) = next.filter(|at| spans[*at].position.depth == ON_PATH) {
            let step = path.iter().position(|step| *step == at).unwrap_or(path.len());
            let cycle = path.split_off(step);
            let inside = cycle.iter().any(|at| evaluates(&spans[*at]));
            for at in &cycle {
                spans[*at].position.put((cycle.len() - 1).min(DEEPEST - 1), inside);
            }
        }
        while let Some(at) = path.pop() {
            hang(spans, at);
        }
    }
}

/// Fills in the position of a span that is not in a cycle and whose parent has its position.
fn hang(spans: &mut [SpanView<'_>], at: usize) {
    let above = match spans[at].position.above {
        Some(above) if spans[above].position.depth >= DEEPEST => spans[above].position.above,
        above => above,
    };
    let (depth, inside) = above.map_or((0, false), |above| spans[above].position.below());
    let inside = inside || evaluates(&spans[at]);
    spans[at].position.above = above;
    spans[at].position.put(depth, inside);
}

fn evaluates(span: &SpanView<'_>) -> bool {
    span.operation == Operation::Evaluation
}

/// Whether a span is a model request that this streamed response may belong to: one without response id and tokens, which are on
/// the response.
fn is_request_of(span: &SpanView<'_>, answer: &SpanView<'_>) -> bool {
    let told = |model: Model<'_>| {
        model.response_id.is_some() || model.tokens.input.or(model.tokens.output).is_some()
    };
    span.operation == Operation::Chat
        && !span.streamed
        && !span.failed
        && span.scope() == answer.scope()
        && span.parent() == answer.parent()
        && span.end <= answer.start
        && !span.model().is_some_and(told)
}

/// Whether the id of a call occurs more than once.
fn has_again(ids: impl Iterator<Item = IdHash> + Clone) -> bool {
    if !may_recur(ids.clone().map(IdHash::number)) {
        return false;
    }
    let mut ids: Vec<IdHash> = ids.collect();
    ids.sort_unstable();
    ids.windows(2).any(|pair| pair[0] == pair[1])
}

/// Whether one of these hashes may occur more than once. Hashes with different ends differ; a few usually have different ends.
pub(super) fn may_recur(mut hashes: impl Iterator<Item = u64>) -> bool {
    let mut ends = 0_u128;
    hashes.any(|hash| {
        let end = 1 << (hash % 128);
        let is_known = ends & end != 0;
        ends |= end;
        is_known
    })
}

/// Whether a span is a call of this tool, which has a name.
fn is_tool(span: &SpanView<'_>, name: Option<&Arc<str>>) -> bool {
    span.operation == Operation::ExecuteTool && span.tool_name() == name
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::span::{Arguments, ModelFacts, Span, Timestamp, Tokens, ToolFacts};
    use crate::trace::Symbols;

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

    fn id(at: usize) -> SpanId {
        SpanId((1 + at as u64).to_be_bytes())
    }

    /// A call or an agent with or without tokens, or another span around calls.
    fn span(kind: u8, counted: bool) -> Span {
        let operation = match kind {
            0 => Operation::InvokeAgent,
            1 => Operation::Other,
            _ => Operation::Chat,
        };
        let tokens = Tokens { input: counted.then_some(1), ..Tokens::default() };
        let model = ModelFacts { tokens, ..ModelFacts::default() };
        let tells = kind > 1 || kind == 0 && counted;
        Span { operation, model: tells.then_some(model), ..Span::default() }
    }

    fn around(shape: &Shape<'_>, at: usize) -> Vec<usize> {
        shape.around(at).filter(|above| shape.is_model(above)).map(|above| above.at).collect()
    }

    /// The totals by their definition, span by span and call by call.
    fn slow_totals(shape: &Shape<'_>, calls: &[ModelCall<'_>]) -> Vec<(usize, BTreeSet<usize>)> {
        let counted =
            |call: &ModelCall<'_>| call.model().is_some_and(|model| model.tokens.input.is_some());
        let models = shape.outermost_first().filter(|span| shape.is_model(span));
        let outer = models.map(|span| shape.call_of(span)).filter(counted);
        let mut totals: Vec<(usize, BTreeSet<usize>)> = Vec::new();
        for outer in outer {
            let is_below = |call: &&ModelCall<'_>| around(shape, call.at).contains(&outer.at);
            let below: Vec<&ModelCall<'_>> = calls.iter().filter(is_below).collect();
            let is_taken = |at: usize| totals.iter().any(|(_, other)| other.contains(&at));
            if !below.is_empty() && !below.iter().any(|call| counted(call) || is_taken(call.at)) {
                totals.push((outer.at, below.iter().map(|call| call.at).collect()));
            }
        }
        let mut of_agents = Vec::new();
        for agent in shape.spans.iter().filter(|span| shape.is_step(span) && span.has_model()) {
            let next =
                |call: &ModelCall<'_>| shape.ancestors(call.at).find(|above| shape.is_step(above));
            let is_own = |call: &&ModelCall<'_>| next(call).is_some_and(|next| next.at == agent.at);
            let own: BTreeSet<usize> = calls.iter().filter(is_own).map(|call| call.at).collect();
            let is_told = |call: &&ModelCall<'_>| {
                counted(call) || totals.iter().any(|(_, below)| below.contains(&call.at))
            };
            if !own.is_empty() && !calls.iter().filter(is_own).any(|call| is_told(&call)) {
                of_agents.push((agent.at, own));
            }
        }
        totals.extend(of_agents);
        totals
    }

    proptest! {
        #[test]
        fn calls_within_calls_are_found_whatever_hangs_on_what(
            sent in prop::collection::vec((prop::option::of(0_usize..12), 0_u8..6, any::<bool>()), 1..12),
        ) {
            let (mut rows, mut symbols) = (Spans::default(), Symbols::default());
            for (at, (above, kind, counted)) in sent.iter().enumerate() {
                let (start, parent) = (Timestamp(at as u64), above.filter(|at| *at < sent.len()).map(id));
                let span = Span { span_id: id(at), parent, start, ..span(*kind, *counted) };
                rows.add(&span, &Arc::default(), &mut symbols, true);
            }
            let shape = Shape::new(&rows);
            for (at, span) in shape.spans.iter().enumerate() {
                let above: Vec<usize> = shape.ancestors(at).map(|above| above.at).collect();
                for other in 0..sent.len() {
                    prop_assert_eq!(shape.is_below(at, other), above.contains(&other));
                }
                let has_models = |at: usize| (0..sent.len())
                    .any(|other| shape.is_model(&shape.spans[other]) && shape.around(other).any(|above| above.at == at));
                let below = (0..sent.len()).filter(|other| {
                    let is_call = shape.is_model(&shape.spans[*other]) && !has_models(*other);
                    is_call && shape.around(*other).any(|above| above.at == at)
                });
                let below = if shape.nested { below.count().min(2) } else { 0 };
                prop_assert_eq!(usize::from(span.position.models_below), below);
            }
            let calls = shape.model_calls();
            let totals = shape.totals(&calls).into_iter().map(|(outer, below)| (outer.at, below));
            prop_assert_eq!(totals.collect::<Vec<_>>(), slow_totals(&shape, &calls));
        }

        #[test]
        fn depths_are_numbers_of_ancestors_whatever_hangs_on_what(
            sent in prop::collection::vec((prop::option::of(0_usize..12), any::<bool>()), 1..12),
        ) {
            let above: Vec<Option<usize>> =
                sent.iter().map(|(above, _)| above.filter(|at| *at < sent.len())).collect();
            let (mut rows, mut symbols) = (Spans::default(), Symbols::default());
            for at in (0..sent.len()).rev() {
                let operation = if sent[at].1 { Operation::Evaluation } else { Operation::Other };
                let (start, parent) = (Timestamp(at as u64), above[at].map(id));
                let span = Span { span_id: id(at), parent, start, operation, ..Span::default() };
                rows.add(&span, &Arc::default(), &mut symbols, true);
            }
            let spans = Shape::new(&rows).spans;
            for at in 0..sent.len() {
                let ancestors = slowly(&above, at);
                prop_assert_eq!(spans[at].position.depth, ancestors.len());
                prop_assert_eq!(spans[at].position.evaluates, sent[at].1 || ancestors.iter().any(|at| sent[*at].1));
            }
        }
    }

    /// The rows of these spans, whose ids are those of their places.
    fn rows(sent: &[Span]) -> Spans {
        let (mut rows, mut symbols) = (Spans::default(), Symbols::default());
        for (at, span) in sent.iter().enumerate() {
            rows.add(
                &Span { span_id: id(at), ..span.clone() },
                &Arc::default(),
                &mut symbols,
                true,
            );
        }
        rows
    }

    /// A span of a library that hangs from the span at a place.
    fn below(above: usize, scope: u64, operation: Operation, (start, end): (u64, u64)) -> Span {
        let (start, end) = (Timestamp(start * 1_000_000), Timestamp(end * 1_000_000));
        Span { parent: Some(id(above)), scope, operation, start, end, ..Span::default() }
    }

    /// A call of a tool; the arguments are a number alone, or one with a name.
    fn tool(above: usize, scope: u64, times: (u64, u64), (named, number): (bool, u8)) -> Span {
        let value = xxhash_rust::xxh3::xxh3_64(number.to_string().as_bytes());
        let value = crate::span::placed(value, u64::from(named));
        let text = if named { format!(r#"{{"n":{number}}}"#) } else { number.to_string() };
        let arguments = Some(Arguments::from_canonical(text.as_bytes(), &[value], true));
        let tool = Some(ToolFacts { name: Some("f".into()), arguments, ..ToolFacts::default() });
        Span { tool, ..below(above, scope, Operation::ExecuteTool, times) }
    }

    /// An agent, and below it a step of each of two libraries.
    fn steps() -> Vec<Span> {
        let agent = Span { parent: None, ..below(0, 1, Operation::InvokeAgent, (0, 99)) };
        vec![agent, below(0, 1, Operation::Other, (0, 99)), below(0, 2, Operation::Other, (0, 99))]
    }

    #[test]
    fn a_tool_call_that_two_libraries_tell_side_by_side_is_one() {
        let asked = |tools: &[Span]| {
            let rows = rows(&[&steps()[..], tools].concat());
            let texts = |call: &ToolSpan<'_>| call.tool()?.arguments?.text.map(ToString::to_string);
            Shape::new(&rows).tool_spans().iter().filter_map(texts).collect::<Vec<_>>()
        };
        let (named, bare) = ((true, 1), (false, 1));
        assert_eq!(
            asked(&[tool(1, 1, (10, 12), named), tool(2, 2, (10, 20), bare)]),
            [r#"{"n":1}"#]
        );
        assert_eq!(
            asked(&[tool(2, 2, (10, 20), bare), tool(1, 1, (10, 12), named)]),
            [r#"{"n":1}"#]
        );
        // Two parallel calls, both recorded by each library, in any order.
        let both = [(1, 1, named), (1, 1, (true, 2)), (2, 2, bare), (2, 2, (false, 2))];
        let twice = both.map(|(above, scope, asked)| tool(above, scope, (10, 20), asked));
        assert_eq!(asked(&twice), [r#"{"n":1}"#, r#"{"n":2}"#]);
        let same = [1, 1, 2, 2].map(|of| tool(of, of as u64, (10, 20), named));
        assert_eq!(asked(&same).len(), 2);
        // One library, another value, another time, and a step of the other library in between.
        assert_eq!(asked(&[tool(1, 1, (10, 12), named), tool(1, 1, (10, 20), named)]).len(), 2);
        assert_eq!(
            asked(&[tool(1, 1, (10, 12), named), tool(2, 2, (10, 20), (false, 2))]).len(),
            2
        );
        assert_eq!(asked(&[tool(1, 1, (10, 12), named), tool(2, 2, (14, 20), bare)]).len(), 2);
        let through = below(1, 2, Operation::Other, (0, 99));
        assert_eq!(
            asked(&[through, tool(3, 1, (10, 12), named), tool(2, 2, (10, 20), bare)]).len(),
            2
        );
    }

    /// The same calls from two libraries, of each `count` at one time, all with the same values and one of its own.
    fn fan_out(count: usize, values: u64) -> Vec<Span> {
        let call = |scope: usize, own: usize| {
            let value =
                |at: u64| crate::span::placed(xxhash_rust::xxh3::xxh3_64(&at.to_le_bytes()), 1);
            let values: Vec<u64> = (0..values).chain([1_000_000 + own as u64]).map(value).collect();
            let arguments = Arguments::from_canonical(own.to_string().as_bytes(), &values, false);
            let facts = ToolFacts {
                name: Some("f".into()),
                arguments: Some(arguments),
                ..ToolFacts::default()
            };
            let span = below(scope, scope as u64, Operation::ExecuteTool, (10, 20));
            Span { tool: Some(facts), ..span }
        };
        let calls = [1, 2].into_iter().flat_map(|scope| (0..count).map(move |own| (scope, own)));
        [steps(), calls.map(|(scope, own)| call(scope, own)).collect()].concat()
    }

    #[test]
    fn hundreds_of_calls_at_once_that_two_libraries_tell_are_as_many() {
        let rows = rows(&fan_out(500, 3));
        let shape = Shape::new(&rows);
        assert_eq!((shape.tool_spans().len(), shape.has_uncompared()), (500, false));
    }

    #[test]
    fn thousands_of_calls_at_once_are_not_all_compared_with_each_other() {
        // Compared each with each, and value with value, the first takes minutes.
        let tools = rows(&fan_out(4_950, 100));
        let shape = Shape::new(&tools);
        let found = shape.tool_spans().len();
        assert!((4_950..=9_900).contains(&found) && shape.has_uncompared());
        let call = |at: usize| {
            let span = below(100_000 + at, at as u64 % 4, Operation::Chat, (10, 20));
            Span { failed: true, ..span }
        };
        let failed = rows(&(0..9_900).map(call).collect::<Vec<_>>());
        let shape = Shape::new(&failed);
        assert_eq!((shape.model_calls().len(), shape.has_uncompared()), (9_900, true));
        // One after the other they are compared only with those at that time.
        let call = |at: usize| {
            let time = 20 * (at as u64 / 2);
            tool(1 + at % 2, 1 + at as u64 % 2, (time, time + 10), (true, 1))
        };
        let calls: Vec<Span> = (0..9_900).map(call).collect();
        let in_turn = rows(&[steps(), calls].concat());
        let shape = Shape::new(&in_turn);
        assert_eq!((shape.tool_spans().len(), shape.has_uncompared()), (4_950, false));
    }

    #[test]
    fn what_serves_a_tool_call_under_a_name_without_its_prefix_is_no_further_call() {
        let named = |name: &str, span: Span| {
            let tool = span.tool.clone().map(|tool| ToolFacts { name: Some(name.into()), ..tool });
            Span { tool, ..span }
        };
        let call = |above, scope, name| named(name, tool(above, scope, (10, 20), (true, 1)));
        let served = |above, scope, name| Span {
            failed: true,
            tool: Some(ToolFacts { name: Some(Arc::from(name)), ..ToolFacts::default() }),
            ..below(above, scope, Operation::ExecuteTool, (12, 18))
        };
        let told = |spans: &[Span]| {
            let rows = rows(&[&steps()[..], spans].concat());
            let shape = Shape::new(&rows);
            let told = |call: &ToolSpan<'_>| {
                (call.tool().and_then(|tool| tool.name).cloned(), call.failed)
            };
            shape.tool_spans().iter().map(told).collect::<Vec<_>>()
        };
        let one = |name: &str| vec![(Some(Arc::from(name)), true)];
        let client = Span { failed: false, ..served(3, 2, "get.weather") };
        // Within the call, and within what a client tells of it.
        for outer in ["mcp__shop__get_weather", "shop-get_weather", "shop.get.weather"] {
            assert_eq!(told(&[call(1, 1, outer), served(3, 2, "get.weather")]), one(outer));
            let server = served(4, 2, "get.weather");
            assert_eq!(told(&[call(1, 1, outer), client.clone(), server]), one(outer));
            assert_eq!(told(&[call(0, 1, outer), served(0, 2, "get.weather")]), one(outer));
        }
        // Another name, of the same library, and the work of an agent that was called as a tool.
        assert_eq!(told(&[call(1, 1, "forget_weather"), served(3, 2, "get_weather")]).len(), 2);
        assert_eq!(told(&[call(1, 1, "a_get_weather"), served(3, 1, "get_weather")]).len(), 2);
        let agent = below(3, 1, Operation::InvokeAgent, (11, 19));
        let inner = served(4, 2, "weather");
        assert_eq!(told(&[call(1, 1, "ask_weather"), agent, inner]).len(), 2);
        // Two calls at once are served twice.
        let (outer, inner) = (call(0, 1, "shop_f"), served(0, 2, "f"));
        assert_eq!(told(&[outer.clone(), outer, inner.clone(), inner]).len(), 2);
    }

    #[test]
    fn a_model_call_that_two_libraries_tell_side_by_side_is_one() {
        let call = |above, scope, tokens: Option<u64>, failed| {
            let tokens = Tokens { input: tokens, output: tokens, ..Tokens::default() };
            let model = Some(ModelFacts { tokens, ..ModelFacts::default() });
            Span { model, failed, ..below(above, scope, Operation::Chat, (10, 20)) }
        };
        let count = |spans: &[Span]| Shape::new(&rows(spans)).model_calls().len();
        let beside = |one: Span, other: Span| count(&[&steps()[..], &[one, other]].concat());
        assert_eq!(beside(call(1, 1, Some(7), false), call(2, 2, Some(7), false)), 1);
        assert_eq!(beside(call(1, 1, Some(7), false), call(2, 2, Some(8), false)), 2);
        assert_eq!(beside(call(1, 1, None, true), call(2, 2, None, true)), 1);
        assert_eq!(beside(call(1, 1, None, true), call(2, 2, None, false)), 2);
        assert_eq!(beside(call(1, 1, None, true), call(2, 2, Some(7), true)), 2);
        assert_eq!(beside(call(1, 1, None, true), call(0, 2, None, true)), 1);
        // A failed call of a tool that runs within a failed call is another one.
        let within =
            [call(0, 1, None, true), tool(3, 1, (10, 20), (true, 1)), call(4, 2, None, true)];
        assert_eq!(count(&[&steps()[..], &within].concat()), 2);
        // Below a span that never came.
        let absent = |parent| Span { parent: Some(id(parent)), ..steps()[0].clone() };
        let (one, other) = (call(0, 1, Some(7), false), call(9, 2, Some(7), false));
        assert_eq!(count(&[absent(9), one.clone(), other.clone()]), 1);
        assert_eq!(count(&[absent(8), one, other]), 2);
    }

    #[test]
    fn a_call_during_which_another_one_begins_is_not_the_last() {
        let call = |at: usize, start: u64, end: u64| Span {
            span_id: id(at),
            parent: at.checked_sub(1).map(id),
            start: Timestamp(start),
            end: Timestamp(end),
            // A tool of the first call is an agent, which makes the second one.
            operation: if at == 1 { Operation::ExecuteTool } else { Operation::Chat },
            ..Span::default()
        };
        let (mut rows, mut symbols) = (Spans::default(), Symbols::default());
        for span in [call(0, 1, 9), call(1, 2, 8), call(2, 3, 7)] {
            rows.add(&span, &Arc::default(), &mut symbols, true);
        }
        let shape = Shape::new(&rows);
        let calls = shape.model_calls();
        assert_eq!(shape.last_model(&calls).map(|call| call.span_id), Some(id(2)));
    }

    #[test]
    fn of_spans_that_are_very_deep_the_outermost_ones_count() {
        let id = |at: usize| SpanId((1 + at as u64).to_be_bytes());
        let depths = |parent: fn(usize) -> Option<usize>| -> Vec<(usize, Vec<usize>)> {
            let (mut rows, mut symbols) = (Spans::default(), Symbols::default());
            for at in 0..2 * DEEPEST {
                let (start, parent) = (Timestamp(at as u64), parent(at).map(id));
                let span = Span { span_id: id(at), parent, start, ..Span::default() };
                rows.add(&span, &Arc::default(), &mut symbols, true);
            }
            let shape = Shape::new(&rows);
            let above = |at| shape.ancestors(at).map(|above| above.at).collect();
            (0..2 * DEEPEST).map(|at| (shape.spans[at].position.depth, above(at))).collect()
        };
        let outermost = |at: usize| (0..at.min(DEEPEST)).rev().collect::<Vec<usize>>();
        let expected = (0..2 * DEEPEST).map(|at| (at.min(DEEPEST), outermost(at)));
        assert!(depths(|at| at.checked_sub(1)).into_iter().eq(expected));
        // In either order, and in a cycle.
        let last = 2 * DEEPEST - 1;
        let up = depths(|at| Some(at + 1));
        assert_eq!((up[last].0, up[0].0, up[0].1.last()), (0, DEEPEST, Some(&last)));
        let around = depths(|at| Some((at + 1) % (2 * DEEPEST)));
        assert!(
            around.iter().all(|(depth, above)| (*depth, above.len()) == (DEEPEST - 1, DEEPEST - 1))
        );
    }
}
