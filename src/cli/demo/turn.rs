//! A turn of an agent in the demo, and its OTLP spans, named as in the GenAI conventions.

use std::ops::Range;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use serde_json::json;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

/// An agent of the small company.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agent {
    pub(super) service: &'static str,
    pub(super) name: &'static str,
    pub(super) model: &'static str,
}

/// One step of a turn.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A call of the model: milliseconds, tokens read and written, dollars.
    Model { ms: u64, tokens: (f64, f64), cost: f64 },
    /// A call of a tool, by a sub-agent if one is named.
    Tool {
        name: &'static str,
        arguments: String,
        /// Its result, or why it fails.
        result: Result<String, &'static str>,
        ms: u64,
        by: Option<&'static str>,
    },
}

/// One turn: from a user's question to the agent's answer.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) agent: Agent,
    pub(super) version: &'static str,
    pub(super) session: String,
    pub(super) user: &'static str,
    pub(super) question: &'static str,
    pub(super) answer: String,
    pub(super) steps: Vec<Step>,
    pub(super) failed: bool,
}

/// Nanoseconds in a millisecond.
const MILLI: u64 = 1_000_000;

/// The time between two steps of an agent, in milliseconds.
const BETWEEN: u64 = 15;

/// Tokens read and written, and dollars, of a sub-agent's model call.
const SUB_TOKENS: (f64, f64) = (420.0, 35.0);
const SUB_COST: f64 = 0.0008;

impl Step {
    fn ms(&self) -> u64 {
        match self {
            Self::Model { ms, .. } | Self::Tool { ms, .. } => *ms,
        }
    }
}

impl Turn {
    /// How long the turn takes, in milliseconds.
    fn ms(&self) -> u64 {
        self.steps.iter().map(|step| step.ms() + BETWEEN).sum::<u64>() + BETWEEN
    }

    /// The request with all spans of the turn, which ended at `end`; `number` distinguishes it from other turns of the session.
    pub(super) fn ended_at(&self, end: u64, number: u64) -> ExportTraceServiceRequest {
        let start = end.saturating_sub(self.ms() * MILLI);
        let mut spans = self.spans(self.steps.iter().enumerate(), start, number);
        spans.push(self.root(start, end, number));
        self.request(spans)
    }

    /// The request with only these steps, one after the other from `start` on, of a turn that still runs.
    pub(super) fn running(
        &self,
        steps: Range<usize>,
        start: u64,
        number: u64,
    ) -> ExportTraceServiceRequest {
        let steps = self.steps.iter().enumerate().skip(steps.start).take(steps.len());
        self.request(self.spans(steps, start, number))
    }

    /// The request that ends a turn whose steps were sent while it ran.
    pub(super) fn ending(&self, start: u64, end: u64, number: u64) -> ExportTraceServiceRequest {
        self.request(vec![self.root(start, end, number)])
    }

    fn spans<'t>(
        &self,
        steps: impl Iterator<Item = (usize, &'t Step)>,
        start: u64,
        number: u64,
    ) -> Vec<Span> {
        let mut at = start + BETWEEN * MILLI;
        let mut spans = Vec::new();
        for (place, step) in steps {
            let end = at + step.ms() * MILLI;
            spans.extend(self.step(step, at..end, place, number));
            at = end + BETWEEN * MILLI;
        }
        spans
    }

