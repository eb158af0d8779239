//! A page of another site reads and changes nothing on loopback, whatever its name resolves to: every listener, HTTP/1 and
//! HTTP/2, by the names that requests go to and the sites that they come from.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::support::{Answer, LONG, Running, get, http2, no_spans, plain, post, spans, text};

const OWN: [&str; 6] =
    ["localhost", "LOCALHOST:80", "127.0.0.1:4318", "127.9.9.9", "[::1]:4318", "gauge.localhost"];
const FOREIGN: [&str; 6] = [
    "evil.test",
    "evil.test:4318",
    "localhost.evil.test",
    "127.0.0.1.evil.test:4318",
    "0.0.0.0:4318",
    "192.168.0.1",
];

/// What each listener is asked for, and what it says if it may.
fn listeners(running: &Running) -> [(SocketAddr, Request<Full<Bytes>>); 4] {
    let bound = running.daemon.bound();
    [
        (bound.http, get("/api/v1/agents", "Bearer none")),
        (bound.http, get("/metrics", "Bearer none")),
        (bound.otlp_http.unwrap(), sent()),
        // This port answers only gRPC, and says so; but not to everybody.
        (bound.otlp_grpc.unwrap(), get("/", "Bearer none")),
    ]
}

fn sent() -> Request<Full<Bytes>> {
    post("/v1/traces", "Bearer none", &spans(&"1".repeat(32), "s"))
}

fn with(mut request: Request<Full<Bytes>>, name: &str, value: &str) -> Request<Full<Bytes>> {
    let name: http::HeaderName = name.parse().unwrap();
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

/// The same over HTTP/2, where the name is part of the address.
async fn over_http2(address: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
    let (mut head, body) = request.into_parts();
    let host = head.headers.remove("host").unwrap();
    let uri = format!("http://{}{}", host.to_str().unwrap(), head.uri.path());
    head.uri = uri.parse().unwrap();
    let mut sender = http2(TcpStream::connect(address).await.unwrap()).await;
    let answer = timeout(LONG, sender.send_request(Request::from_parts(head, body))).await;
    let (head, body) = answer.unwrap().unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status: head.status, headers: head.headers, body }
}

async fn either(http1: bool, address: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
    if http1 { plain(address, request).await } else { over_http2(address, request).await }
}

fn assert_misdirected(answer: &Answer, what: &str) {
    assert_eq!(answer.status, StatusCode::MISDIRECTED_REQUEST, "{what}");
    let said: Value = serde_json::from_slice(&answer.body).unwrap();
    assert!(said.to_string().contains("`listen.hosts`"), "{what}: {said}");
}

async fn refused(running: &Running, reason: &str) -> u64 {
    let page = text(&running.get("/metrics", "none").await);
    let name = format!("agentgauge_requests_refused_total{{reason=\"{reason}\"}} ");
    let line = page.lines().find_map(|line| line.strip_prefix(&name));
    line.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn listeners_on_loopback_answer_to_their_own_names() {
    let running = Running::start(&[], "").await;
    let mut count = 0;
    for http1 in [true, false] {
        for (address, request) in listeners(&running) {
            for host in OWN {
                let answer = either(http1, address, with(request.clone(), "host", host)).await;
                assert_ne!(answer.status, StatusCode::MISDIRECTED_REQUEST, "{host} {address}");
            }
            for host in FOREIGN {
                let answer = either(http1, address, with(request.clone(), "host", host)).await;
                assert_misdirected(&answer, &format!("{host} {address} {http1}"));
                count += 1;
            }
        }
    }
    assert_eq!(refused(&running, "unknown_host").await, count);
    // Health is no exception: on loopback no prober has another name for it.
    assert_misdirected(
        &plain(running.http(), with(get("/healthz", ""), "host", "evil.test")).await,
        "/healthz",
    );
    running.daemon.stop().await;
}

#[tokio::test]
async fn grpc_is_told_in_its_own_words() {
    let running = Running::start(&[], "").await;
    let bound = running.daemon.bound();
    let listing = "/agentgauge.v1.QueryService/ListAgents";
    for (address, path) in [(bound.otlp_grpc.unwrap(), None), (bound.http, Some(listing))] {
        for (host, known) in [("localhost:4317", true), ("[::1]:4317", true), ("evil.test", false)]
        {
            let mut request = no_spans("http");
            let path = path.unwrap_or_else(|| request.uri().path());
            *request.uri_mut() = format!("http://{host}{path}").parse().unwrap();
            let mut sender = http2(TcpStream::connect(address).await.unwrap()).await;
            let answer = sender.send_request(request).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK, "{host}");
            let (head, body) = answer.into_parts();
            let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
            let of = |name| head.headers.get(name).or_else(|| trailers.get(name));
            assert_eq!(of("grpc-status").unwrap() == "7", !known, "{host} {address}");
            let said = of("grpc-message").map_or("", |said| said.to_str().unwrap());
            assert_eq!(said.contains("listen.hosts"), !known, "{host} {said}");
        }
    }
    running.daemon.stop().await;
}

