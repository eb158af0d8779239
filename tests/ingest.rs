//! The OTLP transports on real sockets: what they answer, and what reaches the engine.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test whose set-up fails has failed")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agentgauge::engine::options::ConventionOptions;
use agentgauge::engine::span::Timestamp;
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::server::{ServerOptions, serve};
use agentgauge::ingest::{Batch, Observe, Overloaded, Receiver, Sink, Tally, grpc, http};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, logs_service_client::LogsServiceClient,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, metrics_service_client::MetricsServiceClient,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse, trace_service_client::TraceServiceClient,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;
use tonic_types::StatusExt;

const NOW: u64 = 1_790_000_000_000_000_000;

/// Keeps what it is given, or refuses it.
#[derive(Clone, Default)]
struct Recorder {
    batches: Arc<Mutex<Vec<Batch>>>,
    full: Arc<AtomicBool>,
    reasons: Arc<Mutex<Vec<&'static str>>>,
}

impl Sink for Recorder {
    async fn submit(&self, batch: Batch) -> Result<(), Overloaded> {
        if self.full.load(Ordering::Relaxed) {
            return Err(Overloaded { retry_after: Duration::from_secs(3) });
        }
        self.batches.lock().unwrap().push(batch);
        Ok(())
    }
}

impl Observe for Recorder {
    fn received(&self, _: &'static str, _: &'static str, _: &Tally) {}

    fn refused(&self, reason: &'static str) {
        self.reasons.lock().unwrap().push(reason);
    }
}

impl Recorder {
    fn spans(&self) -> usize {
        self.batches.lock().unwrap().iter().map(|batch| batch.spans.len()).sum()
    }

    fn refused(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.reasons.lock().unwrap())
    }
}

struct Server {
    grpc: SocketAddr,
    http: SocketAddr,
    recorder: Recorder,
}

async fn start(limits: IngestLimits) -> Server {
    let recorder = Recorder::default();
    let receiver = Receiver::new(
        Decoder::new(limits, ConventionOptions::default()),
        recorder.clone(),
        Arc::new(recorder.clone()),
        Arc::new(|| Timestamp(NOW)),
        Duration::from_millis(300),
    );
    let mut addresses = Vec::new();
    for router in [grpc::router(receiver.clone()), http::router(receiver)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        addresses.push(listener.local_addr().unwrap());
        tokio::spawn(serve(listener, router, ServerOptions::default(), std::future::pending()));
    }
    Server { grpc: addresses[0], http: addresses[1], recorder }
}

fn span(id: u8) -> Span {
    Span {
        trace_id: vec![1; 16],
        span_id: vec![id; 8],
        name: format!("span {id}"),
        start_time_unix_nano: NOW,
        end_time_unix_nano: NOW + 5,
        ..Span::default()
    }
}

fn request(spans: Vec<Span>) -> ExportTraceServiceRequest {
    let scope_spans = vec![ScopeSpans { spans, ..ScopeSpans::default() }];
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }],
    }
}

/// What an HTTP server answered.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

/// Posts over a connection of its own; the answer is read to the end.
async fn post(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut text = format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        text.extend([name, ": ", value, "\r\n"]);
    }
    raw(address, &[format!("{text}\r\n").as_bytes(), body].concat()).await
}

async fn raw(address: SocketAddr, request: &[u8]) -> Answer {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The server may answer and close before it has read everything.
        let _ = stream.write_all(request).await;
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        bytes
    };
    let bytes = tokio::time::timeout(Duration::from_secs(20), exchange).await.unwrap();
    let end = bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer: {bytes:?}"));
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body: bytes[end + 4..].to_vec() }
}

const PROTOBUF: (&str, &str) = ("content-type", "application/x-protobuf");
const JSON: (&str, &str) = ("content-type", "application/json; charset=utf-8");

