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
    let mut config = Config::default();
    for address in
        [&mut config.listen.otlp_grpc, &mut config.listen.otlp_http, &mut config.listen.http]
    {
        "127.0.0.1:0".clone_into(address);
    }
    config.engine.channel_capacity = 1;
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

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_down_in_time_with_clients_connected() {
    let daemon = daemon().await;
    let address = format!("http://{}", daemon.bound().otlp_grpc.unwrap());
    let mut service = TraceServiceClient::connect(address).await.unwrap();
    service.export(request(1).0).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(20), daemon.stop()).await.is_ok());
    assert!(service.export(request(2).0).await.is_err());
}
