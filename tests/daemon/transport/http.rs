//! OTLP/HTTP.

use std::time::Duration;

use agentgauge::ingest::Encoding;
use bytes::Bytes;
use http::StatusCode;
use http_body_util::{Full, StreamBody};
use hyper::body::Frame;
use opentelemetry::trace::{Span as _, Tracer, TracerProvider};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_sdk::trace::SdkTracerProvider;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::{
    Answer, Mood, Setup, eventually, exchange_http1, exchange_http2, gzip, json, protobuf, request,
    spans, zstd,
};

const TRACES: &str = "/v1/traces";
const PROTOBUF: (&str, &str) = ("content-type", "application/x-protobuf");
const JSON: (&str, &str) = ("content-type", "application/json");

/// The code of an error body, which is in the request's own encoding.
fn code(answer: &Answer, encoding: Encoding) -> i64 {
    assert!(answer.body.len() < 300, "{answer:?}");
    match encoding {
        Encoding::Protobuf => {
            assert_eq!(answer.headers["content-type"], "application/x-protobuf");
            tonic_types::Status::decode(&answer.body[..]).unwrap().code.into()
        }
        Encoding::Json => {
            assert_eq!(answer.headers["content-type"], "application/json");
            let status: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            assert!(!status["message"].as_str().unwrap().is_empty());
            status["code"].as_i64().unwrap()
        }
    }
}

#[tokio::test]
async fn every_encoding_and_compression_delivers_the_same_spans() {
    let ingest = Setup::http().start().await;
    for (content_type, plain) in [
        (PROTOBUF, protobuf(&["a", "b"])),
        (JSON, json(&["a", "b"])),
        (("content-type", "Application/Json; charset=utf-8"), json(&["a", "b"])),
    ] {
        for (name, body) in [
            (None, plain.clone()),
            (Some("identity"), plain.clone()),
            (Some("gzip"), gzip(&plain)),
            (Some("gzip"), [gzip(&plain[..9]), gzip(&plain[9..])].concat()),
            (Some("ZSTD"), zstd(&plain)),
        ] {
            let before = ingest.sink.span_names().len();
            let mut headers = vec![content_type];
            headers.extend(name.map(|name| ("content-encoding", name)));
            let answer = ingest.post(TRACES, &headers, body).await;
            assert_eq!(answer.status, StatusCode::OK, "{headers:?}");
            let expected = if content_type == PROTOBUF { "" } else { "{}" };
            assert_eq!(answer.body, expected);
            assert_eq!(ingest.sink.span_names()[before..], ["a", "b"], "{headers:?}");
        }
    }
    assert_eq!(ingest.sink.seen().received[&("http", "protobuf")], (5, 10));
    assert_eq!(ingest.receiver.admission().taken_bytes(), 0);
}

#[tokio::test]
async fn an_empty_request_is_a_success() {
    let ingest = Setup::http().start().await;
    for path in [TRACES, "/v1/logs", "/v1/metrics"] {
        let answer = ingest.post(path, &[PROTOBUF], vec![]).await;
        assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b""[..]));
        assert_eq!(answer.headers["content-type"], "application/x-protobuf");
        let answer = ingest.post(path, &[JSON], b"{}".to_vec()).await;
        assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"{}"[..]));
        assert_eq!(answer.headers["content-type"], "application/json");
    }
}

#[tokio::test]
async fn what_is_not_otlp_is_told_so() {
    let ingest = Setup::http().start().await;
    let body = protobuf(&["a"]);
    for (headers, reason) in [
        (vec![], "unsupported_content_type"),
        (vec![("content-type", "text/plain")], "unsupported_content_type"),
        (vec![("content-type", "application/grpc")], "unsupported_content_type"),
        (vec![JSON, ("content-encoding", "br")], "unsupported_encoding"),
        (vec![JSON, ("content-encoding", "gzip, gzip")], "unsupported_encoding"),
    ] {
        let answer = ingest.post(TRACES, &headers, body.clone()).await;
        assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{headers:?}");
        code(&answer, Encoding::Json);
        assert_eq!(answer.headers.contains_key("accept-encoding"), reason.ends_with("encoding"));
        assert!(ingest.sink.seen().refused[reason] > 0);
    }
    for path in ["/", "/v1/trace", "/v1/traces/", "/v1/TRACES"] {
        let answer = ingest.post(path, &[PROTOBUF], body.clone()).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND);
        assert_eq!(code(&answer, Encoding::Protobuf), 12);
    }
    for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
        let request = request(method, TRACES, &[JSON], Full::new(Bytes::new()));
        let answer = exchange_http1(ingest.address, request).await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method}");
        assert_eq!(answer.headers["allow"], "POST");
    }
    assert_eq!(ingest.sink.batches(), 0);
}

