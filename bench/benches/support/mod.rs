//! A workload of agent traces, as OTLP requests.
//!
//! Each trace is one turn: an agent span over alternating model and tool calls. Sessions are named only on the root. `Content` says
//! whether texts are included.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;

/// Whether texts and arguments are included.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Content {
    /// Only numbers and names.
    Lean,
    /// Inputs and outputs of about 1 KB, arguments and results.
    Full,
}

/// The workload to generate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    /// Distinct agents.
    pub(crate) agents: u64,
    /// Distinct sessions.
    pub(crate) sessions: u64,
    /// The number of the first session.
    pub(crate) first_session: u64,
    /// Spans of one trace: the agent's and its calls.
    pub(crate) spans_per_trace: u64,
    /// Texts or none.
    pub(crate) content: Content,
}

impl Workload {
    /// One request of traces `first..first + count`, encoded, the earliest starting at `start` (Unix nanos).
    pub(crate) fn request(&self, first: u64, count: u64, start: u64) -> Vec<u8> {
        let resource_spans = (first..first + count)
            .map(|index| ResourceSpans {
                resource: Some(Resource {
                    attributes: vec![
                        text("service.name", &format!("service-{}", index % self.agents)),
                        text("service.version", "1.2.3"),
                        text("deployment.environment.name", "bench"),
                        text("telemetry.sdk.language", "python"),
                    ],
                    ..Resource::default()
                }),
                scope_spans: vec![ScopeSpans {
                    spans: self.trace(index, start),
                    ..ScopeSpans::default()
                }],
                ..ResourceSpans::default()
            })
            .collect();
        ExportTraceServiceRequest { resource_spans }.encode_to_vec()
    }

    fn trace(&self, index: u64, start: u64) -> Vec<Span> {
        let start = start + index * 1_000_000;
        let root_id = span_id(index, 0);
        let mut spans: Vec<Span> = (1..self.spans_per_trace)
            .map(|number| {
                let mut span =
                    if number % 2 == 1 { self.chat(index) } else { self.tool(index, number) };
                span.span_id = span_id(index, number);
                span.parent_span_id = root_id.clone();
                span.start_time_unix_nano = start + number * 10_000;
                span.end_time_unix_nano = span.start_time_unix_nano + 9_000;
                span
            })
            .collect();
        spans.push(Span {
            name: "invoke_agent bench".to_owned(),
            span_id: root_id,
            start_time_unix_nano: start,
            end_time_unix_nano: start + self.spans_per_trace * 10_000,
            attributes: vec![
                text("gen_ai.operation.name", "invoke_agent"),
                text("gen_ai.agent.name", &format!("agent-{}", index % self.agents)),
                text("gen_ai.conversation.id", &self.session(index)),
            ],
            ..Span::default()
        });
        for span in &mut spans {
            span.trace_id = [0xa9_u64.to_be_bytes(), (index + 1).to_be_bytes()].concat();
        }
        spans
    }

    fn session(&self, index: u64) -> String {
        format!("session-{}", self.first_session + index % self.sessions)
    }

    fn chat(&self, index: u64) -> Span {
        let mut attributes = vec![
            text("gen_ai.operation.name", "chat"),
            text("gen_ai.provider.name", "openai"),
            text("gen_ai.request.model", "gpt-4o"),
            text("gen_ai.response.model", "gpt-4o-2024-11-20"),
            text("server.address", "api.example.com"),
            number("gen_ai.usage.input_tokens", 812),
            number("gen_ai.usage.output_tokens", 93),
        ];
        if self.content == Content::Full {
            attributes.push(text("gen_ai.input.messages", &message("user", &words(index, 150))));
            attributes.push(text(
                "gen_ai.output.messages",
                &message("assistant", &words(index + 7, 150)),
            ));
        }
        Span { name: "chat gpt-4o".to_owned(), kind: 3, attributes, ..Span::default() }
    }

    fn tool(&self, index: u64, number: u64) -> Span {
        let mut attributes = vec![
            text("gen_ai.operation.name", "execute_tool"),
            text(
                "gen_ai.tool.name",
                ["search", "fetch", "rank"][usize::from(number.is_multiple_of(4))],
            ),
            text("gen_ai.tool.call.id", &format!("call-{index}-{number}")),
        ];
        if self.content == Content::Full {
            let arguments = format!(r#"{{"query":"{}"}}"#, words(index + number, 6));
            attributes.push(text("gen_ai.tool.call.arguments", &arguments));
            attributes.push(text("gen_ai.tool.call.result", &words(index * 31 + number, 30)));
        }
        Span { name: "execute_tool search".to_owned(), attributes, ..Span::default() }
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, any_value::Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: i64) -> KeyValue {
    attribute(key, any_value::Value::IntValue(value))
}

fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn span_id(trace: u64, number: u64) -> Vec<u8> {
    (trace * 1_000 + number + 1).to_be_bytes().to_vec()
}

fn message(role: &str, content: &str) -> String {
    format!(r#"[{{"role":"{role}","parts":[{{"type":"text","content":"{content}"}}]}}]"#)
}

/// Words that vary with the seed, about seven bytes each.
fn words(seed: u64, count: u64) -> String {
    const STEMS: [&str; 8] =
        ["order", "refund", "delivery", "customer", "weather", "invoice", "flight", "policy"];
    let mut text = String::new();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _ in 0..count {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(STEMS[usize::try_from(state >> 61).unwrap_or(0)]);
        text.push_str(&(state >> 40 & 0x3f).to_string());
        text.push(' ');
    }
    text
}
