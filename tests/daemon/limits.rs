//! Limits at which something is cut or refused: each is reached, and each is counted.

use std::io::{Read, Write};
use std::net::TcpStream;

use agentgauge::clock::Clock;
use h2::client;
use http::{Request, StatusCode};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;

use crate::support::daemon::Daemon;
use crate::support::endpoint::Endpoint;
use crate::support::turn::spans_saying;

/// A call of a tool whose span has a long name, as OTLP in protobuf.
fn long_named(number: u8) -> Vec<u8> {
    let now = Clock::system().now().0;
    let operation = any_value::Value::StringValue("execute_tool".to_owned());
    let operation = KeyValue {
        key: "gen_ai.operation.name".to_owned(),
        value: Some(AnyValue { value: Some(operation) }),
        ..KeyValue::default()
    };
    let span = Span {
        trace_id: vec![number; 16],
        span_id: vec![number; 8],
        name: "execute_tool whose name is long".to_owned(),
        start_time_unix_nano: now,
        end_time_unix_nano: now + 1,
        attributes: vec![operation],
        ..Span::default()
    };
    let scope_spans = vec![ScopeSpans { spans: vec![span], ..ScopeSpans::default() }];
    let resource_spans = vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

#[test]
fn names_and_texts_that_are_cut_are_counted_by_span_however_they_are_read() {
    let daemon = Daemon::start_with(&[
        ("AGENTGAUGE__CONVENTION__MAX_NAME_BYTES", "16"),
        ("AGENTGAUGE__CONVENTION__MAX_TEXT_BYTES", "20"),
    ]);
    // `execute_tool search` has 19 bytes; the question has more than 20, the answer has not.
    let spans = spans_saying("Refund me what I have paid", "No.");
    assert_eq!(daemon.post_to(&daemon.otlp_http, "/v1/traces", &spans).0, 200);
    let repaired = |why: &str| format!("agentgauge_spans_repaired_total{{reason=\"{why}\"}}");
    daemon.settles_at(&repaired("name_cut"), 1.0);
    daemon.settles_at(&repaired("text_cut"), 1.0);
    // From the second on by what is known of such spans.
    for number in 1..5 {
        assert_eq!(daemon.post_protobuf("/v1/traces", &long_named(number)), 200);
    }
    daemon.settles_at(&repaired("name_cut"), 5.0);
}

/// Asks over HTTP/1 with this much in a header; what the answer begins with.
fn http1_status(daemon: &Daemon, header_bytes: usize) -> String {
    let mut stream = TcpStream::connect(&daemon.http).unwrap();
    let (host, long) = (&daemon.http, "x".repeat(header_bytes));
    let head = format!(
        "GET /healthz HTTP/1.1\r\nhost: {host}\r\nx-long: {long}\r\nconnection: close\r\n\r\n"
    );
    // In one write: the daemon may close the connection as soon as it has read too much.
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Likewise over HTTP/2.
async fn http2_status(daemon: &Daemon, header_bytes: usize) -> StatusCode {
    let stream = tokio::net::TcpStream::connect(&daemon.http).await.unwrap();
    let (sender, connection) = client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get(format!("http://{}/healthz", daemon.http));
    let request = request.header("x-long", "x".repeat(header_bytes)).body(()).unwrap();
    let (answer, _) = sender.ready().await.unwrap().send_request(request, true).unwrap();
    let status = answer.await.unwrap().status();
    connection.abort();
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_is_too_large_is_refused_and_counted() {
    let daemon = Daemon::start_with(&[("AGENTGAUGE__SERVER__MAX_HEADER_BYTES", "1024")]);
    assert_eq!(http1_status(&daemon, 500), "HTTP/1.1 200");
    assert_eq!(http2_status(&daemon, 500).await, StatusCode::OK);
    assert!(!daemon.get("/metrics").contains("head_too_large"));
    assert_eq!(http1_status(&daemon, 9_000), "HTTP/1.1 431");
    assert_eq!(http2_status(&daemon, 1_200).await, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    daemon.settles_at("agentgauge_requests_refused_total{reason=\"head_too_large\"}", 2.0);
}

#[test]
fn a_head_that_is_no_http_is_refused_and_counted() {
    let daemon = Daemon::start();
    let ask = |address: &str, head: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    let heads = [
        "POST /v1/traces HTTP/9.9\r\n\r\n",
        "P\u{1}ST /v1/traces HTTP/1.1\r\n\r\n",
        "POST /v1/traces HTTP/1.1\r\nhost localhost\r\n\r\n",
        "POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-length: many\r\n\r\n",
        "\u{16}\u{3}\u{1} a greeting of TLS, on a port without\r\n\r\n",
    ];
    for head in heads {
        assert_eq!(ask(&daemon.otlp_http, head), "HTTP/1.1 400", "{head:?}");
    }
    let coded = |coding: &str| {
        let head = "POST /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-protobuf\r\ntransfer-encoding: ";
        ask(&daemon.otlp_http, &format!("{head}{coding}\r\n\r\n0\r\n\r\n"))
    };
    assert_eq!(coded("Chunked"), "HTTP/1.1 200");
    // Codings that are not supported would be taken for plain data.
    assert_eq!(coded("gzip, chunked"), "HTTP/1.1 501");
    assert_eq!(coded("gzip\r\ntransfer-encoding: chunked"), "HTTP/1.1 501");
    daemon.settles_at("agentgauge_requests_refused_total{reason=\"head_malformed\"}", 7.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_floods_http2_is_cut_and_counted() {
    let daemon = Daemon::start();
    let stream = tokio::net::TcpStream::connect(&daemon.otlp_http).await.unwrap();
    let (mut sender, connection) = client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    // Opens streams and calls them off at once, until the connection is gone.
    for _ in 0..10_000 {
        let Ok(ready) = sender.ready().await else { break };
        sender = ready;
        let head = Request::post("http://localhost/v1/traces").body(()).unwrap();
        let Ok((_, mut body)) = sender.send_request(head, false) else { break };
        body.send_reset(h2::Reason::CANCEL);
    }
    // How it ended is the daemon's to say.
    let _ = connection.await.unwrap();
    daemon.settles_at("agentgauge_connections_closed_total{reason=\"protocol\"}", 1.0);
}

#[test]
fn no_client_writes_to_the_log() {
    const EMPTY_SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    let ping =
        |flags: u8, payload: &[u8; 8]| [&[0, 0, 8, 6, flags, 0, 0, 0, 0], &payload[..]].concat();
    let log = tempfile::NamedTempFile::new().unwrap();
    let daemon = Daemon::logging(&[], log.reopen().unwrap());
    let mut stream = TcpStream::connect(&daemon.otlp_http).unwrap();
    let answers_to_nothing = ping(1, b"unasked!").repeat(1_000);
    let last = ping(0, b"at last!");
    let sent =
        [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", EMPTY_SETTINGS, &answers_to_nothing, &last].concat();
    stream.write_all(&sent).unwrap();
    let mut answered = Vec::new();
    while !answered.ends_with(b"at last!") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answered.extend(byte);
    }
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert!(
        log.lines().count() < 10,
        "{} lines, the last: {:?}",
        log.lines().count(),
        log.lines().last()
    );
}

#[test]
fn a_stream_for_which_there_is_no_room_is_refused_and_counted() {
    let daemon = Daemon::start_with(&[("AGENTGAUGE__API__MAX_STREAMS", "1")]);
    let open = || {
        let mut stream = TcpStream::connect(&daemon.http).unwrap();
        let host = &daemon.http;
        write!(stream, "GET /api/v1/events HTTP/1.1\r\nhost: {host}\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        (stream, String::from_utf8_lossy(&answer).into_owned())
    };
    let (_held, first) = open();
    assert_eq!((first.as_str(), open().1.as_str()), ("HTTP/1.1 200", "HTTP/1.1 503"));
    daemon.settles_at("agentgauge_limits_reached_total{limit=\"api_streams\"}", 1.0);
}

#[test]
fn what_a_model_is_asked_of_a_trace_and_is_not_whole_is_counted() {
    let endpoint = Endpoint::start();
    let daemon = Daemon::judging(
        "openai",
        &endpoint.url,
        &[
            ("AGENTGAUGE__JUDGE__MAX_TRANSCRIPT_BYTES", "1024"),
            ("AGENTGAUGE__EMBED__URL", &endpoint.url),
            ("AGENTGAUGE__EMBED__ALLOW_HTTP", "true"),
            ("AGENTGAUGE__EMBED__MODEL", "m"),
            ("AGENTGAUGE__EMBED__MAX_TEXT_BYTES", "64"),
        ],
    );
    let truncated = |what: &str| format!("agentgauge_texts_truncated_total{{what=\"{what}\"}}");
    let turn = |number: u8, question: &str| {
        let spans = spans_saying(question, "No.");
        let spans = spans.replace("0af7651916cd43d", &format!("{number}af7651916cd43d"));
        assert_eq!(daemon.post_to(&daemon.otlp_http, "/v1/traces", &spans).0, 200);
        daemon.settles_at("agentgauge_traces_total{", f64::from(number));
    };
    turn(1, "Refund me");
    assert!(!daemon.get("/metrics").contains("agentgauge_texts_truncated_total{"));
    // A quarter of a transcript is the question's.
    turn(2, &"Refund me ".repeat(20));
    daemon.settles_at(&truncated("embedded_text"), 1.0);
    turn(3, &"Refund me ".repeat(30));
    daemon.settles_at(&truncated("embedded_text"), 2.0);
    daemon.settles_at(&truncated("transcript"), 1.0);
}