#[tokio::test]
async fn what_is_malformed_is_told_so_in_its_own_encoding() {
    let ingest = Setup::http().start().await;
    let body = protobuf(&["a"]);
    let truncated = &body[..body.len() - 1];
    for (headers, body, encoding) in [
        (vec![PROTOBUF], truncated.to_vec(), Encoding::Protobuf),
        (vec![PROTOBUF], b"{}".to_vec(), Encoding::Protobuf),
        (vec![JSON], b"{".to_vec(), Encoding::Json),
        (vec![JSON], b"".to_vec(), Encoding::Json),
        (vec![JSON], b"[]".to_vec(), Encoding::Json),
        (vec![JSON], vec![b'['; 100_000], Encoding::Json),
        (vec![PROTOBUF, ("content-encoding", "gzip")], body.clone(), Encoding::Protobuf),
        (vec![PROTOBUF, ("content-encoding", "gzip")], vec![], Encoding::Protobuf),
        (vec![JSON, ("content-encoding", "zstd")], gzip(b"{}"), Encoding::Json),
    ] {
        let answer = ingest.post(TRACES, &headers, body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{headers:?}");
        assert_eq!(code(&answer, encoding), 3);
    }
    assert_eq!(ingest.sink.seen().refused["malformed"], 9);
    assert_eq!(ingest.receiver.admission().taken_bytes(), 0);
}

#[tokio::test]
async fn a_bad_span_is_rejected_alone() {
    let ingest = Setup::http().start().await;
    let mut request = spans(&["good", "bad", "fine"]);
    request.resource_spans[0].scope_spans[0].spans[1].span_id = vec![1; 3];
    let answer = ingest.post(TRACES, &[PROTOBUF], request.encode_to_vec()).await;
    assert_eq!(answer.status, StatusCode::OK);
    let partial = ExportTraceServiceResponse::decode(answer.body).unwrap().partial_success.unwrap();
    assert_eq!(partial.rejected_spans, 1);
    assert_eq!(partial.error_message, "rejected: 1 invalid_span_id");
    assert_eq!(ingest.sink.span_names(), ["good", "fine"]);
    assert_eq!(ingest.sink.seen().rejected["invalid_span_id"], 1);
}

#[tokio::test]
async fn a_string_that_is_no_utf8_costs_only_itself() {
    let ingest = Setup::http().start().await;
    let mut body = protobuf(&["span one", "span two"]);
    let at = body.windows(8).position(|bytes| bytes == b"span one").unwrap();
    body[at] = 0xff;
    assert_eq!(ingest.post(TRACES, &[PROTOBUF], body).await.status, StatusCode::OK);
    assert_eq!(ingest.sink.span_names(), ["?pan one", "span two"]);
    assert_eq!(ingest.sink.seen().repaired["invalid_utf8"], 1);
}

#[tokio::test]
async fn half_an_emoji_in_json_costs_only_itself() {
    let ingest = Setup::http().start().await;
    let names: Vec<String> = (0..10).map(|at| format!("span {at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let sent = serde_json::to_string(&spans(&names)).unwrap();
    for odd in ["span \\ud83d", "span \\ude00"] {
        let before = ingest.sink.span_names().len();
        let body = sent.replacen("span 5", odd, 1);
        let answer = ingest.post(TRACES, &[JSON], body.into_bytes()).await;
        assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"{}"[..]));
        let taken = ingest.sink.span_names().split_off(before);
        assert_eq!((taken.len(), taken[5].as_str(), taken[6].as_str()), (10, "span ?", "span 6"));
    }
    assert_eq!(ingest.sink.seen().repaired["invalid_utf8"], 2);
    let broken = ingest.post(TRACES, &[JSON], sent.as_bytes()[..sent.len() - 1].to_vec()).await;
    assert_eq!(broken.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn the_limit_of_a_request_is_exact() {
    let body =
        protobuf(&["a span with a name that is long enough for gzip to save something, something"]);
    for (less, expected) in [(0, StatusCode::OK), (1, StatusCode::PAYLOAD_TOO_LARGE)] {
        let ingest = Setup::http().max_request_bytes(body.len() - less).start().await;
        for (headers, body) in [
            (vec![PROTOBUF], body.clone()),
            (vec![PROTOBUF, ("content-encoding", "gzip")], gzip(&body)),
            (vec![PROTOBUF, ("content-encoding", "zstd")], zstd(&body)),
        ] {
            let answer = ingest.post(TRACES, &headers, body).await;
            assert_eq!(answer.status, expected, "{headers:?}");
            assert!(!answer.headers.contains_key("retry-after"));
        }
        let chunks = body.chunks(7).map(|chunk| {
            Ok::<_, std::convert::Infallible>(Frame::data(Bytes::copy_from_slice(chunk)))
        });
        let chunks: Vec<_> = chunks.collect();
        let chunked = StreamBody::new(Chunks(chunks.into_iter()));
        let answer =
            exchange_http1(ingest.address, request("POST", TRACES, &[PROTOBUF], chunked)).await;
        assert_eq!(answer.status, expected);
    }
}

/// A body in pieces, of no announced length.
struct Chunks<I>(I);

impl<I: Iterator + Unpin> tonic::codegen::tokio_stream::Stream for Chunks<I> {
    type Item = I::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<I::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}

#[tokio::test]
async fn a_sender_of_far_too_much_gets_to_read_why() {
    let ingest = Setup::http().max_request_bytes(1_000).start().await;
    let answer = ingest.post(TRACES, &[PROTOBUF], vec![0; 100 << 20]).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(code(&answer, Encoding::Protobuf), 8);
    assert_eq!(ingest.receiver.admission().taken_bytes(), 0);
}

#[tokio::test]
async fn two_million_empty_spans_in_a_few_kilobytes_are_refused() {
    let ingest = Setup::http().start().await;
    let spans = [0x12, 0].repeat(2 << 20);
    let mut body = Vec::new();
    for (tag, length) in [(0x0a, spans.len() + 5), (0x12, spans.len())] {
        body.push(tag);
        prost::encoding::encode_varint(length as u64, &mut body);
    }
    body.extend(spans);
    for (name, body) in [("identity", body.clone()), ("gzip", gzip(&body)), ("zstd", zstd(&body))] {
        let headers = [PROTOBUF, ("content-encoding", name)];
        let answer = ingest.post(TRACES, &headers, body).await;
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{name}");
    }
    assert_eq!(ingest.sink.entered(), 0);
}

#[tokio::test]
async fn a_request_beyond_the_whole_budget_is_too_large() {
    let mut setup = Setup::http();
    setup.limits.max_decoded_bytes = 20_000;
    let ingest = setup.start().await;
    // Two bytes each on the wire, hundreds in memory.
    let empty = [0x12, 0].repeat(100);
    let body = [vec![0x0a, 206, 1, 0x12, 200, 1], empty, vec![0x1a, 1, b'x']].concat();
    let answer = ingest.post(TRACES, &[PROTOBUF], body).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{answer:?}");
    assert_eq!(ingest.receiver.admission().taken_bytes(), 0);
    assert_eq!(ingest.post(TRACES, &[PROTOBUF], protobuf(&["a"])).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_full_budget_asks_to_come_back() {
    let ingest = Setup::http().start().await;
    let mut permit = ingest.receiver.admission().permit();
    permit.grow(512 << 20).unwrap();
    let answer = ingest.post(TRACES, &[JSON], json(&["a"])).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(code(&answer, Encoding::Json), 14);
    drop(permit);
    assert_eq!(ingest.post(TRACES, &[JSON], json(&["a"])).await.status, StatusCode::OK);
    assert_eq!(ingest.sink.seen().refused["overloaded"], 1);
}

#[tokio::test]
async fn a_sink_that_refuses_asks_to_come_back() {
    let ingest = Setup::http().start().await;
    ingest.sink.becomes(Mood::Refuse);
    let answer = ingest.post(TRACES, &[PROTOBUF], protobuf(&["a"])).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers["retry-after"], "7");
    assert_eq!(ingest.receiver.admission().taken_bytes(), 0);
    assert!(ingest.sink.seen().received.is_empty());
}

#[tokio::test]
async fn a_panic_costs_one_request() {
    let ingest = Setup::http().start().await;
    ingest.sink.becomes(Mood::Panic);
    let answer = ingest.post(TRACES, &[PROTOBUF], protobuf(&["a"])).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(code(&answer, Encoding::Protobuf), 13);
    ingest.sink.becomes(Mood::Accept);
    assert_eq!(ingest.post(TRACES, &[PROTOBUF], protobuf(&["b"])).await.status, StatusCode::OK);
    assert_eq!(ingest.receiver.admission().taken_bytes(), 0);
}

#[tokio::test]
async fn a_slow_body_times_out() {
    let mut setup = Setup::http();
    setup.options.read_timeout = Duration::from_millis(50);
    let ingest = setup.start().await;
    let mut stream = TcpStream::connect(ingest.address).await.unwrap();
    let head = "POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(b"content-length: 100\r\n\r\nabc").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 504 "), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(ingest.sink.seen().refused["slow"], 1);
    assert_eq!(ingest.receiver.admission().taken_bytes(), 0);
}

#[tokio::test]
async fn a_sender_that_goes_away_leaves_nothing_half_applied() {
    let ingest = Setup::http().start().await;
    ingest.sink.becomes(Mood::Hold);
    let request = request("POST", TRACES, &[PROTOBUF], Full::new(protobuf(&["a"]).into()));
    let sender = tokio::spawn(exchange_http1(ingest.address, request));
    eventually("the batch came in", || ingest.sink.entered() == 1).await;
    assert!(ingest.receiver.admission().taken_bytes() > 0);
    sender.abort();
    ingest.sink.let_go();
    eventually("the batch was applied", || ingest.sink.batches() == 1).await;
    eventually("its room is free", || ingest.receiver.admission().taken_bytes() == 0).await;
}

#[tokio::test]
async fn old_and_new_versions_of_http_are_served_on_one_port() {
    let ingest = Setup::http().start().await;
    let http2 = request("POST", TRACES, &[PROTOBUF], Full::new(protobuf(&["2"]).into()));
    assert_eq!(exchange_http2(ingest.address, http2).await.status, StatusCode::OK);
    let mut stream = TcpStream::connect(ingest.address).await.unwrap();
    let body = json(&["1.0"]);
    let head = format!(
        "POST /v1/traces HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&body).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.0 200 "), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(ingest.sink.span_names(), ["2", "1.0"]);
}

#[tokio::test]
async fn a_broken_body_is_not_a_request() {
    let ingest = Setup::http().start().await;
    let mut stream = TcpStream::connect(ingest.address).await.unwrap();
    let head = "POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(b"content-length: 100\r\n\r\nabc").await.unwrap();
    drop(stream);
    eventually("it was counted", || ingest.sink.seen().refused.contains_key("broken")).await;
    assert_eq!(ingest.sink.entered(), 0);
    assert_eq!(ingest.receiver.admission().taken_bytes(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_http_exporter_of_the_sdk_delivers() {
    let ingest = Setup::http().start().await;
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_endpoint(format!("http://{}/v1/traces", ingest.address))
        .build()
        .unwrap();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter).build();
    let tracer = provider.tracer("test");
    tokio::task::spawn_blocking(move || tracer.start("from the sdk").end()).await.unwrap();
    eventually("the span arrived", || ingest.sink.span_names() == ["from the sdk"]).await;
}