    fn step(&self, step: &Step, times: Range<u64>, place: usize, number: u64) -> Vec<Span> {
        let root = self.span_id(number, "root");
        let id = self.span_id(number, &format!("step {place}"));
        match step {
            Step::Model { tokens, cost, .. } => {
                vec![self.model(blank(id, root, times), *tokens, *cost)]
            }
            Step::Tool { name, arguments, result, by, .. } => {
                let mut attributes = vec![
                    text("gen_ai.operation.name", "execute_tool"),
                    text("gen_ai.tool.name", name),
                    text("gen_ai.tool.call.arguments", arguments),
                ];
                if let Ok(result) = result {
                    attributes.push(text("gen_ai.tool.call.result", result));
                }
                let sub = by.map(|by| {
                    let id = self.span_id(number, &format!("agent {place}"));
                    let attributes = vec![
                        text("gen_ai.operation.name", "invoke_agent"),
                        text("gen_ai.agent.name", by),
                    ];
                    let span = blank(id, root.clone(), times.clone());
                    self.span(span, format!("invoke_agent {by}"), attributes)
                });
                // The sub-agent asks its own model what to call, for a third of its time.
                let asked = times.start + (times.end - times.start) / 3;
                let thought = sub.as_ref().map(|sub| {
                    let id = self.span_id(number, &format!("thought {place}"));
                    let span = blank(id, sub.span_id.clone(), times.start + MILLI..asked);
                    self.model(span, SUB_TOKENS, SUB_COST)
                });
                let parent = sub.as_ref().map_or(root, |sub| sub.span_id.clone());
                let times =
                    if sub.is_some() { asked + 2 * MILLI..times.end - 2 * MILLI } else { times };
                let span = blank(id, parent, times);
                let mut call = self.span(span, format!("execute_tool {name}"), attributes);
                if let Err(why) = result {
                    call.status = failed(why);
                    call.attributes.push(text("error.type", why));
                }
                sub.into_iter().chain(thought).chain([call]).collect()
            }
        }
        .into_iter()
        .map(|span| Span { trace_id: self.trace_id(number), ..span })
        .collect()
    }

    /// A call of the agent's model.
    fn model(&self, span: Span, tokens: (f64, f64), cost: f64) -> Span {
        let attributes = vec![
            text("gen_ai.operation.name", "chat"),
            text("gen_ai.request.model", self.agent.model),
            float("gen_ai.usage.input_tokens", tokens.0),
            float("gen_ai.usage.output_tokens", tokens.1),
            float("gen_ai.usage.cost", cost),
        ];
        self.span(span, format!("chat {}", self.agent.model), attributes)
    }

    fn root(&self, start: u64, end: u64, number: u64) -> Span {
        let said = |role: &str, content: &str| {
            json!([{ "role": role, "parts": [{ "type": "text", "content": content }] }]).to_string()
        };
        let attributes = vec![
            text("gen_ai.operation.name", "invoke_agent"),
            text("gen_ai.agent.name", self.agent.name),
            text("gen_ai.agent.version", self.version),
            text("gen_ai.conversation.id", &self.session),
            text("user.id", self.user),
            text("gen_ai.input.messages", &said("user", self.question)),
            text("gen_ai.output.messages", &said("assistant", &self.answer)),
        ];
        let span = blank(self.span_id(number, "root"), Vec::new(), start..end);
        let span = self.span(span, format!("invoke_agent {}", self.agent.name), attributes);
        let status = if self.failed { failed("the turn failed") } else { None };
        Span { trace_id: self.trace_id(number), status, ..span }
    }

    /// Fills in a blank span.
    fn span(&self, blank: Span, name: String, mut attributes: Vec<KeyValue>) -> Span {
        // Every span names its session, as it may be sent before its root.
        attributes.push(text("session.id", &self.session));
        Span { name, attributes, kind: 1, ..blank }
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let attributes = vec![
            text("service.name", self.agent.service),
            text("deployment.environment.name", "production"),
        ];
        let resource = Some(Resource { attributes, ..Resource::default() });
        let scope_spans = vec![ScopeSpans { spans, ..ScopeSpans::default() }];
        let of_agent = ResourceSpans { resource, scope_spans, ..ResourceSpans::default() };
        ExportTraceServiceRequest { resource_spans: vec![of_agent] }
    }

    fn trace_id(&self, number: u64) -> Vec<u8> {
        xxh3_128_with_seed(self.session.as_bytes(), number).to_be_bytes().into()
    }

    fn span_id(&self, number: u64, part: &str) -> Vec<u8> {
        let name = format!("{} {part}", self.session);
        xxh3_64_with_seed(name.as_bytes(), number).to_be_bytes().into()
    }
}

/// A span with nothing but its position in the trace and its times.
fn blank(span_id: Vec<u8>, parent_span_id: Vec<u8>, times: Range<u64>) -> Span {
    Span {
        span_id,
        parent_span_id,
        start_time_unix_nano: times.start,
        end_time_unix_nano: times.end,
        ..Span::default()
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as a span has it")]
fn failed(why: &str) -> Option<Status> {
    Some(Status { message: why.to_owned(), code: 2 })
}

/// An attribute that is a text.
pub(super) fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

/// An attribute that is a number.
pub(super) fn float(key: &str, value: f64) -> KeyValue {
    attribute(key, Value::DoubleValue(value))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}