fn gzip(body: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn every_encoding_and_compression_arrives_over_http() {
    let server = start(IngestLimits::default()).await;
    let body = request(vec![span(1), span(2)]).encode_to_vec();
    let json = serde_json::to_vec(&request(vec![span(3)])).unwrap();
    let zstd = zstd::encode_all(&body[..], 3).unwrap();
    for (headers, body) in [
        (vec![PROTOBUF], body.clone()),
        (vec![PROTOBUF, ("content-encoding", "identity")], body.clone()),
        (vec![PROTOBUF, ("content-encoding", "gzip")], gzip(&body)),
        (vec![PROTOBUF, ("content-encoding", "zstd")], zstd),
        (vec![JSON], json.clone()),
        (vec![JSON, ("content-encoding", "gzip")], gzip(&json)),
        (vec![PROTOBUF], vec![]),
        (vec![JSON], b"{}".to_vec()),
    ] {
        let answer = post(server.http, "/v1/traces", &headers, &body).await;
        let expected: &[u8] = if headers[0] == JSON { b"{}" } else { b"" };
        assert_eq!((answer.status, &answer.body[..]), (200, expected), "{headers:?}");
        let content_type = headers[0].1.split(';').next().unwrap();
        assert!(answer.head.contains(&format!("content-type: {content_type}")), "{}", answer.head);
    }
    assert_eq!(server.recorder.spans(), 10);
    for path in ["/v1/logs", "/v1/metrics"] {
        assert_eq!(post(server.http, path, &[PROTOBUF], &[]).await.status, 200);
    }
}

#[tokio::test]
async fn a_chunked_body_without_a_length_arrives() {
    let server = start(IngestLimits::default()).await;
    let body = request(vec![span(1)]).encode_to_vec();
    let head = "POST /v1/traces HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/x-protobuf\r\ntransfer-encoding: chunked\r\n\r\n";
    let (one, two) = body.split_at(7);
    let mut bytes = head.as_bytes().to_vec();
    for chunk in [one, two, &[]] {
        bytes.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend(b"\r\n");
    }
    assert_eq!(raw(server.http, &bytes).await.status, 200);
    assert_eq!(server.recorder.spans(), 1);
}

#[tokio::test]
async fn one_bad_span_is_rejected_alone() {
    let server = start(IngestLimits::default()).await;
    let bad = Span { trace_id: vec![1; 3], ..span(2) };
    let sent = request(vec![span(1), bad, Span { span_id: vec![], ..span(3) }]);
    let answer = post(server.http, "/v1/traces", &[PROTOBUF], &sent.encode_to_vec()).await;
    let partial =
        ExportTraceServiceResponse::decode(&answer.body[..]).unwrap().partial_success.unwrap();
    assert_eq!((answer.status, partial.rejected_spans), (200, 2));
    assert_eq!(partial.error_message, "rejected: 1 invalid_span_id, 1 invalid_trace_id");
    let answer =
        post(server.http, "/v1/traces", &[JSON], &serde_json::to_vec(&sent).unwrap()).await;
    let partial: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(partial["partialSuccess"]["rejectedSpans"], "2");
    assert_eq!(server.recorder.spans(), 2);
}

#[tokio::test]
async fn a_string_that_is_no_utf8_costs_only_itself() {
    let server = start(IngestLimits::default()).await;
    let mut spans = vec![span(1), span(2)];
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue("value".to_owned())) });
    spans[0].attributes = vec![KeyValue { key: "key".to_owned(), value, ..KeyValue::default() }];
    let body = request(spans).encode_to_vec();
    for wanted in ["span 1", "key", "value"] {
        let mut body = body.clone();
        let at = body.windows(wanted.len()).position(|bytes| bytes == wanted.as_bytes()).unwrap();
        body[at] = 0xff;
        assert_eq!(
            post(server.http, "/v1/traces", &[PROTOBUF], &body).await.status,
            200,
            "{wanted}"
        );
    }
    assert_eq!(server.recorder.spans(), 6);
    let batches = server.recorder.batches.lock().unwrap();
    assert!(batches.iter().all(|batch| batch.tally.repaired == [("invalid_utf8", 1)].into()));
}

