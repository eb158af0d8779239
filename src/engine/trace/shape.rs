//! The shape of a trace: who is below whom, and what is the agent's own behaviour.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::engine::span::{Operation, Span, SpanId};

/// The spans of a trace in order of (start, end, id), and how they hang together.
pub(super) struct Shape<'a> {
    /// All spans.
    pub(super) spans: Vec<&'a Span>,
    by_id: BTreeMap<SpanId, &'a Span>,
    depths: BTreeMap<SpanId, usize>,
    /// Evaluators and all below them: not the agent's behaviour.
    evaluators: BTreeSet<SpanId>,
    /// What model calls are told by.
    model: Operation,
    /// Spans with model calls below them that have none below themselves, and how many.
    models_below: BTreeMap<SpanId, usize>,
}

impl<'a> Shape<'a> {
    pub(super) fn new(spans: impl Iterator<Item = &'a Span>) -> Self {
        let mut spans: Vec<&Span> = spans.collect();
        spans.sort_by_key(|span| (span.start, span.end, span.span_id));
        let by_id: BTreeMap<_, _> = spans.iter().map(|span| (span.span_id, *span)).collect();
        let mut shape = Self {
            spans,
            by_id,
            depths: BTreeMap::new(),
            evaluators: BTreeSet::new(),
            model: Operation::Chat,
            models_below: BTreeMap::new(),
        };
        for span in shape.spans.clone() {
            shape.place(span);
        }
        // Where no model call has a span, agent spans that say what all of theirs used stand for them.
        if !shape.behaviour().any(|span| span.operation == Operation::Chat) {
            shape.model = Operation::InvokeAgent;
        }
        shape.count_models();
        shape
    }

    /// The agent's own behaviour, in order.
    pub(super) fn behaviour(&self) -> impl Iterator<Item = &'a Span> + '_ {
        self.spans.iter().copied().filter(|span| !self.evaluators.contains(&span.span_id))
    }

