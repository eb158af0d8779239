//! The spans of a trace as a tree.

use super::names::name_of;
use super::price::shipped;
use crate::engine::span::{Operation, RECORD_SCOPE, Span, SpanId};

/// The most spans above another that count: of more, the outermost ones.
const DEEPEST: usize = 256;

/// The spans of a trace, in order of (start, end, id).
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    pub(super) spans: Vec<Span>,
    // The indices of the spans above each span, the nearest first; those of a cycle once each, and the outermost of a very deep
    // one.
    above: Vec<Vec<usize>>,
    behaviour: Vec<usize>,
    // The indices of requests and of their streamed answers.
    pub(super) answers: Vec<(usize, usize)>,
}

impl Tree {
    pub(super) fn new(mut spans: Vec<Span>) -> Self {
        spans.sort_by_key(|span| (span.start, span.end, span.span_id));
        // The requested model counts only if no price ships for the one that answered.
        for model in spans.iter_mut().filter_map(|span| span.model.as_mut()) {
            let name = model.model.as_deref().filter(|_| model.requested.is_some());
            if name.is_none_or(|name| shipped(name).is_some()) {
                model.requested = None;
            }
        }
        let parent = |at: usize| {
            let id = spans.get(at)?.parent?;
            spans.iter().position(|span| span.span_id == id)
        };
        let chain = |at: usize| {
            let mut chain: Vec<usize> = Vec::new();
            let mut next = parent(at);
            while let Some(above) = next.filter(|above| *above != at && !chain.contains(above)) {
                chain.push(above);
                next = parent(above);
            }
            chain.split_off(chain.len().saturating_sub(DEEPEST))
        };
        let above: Vec<Vec<usize>> = (0..spans.len()).map(chain).collect();
        let evaluates = |at: usize| spans[at].operation == Operation::Evaluation;
        let own = |at: &usize| !evaluates(*at) && !above[*at].iter().any(|at| evaluates(*at));
        let behaviour: Vec<usize> = (0..spans.len()).filter(own).collect();
        let answers = answers(&spans, &behaviour);
        Self { spans, above, behaviour, answers }
    }

    /// The indices of the spans above a span, the nearest first.
    pub(super) fn above(&self, at: usize) -> &[usize] {
        &self.above[at]
    }

    /// The spans above a span, the nearest first.
    pub(super) fn ancestors(&self, at: usize) -> impl Iterator<Item = &Span> {
        self.above[at].iter().map(|above| &self.spans[*above])
    }

    /// The indices of the agent's own spans: without evaluators and the spans below them.
    pub(super) fn behaviour(&self) -> &[usize] {
        &self.behaviour
    }

    /// The agent's own spans, in order.
    pub(super) fn own(&self) -> impl DoubleEndedIterator<Item = &Span> {
        self.behaviour.iter().map(|at| &self.spans[*at])
    }

    /// The least start of the agent's own spans that are not below another of them; of all, if each is below another one.
    pub(super) fn start(&self) -> u64 {
        let is_below = |at: &usize| self.above[*at].iter().any(|at| self.behaviour.contains(at));
        let start = |at: &usize| self.spans[*at].start.0;
        let outermost = self.behaviour.iter().filter(|at| !is_below(at)).map(start).min();
        outermost.or_else(|| self.own().map(|span| span.start.0).min()).unwrap_or(0)
    }

    /// All indices, from the outermost inwards.
    pub(super) fn inwards(&self) -> Vec<usize> {
        let mut inwards: Vec<usize> = (0..self.spans.len()).collect();
        inwards.sort_by_key(|at| {
            let span = &self.spans[*at];
            (self.above[*at].len(), span.start, span.span_id)
        });
        inwards
    }

    /// The agent's own spans from the outermost inwards.
    pub(super) fn outermost(&self) -> Vec<&Span> {
        let inwards = self.inwards().into_iter().filter(|at| self.behaviour.contains(at));
        inwards.map(|at| &self.spans[at]).collect()
    }

    /// The earliest span without a parent.
    pub(super) fn root(&self) -> Option<&Span> {
        self.own().find(|span| span.parent.is_none())
    }

    /// Among several spans without a parent the one that says how everything ended: one of an agent with a name, else of an agent,
    /// else the earliest.
    pub(super) fn own_root(&self) -> Option<&Span> {
        let earliest = self.root()?;
        let agents: Vec<&Span> = self
            .own()
            .filter(|span| span.parent.is_none() && span.operation == Operation::InvokeAgent)
            .collect();
        let named = agents.iter().find(|span| name_of(span).is_some());
        let agent = named.or_else(|| agents.first()).copied();
        if is_record(earliest) { Some(earliest) } else { agent.or(Some(earliest)) }
    }

