//! Connections: their limits and their end.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agentgauge::ingest::server::{Event, ServerOptions, serve};
use axum::body::Body;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::support::{Mood, Setup, eventually, exchange_http1, protobuf, request};

const TRACES: &str = "/v1/traces";
const PROTOBUF: (&str, &str) = ("content-type", "application/x-protobuf");
const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(60);

fn export() -> Request<Full<Bytes>> {
    request("POST", TRACES, &[PROTOBUF], Full::new(protobuf(&["a"]).into()))
}

/// Waits for the server to close a connection.
async fn closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    // An error is an end too: the server may reset a connection that it cuts.
    timeout(LONG, stream.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test]
async fn a_client_that_sends_no_request_is_closed() {
    let mut setup = Setup::http();
    setup.options.header_read_timeout = SHORT;
    let ingest = setup.start().await;
    for sent in [&b""[..], b"POST /v1/tra", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut stream = TcpStream::connect(ingest.address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        assert!(closed(&mut stream).await, "{}", String::from_utf8_lossy(sent));
    }
}

#[tokio::test]
async fn an_http1_connection_may_be_without_a_request_for_longer_than_a_head_takes() {
    let mut setup = Setup::http();
    setup.options.header_read_timeout = SHORT;
    setup.options.idle_timeout = 40 * SHORT;
    let ingest = setup.start().await;
    let stream = TcpStream::connect(ingest.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    assert_eq!(sender.send_request(export()).await.unwrap().status(), StatusCode::OK);
    // Ones that came later and send nothing are closed one after the other: the time for a head has passed many times.
    for _ in 0..4 {
        let mut silent = TcpStream::connect(ingest.address).await.unwrap();
        assert!(closed(&mut silent).await);
    }
    sender.ready().await.unwrap();
    assert_eq!(sender.send_request(export()).await.unwrap().status(), StatusCode::OK);
    // It is closed in the end.
    assert!(timeout(LONG, connection).await.is_ok());
}

#[tokio::test]
async fn an_idle_http2_connection_is_closed() {
    let mut setup = Setup::http();
    setup.options.header_read_timeout = 10 * SHORT;
    setup.options.idle_timeout = SHORT;
    let ingest = setup.start().await;
    let stream = TcpStream::connect(ingest.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(export()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    eventually("the connection ended", || connection.is_finished()).await;
}

#[tokio::test]
async fn a_long_request_is_not_idle() {
    let mut setup = Setup::http();
    setup.options.header_read_timeout = 10 * SHORT;
    setup.options.idle_timeout = SHORT;
    let ingest = setup.start().await;
    ingest.sink.becomes(Mood::Hold);
    let sender = tokio::spawn(exchange_http1(ingest.address, export()));
    eventually("the batch came in", || ingest.sink.entered() == 1).await;
    // A later connection without data is closed, so the time of every timer has passed.
    let mut silent = TcpStream::connect(ingest.address).await.unwrap();
    assert!(closed(&mut silent).await);
    ingest.sink.let_go();
    assert_eq!(sender.await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn an_answer_that_goes_on_is_not_idle() {
    let goes_on = Arc::<Notify>::default();
    let ends = Arc::clone(&goes_on);
    let events = async move || {
        let last = async move {
            ends.notified().await;
            "last"
        };
        let events = stream::once(async { "first" }).chain(stream::once(last));
        Body::from_stream(events.map(Ok::<_, Infallible>))
    };
    let router = axum::Router::new().route("/events", axum::routing::get(events));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let options = ServerOptions {
        header_read_timeout: SHORT,
        idle_timeout: SHORT,
        ..ServerOptions::default()
    };
    tokio::spawn(serve(listener, router, options, |_| {}, std::future::pending()));
    let mut reader = TcpStream::connect(address).await.unwrap();
    let request = b"GET /events HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    reader.write_all(request).await.unwrap();
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains("first") {
        reader.read_buf(&mut read).await.unwrap();
    }
    // Ones that came later and send nothing are closed one after the other: all timers have passed several times.
    for _ in 0..6 {
        let mut silent = TcpStream::connect(address).await.unwrap();
        assert!(closed(&mut silent).await);
    }
    goes_on.notify_one();
    timeout(LONG, reader.read_to_end(&mut read)).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&read).contains("last"));
}

#[tokio::test]
async fn a_connection_over_the_limit_waits_while_the_others_are_busy() {
    let mut setup = Setup::http();
    setup.options.max_connections = 1;
    let ingest = setup.start().await;
    ingest.sink.becomes(Mood::Hold);
    let first = tokio::spawn(exchange_http1(ingest.address, export()));
    eventually("the first batch came in", || ingest.sink.entered() == 1).await;
    let second = tokio::spawn(exchange_http1(ingest.address, export()));
    // Longer than it takes to ask another one to leave.
    assert!(
        timeout(6 * SHORT, async { eventually("", || ingest.sink.entered() > 1).await })
            .await
            .is_err()
    );
    ingest.sink.let_go();
    ingest.sink.let_go();
    for answer in [first, second] {
        assert_eq!(answer.await.unwrap().status, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_connection_over_the_limit_takes_the_place_of_one_that_is_of_no_use() {
    for sent in [&b""[..], b"POST /v1/tra", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut setup = Setup::http();
        setup.options.max_connections = 2;
        let ingest = setup.start().await;
        let stream = TcpStream::connect(ingest.address).await.unwrap();
        let (mut served, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        assert_eq!(served.send_request(export()).await.unwrap().status(), StatusCode::OK);
        let mut idle = TcpStream::connect(ingest.address).await.unwrap();
        idle.write_all(sent).await.unwrap();
        let answer = exchange_http1(ingest.address, export()).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert!(closed(&mut idle).await);
        // The one that was of use is still there.
        served.ready().await.unwrap();
        assert_eq!(served.send_request(export()).await.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_head_over_its_limit_is_refused() {
    let ingest = Setup::http().start().await;
    let long = "x".repeat(20 << 10);
    let answer = ingest.post(TRACES, &[PROTOBUF, ("x-long", &long)], protobuf(&["a"])).await;
    assert_eq!(answer.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
}

#[tokio::test]
async fn a_stop_lets_requests_in_flight_finish() {
    let mut ingest = Setup::http().start().await;
    let mut idle = TcpStream::connect(ingest.address).await.unwrap();
    ingest.sink.becomes(Mood::Hold);
    let sender = tokio::spawn(exchange_http1(ingest.address, export()));
    eventually("the batch came in", || ingest.sink.entered() == 1).await;
    ingest.stop();
    assert!(closed(&mut idle).await);
    eventually("nobody listens", || std::net::TcpStream::connect(ingest.address).is_err()).await;
    assert!(!ingest.stopped());
    ingest.sink.let_go();
    assert_eq!(sender.await.unwrap().status, StatusCode::OK);
    eventually("it stopped", || ingest.stopped()).await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever() {
    let mut setup = Setup::http();
    setup.options.drain_timeout = SHORT;
    let mut ingest = setup.start().await;
    ingest.sink.becomes(Mood::Hold);
    let body = protobuf(&["a"]);
    let mut stream = TcpStream::connect(ingest.address).await.unwrap();
    let head = "POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(format!("content-length: {}\r\n\r\n", body.len()).as_bytes()).await.unwrap();
    stream.write_all(&body).await.unwrap();
    eventually("the batch came in", || ingest.sink.entered() == 1).await;
    ingest.stop();
    eventually("it stopped", || ingest.stopped()).await;
    assert!(closed(&mut stream).await);
}

#[tokio::test]
async fn a_client_that_takes_no_answer_is_cut() {
    let options = ServerOptions { read_timeout: SHORT, ..ServerOptions::default() };
    let router =
        axum::Router::new().route("/large", axum::routing::get(async || vec![0; 64 << 20]));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stalled = Arc::<AtomicU64>::default();
    let counter = Arc::clone(&stalled);
    let tell = move |event| {
        if event == Event::Closed("stalled") {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    };
    tokio::spawn(serve(listener, router, options, tell, std::future::pending()));
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    eventually("it was cut", || stalled.load(Ordering::Relaxed) == 1).await;
}

#[tokio::test]
async fn a_client_that_calls_off_its_streams_at_once_is_cut() {
    let ingest = Setup::http().start().await;
    let stream = TcpStream::connect(ingest.address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    for _ in 0..10_000 {
        let Ok(ready) = client.ready().await else { break };
        client = ready;
        let head = Request::post("http://localhost/v1/traces").body(()).unwrap();
        let Ok((_, mut body)) = client.send_request(head, false) else { break };
        body.send_reset(h2::Reason::CANCEL);
    }
    // The reason may be lost with what the client still had to send.
    assert!(timeout(LONG, connection).await.unwrap().unwrap().is_err());
    let answer = exchange_http1(ingest.address, export()).await;
    assert_eq!(answer.status, StatusCode::OK);
}