/// The first line that is answered to these bytes.
async fn raw(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 64];
    let length = timeout(LONG, stream.read(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_request_that_names_no_host_is_of_no_browser() {
    let running = Running::start(&[], "").await;
    for (request, status) in [
        ("GET /metrics HTTP/1.0\r\n\r\n", "200"),
        ("GET /metrics HTTP/1.0\r\nHost: evil.test\r\n\r\n", "421"),
        ("GET http://evil.test/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "421"),
        ("GET http://localhost/metrics HTTP/1.1\r\nHost: evil.test\r\n\r\n", "421"),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.test\r\n\r\n", "421"),
        ("GET /metrics HTTP/1.1\r\nHost:\r\n\r\n", "421"),
        ("GET /metrics HTTP/1.1\r\nHost: \u{e9}\r\n\r\n", "421"),
    ] {
        let line = raw(running.http(), request).await;
        assert!(line.contains(&format!(" {status} ")), "{request}: {line}");
    }
    running.daemon.stop().await;
}

#[tokio::test]
async fn pages_of_other_sites_change_nothing() {
    let running = Running::start(&[], "").await;
    let port = running.http().port();
    let report = json!({"reports": [{"trace_id": "1".repeat(32), "name": "n", "score": 1.0}]});
    let report = || post("/api/v1/reports", "Bearer none", &report);
    // As a form does it, without asking first.
    let form = || with(sent(), "content-type", "text/plain");
    let mut count = 0;
    for http1 in [true, false] {
        for (address, request) in
            [(running.otlp(), sent()), (running.otlp(), form()), (running.http(), report())]
        {
            for origin in
                ["http://evil.test", "https://evil.test:443", "null", "http://localhost.evil.test"]
            {
                let answer = either(http1, address, with(request.clone(), "origin", origin)).await;
                assert_eq!(answer.status, StatusCode::FORBIDDEN, "{origin}");
                count += 1;
            }
            for origin in [format!("http://localhost:{port}"), "http://127.0.0.1:3000".to_owned()] {
                let answer = either(http1, address, with(request.clone(), "origin", &origin)).await;
                assert_ne!(answer.status, StatusCode::FORBIDDEN, "{origin}");
            }
        }
        let stream = TcpStream::connect(running.daemon.bound().otlp_grpc.unwrap()).await.unwrap();
        let answer = http2(stream).await.send_request(with(no_spans("http"), "origin", "null"));
        assert_eq!(answer.await.unwrap().headers()["grpc-status"], "7");
        count += 1;
    }
    assert_eq!(refused(&running, "other_site").await, count);
    // They may send requests, as links do, but their browsers are told to let them read nothing.
    let asked = with(get("/api/v1/agents", "Bearer none"), "origin", "http://evil.test");
    let answer = plain(running.http(), asked).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
    assert_eq!(answer.headers["cross-origin-resource-policy"], "same-origin");
    running.daemon.stop().await;
}

#[tokio::test]
async fn hosts_can_be_named() {
    // Options of `[listen]` come first in the file.
    let running = Running::start(&[], "hosts = [\"gauge.example.org\"]\n").await;
    let own = [("host", "Gauge.example.org:443"), ("origin", "https://gauge.example.org")];
    for http1 in [true, false] {
        for (address, request) in listeners(&running) {
            let request =
                own.iter().fold(request, |request, (name, value)| with(request, name, value));
            let status = either(http1, address, request).await.status;
            assert!(status != StatusCode::MISDIRECTED_REQUEST && status != StatusCode::FORBIDDEN);
        }
    }
    // Behind a proxy that passes on its own name for the host, but the browser's for the page.
    let proxied = with(sent(), "origin", "https://gauge.example.org");
    assert_eq!(plain(running.otlp(), proxied).await.status, StatusCode::OK);
    let other = with(get("/", ""), "host", "www.gauge.example.org");
    assert_misdirected(&plain(running.http(), other).await, "another name");
    running.daemon.stop().await;
}

/// The page asks its own origin, by whichever of its names it was opened.
#[tokio::test]
async fn the_page_is_served_and_asks_its_own_origin() {
    let running = Running::start(&[], "").await;
    let port = running.http().port();
    for host in [format!("localhost:{port}"), format!("127.0.0.1:{port}"), format!("[::1]:{port}")]
    {
        for path in ["/", "/assets/app.js", "/api/v1/fleet", "/api/v1/agents"] {
            let request = with(get(path, "Bearer none"), "host", &host);
            let request = with(request, "origin", &format!("http://{host}"));
            let request = with(request, "sec-fetch-site", "same-origin");
            assert_eq!(plain(running.http(), request).await.status, StatusCode::OK, "{path}");
        }
    }
    running.daemon.stop().await;
}
