//! What counts of a span in its trace, borrowed from wherever it is.
//!
//! Ids that are only compared are hashes; a name is there only where it tells something.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::engine::math::Quanta;
use crate::engine::span::{
    Arguments, Attempt, ModelFacts, Operation, Resource, SessionName, Span, SpanId, Status, Text,
    Timestamp, Tokens, ToolFacts, ToolResult,
};

/// A span.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Seen<'a> {
    pub(super) span_id: SpanId,
    pub(super) parent: Option<SpanId>,
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
    /// Of an agent, of what is nothing known, and where texts are kept of a model call; else empty.
    pub(super) name: &'a str,
    pub(super) operation: Operation,
    pub(super) status: Status,
    pub(super) failed: bool,
    pub(super) scope: u64,
    pub(super) resource: &'a Arc<Resource>,
    pub(super) agent_name: Option<&'a str>,
    pub(super) agent_version: Option<&'a str>,
    pub(super) environment: Option<&'a str>,
    pub(super) session: Option<Session<'a>>,
    pub(super) session_in_json: Option<Session<'a>>,
    pub(super) user: Option<&'a str>,
    pub(super) tool: Option<Tool<'a>>,
    pub(super) model: Option<Model<'a>>,
    pub(super) attempt: Option<&'a Attempt>,
    pub(super) input: Option<Said<'a>>,
    /// Of tools only where texts are kept.
    pub(super) output: Option<Said<'a>>,
    /// Its place in the order of the trace; 0 before there is one.
    pub(super) at: usize,
}

/// A session id, and the attribute that it was found in.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Session<'a> {
    pub(super) attribute: &'a str,
    pub(super) id: &'a str,
}

/// A tool call.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Tool<'a> {
    pub(super) name: Option<&'a str>,
    pub(super) call_id: Option<u64>,
    pub(super) arguments: Option<Asked<'a>>,
    pub(super) result: Option<u64>,
    pub(super) phantom: bool,
}

/// The arguments of a call.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Asked<'a> {
    pub(super) hash: u64,
    /// Hashes of the values in them, sorted.
    pub(super) values: &'a [u64],
    /// Canonical JSON; only where texts are kept.
    pub(super) text: Option<&'a str>,
}

/// A model call.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Model<'a> {
    pub(super) name: Option<&'a str>,
    pub(super) response_id: Option<u64>,
    pub(super) tokens: Tokens,
    pub(super) cost: Option<Quanta>,
    pub(super) calls: Vec<Tool<'a>>,
    pub(super) results: Vec<Told>,
    pub(super) asked_by_user: Option<bool>,
}

/// What a model was told of a call.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Told {
    pub(super) call_id: Option<u64>,
    pub(super) failed: bool,
    pub(super) hash: Option<u64>,
}

/// A text, and how good a witness it is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Said<'a> {
    pub(super) rank: u8,
    /// Of inputs only where texts are kept.
    pub(super) text: Option<&'a str>,
}

/// What tells, before a trace is read, whether that is worth it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sign {
    /// Its place in the order of the trace.
    pub place: (Timestamp, Timestamp, SpanId),
    /// It has no parent.
    pub root: bool,
    /// What it is about.
    pub operation: Operation,
    /// Of a model call, how many tools its output calls, and whether a user's message ends its input.
    pub model: Option<(usize, Option<bool>)>,
    /// Of a tool call, the hash of the tool's name, and whether the arguments are known.
    pub tool: Option<(u64, bool)>,
}

impl Sign {
    /// The sign of a span.
    pub fn of(span: &Span) -> Self {
        let model = span.model.as_ref();
        Self {
            place: (span.start, span.end, span.span_id),
            root: span.parent.is_none(),
            operation: span.operation,
            model: model.map(|facts| (facts.tool_calls.len(), facts.asked_by_user)),
            tool: span.tool.as_ref().and_then(|tool| {
                Some((xxh3_64(tool.name.as_ref()?.as_bytes()), tool.arguments.is_some()))
            }),
        }
    }
}

