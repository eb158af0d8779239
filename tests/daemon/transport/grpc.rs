//! OTLP/gRPC.

use std::time::Duration;

use bytes::{BufMut, Bytes};
use http::StatusCode;
use http_body_util::Full;
use opentelemetry::trace::{Span as _, Tracer, TracerProvider};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_sdk::trace::SdkTracerProvider;
use prost::Message;
use tonic::Code;
use tonic::codec::CompressionEncoding;
use tonic::transport::Channel;
use tonic_types::StatusExt;

use super::support::{
    Answer, Ingest, Mood, Setup, eventually, exchange_http1, exchange_http2, gzip, protobuf,
    request, spans, zstd,
};

const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
const GRPC: (&str, &str) = ("content-type", "application/grpc");

impl Ingest {
    async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    async fn traces(&self) -> TraceServiceClient<Channel> {
        TraceServiceClient::new(self.channel().await)
    }

    /// Sends bytes unchanged.
    async fn raw(&self, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Answer {
        let request = request("POST", path, headers, Full::new(body.into()));
        exchange_http2(self.address, request).await
    }
}

fn frame(flag: u8, message: &[u8]) -> Vec<u8> {
    let mut frame = vec![flag];
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.extend_from_slice(message);
    frame
}

/// The status of an answer without a message.
fn code(answer: &Answer) -> Code {
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(answer.headers["content-type"], "application/grpc");
    assert_eq!(answer.headers["grpc-accept-encoding"], "identity,gzip,zstd");
    assert!(answer.body.is_empty());
    Code::from_bytes(answer.headers["grpc-status"].as_bytes())
}

#[tokio::test]
async fn all_services_answer_tonics_client() {
    let ingest = Setup::grpc().start().await;
    let mut traces = ingest.traces().await;
    let answer = traces.export(spans(&["a", "b"])).await.unwrap();
    assert_eq!(answer.into_inner().partial_success, None);
    traces.export(ExportTraceServiceRequest::default()).await.unwrap();
    LogsServiceClient::new(ingest.channel().await)
        .export(ExportLogsServiceRequest::default())
        .await
        .unwrap();
    MetricsServiceClient::new(ingest.channel().await)
        .export(ExportMetricsServiceRequest::default())
        .await
        .unwrap();
    assert_eq!(ingest.sink.span_names(), ["a", "b"]);
    assert_eq!(ingest.sink.seen().received[&("grpc", "protobuf")], (4, 2));
}

#[tokio::test]
async fn tonics_client_may_compress() {
    let ingest = Setup::grpc().start().await;
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Zstd] {
        let mut client = ingest.traces().await.send_compressed(encoding);
        client.export(spans(&["a"])).await.unwrap();
    }
    assert_eq!(ingest.sink.span_names(), ["a", "a"]);
}

#[tokio::test]
async fn a_bad_span_is_rejected_alone() {
    let ingest = Setup::grpc().start().await;
    let mut request = spans(&["good", "bad"]);
    request.resource_spans[0].scope_spans[0].spans[1].trace_id = vec![0; 16];
    let answer = ingest.traces().await.export(request).await.unwrap();
    let partial = answer.into_inner().partial_success.unwrap();
    assert_eq!(partial.rejected_spans, 1);
    assert_eq!(partial.error_message, "rejected: 1 invalid_trace_id");
    assert_eq!(ingest.sink.span_names(), ["good"]);
}

#[tokio::test]
async fn every_compression_delivers_the_same_spans() {
    let ingest = Setup::grpc().start().await;
    let plain = protobuf(&["a"]);
    for (headers, body) in [
        (vec![GRPC], frame(0, &plain)),
        (vec![("content-type", "application/grpc+proto"), ("te", "trailers")], frame(0, &plain)),
        (vec![GRPC, ("grpc-encoding", "identity")], frame(0, &plain)),
        (vec![GRPC, ("grpc-encoding", "gzip")], frame(0, &plain)),
        (vec![GRPC, ("grpc-encoding", "gzip")], frame(1, &gzip(&plain))),
        (vec![GRPC, ("grpc-encoding", "zstd")], frame(1, &zstd(&plain))),
    ] {
        let before = ingest.sink.batches();
        let answer = ingest.raw(EXPORT, &headers, body).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.trailers["grpc-status"], "0", "{headers:?}");
        assert_eq!(answer.headers["content-type"], "application/grpc");
        assert_eq!(answer.headers["grpc-accept-encoding"], "identity,gzip,zstd");
        let (prefix, message) = answer.body.split_at(5);
        assert_eq!(prefix, [0; 5]);
        assert_eq!(
            ExportTraceServiceResponse::decode(message).unwrap(),
            ExportTraceServiceResponse::default()
        );
        assert_eq!(ingest.sink.batches(), before + 1);
    }
    assert_eq!(ingest.receiver.admission().taken_bytes(), 0);
}

