//! Traces and sessions of a shape that no agent has, at their bounds: each costs little more than any other of its size, so that
//! its shard keeps up with those of others.

use std::io::{Read, Write};
use std::net::TcpStream;

use agentgauge::clock::Clock;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;

use crate::support::daemon::Daemon;

/// As many spans as a trace may have.
const MOST: u64 = 10_000;

fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

/// A model call below another span, if there is one, that ends at this time and reports its tokens or not.
fn chat(id: u64, parent: Option<u64>, end: u64, tokens: Option<i64>) -> Span {
    let start = Clock::system().now().0 / 1_000_000_000 * 1_000_000_000;
    let operation = any_value::Value::StringValue("chat".to_owned());
    let tokens = tokens.map(any_value::Value::IntValue);
    let counts = ["gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"];
    let counts = counts.iter().filter_map(|count| Some(attribute(count, tokens.clone()?)));
    Span {
        trace_id: vec![7; 16],
        span_id: id.to_be_bytes().to_vec(),
        parent_span_id: parent.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default(),
        start_time_unix_nano: start,
        end_time_unix_nano: start + end,
        attributes: [attribute("gen_ai.operation.name", operation)]
            .into_iter()
            .chain(counts)
            .collect(),
        ..Span::default()
    }
}

/// Has a new daemon take spans of one trace, by the libraries that made them, and show within the deadline of a test that it has done so.
fn takes_in_time(of_libraries: &[(&str, Vec<Span>)]) {
    let daemon = Daemon::start();
    let scope_spans = of_libraries.iter().map(|(name, spans)| ScopeSpans {
        scope: Some(InstrumentationScope {
            name: (*name).to_owned(),
            ..InstrumentationScope::default()
        }),
        spans: spans.clone(),
        ..ScopeSpans::default()
    });
    let resource_spans =
        vec![ResourceSpans { scope_spans: scope_spans.collect(), ..ResourceSpans::default() }];
    let request = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
    let mut stream = TcpStream::connect(&daemon.otlp_http).unwrap();
    let (host, length) = (&daemon.otlp_http, request.len());
    let head = format!(
        "POST /v1/traces HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/x-protobuf\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), &request].concat()).unwrap();
    // Before the answer, as a daemon that takes the cube of their number would not give one today.
    daemon.settles_at("agentgauge_held{what=\"traces\"}", 1.0);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
}

#[test]
fn model_calls_within_model_calls_are_read_in_time() {
    let half = MOST / 2;
    let within =
        (1..=half).map(|id| chat(id, id.checked_sub(1).filter(|id| *id > 0), 1_000, Some(5)));
    let inmost = (1..=half).map(|id| chat(half + id, Some(half), 500, None));
    takes_in_time(&[("one", within.chain(inmost).collect())]);
}

#[test]
fn model_calls_that_two_libraries_watch_are_compared_in_time() {
    let third = MOST / 6;
    let deep = (1..=third).map(|id| chat(id, id.checked_sub(1).filter(|id| *id > 0), 1_000, None));
    let deep = deep.map(|span| Span { attributes: Vec::new(), ..span });
    let inmost = (1..=third).map(|id| chat(third + id, Some(third), 500, Some(5)));
    let others = (1..=third).map(|id| chat(2 * third + id, Some(MOST + id), 500, Some(5)));
    takes_in_time(&[("one", deep.chain(inmost).collect()), ("other", others.collect())]);
}

#[test]
fn spans_that_are_sent_again_with_another_end_are_replaced_in_time() {
    let sent = |end: u64| (1..=MOST).map(move |id| chat(id, Some(id + 1), end, None));
    takes_in_time(&[("one", sent(1_000).chain(sent(2_000)).collect())]);
}

#[test]
fn a_request_of_thousands_of_traces_does_not_keep_others_waiting() {
    let daemon = Daemon::start();
    let trace = |number: u64| Span {
        trace_id: [7; 8].into_iter().chain(number.to_be_bytes()).collect(),
        ..chat(1, None, 1_000, Some(5))
    };
    let spans = (1..=2 * MOST).map(trace).collect();
    let scope_spans = vec![ScopeSpans { spans, ..ScopeSpans::default() }];
    let resource_spans = vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }];
    let request = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
    let clock = Clock::system();
    let (mut longest, mut asked, begun) = (0, 0, clock.now());
    let took = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            assert_eq!(daemon.post_protobuf("/v1/traces", &request), 200);
            clock.now().0 - begun.0
        });
        while !sender.is_finished() {
            let before = clock.now();
            assert_eq!(daemon.get("/healthz"), "ok\n");
            longest = longest.max(clock.now().0 - before.0);
            asked += 1;
        }
        sender.join().unwrap()
    });
    // If a shard handles all of its traces before another task has a turn, nearly all of the time.
    assert!(longest < took / 2, "{longest} ns of {took} ns, the longest of {asked} answers");
}
