//! Under more load than its channels hold, and while it goes down, nothing that was acknowledged is lost.

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

const CLIENTS: u64 = 16;
const REQUESTS: u64 = 40;

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

/// A request of three traces, each in a session of its own.
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
    assert_eq!(acknowledged.len() as u64 + 3 * refused, CLIENTS * REQUESTS * 3);
    assert!(!acknowledged.is_empty());
    assert_eq!(shown, acknowledged);
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

/// The sum of the values of a family that have this label.
async fn sum(daemon: &Daemon, family: &str, label: &str) -> u64 {
    let page = get(daemon, "/metrics").await;
    let lines = page.lines().filter(|line| line.starts_with(family) && line.contains(label));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
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
    let received = sum(&daemon, "agentgauge_spans_received_total", "").await;
    let told = sum(&daemon, "agentgauge_spans_rejected_total", "trace_full").await;
    // What is held and what was told are all that was sent.
    assert_eq!((received, told, 100 + rejected), (sent, rejected, sent));
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