impl<'a> Seen<'a> {
    /// Its sign.
    pub(super) fn sign(&self) -> Sign {
        Sign {
            place: (self.start, self.end, self.span_id),
            root: self.parent.is_none(),
            operation: self.operation,
            model: self.model.as_ref().map(|model| (model.calls.len(), model.asked_by_user)),
            tool: self
                .tool
                .and_then(|tool| Some((xxh3_64(tool.name?.as_bytes()), tool.arguments.is_some()))),
        }
    }

    /// What counts of a span, with or without the texts that only people and models read.
    pub(super) fn of(span: &'a Span, texts: bool) -> Self {
        let named = matches!(span.operation, Operation::InvokeAgent | Operation::Other)
            || (texts && span.operation == Operation::Chat);
        let answered = span.output.as_ref();
        let output = answered.filter(|_| texts || span.operation != Operation::ExecuteTool);
        Self {
            span_id: span.span_id,
            parent: span.parent,
            start: span.start,
            end: span.end,
            name: if named { &span.name } else { "" },
            operation: span.operation,
            status: span.status,
            failed: span.failed,
            scope: span.scope,
            resource: &span.resource,
            agent_name: span.agent_name.as_deref(),
            agent_version: span.agent_version.as_deref(),
            environment: span.environment.as_deref(),
            session: span.session.as_ref().map(Session::of),
            session_in_json: span.session_in_json.as_ref().map(Session::of),
            user: span.user.as_deref(),
            tool: span.tool.as_ref().map(|facts| Tool::of(facts, texts)),
            model: span.model.as_ref().map(|facts| Model::of(facts, texts)),
            attempt: span.attempt.as_deref(),
            input: span.input.as_ref().map(|text| Said::of(text, texts)),
            output: output.map(|text| Said::of(text, true)),
            at: 0,
        }
    }
}

impl Seen<'_> {
    /// Whether of two spans of one id this is the one to keep, whichever came first. What texts say decides last: it is the same one
    /// whether these are kept or not.
    pub(super) fn holds_against(&self, other: &Self) -> bool {
        self == other || (self.without_texts(), self) > (other.without_texts(), other)
    }

    /// The same where no texts are kept.
    pub(super) fn without_texts(&self) -> Self {
        let mut seen = self.clone();
        if seen.operation == Operation::Chat {
            seen.name = "";
        }
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

impl<'a> Session<'a> {
    /// Of a name.
    pub(super) fn of(name: &'a SessionName) -> Self {
        Self { attribute: &name.attribute, id: &name.id }
    }
}

impl<'a> Tool<'a> {
    /// What counts of a call.
    pub(super) fn of(facts: &'a ToolFacts, texts: bool) -> Self {
        Self {
            name: facts.name.as_deref(),
            call_id: facts.call_id.as_deref().map(id),
            arguments: facts.arguments.as_ref().map(|arguments| Asked::of(arguments, texts)),
            result: facts.result_hash,
            phantom: facts.phantom,
        }
    }
}

impl<'a> Asked<'a> {
    fn of(arguments: &'a Arguments, texts: bool) -> Self {
        let text = arguments.as_str();
        let hash = xxh3_64(text.as_bytes());
        Self { hash, values: arguments.values(), text: texts.then_some(text) }
    }
}

impl<'a> Model<'a> {
    fn of(facts: &'a ModelFacts, texts: bool) -> Self {
        Self {
            name: facts.model.as_deref(),
            response_id: facts.response_id.as_deref().map(id),
            tokens: facts.tokens,
            cost: facts.cost,
            calls: facts.tool_calls.iter().map(|call| Tool::of(call, texts)).collect(),
            results: facts.tool_results.iter().map(Told::of).collect(),
            asked_by_user: facts.asked_by_user,
        }
    }
}

impl Told {
    /// What counts of a result.
    pub(super) fn of(result: &ToolResult) -> Self {
        Self {
            call_id: result.call_id.as_deref().map(id),
            failed: result.failed,
            hash: result.hash,
        }
    }
}

impl<'a> Said<'a> {
    /// A text, or that there is one.
    pub(super) fn of(text: &'a Text, kept: bool) -> Self {
        Self { rank: text.rank, text: kept.then_some(&*text.text) }
    }
}

/// An id that is only compared.
fn id(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}
