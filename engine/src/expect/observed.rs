//! The observations that expectations check: one trace, independent of attribute names and of the rest of the engine.

use std::sync::Arc;

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::span_spec::SpanKind;

/// The observations of a trace; `None`: not known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The agent's final text; empty if it is known to have given none.
    pub answer: Option<String>,
    /// Tool calls in order of start.
    pub tools: Vec<ObservedTool>,
    /// The agents to which work was handed; `None`: not sent.
    pub handoffs: Option<Handoffs>,
    /// Number of model calls, without calls of agents and embeddings.
    pub llm_calls: u64,
    /// Tokens read and written.
    pub total_tokens: Option<u64>,
    /// Cost of the model calls.
    pub cost_usd: Option<f64>,
    /// Time from the first start to the last end.
    pub duration_ms: Option<f64>,
    /// Ids of the documents that were retrieved.
    pub retrieved: Vec<Arc<str>>,
    /// Spans other than tool calls; `None`: not held.
    pub spans: Option<Vec<ObservedSpan>>,
}

/// One tool call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedTool {
    /// The tool's name; `None` if unknown. Two unknown tools are never the same.
    pub name: Option<String>,
    /// Its arguments.
    pub arguments: Option<Value>,
    /// Its result.
    pub result: Option<Value>,
    /// Whether it failed.
    pub error: Option<bool>,
}

/// Agents that took over from others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Handoffs {
    /// Each handoff in order, with the agent that took over if it is named.
    pub targets: Vec<Option<String>>,
    /// Agents that could have taken over; `None`: not sent.
    pub available: Option<BTreeSet<String>>,
}

/// A span that assertions select by kind and name.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedSpan {
    /// Its kind.
    pub kind: SpanKind,
    /// Its name.
    pub name: String,
    /// Those of `input_data`, `output_data`, `attributes` and `metadata` that are known.
    pub fields: Map<String, Value>,
}

impl Observed {
    /// The names of the tools in order of call. An unknown tool gets a name of its own.
    pub fn tool_names(&self) -> Vec<Cow<'_, str>> {
        let names = self.tools.iter().map(|tool| tool.name.as_deref());
        let own = |at: usize| Cow::Owned(format!("(unknown, call {})", at + 1));
        let names = names.enumerate().map(|(at, name)| name.map_or_else(|| own(at), Cow::Borrowed));
        names.collect()
    }
}
