//! The facts of a span that its trace needs, borrowed from where they are stored.
//!
//! Ids that are only compared are hashes; a span's name is present only for those kinds of spans that need it.

use std::sync::Arc;

use super::details::ToolRow;
use super::rows::Rest;
use super::shape::Position;
use super::symbol::Symbol;
use crate::math::Quanta;
use crate::price::Rate;
use crate::span::{
    Arguments, Attempt, IdHash, Operation, RECORD_SCOPE, REPORTED_LOOP, Remarks, Resource,
    SessionName, SpanId, Status, Text, Timestamp, Tokens, ToolFacts, ToolResult, Values,
};

/// A span: the facts by which it is searched, and a reference to the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanView<'a> {
    pub(super) operation: Operation,
    pub(super) status: Status,
    pub(super) failed: bool,
    pub(super) stopped: bool,
    /// Whether it is the streamed response to the request of another span; false if the shape has not found that span.
    pub(super) streamed: bool,
    pub(super) rest: Rest<'a>,
    /// The span's index in the order of the trace; its row before there is one.
    pub(super) at: usize,
    /// Its position among the others, once there is a shape.
    pub(super) position: Position,
}

/// All facts of a span, in the order in which two spans with one id are compared.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct WholeView<'a> {
    pub(super) span_id: SpanId,
    pub(super) parent: Option<SpanId>,
    pub(super) remote_parent: Option<bool>,
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
    /// The span's name, if it is of an agent, of no known operation or, if texts are kept, of a model call; else empty.
    pub(super) name: &'a str,
    pub(super) operation: Operation,
    pub(super) status: Status,
    pub(super) failed: bool,
    pub(super) stopped: bool,
    pub(super) streamed: bool,
    pub(super) scope: u64,
    pub(super) resource: &'a Arc<Resource>,
    pub(super) agent_name: Option<&'a str>,
    pub(super) workflow: Option<&'a str>,
    pub(super) agent_id: Option<&'a str>,
    pub(super) agent_version: Option<&'a str>,
    pub(super) environment: Option<&'a str>,
    pub(super) session: Option<&'a SessionName>,
    pub(super) session_in_json: Option<&'a SessionName>,
    pub(super) user: Option<&'a str>,
    pub(super) tool: Option<Tool<'a>>,
    pub(super) model: Option<Model<'a, Vec<Tool<'a>>, Vec<ToolResult>>>,
    pub(super) attempt: Option<&'a Attempt>,
    pub(super) remarks: Option<&'a Remarks>,
    pub(super) input: Option<TextView<'a>>,
    /// For tools only if texts are kept.
    pub(super) output: Option<TextView<'a>>,
}

/// A tool call.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Tool<'a> {
    pub(super) name: Option<&'a Arc<str>>,
    pub(super) call_id: Option<IdHash>,
    pub(super) arguments: Option<ArgumentsView<'a>>,
    pub(super) result: Option<u64>,
    pub(super) phantom: bool,
}

/// The arguments of a call.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct ArgumentsView<'a> {
    pub(super) hash: u64,
    /// Hashes of the values in them, sorted.
    pub(super) values: &'a Values,
    /// Canonical JSON; only if texts are kept.
    pub(super) text: Option<&'a Arc<str>>,
}

/// A model call: its tool calls and results are borrowed, or collected for comparison.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Model<'a, C = &'a [ToolRow], R = &'a [ToolResult]> {
    pub(super) name: Option<Named<'a>>,
    /// The requested model, if the responding one has no price.
    pub(super) requested: Option<Named<'a>>,
    pub(super) response_id: Option<IdHash>,
    pub(super) tokens: Tokens,
    pub(super) cost: Option<Quanta>,
    pub(super) calls: C,
    pub(super) results: R,
    pub(super) asked_by_user: Option<bool>,
    pub(super) compacted: bool,
    /// Whether the model is self-hosted.
    pub(super) local: bool,
    /// Only if texts are kept.
    pub(super) first_chunk_nanos: Option<u64>,
}

/// The name of a model, and its shipped price.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Named<'a> {
    pub(super) text: &'a Arc<str>,
    pub(super) price: Option<&'static Rate>,
}