    /// Whether two libraries may have recorded one event at two positions: one of both is below an ancestor of the other, or each
    /// has its own branch below a common ancestor, which may be a span that never arrived.
    pub(super) fn told_apart(&self, one: usize, other: usize) -> bool {
        // From the outside inwards: ids of the ancestors, beginning with a parent that never arrived.
        let line = |at: usize| {
            let mut line: Vec<SpanId> = self.ancestors(at).map(|above| above.span_id).collect();
            line.reverse();
            let outermost = self.above[at].last().map_or(&self.spans[at], |at| &self.spans[*at]);
            let absent = outermost.parent.filter(|id| self.find(*id).is_none());
            absent.into_iter().chain(line).collect::<Vec<SpanId>>()
        };
        let (mine, others) = (line(one), line(other));
        let shared = mine.iter().zip(&others).take_while(|(a, b)| a == b).count();
        let hangs = |at: usize, line: &[SpanId]| {
            self.spans[at].parent.is_some_and(|parent| line.contains(&parent))
        };
        let branch = |at: usize, line: &[SpanId]| {
            let mut own = line[shared..].iter().filter_map(|id| self.find(*id));
            own.all(|above| above.scope == self.spans[at].scope)
        };
        hangs(one, &others)
            || hangs(other, &mine)
            || (shared > 0 && branch(one, &mine) && branch(other, &others))
    }

    fn find(&self, id: SpanId) -> Option<&Span> {
        self.spans.iter().find(|span| span.span_id == id)
    }

    /// Whether the span is part of a tool that an agent called.
    pub(super) fn is_called(&self, span: &Span) -> bool {
        let at = self.spans.iter().position(|other| other.span_id == span.span_id);
        let above: Vec<Operation> =
            at.iter().flat_map(|at| self.ancestors(*at)).map(|above| above.operation).collect();
        let tool = above.iter().position(|operation| *operation == Operation::ExecuteTool);
        tool.is_some_and(|tool| above[tool..].contains(&Operation::InvokeAgent))
    }

    /// Whether a record says that the span's work was done by another than the turn's agent.
    pub(super) fn is_aside(&self, at: usize) -> bool {
        self.aside(at).is_some()
    }

    /// The span by which a record says that; `None` if none does.
    fn aside(&self, at: usize) -> Option<&Span> {
        self.ancestors(at).find(|above| is_record(above) && above.parent.is_some())
    }

    /// Whether a record names who else did the span's work.
    pub(super) fn names_aside(&self, at: usize) -> bool {
        self.aside(at).is_some_and(|above| above.agent_name.is_some())
    }
}

/// Whether one of two spans lies within the time of the other, give or take a millisecond, or five if they overlap.
pub(super) fn overlay(one: &Span, other: &Span) -> bool {
    let common = one.end.0.min(other.end.0) > one.start.0.max(other.start.0);
    let give: u64 = if common { 5_000_000 } else { 1_000_000 };
    let lies_in = |inner: &Span, outer: &Span| {
        outer.start.0 <= inner.start.0 + give && inner.end.0 <= outer.end.0 + give
    };
    lies_in(one, other) || lies_in(other, one)
}

/// Whether a span ended for a person to answer.
pub(super) fn is_interrupted(span: &Span) -> bool {
    span.remarks.as_ref().is_some_and(|remarks| remarks.interrupted)
}

/// The indices of requests and of their streamed answers: each answer belongs to the last request without one that the same library
/// sent under the same span and that ended before the answer began.
fn answers(spans: &[Span], behaviour: &[usize]) -> Vec<(usize, usize)> {
    let mut answers: Vec<(usize, usize)> = Vec::new();
    let tells = |span: &Span| {
        span.model.as_ref().is_some_and(|model| {
            model.response_id.is_some() || model.tokens.input.or(model.tokens.output).is_some()
        })
    };
    for (at, answer) in spans.iter().enumerate().filter(|(_, span)| span.streamed) {
        let asks = |request: &Span| {
            let silent = !request.streamed && !request.failed && !tells(request);
            request.operation == Operation::Chat
                && silent
                && (request.scope, request.parent) == (answer.scope, answer.parent)
                && request.end <= answer.start
        };
        let free = |at: &usize| answers.iter().all(|(request, _)| request != at);
        let requests = behaviour.iter().copied().filter(|at| free(at) && asks(&spans[*at]));
        let last = requests.max_by_key(|at| (spans[*at].end, *at));
        answers.extend(last.map(|request| (request, at)));
    }
    answers
}

/// Whether a span was made from a log record.
pub(super) fn is_record(span: &Span) -> bool {
    span.scope == RECORD_SCOPE
}
