//! What expectations look at: one trace, without attribute names and without the rest of the engine.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::span_spec::SpanKind;

/// What is known of a trace; what is not is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The agent's final text; empty if it is known to have said nothing.
    pub answer: Option<String>,
    /// Tool calls in order of start.
    pub tools: Vec<ObservedTool>,
    /// Who the work was handed to; `None`: not on the wire.
    pub handoffs: Option<Handoffs>,
    /// Model calls; neither agents nor embeddings.
    pub llm_calls: u64,
    /// Tokens read and written.
    pub total_tokens: Option<u64>,
    /// What the model calls cost.
    pub cost_usd: Option<f64>,
    /// From the first start to the last end.
    pub duration_ms: Option<f64>,
    /// Documents found, by id.
    pub retrieved: Vec<String>,
    /// Spans other than tool calls; `None`: not held.
    pub spans: Option<Vec<ObservedSpan>>,
}

/// One tool call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedTool {
    /// The tool; `None` if unknown. Two unknown ones are never the same.
    pub name: Option<String>,
    /// What it was called with.
    pub arguments: Option<Value>,
    /// What it gave back.
    pub result: Option<Value>,
    /// Whether it failed.
    pub error: Option<bool>,
}

/// Agents that took over from others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Handoffs {
    /// Each handoff in order, with the agent that took over if it is named.
    pub targets: Vec<Option<String>>,
    /// Agents that could have taken over; `None`: not on the wire.
    pub available: Option<BTreeSet<String>>,
}

/// A span that assertions select by kind and name.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedSpan {
    /// What it is about.
    pub kind: SpanKind,
    /// Its name.
    pub name: String,
    /// Of `input_data`, `output_data`, `attributes`, `metadata` what is known.
    pub fields: Map<String, Value>,
}

impl Observed {
    /// The names of the tools in order of call. One that is unknown gets a name of its own.
    pub fn tool_names(&self) -> Vec<Cow<'_, str>> {
        let names = self.tools.iter().map(|tool| tool.name.as_deref());
        let own = |at: usize| Cow::Owned(format!("(unknown, call {})", at + 1));
        let names = names.enumerate().map(|(at, name)| name.map_or_else(|| own(at), Cow::Borrowed));
        names.collect()
    }
}