/// A text, and its rank among texts of the same thing.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct TextView<'a> {
    pub(super) rank: u8,
    /// For an agent's input, a part of its hash; zero: none.
    pub(super) mark: u32,
    /// For inputs only if texts are kept.
    pub(super) text: Option<&'a Arc<str>>,
}

impl SpanView<'_> {
    /// Whether the span is from a log record that only reports its start.
    pub(super) fn is_begun(&self) -> bool {
        self.is_record() && self.status == Status::Unset && !self.failed
    }

    /// Whether the span is from a log record.
    pub(super) fn is_record(&self) -> bool {
        self.scope() == RECORD_SCOPE
    }

    /// Whether the span ended early for a person to answer.
    pub(super) fn is_interrupted(&self) -> bool {
        self.remarks().is_some_and(|remarks| remarks.interrupted)
    }

    /// Whether a person refused the tool call.
    pub(super) fn is_refused(&self) -> bool {
        self.remarks().is_some_and(|remarks| remarks.refused)
    }

    /// Whether the run that the span is a part of failed with it.
    pub(super) fn fails_run(&self) -> bool {
        self.remarks().is_some_and(|remarks| remarks.failed_run)
    }

    /// Whether the span is an agent's report that it is in a loop.
    pub(super) fn reports_loop(&self) -> bool {
        self.is_record() && self.name() == REPORTED_LOOP
    }
}

impl WholeView<'_> {
    /// Whether this is the one to keep of two spans with one id, whatever the order of arrival. Texts decide last, so that the same
    /// one is kept with or without texts.
    pub(super) fn holds_against(&self, other: &Self) -> bool {
        self == other || (self.without_texts(), self) > (other.without_texts(), other)
    }

    /// The span as it is without texts.
    pub(super) fn without_texts(&self) -> Self {
        let mut seen = self.clone();
        if seen.operation == Operation::Chat {
            seen.name = "";
        }
        seen.model.iter_mut().for_each(|model| model.first_chunk_nanos = None);
        let calls = seen.model.iter_mut().flat_map(|model| &mut model.calls);
        let asked = calls.chain(&mut seen.tool).filter_map(|tool| tool.arguments.as_mut());
        asked.for_each(|asked| asked.text = None);
        if seen.operation == Operation::ExecuteTool {
            seen.output = None;
        }
        seen.input.iter_mut().for_each(|said| said.text = None);
        seen
    }
}

impl<'a> Model<'a> {
    /// The shipped price for a model of this name, unless it is self-hosted.
    pub(super) fn shipped(&self, name: Named<'_>) -> Option<&'static Rate> {
        name.price.filter(|_| !self.local)
    }

    /// The call, collected for comparison.
    pub(super) fn whole(self) -> Model<'a, Vec<Tool<'a>>, Vec<ToolResult>> {
        Model {
            name: self.name,
            requested: self.requested,
            response_id: self.response_id,
            tokens: self.tokens,
            cost: self.cost,
            calls: self.calls.iter().map(ToolRow::seen).collect(),
            results: self.results.to_vec(),
            asked_by_user: self.asked_by_user,
            compacted: self.compacted,
            local: self.local,
            first_chunk_nanos: self.first_chunk_nanos,
        }
    }
}

impl<'a> From<&'a Symbol> for Named<'a> {
    fn from(name: &'a Symbol) -> Self {
        Self { text: name.text(), price: name.price() }
    }
}

impl<'a> Tool<'a> {
    /// The facts of a call.
    pub(super) fn of(facts: &'a ToolFacts) -> Self {
        Self {
            name: facts.name.as_ref(),
            call_id: facts.call_id,
            arguments: facts.arguments.as_ref().map(ArgumentsView::of),
            result: facts.result_hash,
            phantom: facts.phantom,
        }
    }
}

impl<'a> ArgumentsView<'a> {
    fn of(arguments: &'a Arguments) -> Self {
        Self { hash: arguments.hash(), values: arguments.values(), text: arguments.text() }
    }
}

impl<'a> TextView<'a> {
    /// A text.
    pub(super) fn of(text: &'a Text) -> Self {
        Self { rank: text.rank, mark: 0, text: Some(&text.text) }
    }
}
