//! What expectations look at: one trace, without attribute names and without the rest of the engine.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::spec::SpanKind;
use crate::engine::math::Quanta;
use crate::engine::update::TraceUpdate;

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
    /// Agents that could have taken over.
    pub available: BTreeSet<String>,
}

/// A span that assertions select by kind and name.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedSpan {
    /// What it is about.
    pub kind: SpanKind,
    /// Its name.
    pub name: String,
    /// `input_data`, `output_data`, `attributes`, `metadata` and so on.
    pub fields: Map<String, Value>,
}

impl From<&TraceUpdate> for Observed {
    /// What a trace that still has its texts shows of itself: no results of tools, no handoffs and no other spans.
    fn from(trace: &TraceUpdate) -> Self {
        let json = |text: &String| {
            serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone()))
        };
        let tools = trace.tools.iter().map(|tool| ObservedTool {
            name: (!tool.name.is_empty()).then(|| tool.name.clone()),
            arguments: tool.arguments.as_ref().map(json),
            result: None,
            error: tool.error,
        });
        let content = trace.content.clone().unwrap_or_default();
        // Where the question was sent along, an answer would have been, too.
        let silent = content.input.is_some().then(String::new);
        let tokens = trace.tokens.unwrap_or_default();
        let total = tokens.input.zip(tokens.output);
        let nanos = trace.end_unix_nano.saturating_sub(trace.start_unix_nano);
        let attempt = trace.attempt.as_deref();
        Self {
            answer: content.output.or(silent),
            tools: tools.collect(),
            handoffs: None,
            llm_calls: trace.llm_calls,
            total_tokens: total.map(|(input, output)| input.saturating_add(output)),
            cost_usd: trace.cost_quanta.map(|quanta| Quanta(quanta).to_f64()),
            duration_ms: Some(nanos as f64 / 1e6),
            retrieved: attempt.map(|attempt| attempt.retrieved.clone()).unwrap_or_default(),
            spans: None,
        }
    }
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
