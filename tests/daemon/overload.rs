//! Under more load than its channels hold, and while it shuts down, nothing that was acknowledged is lost.

use std::collections::BTreeSet;
use std::time::Duration;

use agentgauge::config::Config;
use agentgauge::daemon::Daemon;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use crate::support::account::{Account, sum};

const CLIENTS: u64 = 16;
const REQUESTS: u64 = 40;

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

/// A request of three traces, each in its own session.
fn request(number: u64) -> (ExportTraceServiceRequest, Vec<String>) {
    let ids: Vec<String> = (0..3).map(|part| format!("session-{}", number * 3 + part)).collect();
    let spans = ids.iter().enumerate().map(|(part, id)| Span {
        trace_id: u128::from(number * 3 + part as u64 + 1).to_be_bytes().to_vec(),
        span_id: 7_u64.to_be_bytes().to_vec(),
        name: "invoke_agent busy".to_owned(),
        attributes: vec![
            attribute("gen_ai.operation.name", "invoke_agent"),
            attribute("session.id", id),
        ],
        ..Span::default()
    });
    let scope_spans = vec![ScopeSpans { spans: spans.collect(), ..ScopeSpans::default() }];
    let resource_spans = vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }];
    (ExportTraceServiceRequest { resource_spans }, ids)
}

async fn daemon() -> Daemon {
    started(|config| config.engine.channel_capacity = 1).await
}

async fn started(options: impl FnOnce(&mut Config)) -> Daemon {
    let mut config = Config::default();
    for address in
        [&mut config.listen.otlp_grpc, &mut config.listen.otlp_http, &mut config.listen.http]
    {
        "127.0.0.1:0".clone_into(address);
    }
    options(&mut config);
    Daemon::start(&config).await.unwrap()
}

/// Sends requests one after the other; returns the sessions that were acknowledged, and how many requests were not.
async fn send(address: String, client: u64) -> (Vec<String>, u64) {
    let mut service = TraceServiceClient::connect(address).await.unwrap();
    let (mut acknowledged, mut refused) = (Vec::new(), 0);
    for number in client * REQUESTS..(client + 1) * REQUESTS {
        let (request, ids) = request(number);
        match service.export(request).await {
            Ok(_) => acknowledged.extend(ids),
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable, "{status}");
                refused += 1;
            }
        }
    }
    (acknowledged, refused)
}

/// The sessions that the API shows.
async fn shown(daemon: &Daemon) -> BTreeSet<String> {
    let mut shown = BTreeSet::new();
    for offset in (0..CLIENTS * REQUESTS * 3).step_by(500) {
        let mut stream = TcpStream::connect(daemon.bound().http).await.unwrap();
        let path = format!("/api/v1/sessions?limit=500&offset={offset}");
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let body = &text[text.find('{').unwrap()..=text.rfind('}').unwrap()];
        let page: serde_json::Value = serde_json::from_str(body).unwrap();
        let sessions = page["sessions"].as_array().unwrap();
        shown.extend(
            sessions.iter().map(|session| session["session_id"].as_str().unwrap().to_owned()),
        );
    }
    shown
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_is_held_and_what_is_refused_is_not() {
    let daemon = daemon().await;
    let address = format!("http://{}", daemon.bound().otlp_grpc.unwrap());
    let clients: Vec<_> =
        (0..CLIENTS).map(|client| tokio::spawn(send(address.clone(), client))).collect();
    let (mut acknowledged, mut refused) = (BTreeSet::new(), 0);
    for client in clients {
        let (sessions, not) = client.await.unwrap();
        acknowledged.extend(sessions);
        refused += not;
    }
    daemon.flush().await;
    let shown = shown(&daemon).await;
    assert!(!acknowledged.is_empty());
    assert_eq!(shown, acknowledged);
    let (sent, held) = (CLIENTS * REQUESTS * 3, shown.len() as u64);
    let account = Account { sent, refused: 3 * refused, rejected: 0, held };
    account.adds_up("", &get(&daemon, "/metrics").await);
    daemon.stop().await;
}

/// Spans of one trace, with these numbers.
fn of_one_trace(numbers: std::ops::Range<u64>) -> ExportTraceServiceRequest {
    let spans = numbers.map(|number| Span {
        trace_id: vec![7; 16],
        span_id: (number + 1).to_be_bytes().to_vec(),
        parent_span_id: vec![9; 8],
        name: "execute_tool search".to_owned(),
        attributes: vec![attribute("gen_ai.operation.name", "execute_tool")],
        ..Span::default()
    });
    let scope_spans = vec![ScopeSpans { spans: spans.collect(), ..ScopeSpans::default() }];
    let resource_spans = vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }
}

