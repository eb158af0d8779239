//! The spans of a trace, and who is below whom.

use crate::engine::span::{Operation, Span, TOLD_BY_RECORD};

/// Spans in order of (start, end, id).
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    pub(super) spans: Vec<Span>,
    // By place: the places above, the nearest first; a cycle's each once.
    above: Vec<Vec<usize>>,
    behaviour: Vec<usize>,
}

impl Tree {
    pub(super) fn new(mut spans: Vec<Span>) -> Self {
        spans.sort_by_key(|span| (span.start, span.end, span.span_id));
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
            chain
        };
        let above: Vec<Vec<usize>> = (0..spans.len()).map(chain).collect();
        let evaluates = |at: usize| spans[at].operation == Operation::Evaluation;
        let own = |at: &usize| !evaluates(*at) && !above[*at].iter().any(|at| evaluates(*at));
        let behaviour = (0..spans.len()).filter(own).collect();
        Self { spans, above, behaviour }
    }

    /// The places above one, the nearest first.
    pub(super) fn above(&self, at: usize) -> &[usize] {
        &self.above[at]
    }

    /// What is above one, the nearest first.
    pub(super) fn ancestors(&self, at: usize) -> impl Iterator<Item = &Span> {
        self.above[at].iter().map(|above| &self.spans[*above])
    }

    /// Places of what the agent itself did: no evaluator, and nothing below one.
    pub(super) fn behaviour(&self) -> &[usize] {
        &self.behaviour
    }

    /// The agent's own spans, in order.
    pub(super) fn own(&self) -> impl DoubleEndedIterator<Item = &Span> {
        self.behaviour.iter().map(|at| &self.spans[*at])
    }

    /// All places, from the outermost inwards.
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

    /// Whether a record says that somebody else than the turn's agent did it.
    pub(super) fn is_aside(&self, at: usize) -> bool {
        self.ancestors(at).any(|above| is_record(above) && above.parent.is_some())
    }
}

/// Whether a log record told it.
pub(super) fn is_record(span: &Span) -> bool {
    span.scope == TOLD_BY_RECORD
}