#[tokio::test]
async fn what_cannot_be_taken_is_refused_with_the_right_status() {
    let server = start(IngestLimits { max_request_bytes: 1_000, ..IngestLimits::default() }).await;
    let json_nested = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for (path, headers, body, status, reason) in [
        ("/v1/traces", vec![("content-type", "text/plain")], vec![], 415, None),
        ("/v1/traces", vec![], vec![], 415, None),
        ("/v1/traces", vec![PROTOBUF, ("content-encoding", "br")], vec![], 415, None),
        ("/v1/nothing", vec![PROTOBUF], vec![], 404, None),
        ("/v1/traces", vec![PROTOBUF], vec![0xff; 10], 400, Some("malformed")),
        ("/v1/traces", vec![JSON], b"{".to_vec(), 400, Some("malformed")),
        ("/v1/traces", vec![JSON], json_nested.as_bytes()[..900].to_vec(), 400, Some("malformed")),
        (
            "/v1/traces",
            vec![PROTOBUF, ("content-encoding", "gzip")],
            b"plain".to_vec(),
            400,
            Some("malformed"),
        ),
        ("/v1/traces", vec![PROTOBUF], vec![0; 1_001], 413, Some("too_large")),
        (
            "/v1/traces",
            vec![PROTOBUF, ("content-encoding", "gzip")],
            gzip(&[0; 1_001]),
            413,
            Some("too_large"),
        ),
    ] {
        let answer = post(server.http, path, &headers, &body).await;
        assert_eq!(answer.status, status, "{path} {headers:?}");
        assert_eq!(server.recorder.refused(), Vec::from_iter(reason), "{path} {headers:?}");
        assert!(answer.body.len() < 400);
    }
    let answer =
        raw(server.http, b"GET /v1/traces HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
            .await;
    assert_eq!(answer.status, 405);
    let answer = post(server.http, "/v1/traces", &[JSON], b"{").await;
    let error: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(error["code"], i32::from(Code::InvalidArgument));
    assert_eq!(server.recorder.spans(), 0);
}

#[tokio::test]
async fn exactly_the_limit_is_taken() {
    let body = request(vec![span(1)]).encode_to_vec();
    let server =
        start(IngestLimits { max_request_bytes: body.len(), ..IngestLimits::default() }).await;
    assert_eq!(post(server.http, "/v1/traces", &[PROTOBUF], &body).await.status, 200);
    let mut longer = span(1);
    longer.name.push('!');
    let body = request(vec![longer]).encode_to_vec();
    assert_eq!(post(server.http, "/v1/traces", &[PROTOBUF], &body).await.status, 413);
}

#[tokio::test]
async fn millions_of_empty_spans_in_a_few_kilobytes_cost_nothing() {
    let server = start(IngestLimits::default()).await;
    let spans: Vec<u8> = [0x12, 0].repeat(2_000_000);
    let mut body = Vec::new();
    for number in [2, 1] {
        let inner = if number == 2 { spans.clone() } else { body.clone() };
        body = vec![number << 3 | 2];
        prost::encoding::encode_varint(inner.len() as u64, &mut body);
        body.extend(inner);
    }
    let body = gzip(&body);
    assert!(body.len() < 20_000, "{}", body.len());
    let answer =
        post(server.http, "/v1/traces", &[PROTOBUF, ("content-encoding", "gzip")], &body).await;
    assert_eq!(answer.status, 413);
    let mut client = TraceServiceClient::connect(format!("http://{}", server.grpc)).await.unwrap();
    assert!(client.export(request(vec![span(1)])).await.is_ok());
}

#[tokio::test]
async fn overload_says_when_to_come_back() {
    let server = start(IngestLimits::default()).await;
    server.recorder.full.store(true, Ordering::Relaxed);
    let answer =
        post(server.http, "/v1/traces", &[PROTOBUF], &request(vec![span(1)]).encode_to_vec()).await;
    assert_eq!(answer.status, 503);
    assert!(answer.head.contains("retry-after: 3"), "{}", answer.head);
    let mut client = TraceServiceClient::connect(format!("http://{}", server.grpc)).await.unwrap();
    let status = client.export(request(vec![span(1)])).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let retry = status.get_details_retry_info().unwrap();
    assert_eq!(retry.retry_delay, Some(Duration::from_secs(3)));
    assert_eq!(server.recorder.refused(), ["overloaded", "overloaded"]);
}

#[tokio::test]
async fn a_request_beyond_the_budget_is_too_large_and_the_budget_is_given_back() {
    let server = start(IngestLimits { max_decoded_bytes: 20_000, ..IngestLimits::default() }).await;
    let large = request((1..100).map(span).collect()).encode_to_vec();
    assert_eq!(post(server.http, "/v1/traces", &[PROTOBUF], &large).await.status, 413);
    let small = request(vec![span(1)]).encode_to_vec();
    for _ in 0..50 {
        assert_eq!(post(server.http, "/v1/traces", &[PROTOBUF], &small).await.status, 200);
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let server = start(IngestLimits::default()).await;
    let head = "POST /v1/traces HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/x-protobuf\r\ncontent-length: 100\r\n\r\nxx";
    assert_eq!(raw(server.http, head.as_bytes()).await.status, 408);
    assert_eq!(server.recorder.refused(), ["slow"]);
}

#[tokio::test]
async fn a_stock_grpc_client_is_understood() {
    let server =
        start(IngestLimits { max_request_bytes: 100_000, ..IngestLimits::default() }).await;
    let address = format!("http://{}", server.grpc);
    let mut client = TraceServiceClient::connect(address.clone()).await.unwrap();
    assert_eq!(
        client.export(request(vec![span(1)])).await.unwrap().into_inner().partial_success,
        None
    );
    assert!(client.export(ExportTraceServiceRequest::default()).await.is_ok());
    for encoding in
        [tonic::codec::CompressionEncoding::Gzip, tonic::codec::CompressionEncoding::Zstd]
    {
        let client = TraceServiceClient::connect(address.clone()).await.unwrap();
        assert!(client.send_compressed(encoding).export(request(vec![span(2)])).await.is_ok());
    }
    let bad = Span { trace_id: vec![], ..span(3) };
    let partial =
        client.export(request(vec![bad])).await.unwrap().into_inner().partial_success.unwrap();
    assert_eq!(partial.rejected_spans, 1);
    let huge = Span { name: "x".repeat(200_000), ..span(4) };
    let status = client.export(request(vec![huge])).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.get_details_retry_info().is_none());
    assert_eq!(server.recorder.spans(), 3);
    let mut logs = LogsServiceClient::connect(address.clone()).await.unwrap();
    assert!(logs.export(ExportLogsServiceRequest::default()).await.is_ok());
    let mut metrics = MetricsServiceClient::connect(address).await.unwrap();
    assert!(metrics.export(ExportMetricsServiceRequest::default()).await.is_ok());
}
