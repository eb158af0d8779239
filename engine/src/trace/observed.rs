//! The parts of a trace that expectations check: its update, and facts of its spans that are not in the update.
//!
//! Results of tools are present if the conventions keep them. A handoff is the start of an agent other than the one before it,
//! except within a tool call, as that returns to the caller.

use serde_json::{Map, Value};

use super::owner::agent_name;
use super::shape::Shape;
use super::span_view::{SpanView, TextView};
use super::{Logs, TraceView};
use crate::expect::Observed;
use crate::expect::observed::{Handoffs, ObservedSpan, ObservedTool};
use crate::expect::span_spec::SpanKind;
use crate::facts::TraceFacts;
use crate::math::Quanta;
use crate::span::{Log, Operation, Text};

/// The observations of a trace that still has its texts.
pub(super) fn observed(
    trace: &TraceFacts,
    TraceView { shape, logs, .. }: &TraceView<'_>,
) -> Observed {
    let content = trace.content.as_ref();
    let answer = content.and_then(|content| content.output.as_deref());
    // If the question is present, an answer would be present, too: none means that it was empty.
    let silent = content.and_then(|content| content.input.as_ref()).map(|_| "");
    let tokens = trace.tokens.unwrap_or_default();
    let total = tokens.input.zip(tokens.output);
    let nanos = trace.end_unix_nano.saturating_sub(trace.start_unix_nano);
    let attempt = trace.attempt.as_deref();
    Observed {
        answer: answer.or(silent).map(str::to_owned),
        tools: tools(trace, shape),
        handoffs: handoffs(shape),
        llm_calls: trace.llm_calls,
        total_tokens: total.map(|(input, output)| input.saturating_add(output)),
        cost_usd: trace.cost_quanta.map(|quanta| Quanta(quanta).to_f64()),
        duration_ms: Some(nanos as f64 / 1e6),
        retrieved: attempt.map(|attempt| attempt.retrieved.clone()).unwrap_or_default(),
        spans: Some(spans(shape, logs)),
    }
}

/// The calls of the update, which are those of the tool spans if there are any.
fn tools(trace: &TraceFacts, shape: &Shape<'_>) -> Vec<ObservedTool> {
    let json =
        |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
    let spans = shape.tool_spans();
    let result = |at: usize| spans.get(at)?.output()?.text;
    let tools = trace.tools.iter().enumerate().map(|(at, tool)| ObservedTool {
        name: (!tool.name.is_empty()).then(|| tool.name.to_string()),
        arguments: tool.arguments.as_deref().map(json),
        result: result(at).map(|text| json(text)),
        error: tool.error,
    });
    tools.collect()
}

/// The handoffs from agent to agent; `None` if no agent has a span.
fn handoffs(shape: &Shape<'_>) -> Option<Handoffs> {
    let agents = shape
        .behaviour()
        .filter(|span| span.operation == Operation::InvokeAgent && !shape.is_inside_tool(span.at));
    let mut agents = agents.filter_map(agent_name);
    let mut at_work = agents.next()?;
    let mut targets = Vec::new();
    for agent in agents {
        if agent != at_work {
            targets.push(Some(agent.to_owned()));
            at_work = agent;
        }
    }
    Some(Handoffs { targets, available: None })
}

/// Model calls, agents, and spans of no known operation.
fn spans(shape: &Shape<'_>, logs: &Logs<'_>) -> Vec<ObservedSpan> {
    let models = shape.model_calls();
    let models = models.iter().map(|span| {
        let logged = |of: fn(&Log) -> Option<&Text>| {
            logs.of_span(span).rev().find_map(of).map(|text| &*text.text)
        };
        let input = said(span.input()).or_else(|| logged(|log| log.input.as_ref()));
        let output = said(span.output()).or_else(|| logged(|log| log.output.as_ref()));
        observed_span(SpanKind::Llm, span.name().to_owned(), input, output)
    });
    let nodes = shape
        .behaviour()
        .filter(|span| matches!(span.operation, Operation::InvokeAgent | Operation::Other));
    let nodes = nodes.map(|span: &SpanView<'_>| {
        let agent = Some(span).filter(|span| span.operation == Operation::InvokeAgent);
        let name = agent.and_then(agent_name).unwrap_or_else(|| span.name()).to_owned();
        observed_span(SpanKind::Node, name, said(span.input()), said(span.output()))
    });
    models.chain(nodes).collect()
}

fn said(said: Option<TextView<'_>>) -> Option<&str> {
    said?.text.map(|text| &**text)
}

fn observed_span(
    kind: SpanKind,
    name: String,
    input: Option<&str>,
    output: Option<&str>,
) -> ObservedSpan {
    let field =
        |name: &str, text: Option<&str>| Some((name.to_owned(), Value::String(text?.to_owned())));
    let fields = [field("input_data", input), field("output_data", output)];
    ObservedSpan { kind, name, fields: fields.into_iter().flatten().collect::<Map<_, _>>() }
}