async fn get(daemon: &Daemon, path: &str) -> String {
    let mut stream = TcpStream::connect(daemon.bound().http).await.unwrap();
    let head = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_full_trace_does_not_take_is_told_to_its_sender_and_counted() {
    let daemon = started(|config| config.assemble.max_spans_per_trace = 100).await;
    let address = format!("http://{}", daemon.bound().otlp_grpc.unwrap());
    let mut service = TraceServiceClient::connect(address).await.unwrap();
    let (mut sent, mut rejected) = (0, 0);
    for (numbers, expected) in [(0..60, 0), (60..120, 20), (120..180, 60)] {
        sent += numbers.end - numbers.start;
        let answer = service.export(of_one_trace(numbers)).await.unwrap().into_inner();
        let partial = answer.partial_success.unwrap_or_default();
        assert_eq!(partial.rejected_spans, expected);
        let said =
            if expected > 0 { format!("rejected: {expected} trace_full") } else { String::new() };
        assert_eq!(partial.error_message, said);
        rejected += u64::try_from(partial.rejected_spans).unwrap();
    }
    daemon.flush().await;
    let page = get(&daemon, "/metrics").await;
    assert_eq!(sum(&page, "agentgauge_spans_rejected_total", "trace_full"), rejected);
    Account { sent, refused: 0, rejected, held: 100 }.adds_up("", &page);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_more_open_traces_than_there_may_be_what_comes_late_is_counted() {
    const TRACES: u8 = 40;
    let daemon = started(|config| {
        config.engine.shards = 1;
        config.assemble.max_open_traces = 4;
        config.assemble.trace_idle = Duration::from_millis(50);
    })
    .await;
    let address = format!("http://{}", daemon.bound().otlp_grpc.unwrap());
    let mut service = TraceServiceClient::connect(address).await.unwrap();
    let first = (0..TRACES).map(|number| of_session(number, "s"));
    let second = (0..TRACES).map(|number| {
        let mut request = of_session(number, "s");
        let spans = &mut request.resource_spans[0].scope_spans[0].spans;
        spans.remove(0);
        spans[0].span_id = vec![3; 8];
        request
    });
    for request in first.chain(second) {
        let answer = service.export(request).await.unwrap().into_inner();
        assert_eq!(answer.partial_success.unwrap_or_default().rejected_spans, 0);
    }
    let sent = 3 * u64::from(TRACES);
    let mut page = String::new();
    for _ in 0..600 {
        page = get(&daemon, "/metrics").await;
        if held(&page) + sum(&page, "agentgauge_late_spans_total", "dropped") == sent {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(sum(&page, "agentgauge_limits_reached_total", "traces_evicted") > 0, "{page}");
    assert!(sum(&page, "agentgauge_late_spans_total", "dropped") > 0, "{page}");
    Account { sent, refused: 0, rejected: 0, held: held(&page) }.adds_up("", &page);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_traces_with_long_answers_are_held_within_a_bound() {
    const ANSWER: usize = 60_000;
    let daemon = started(|config| {
        config.engine.shards = 1;
        config.assemble.max_bytes = 1 << 20;
        config.assemble.max_trace_bytes = 1 << 18;
    })
    .await;
    let address = format!("http://{}", daemon.bound().otlp_grpc.unwrap());
    let mut service = TraceServiceClient::connect(address).await.unwrap();
    let text = "lorem ipsum ".repeat(ANSWER / 12);
    let answers = format!(
        r#"[{{"role":"assistant","parts":[{{"type":"text","content":"{text}"}}],"finish_reason":"stop"}}]"#
    );
    // Forty traces without roots, then one of forty answers.
    let traces = (0..40_u8).map(|number| (number + 1, 2)).chain((0..40).map(|span| (99, span + 2)));
    for (trace, span) in traces {
        let (mut request, _) = request(0);
        let spans = &mut request.resource_spans[0].scope_spans[0].spans;
        spans.truncate(1);
        (spans[0].trace_id, spans[0].span_id) = (vec![trace; 16], vec![span; 8]);
        spans[0].parent_span_id = vec![1; 8];
        spans[0].attributes = vec![
            attribute("gen_ai.operation.name", "chat"),
            attribute("gen_ai.output.messages", &answers),
        ];
        service.export(request).await.unwrap();
    }
    daemon.flush().await;
    let page = get(&daemon, "/metrics").await;
    let limit = |name| sum(&page, "agentgauge_limits_reached_total", name);
    let most = u64::try_from((1 << 20) / ANSWER).unwrap();
    assert!(sum(&page, "agentgauge_held", "\"traces\"") <= most, "{page}");
    assert!(limit("traces_evicted") >= 40 - most, "{page}");
    // One trace loses its texts with every fifth answer.
    assert_eq!(limit("texts_trace_full"), 8, "{page}");
    daemon.stop().await;
}

/// Spans of done traces, which are roots and calls of tools.
fn held(page: &str) -> u64 {
    sum(page, "agentgauge_traces_total", "") + sum(page, "agentgauge_tool_calls_total", "")
}

/// A trace of two spans, in a session.
fn of_session(number: u8, session: &str) -> ExportTraceServiceRequest {
    let (mut request, _) = request(u64::from(number));
    let spans = &mut request.resource_spans[0].scope_spans[0].spans;
    spans.truncate(1);
    spans[0].trace_id = vec![number + 1; 16];
    spans[0].attributes[1] = attribute("session.id", session);
    let mut tool = of_one_trace(8..9).resource_spans[0].scope_spans[0].spans.remove(0);
    tool.trace_id.clone_from(&spans[0].trace_id);
    tool.parent_span_id.clone_from(&spans[0].span_id);
    spans.push(tool);
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_session_closes_and_its_id_begins_anew() {
    let daemon = started(|config| {
        config.session.max_traces_per_session = 3;
        config.assemble.trace_idle = Duration::from_millis(50);
    })
    .await;
    let address = format!("http://{}", daemon.bound().otlp_grpc.unwrap());
    let mut service = TraceServiceClient::connect(address).await.unwrap();
    let traces = async |session: &str| {
        let text = get(&daemon, &format!("/api/v1/sessions/{session}")).await;
        let body = text.split_once("\r\n\r\n").unwrap().1;
        let found: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
        found["traces"].as_array().map_or(0, |traces| traces.len() as u64)
    };
    for number in 0..8 {
        let answer = service.export(of_session(number, "long")).await.unwrap().into_inner();
        let partial = answer.partial_success.unwrap_or_default();
        assert_eq!(partial.rejected_spans, 0, "{number}");
        // A session has a trace when that is done.
        let held = u64::from(number % 3) + 1;
        for _ in 0..600 {
            if traces("long").await == held {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(traces("long").await, held);
    }
    daemon.flush().await;
    let page = get(&daemon, "/metrics").await;
    assert_eq!(sum(&page, "agentgauge_limits_reached_total", "sessions_full"), 2, "{page}");
    Account { sent: 8 * 2, refused: 0, rejected: 0, held: 8 * 2 }.adds_up("", &page);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_down_in_time_with_clients_connected() {
    let daemon = daemon().await;
    let address = format!("http://{}", daemon.bound().otlp_grpc.unwrap());
    let mut service = TraceServiceClient::connect(address).await.unwrap();
    service.export(request(1).0).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(20), daemon.stop()).await.is_ok());
    assert!(service.export(request(2).0).await.is_err());
}