#[tokio::test]
async fn a_frame_holds_exactly_one_message() {
    let ingest = Setup::grpc().start().await;
    let plain = protobuf(&["a"]);
    let whole = frame(0, &plain);
    for body in [
        vec![],
        whole[..4].to_vec(),
        whole[..whole.len() - 1].to_vec(),
        [&whole[..], &[0]].concat(),
        [whole.clone(), whole.clone()].concat(),
        frame(1, &gzip(&plain)),
        frame(2, &plain),
        frame(0, &plain[..plain.len() - 1]),
    ] {
        let answer = ingest.raw(EXPORT, &[GRPC], body).await;
        assert_eq!(code(&answer), Code::InvalidArgument);
    }
    let answer = ingest.raw(EXPORT, &[GRPC, ("grpc-encoding", "gzip")], frame(1, &plain)).await;
    assert_eq!(code(&answer), Code::InvalidArgument);
    assert_eq!(ingest.sink.entered(), 0);
    assert_eq!(ingest.sink.seen().refused["malformed"], 9);
}

#[tokio::test]
async fn what_is_unknown_is_unimplemented() {
    let ingest = Setup::grpc().start().await;
    let body = frame(0, &protobuf(&["a"]));
    for path in [
        "/opentelemetry.proto.collector.trace.v1.TraceService/Import",
        "/opentelemetry.proto.collector.profiles.v1.ProfilesService/Export",
        "/",
    ] {
        assert_eq!(code(&ingest.raw(path, &[GRPC], body.clone()).await), Code::Unimplemented);
    }
    let snappy = [GRPC, ("grpc-encoding", "snappy")];
    assert_eq!(code(&ingest.raw(EXPORT, &snappy, body.clone()).await), Code::Unimplemented);
}

#[tokio::test]
async fn who_does_not_speak_grpc_is_told_so_in_http() {
    let ingest = Setup::grpc().start().await;
    let body = protobuf(&["a"]);
    let protobuf = [("content-type", "application/x-protobuf")];
    let answer = ingest.raw(EXPORT, &protobuf, body.clone()).await;
    assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let answer = ingest.post("/v1/traces", &protobuf, body.clone()).await;
    assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let told = String::from_utf8_lossy(&answer.body);
    assert!(told.contains("OTLP over HTTP goes to port 4318 (`listen.otlp_http`)"), "{told}");
    let answer = ingest.post(EXPORT, &[GRPC], frame(0, &body)).await;
    assert_eq!(answer.status, StatusCode::HTTP_VERSION_NOT_SUPPORTED);
    let get = request("GET", EXPORT, &[GRPC], Full::new(Bytes::new()));
    let answer = exchange_http1(ingest.address, get).await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn the_limit_of_a_message_is_exact_and_final() {
    let plain =
        protobuf(&["a span with a name that is long enough for gzip to save something, something"]);
    for less in [0, 1] {
        let ingest = Setup::grpc().max_request_bytes(plain.len() - less).start().await;
        for (headers, body) in [
            (vec![GRPC], frame(0, &plain)),
            (vec![GRPC, ("grpc-encoding", "gzip")], frame(1, &gzip(&plain))),
            (vec![GRPC, ("grpc-encoding", "zstd")], frame(1, &zstd(&plain))),
        ] {
            let answer = ingest.raw(EXPORT, &headers, body).await;
            if less == 0 {
                assert_eq!(answer.trailers["grpc-status"], "0");
            } else {
                assert_eq!(code(&answer), Code::ResourceExhausted);
                assert!(!answer.headers.contains_key("grpc-status-details-bin"));
            }
        }
    }
}

#[tokio::test]
async fn tonics_client_sees_that_too_much_is_final() {
    let ingest = Setup::grpc().max_request_bytes(100_000).start().await;
    let name = "x".repeat(20 << 20);
    let error = ingest.traces().await.export(spans(&[&name])).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error:?}");
    assert!(error.get_details_retry_info().is_none());
}

#[tokio::test]
async fn an_overload_says_when_to_come_back() {
    let ingest = Setup::grpc().start().await;
    let mut client = ingest.traces().await;
    let mut permit = ingest.receiver.admission().permit();
    permit.grow(512 << 20).unwrap();
    let error = client.export(spans(&["a"])).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    let retry = error.get_details_retry_info().unwrap().retry_delay.unwrap();
    assert_eq!(retry.as_secs(), 1);
    drop(permit);
    ingest.sink.becomes(Mood::Refuse);
    let error = client.export(spans(&["a"])).await.unwrap_err();
    let retry = error.get_details_retry_info().unwrap().retry_delay.unwrap();
    assert_eq!((error.code(), retry.as_secs()), (Code::Unavailable, 7));
    ingest.sink.becomes(Mood::Accept);
    client.export(spans(&["a"])).await.unwrap();
    assert_eq!(ingest.sink.span_names(), ["a"]);
}