    /// Spans from the outermost inwards: fewest known ancestors, then start, then id.
    pub(super) fn outermost_first(&self) -> Vec<&'a Span> {
        let mut spans: Vec<_> = self.behaviour().collect();
        spans.sort_by_key(|span| (self.depths.get(&span.span_id), span.start, span.span_id));
        spans
    }

    /// All spans, evaluators included, from the outermost inwards.
    pub(super) fn all_outermost_first(&self) -> Vec<&'a Span> {
        let mut spans = self.spans.clone();
        spans.sort_by_key(|span| (self.depths.get(&span.span_id), span.start, span.span_id));
        spans
    }

    /// The earliest span without a parent.
    pub(super) fn root(&self) -> Option<&'a Span> {
        self.behaviour().find(|span| span.parent.is_none())
    }

    /// Model calls without a model call below them, in order; two spans of one call count once.
    ///
    /// Two libraries may watch one call: one span inside the other, two spans of one answer, or one beside the other.
    /// What one of them does not say the other one does.
    pub(super) fn model_calls(&self) -> Vec<Cow<'a, Span>> {
        let mut answers: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        let mut calls: Vec<Cow<'a, Span>> = Vec::new();
        for span in self.behaviour().filter(|span| self.is_model(span)) {
            if self.models_below.contains_key(&span.span_id) {
                continue;
            }
            let call = self.completed(span);
            let id = call.model.as_ref().and_then(|facts| facts.response_id.clone());
            let again = id.as_ref().and_then(|id| answers.get(id).copied());
            let again = again.or_else(|| calls.iter().position(|other| beside(other, &call)));
            match again {
                Some(at) if known(&calls[at]) >= known(&call) => {
                    complete(calls[at].to_mut(), &call);
                }
                Some(at) => {
                    let other = std::mem::replace(&mut calls[at], call);
                    complete(calls[at].to_mut(), &other);
                }
                None => calls.push(call),
            }
            let at = again.unwrap_or_else(|| calls.len().saturating_sub(1));
            answers.extend(id.map(|id| (id, at)));
        }
        calls
    }

    /// Model spans around several calls that say what all of them used, where the calls themselves do not; by the
    /// ids of those calls.
    pub(super) fn totals(&self, calls: &[&'a Span]) -> Vec<(&'a Span, BTreeSet<SpanId>)> {
        let counted = |span: &Span| {
            span.model
                .as_ref()
                .is_some_and(|facts| facts.tokens.input.is_some() || facts.tokens.output.is_some())
        };
        let mut totals: Vec<(&'a Span, BTreeSet<SpanId>)> = Vec::new();
        let outer = self.outermost_first().into_iter();
        for span in outer.filter(|span| self.is_model(span) && counted(span)) {
            let above = |id: SpanId| totals.iter().any(|(_, below)| below.contains(&id));
            let below = calls.iter().filter(|call| {
                call.span_id != span.span_id
                    && self.ancestors(call).any(|above| above.span_id == span.span_id)
            });
            let below: Vec<&&Span> = below.collect();
            if !below.is_empty() && below.iter().all(|call| !counted(call) && !above(call.span_id))
            {
                totals.push((span, below.iter().map(|call| call.span_id).collect()));
            }
        }
        totals
    }

    fn is_model(&self, span: &Span) -> bool {
        span.operation == self.model && (span.operation == Operation::Chat || span.model.is_some())
    }

    /// A model call with what the model spans around it say, as far as they are around this one alone.
    fn completed(&self, span: &'a Span) -> Cow<'a, Span> {
        let mut call = Cow::Borrowed(span);
        let around = self.ancestors(span).filter(|above| self.is_model(above));
        for outer in around.filter(|above| self.models_below.get(&above.span_id) == Some(&1)) {
            complete(call.to_mut(), outer);
        }
        call
    }

    /// Spans of no known operation by name: where tools have no spans of their own, the functions that ran.
    pub(super) fn functions(&self) -> BTreeMap<&'a str, Vec<&'a Span>> {
        let mut functions: BTreeMap<&str, Vec<&Span>> = BTreeMap::new();
        for span in self.behaviour().filter(|span| span.operation == Operation::Other) {
            functions.entry(&span.name).or_default().push(span);
        }
        functions
    }

    /// Tool calls of tool spans, in order; a span inside another of the same call counts once.
    pub(super) fn tool_spans(&self) -> Vec<&'a Span> {
        let mut call_ids = BTreeSet::new();
        let tools = self.behaviour().filter(|span| span.operation == Operation::ExecuteTool);
        tools
            .filter(|span| {
                let facts = span.tool.as_ref();
                let name = facts.and_then(|facts| facts.name.as_ref());
                let inside_itself = self.ancestors(span).any(|above| {
                    let other =
                        above.tool.as_ref().filter(|_| above.operation == Operation::ExecuteTool);
                    name.is_some() && other.is_some_and(|other| other.name.as_ref() == name)
                });
                let again = facts
                    .and_then(|facts| facts.call_id.as_ref())
                    .is_some_and(|id| !call_ids.insert((id, name)));
                !inside_itself && !again && !facts.is_some_and(|facts| facts.phantom)
            })
            .collect()
    }

    /// Whether a span is part of a tool call.
    pub(super) fn is_inside_tool(&self, span: &'a Span) -> bool {
        self.ancestors(span).any(|above| above.operation == Operation::ExecuteTool)
    }

    /// Notes the depth of a span and what it says of those above it.
    fn place(&mut self, span: &'a Span) {
        let above: Vec<&Span> = self.ancestors(span).collect();
        self.depths.insert(span.span_id, above.len());
        let evaluates = |span: &Span| span.operation == Operation::Evaluation;
        if evaluates(span) || above.iter().any(|span| evaluates(span)) {
            self.evaluators.insert(span.span_id);
        }
    }

    fn count_models(&mut self) {
        let is_model = |span: &&&Span| self.is_model(span);
        let over =
            |span: &&'a Span| self.ancestors(span).map(|above| above.span_id).collect::<Vec<_>>();
        let models: Vec<(SpanId, Vec<SpanId>)> =
            self.spans.iter().filter(is_model).map(|span| (span.span_id, over(span))).collect();
        let outer: BTreeSet<SpanId> =
            models.iter().flat_map(|(_, above)| above.iter().copied()).collect();
        for (_, above) in models.iter().filter(|(id, _)| !outer.contains(id)) {
            for id in above {
                *self.models_below.entry(*id).or_default() += 1;
            }
        }
    }

    /// The known spans above one, the nearest first; ends at a cycle.
    fn ancestors(&self, span: &'a Span) -> impl Iterator<Item = &'a Span> + '_ {
        let mut seen = BTreeSet::from([span.span_id]);
        let mut next = span.parent;
        std::iter::from_fn(move || {
            let above = *self.by_id.get(&next?)?;
            next = above.parent;
            seen.insert(above.span_id).then_some(above)
        })
    }
}

/// Whether two spans, of different libraries, watch one call from side by side: one lasts as long as the other or
/// longer, to a millisecond, and they do not contradict each other.
fn beside(one: &Span, other: &Span) -> bool {
    const MILLISECOND: u64 = 1_000_000;
    let within = |inner: &Span, outer: &Span| {
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

/// Fills in what one span does not say of a call from another span of it.
fn complete(call: &mut Span, other: &Span) {
    call.input = call.input.take().or_else(|| other.input.clone());
    call.output = call.output.take().or_else(|| other.output.clone());
    call.failed |= other.failed;
    let (Some(facts), Some(more)) = (&mut call.model, &other.model) else { return };
    facts.model = facts.model.take().or_else(|| more.model.clone());
    facts.response_id = facts.response_id.take().or_else(|| more.response_id.clone());
    facts.tokens.input = facts.tokens.input.or(more.tokens.input);
    facts.tokens.cached = facts.tokens.cached.or(more.tokens.cached);
    facts.tokens.output = facts.tokens.output.or(more.tokens.output);
    facts.cost = facts.cost.or(more.cost);
    facts.asked_by_user = facts.asked_by_user.or(more.asked_by_user);
    if facts.tool_calls.is_empty() {
        facts.tool_calls.clone_from(&more.tool_calls);
    }
    if facts.tool_results.is_empty() {
        facts.tool_results.clone_from(&more.tool_results);
    }
}

/// How much a model span knows of its call: of two spans for one call, the better counts.
fn known(span: &Span) -> usize {
    span.model.as_ref().map_or(0, |facts| {
        usize::from(facts.tokens.input.is_some())
            + usize::from(facts.tokens.output.is_some())
            + usize::from(facts.cost.is_some())
    })
}
