//! A daemon with tokens, requests to it, and its answers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentgauge::config::Config;
use agentgauge::daemon::Daemon;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

pub(crate) const LONG: Duration = Duration::from_secs(20);
pub(crate) const SHOP: &str = "a-token-of-the-shop-0001";
pub(crate) const BANK: &str = "a-token-of-the-bank-0001";
pub(crate) const SCRAPER: &str = "a-token-of-the-scraper-1";
pub(crate) const OPERATOR: &str = "a-token-of-the-operator-";

pub(crate) struct Running {
    pub(crate) daemon: Daemon,
    pub(crate) folder: TempDir,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Running {
    /// A daemon with this configuration, `{}` in which is a folder with these files.
    pub(crate) async fn start(files: &[(&str, &str)], options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), files);
        let config = configured(folder.path(), options);
        Self { daemon: Daemon::start(&config).await.unwrap(), folder }
    }

    pub(crate) async fn with_tokens() -> Self {
        let tokens = r#"[access]
        tokens = [
          { name = "shop", env = "SHOP", tenant = "shop", may = ["ingest", "read", "metrics"] },
          { name = "bank", env = "BANK", tenant = "bank", may = ["ingest", "read", "metrics"] },
          { name = "scraper", file = "{}/scraper", may = ["metrics"] },
          { name = "operator", env = "OPERATOR", may = ["ingest", "read", "metrics"] },
        ]
        [assemble]
        trace_idle = "50ms"
        "#;
        Self::start(&[("scraper", SCRAPER)], tokens).await
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.daemon.bound().http
    }

    pub(crate) fn otlp(&self) -> SocketAddr {
        self.daemon.bound().otlp_http.unwrap()
    }

    pub(crate) async fn get(&self, path: &str, token: &str) -> Answer {
        plain(self.http(), get(path, &format!("Bearer {token}"))).await
    }

    pub(crate) async fn json(&self, path: &str, token: &str) -> Value {
        serde_json::from_slice(&self.get(path, token).await.body).unwrap()
    }

    pub(crate) async fn export(&self, token: &str, body: &Value) -> Answer {
        plain(self.otlp(), post("/v1/traces", &format!("Bearer {token}"), body)).await
    }
}

pub(crate) fn write(folder: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

pub(crate) fn configured(folder: &Path, options: &str) -> Config {
    let text = options.replace("{}", folder.to_str().unwrap());
    let listen = "[listen]\notlp_grpc = \"127.0.0.1:0\"\notlp_http = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\n";
    let path: PathBuf = folder.join("agentgauge.toml");
    std::fs::write(&path, format!("{listen}{text}")).unwrap();
    let variable = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let environment = [("SHOP", SHOP), ("BANK", BANK), ("OPERATOR", OPERATOR)].map(variable);
    Config::load(Some(&path), environment, &[]).unwrap()
}

pub(crate) fn get(path: &str, authorization: &str) -> Request<Full<Bytes>> {
    let request = Request::get(path).header("host", "localhost");
    request.header("authorization", authorization).body(Full::default()).unwrap()
}

pub(crate) fn post(path: &str, authorization: &str, body: &Value) -> Request<Full<Bytes>> {
    Request::post(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("authorization", authorization)
        .body(Full::from(body.to_string()))
        .unwrap()
}

pub(crate) fn anonymous(mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    request.headers_mut().remove("authorization");
    request
}

/// One model call of an agent, whose attributes claim another tenant.
pub(crate) fn spans(trace: &str, session: &str) -> Value {
    let string = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let now = std::fs::metadata("/proc/self").unwrap().modified().unwrap();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    json!({"resourceSpans": [{
        "resource": {"attributes": [string("service.name", "support"), string("tenant", "liar"),
            string("tenant.id", "liar")]},
        "scopeSpans": [{"spans": [{
            "traceId": trace, "spanId": format!("{:.16}", trace), "name": "chat m", "kind": 3,
            "startTimeUnixNano": (now - 1_000_000).to_string(), "endTimeUnixNano": now.to_string(),
            "attributes": [string("gen_ai.operation.name", "chat"), string("gen_ai.request.model", "m"),
                string("gen_ai.conversation.id", session), string("tenant", "liar")],
        }]}],
    }]})
}

pub(crate) async fn plain(address: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
    exchange(TcpStream::connect(address).await.unwrap(), request).await.unwrap()
}

/// One exchange over HTTP/1; `None` if the connection ends instead.
pub(crate) async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Option<Answer>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
    let connection = tokio::spawn(connection);
    let response = timeout(LONG, sender.send_request(request)).await.unwrap().ok()?;
    let (head, body) = response.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    connection.abort();
    Some(Answer { status: head.status, headers: head.headers, body })
}

/// A connection over HTTP/2.
pub(crate) async fn http2<S>(stream: S) -> SendRequest<Full<Bytes>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    sender
}

/// Spans over gRPC, an empty list.
pub(crate) fn no_spans(scheme: &str) -> Request<Full<Bytes>> {
    Request::post(format!(
        "{scheme}://localhost/opentelemetry.proto.collector.trace.v1.TraceService/Export"
    ))
    .header("content-type", "application/grpc")
    .body(Full::from(vec![0; 5]))
    .unwrap()
}

pub(crate) fn text(answer: &Answer) -> String {
    assert_eq!(answer.status, StatusCode::OK);
    String::from_utf8(answer.body.to_vec()).unwrap()
}

pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let polled = timeout(LONG, async {
        while !holds().await {
            sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(polled.await.is_ok(), "{what}");
}