/// Ingest with room for two requests of this test, for which another waits at most this long.
async fn narrow(max_wait: Duration) -> Ingest {
    let mut setup = Setup::grpc();
    setup.limits.max_decoded_bytes = 16 << 10;
    setup.limits.max_wait = max_wait;
    setup.start().await
}

/// A name that makes a request of which each takes half of the room, the most for one.
fn long(name: &str) -> String {
    name.repeat(700)
}

#[tokio::test]
async fn a_request_waits_until_there_is_room() {
    let ingest = narrow(Duration::from_secs(60)).await;
    ingest.sink.becomes(Mood::Hold);
    let export = async |name: &str| ingest.traces().await.export(spans(&[&long(name)])).await;
    let third = async {
        eventually("two were read", || ingest.sink.entered() == 2).await;
        export("c").await
    };
    let in_between = async {
        eventually("the third waits", || ingest.receiver.waiting() == 1).await;
        assert_eq!(ingest.sink.entered(), 2);
        (0..3).for_each(|_| ingest.sink.let_go());
    };
    let (first, second, third, ()) = tokio::join!(export("a"), export("b"), third, in_between);
    first.and(second).and(third).unwrap();
    let names = ingest.sink.span_names();
    assert!(names.len() == 3 && names[2].starts_with('c'), "{names:?}");
    assert_eq!((ingest.receiver.waiting(), ingest.sink.seen().waited["entered"]), (0, 1));
    assert_eq!(ingest.receiver.admission().taken_bytes(), 0);
}

#[tokio::test]
async fn a_request_that_waits_too_long_is_refused_unread_and_its_connection_lives() {
    let ingest = narrow(Duration::ZERO).await;
    ingest.sink.becomes(Mood::Hold);
    let mut client = ingest.traces().await;
    let (mut second, mut other) = (client.clone(), client.clone());
    let refused = async {
        // Each takes half of the room.
        eventually("both were read", || ingest.sink.entered() == 2).await;
        // More than what is taken in for one that waits.
        for _ in 0..100 {
            let error = other.export(spans(&["x".repeat(1 << 20).as_str()])).await.unwrap_err();
            assert_eq!(error.code(), Code::Unavailable, "{error:?}");
            assert!(error.get_details_retry_info().is_some());
        }
        (0..2).for_each(|_| ingest.sink.let_go());
    };
    let names = ["a", "b"].map(long);
    let [of_first, of_second] = names.each_ref().map(|name| spans(&[name.as_str()]));
    let (first, second, ()) =
        tokio::join!(client.export(of_first), second.export(of_second), refused);
    first.and(second).unwrap();
    ingest.sink.becomes(Mood::Accept);
    client.export(spans(&["c"])).await.unwrap();
    let seen = ingest.sink.seen();
    assert_eq!((seen.waited["refused"], seen.refused["overloaded"]), (100, 100));
    assert_eq!(ingest.sink.entered(), 3);
}

#[tokio::test]
async fn a_panic_costs_one_request() {
    let ingest = Setup::grpc().start().await;
    let mut client = ingest.traces().await;
    ingest.sink.becomes(Mood::Panic);
    assert_eq!(client.export(spans(&["a"])).await.unwrap_err().code(), Code::Internal);
    ingest.sink.becomes(Mood::Accept);
    client.export(spans(&["a"])).await.unwrap();
}

#[tokio::test]
async fn a_deadline_ends_the_waiting_but_not_the_work() {
    let ingest = Setup::grpc().start().await;
    ingest.sink.becomes(Mood::Hold);
    let headers = [GRPC, ("grpc-timeout", "1S")];
    let answer = ingest.raw(EXPORT, &headers, frame(0, &protobuf(&["a"]))).await;
    assert_eq!(code(&answer), Code::DeadlineExceeded);
    eventually("the batch came in", || ingest.sink.entered() == 1).await;
    ingest.sink.let_go();
    eventually("it was applied", || ingest.sink.batches() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_grpc_exporter_of_the_sdk_delivers() {
    let ingest = Setup::grpc().start().await;
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(format!("http://{}", ingest.address))
        .build()
        .unwrap();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter).build();
    let tracer = provider.tracer("test");
    tokio::task::spawn_blocking(move || tracer.start("from the sdk").end()).await.unwrap();
    eventually("the span arrived", || ingest.sink.span_names() == ["from the sdk"]).await;
}
