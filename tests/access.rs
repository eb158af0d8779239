//! Who comes in, over real sockets: TLS, certificates of clients, tokens, tenants.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agentgauge::config::Config;
use agentgauge::daemon::Daemon;
use agentgauge::export::grpc::v1;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use tonic::transport::Endpoint;
use tonic::{Code, Status};

const LONG: Duration = Duration::from_secs(20);
const SHOP: &str = "a-token-of-the-shop-0001";
const BANK: &str = "a-token-of-the-bank-0001";
const SCRAPER: &str = "a-token-of-the-scraper-1";
const OPERATOR: &str = "a-token-of-the-operator-";

/// An authority and what it signs.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
#[derive(Clone)]
struct Certified {
    cert: String,
    key: String,
}

struct Running {
    daemon: Daemon,
    folder: TempDir,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn server(&self) -> Certified {
        self.sign(&[], ExtendedKeyUsagePurpose::ServerAuth, 2099)
    }

    fn client(&self, uri: &str) -> Certified {
        self.sign(&[uri], ExtendedKeyUsagePurpose::ClientAuth, 2099)
    }

    fn expired(&self, uri: &str) -> Certified {
        self.sign(&[uri], ExtendedKeyUsagePurpose::ClientAuth, 2001)
    }

    fn sign(&self, uris: &[&str], usage: ExtendedKeyUsagePurpose, until: i32) -> Certified {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.extended_key_usages = vec![usage];
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        Certified { cert: cert.pem(), key: key.serialize_pem() }
    }
}

impl Running {
    /// A daemon with this configuration, `{}` in which is a folder with these files.
    async fn start(files: &[(&str, &str)], options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), files);
        let config = configured(folder.path(), options);
        Self { daemon: Daemon::start(&config).await.unwrap(), folder }
    }

    async fn with_tokens() -> Self {
        let tokens = r#"[access]
        tokens = [
          { name = "shop", env = "SHOP", tenant = "shop", may = ["ingest", "read", "metrics"] },
          { name = "bank", env = "BANK", tenant = "bank", may = ["ingest", "read", "metrics"] },
          { name = "scraper", file = "{}/scraper", may = ["metrics"] },
          { name = "operator", env = "OPERATOR", may = ["read", "metrics"] },
        ]
        [assemble]
        trace_idle = "50ms"
        "#;
        Self::start(&[("scraper", SCRAPER)], tokens).await
    }

    fn http(&self) -> SocketAddr {
        self.daemon.bound().http
    }

    fn otlp(&self) -> SocketAddr {
        self.daemon.bound().otlp_http.unwrap()
    }

    async fn get(&self, path: &str, token: &str) -> Answer {
        plain(self.http(), get(path, &format!("Bearer {token}"))).await
    }

    async fn json(&self, path: &str, token: &str) -> Value {
        serde_json::from_slice(&self.get(path, token).await.body).unwrap()
    }

    async fn export(&self, token: &str, body: &Value) -> Answer {
        plain(self.otlp(), post("/v1/traces", &format!("Bearer {token}"), body)).await
    }
}

fn write(folder: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

fn configured(folder: &Path, options: &str) -> Config {
    let text = options.replace("{}", folder.to_str().unwrap());
    let listen = "[listen]\notlp_grpc = \"127.0.0.1:0\"\notlp_http = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\n";
    let path: PathBuf = folder.join("agentgauge.toml");
    std::fs::write(&path, format!("{listen}{text}")).unwrap();
    let variable = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let environment = [("SHOP", SHOP), ("BANK", BANK), ("OPERATOR", OPERATOR)].map(variable);
    Config::load(Some(&path), environment, &[]).unwrap()
}

fn get(path: &str, authorization: &str) -> Request<Full<Bytes>> {
    let request = Request::get(path).header("host", "localhost");
    request.header("authorization", authorization).body(Full::default()).unwrap()
}

fn post(path: &str, authorization: &str, body: &Value) -> Request<Full<Bytes>> {
    Request::post(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("authorization", authorization)
        .body(Full::from(body.to_string()))
        .unwrap()
}

/// One model call of an agent, whose attributes claim another tenant.
fn spans(trace: &str, session: &str) -> Value {
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

async fn plain(address: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
    exchange(TcpStream::connect(address).await.unwrap(), request).await.unwrap()
}

/// One exchange over HTTP/1; `None` if the connection ends instead.
async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Option<Answer>
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

/// A client that trusts this authority, and may show a certificate.
fn client(trusts: &Authority, shows: Option<&Certified>, protocol: &str) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusts.pem().as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match shows {
        None => builder.with_no_client_auth(),
        Some(Certified { cert, key }) => {
            let cert = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![cert], key).unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    TlsConnector::from(Arc::new(config))
}

async fn connect(
    address: SocketAddr,
    connector: &TlsConnector,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    connector.connect(ServerName::try_from("localhost").unwrap(), stream).await
}

/// What a client gets, or the error that it sees: with TLS 1.3 it learns of a refused certificate when it first reads.
async fn secure(
    address: SocketAddr,
    connector: &TlsConnector,
    request: Request<Full<Bytes>>,
) -> Result<Answer, String> {
    let mut stream = connect(address, connector).await.map_err(|error| error.to_string())?;
    // An alert comes unasked; a server that is content says nothing yet.
    let mut byte = [0];
    match timeout(Duration::from_millis(100), stream.read(&mut byte)).await {
        Ok(Err(error)) => return Err(error.to_string()),
        Ok(Ok(_)) => return Err("the connection ended".to_owned()),
        Err(_) => {}
    }
    exchange(stream, request).await.ok_or_else(|| "the connection ended".to_owned())
}

fn export(session: &str) -> Request<Full<Bytes>> {
    post("/v1/traces", "", &spans("0af7651916cd43dd8448eb211c80319c", session))
}

fn anonymous(mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    request.headers_mut().remove("authorization");
    request
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let polled = timeout(LONG, async {
        while !holds().await {
            sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(polled.await.is_ok(), "{what}");
}

const TLS: &str = "[tls]\ncert_file = \"{}/cert\"\nkey_file = \"{}/key\"\n";

#[tokio::test]
async fn every_listener_speaks_tls_and_nothing_else() {
    let authority = Authority::new();
    let Certified { cert, key } = authority.server();
    let running = Running::start(&[("cert", &cert), ("key", &key)], TLS).await;
    let http1 = client(&authority, None, "http/1.1");
    let answer = secure(running.otlp(), &http1, anonymous(export("s"))).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK);
    let page = secure(running.http(), &http1, anonymous(get("/metrics", ""))).await.unwrap();
    assert_eq!(page.status, StatusCode::OK);

    let grpc = running.daemon.bound().otlp_grpc;
    let stream = connect(grpc.unwrap(), &client(&authority, None, "h2")).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = Request::post(
        "https://localhost/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    )
    .header("content-type", "application/grpc")
    .body(Full::<Bytes>::from(vec![0; 5]))
    .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/grpc");

    // In plain text there is no answer, and who trusts another authority gets no connection.
    let stream = TcpStream::connect(running.otlp()).await.unwrap();
    assert!(exchange(stream, anonymous(export("s"))).await.is_none());
    let stranger = client(&Authority::new(), None, "http/1.1");
    assert!(connect(running.otlp(), &stranger).await.is_err());
    let page = secure(running.http(), &http1, anonymous(get("/metrics", ""))).await.unwrap();
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    assert!(
        page.contains("agentgauge_requests_refused_total{reason=\"tls_handshake\"} 2\n"),
        "{page}"
    );
    running.daemon.stop().await;
}

#[tokio::test]
async fn a_client_needs_a_certificate_that_is_good() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let Certified { cert, key } = authority.server();
    let files = [("cert", &*cert), ("key", &*key), ("ca", &*clients.pem())];
    let options = format!(
        "{TLS}client_ca_file = \"{{}}/ca\"\n[access]\ncertificates = [{{ name = \"spiffe://t/shop\", tenant = \"shop\", may = [\"ingest\", \"read\"] }}]\n[assemble]\ntrace_idle = \"50ms\"\n"
    );
    let running = Running::start(&files, &options).await;
    let shop = "spiffe://t/shop";
    for (shown, alert) in [
        (None, "CertificateRequired"),
        (Some(Authority::new().client(shop)), "UnknownCA"),
        (Some(clients.expired(shop)), "CertificateExpired"),
    ] {
        let connector = client(&authority, shown.as_ref(), "http/1.1");
        let error = secure(running.otlp(), &connector, anonymous(export("s"))).await.err().unwrap();
        assert!(error.contains(alert) || error.contains("DecryptError"), "{alert}: {error}");
    }
    let good = client(&authority, Some(&clients.client(shop)), "http/1.1");
    let answer = secure(running.otlp(), &good, anonymous(export("s"))).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK);
    running.daemon.flush().await;
    let session = anonymous(get("/api/v1/sessions/s", ""));
    let answer = secure(running.http(), &good, session.clone()).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK);
    // Signed, but nobody that is named.
    let other = client(&authority, Some(&clients.client("spiffe://t/other")), "http/1.1");
    let answer = secure(running.http(), &other, session).await.unwrap();
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    let metrics = secure(running.http(), &good, anonymous(get("/metrics", ""))).await.unwrap();
    assert_eq!(metrics.status, StatusCode::FORBIDDEN);
    running.daemon.stop().await;
}

#[tokio::test]
async fn a_certificate_that_is_only_asked_for_is_needed_for_all_but_health() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let Certified { cert, key } = authority.server();
    let files = [("cert", &*cert), ("key", &*key), ("ca", &*clients.pem())];
    let options = format!(
        "{TLS}client_ca_file = \"{{}}/ca\"\nclient_auth = \"request\"\nlisteners = [\"http\"]\n"
    );
    let running = Running::start(&files, &options).await;
    let nobody = client(&authority, None, "http/1.1");
    let somebody = client(&authority, Some(&clients.client("spiffe://t/any")), "http/1.1");
    for (connector, path, expected) in [
        (&nobody, "/readyz", StatusCode::OK),
        (&nobody, "/metrics", StatusCode::UNAUTHORIZED),
        (&somebody, "/metrics", StatusCode::OK),
    ] {
        let answer = secure(running.http(), connector, anonymous(get(path, ""))).await.unwrap();
        assert_eq!(answer.status, expected, "{path}");
    }
    // The other listeners speak plain text, where nobody can show one.
    assert_eq!(plain(running.otlp(), anonymous(export("s"))).await.status, StatusCode::OK);
    running.daemon.stop().await;
}

#[tokio::test]
async fn a_certificate_that_was_replaced_holds_for_new_connections() {
    let (old, new) = (Authority::new(), Authority::new());
    let Certified { cert, key } = old.server();
    let options = format!("{TLS}reload_interval = \"20ms\"\n");
    let running = Running::start(&[("cert", &cert), ("key", &key)], &options).await;
    let healthy = || anonymous(get("/healthz", ""));
    let before = client(&old, None, "http/1.1");
    assert!(secure(running.http(), &before, healthy()).await.is_ok());
    // Half of the pair: the old ones stay.
    let Certified { cert, key } = new.server();
    write(running.folder.path(), &[("cert", &cert)]);
    let failed = "agentgauge_certificate_reloads_total{outcome=\"failed\"}";
    eventually("half of the pair was looked at", async || {
        let page = secure(running.http(), &before, anonymous(get("/metrics", ""))).await;
        page.is_ok_and(|page| String::from_utf8_lossy(&page.body).contains(failed))
    })
    .await;
    assert!(secure(running.http(), &before, healthy()).await.is_ok());
    write(running.folder.path(), &[("key", &key)]);
    let after = client(&new, None, "http/1.1");
    eventually("the new certificate is shown", async || {
        secure(running.http(), &after, healthy()).await.is_ok()
    })
    .await;
    running.daemon.stop().await;
}

#[tokio::test]
async fn a_handshake_that_takes_too_long_is_cut() {
    let authority = Authority::new();
    let Certified { cert, key } = authority.server();
    let options = format!("{TLS}[server]\nheader_read_timeout = \"1s\"\nmax_connections = 1\n");
    let running = Running::start(&[("cert", &cert), ("key", &key)], &options).await;
    let mut silent = TcpStream::connect(running.http()).await.unwrap();
    silent.write_all(&[22, 3, 1]).await.unwrap();
    // The only slot is the silent client's until it is cut.
    let connector = client(&authority, None, "http/1.1");
    let answer = secure(running.http(), &connector, anonymous(get("/healthz", ""))).await;
    assert_eq!(answer.unwrap().status, StatusCode::OK);
    running.daemon.stop().await;
}

#[tokio::test]
async fn without_a_good_token_nothing_is_answered_but_health() {
    let running = Running::with_tokens().await;
    for path in ["/healthz", "/readyz"] {
        let answer = plain(running.http(), anonymous(get(path, ""))).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
    }
    let mut bodies = Vec::new();
    for request in [
        anonymous(get("/api/v1/agents", "")),
        get("/api/v1/agents", "Bearer wrong"),
        get("/api/v1/agents", &format!("Bearer {SHOP}x")),
        get("/api/v1/agents", "Bearer "),
        get("/api/v1/agents", &format!("Digest {SHOP}")),
        get("/api/v1/nothing", "Bearer wrong"),
    ] {
        let answer = plain(running.http(), request).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        assert!(answer.headers["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
        bodies.push(answer.body);
    }
    // The same answer whatever was wrong.
    bodies.dedup();
    let [body] = bodies.as_slice() else { unreachable!("{bodies:?}") };
    assert!(body.starts_with(br#"{"error":{"code":"unauthenticated""#), "{body:?}");
    assert_eq!(running.get("/api/v1/agents", SCRAPER).await.status, StatusCode::FORBIDDEN);
    assert_eq!(
        running.export(SCRAPER, &spans(&"1".repeat(32), "s")).await.status,
        StatusCode::FORBIDDEN
    );
    // A browser and a scraper can only send a user and a password.
    let basic = format!("Basic {}", base64(&format!("me:{SCRAPER}")));
    let answer = plain(running.http(), get("/metrics", &basic)).await;
    assert_eq!(answer.status, StatusCode::OK);
    let page = String::from_utf8(answer.body.to_vec()).unwrap();
    for line in [
        "agentgauge_requests_refused_total{reason=\"unauthenticated\"} 6\n",
        "agentgauge_requests_refused_total{reason=\"forbidden\"} 2\n",
    ] {
        assert!(page.contains(line), "{line}{page}");
    }
    running.daemon.stop().await;
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn why_it_is_not_ready_is_for_those_who_may_read_everything() {
    let options = r#"[access]
    tokens = [
      { name = "shop", env = "SHOP", tenant = "shop", may = ["read"] },
      { name = "operator", env = "OPERATOR", may = ["read"] },
    ]
    [kafka]
    brokers = ["127.0.0.1:1"]
    "#;
    let running = Running::start(&[], options).await;
    let nobody = anonymous(get("/readyz", ""));
    for request in [nobody, get("/readyz", "Bearer x"), get("/readyz", &format!("Bearer {SHOP}"))] {
        let answer = plain(running.http(), request).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["error"], json!({"code": "not_ready", "message": "the log says why"}));
    }
    let body = running.json("/readyz", OPERATOR).await;
    assert!(body["error"]["message"].as_str().unwrap().contains("Kafka"), "{body}");
    running.daemon.stop().await;
}

#[tokio::test]
async fn senders_are_refused_in_their_own_words() {
    let running = Running::with_tokens().await;
    let answer = running.export("wrong", &spans(&"1".repeat(32), "s")).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["code"], 16);

    let request = Request::post("/v1/traces")
        .header("content-type", "application/x-protobuf")
        .body(Full::from(vec![0; 4 << 20]))
        .unwrap();
    let answer = plain(running.otlp(), request).await;
    assert_eq!(answer.headers["content-type"], "application/x-protobuf");
    let status: tonic_types::Status = prost::Message::decode(answer.body).unwrap();
    assert_eq!(status.code, 16);

    let stream = TcpStream::connect(running.daemon.bound().otlp_grpc.unwrap()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    for (token, code) in [("wrong", "16"), (SCRAPER, "7"), (SHOP, "0")] {
        let request = Request::post(
            "http://localhost/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        )
        .header("content-type", "application/grpc")
        .header("authorization", format!("Bearer {token}"))
        .body(Full::<Bytes>::from(vec![0; 5]))
        .unwrap();
        let answer = sender.send_request(request).await.unwrap();
        let (head, body) = answer.into_parts();
        let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
        let status = head.headers.get("grpc-status").or_else(|| trailers.get("grpc-status"));
        assert_eq!(status.unwrap(), code, "{token}");
    }
    running.daemon.stop().await;
}

#[tokio::test]
async fn a_tenant_is_who_sends_and_sees_only_its_own() {
    let running = Running::with_tokens().await;
    let (first, second) = ("1".repeat(32), "2".repeat(32));
    // The same session id; then the shop adds to the bank's trace, which is not its to change.
    for (token, trace) in [(SHOP, &first), (BANK, &second), (SHOP, &second)] {
        assert_eq!(running.export(token, &spans(trace, "same")).await.status, StatusCode::OK);
    }
    running.daemon.flush().await;
    for (token, trace) in [(SHOP, &first), (BANK, &second)] {
        let session = running.json("/api/v1/sessions/same", token).await;
        assert_eq!(session["total_traces"], 1, "{session}");
        assert_eq!(session["traces"][0]["trace_id"], json!(trace), "{session}");
        // What is asked for does not matter to who asks.
        let asked = running.json("/api/v1/sessions/same?tenant=bank", token).await;
        assert_eq!(asked, session);
        let sessions = running.json("/api/v1/sessions", token).await;
        assert_eq!(sessions["sessions"].as_array().unwrap().len(), 1);
    }
    let session = running.json("/api/v1/sessions/same?tenant=bank", OPERATOR).await;
    assert_eq!(session["traces"][0]["trace_id"], json!(second));
    let missing = running.get("/api/v1/sessions/same", OPERATOR).await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);

    eventually("both agents are on the page", async || {
        let page = text(&running.get("/metrics", SCRAPER).await);
        page.contains("tenant=\"shop\"") && page.contains("tenant=\"bank\"")
    })
    .await;
    let page = text(&running.get("/metrics", SCRAPER).await);
    assert!(!page.contains("liar"), "{page}");
    assert!(
        page.contains("agentgauge_spans_rejected_total{reason=\"foreign_tenant\"} 1\n"),
        "{page}"
    );
    let page = text(&running.get("/metrics", SHOP).await);
    assert!(page.contains("tenant=\"shop\"") && !page.contains("bank"), "{page}");
    assert!(!page.contains("agentgauge_requests_refused_total"), "{page}");
    let agents = running.json("/api/v1/agents", BANK).await;
    assert_eq!(agents["agents"].as_array().unwrap().len(), 1, "{agents}");
    assert_eq!(
        running.json("/api/v1/agents", OPERATOR).await["agents"].as_array().unwrap().len(),
        2
    );
    running.daemon.stop().await;
}

/// A shop and a bank with agents of the same names, and sessions of the same id; the bank's trace is the second.
async fn with_tenants() -> (Running, [String; 2]) {
    let running = Running::with_tokens().await;
    let traces = ["1".repeat(32), "2".repeat(32)];
    for (token, trace) in [SHOP, BANK].into_iter().zip(&traces) {
        assert_eq!(running.export(token, &spans(trace, "same")).await.status, StatusCode::OK);
    }
    running.daemon.flush().await;
    eventually("both agents are on the board", async || running.daemon.board().len() == 2).await;
    (running, traces)
}

fn tenants(rows: &Value) -> Vec<&str> {
    rows.as_array().unwrap().iter().map(|row| row["tenant"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn whatever_is_asked_a_tenant_is_told_of_its_own() {
    let (running, [first, second]) = with_tenants().await;
    for path in ["agents", "agents?tenant=bank", "fleet", "fleet?tenant=bank"] {
        let page = running.json(&format!("/api/v1/{path}"), SHOP).await;
        assert_eq!((tenants(&page["agents"]), &page["total"]), (vec!["shop"], &json!(1)), "{path}");
    }
    for path in ["sessions", "sessions?detail=row", "sessions?detail=row&tenant=bank&sort=recent"] {
        let page = running.json(&format!("/api/v1/{path}"), SHOP).await;
        assert_eq!(
            (&page["sessions"][0]["agent"]["tenant"], &page["total"]),
            (&json!("shop"), &json!(1))
        );
        assert_eq!(page["sessions"].as_array().unwrap().len(), 1, "{path}");
    }
    for (asked, own, other) in [(SHOP, &first, &second), (BANK, &second, &first)] {
        let explained = running.json(&format!("/api/v1/traces/{own}"), asked).await;
        assert_eq!(explained["trace"]["trace_id"], json!(own), "{explained}");
        for query in ["", "?session=same", "?tenant=shop", "?tenant=bank", "?tenant="] {
            let foreign = running.get(&format!("/api/v1/traces/{other}{query}"), asked).await;
            assert_eq!(foreign.status, StatusCode::NOT_FOUND, "{query}");
        }
    }
    let history = "/api/v1/agents/history?service_name=support&agent_name=support";
    for (query, token, tenant) in
        [("&tenant=bank", SHOP, "shop"), ("", BANK, "bank"), ("&tenant=bank", OPERATOR, "bank")]
    {
        let past = running.json(&format!("{history}{query}"), token).await;
        assert_eq!(past["agent"]["tenant"], tenant, "{past}");
    }
    assert_eq!(running.get(history, OPERATOR).await.status, StatusCode::NOT_FOUND);
    running.daemon.stop().await;
}

#[tokio::test]
async fn who_has_no_tenant_sees_all_and_can_ask_for_one() {
    let (running, [_, second]) = with_tenants().await;
    for path in ["/api/v1/agents", "/api/v1/fleet"] {
        let page = running.json(path, OPERATOR).await;
        assert_eq!((tenants(&page["agents"]), &page["total"]), (vec!["bank", "shop"], &json!(2)));
        let page = running.json(&format!("{path}?tenant=bank"), OPERATOR).await;
        assert_eq!(tenants(&page["agents"]), ["bank"]);
    }
    for detail in ["row", "full"] {
        let path = format!("/api/v1/sessions?detail={detail}");
        let page = running.json(&path, OPERATOR).await;
        assert_eq!((page["sessions"].as_array().unwrap().len(), &page["total"]), (2, &json!(2)));
        let page = running.json(&format!("{path}&tenant=bank"), OPERATOR).await;
        assert_eq!(
            (&page["sessions"][0]["agent"]["tenant"], &page["total"]),
            (&json!("bank"), &json!(1))
        );
    }
    let path = format!("/api/v1/traces/{second}");
    assert_eq!(running.get(&format!("{path}?tenant=bank"), OPERATOR).await.status, StatusCode::OK);
    assert_eq!(running.get(&path, OPERATOR).await.status, StatusCode::NOT_FOUND);
    running.daemon.stop().await;
}

#[tokio::test]
async fn every_path_of_the_api_and_the_page_needs_read() {
    let running = Running::with_tokens().await;
    for path in [
        "/",
        "/assets/app.js",
        "/api/v1/openapi.json",
        "/api/v1/agents",
        "/api/v1/agents/history",
        "/api/v1/fleet",
        "/api/v1/events",
        "/api/v1/sessions",
        "/api/v1/sessions/same",
        "/api/v1/traces/11111111111111111111111111111111",
    ] {
        let nobody = plain(running.http(), anonymous(get(path, ""))).await;
        assert_eq!(nobody.status, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(running.get(path, SCRAPER).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(running.get("/", SHOP).await.status, StatusCode::OK);
    running.daemon.stop().await;
}

/// The data of the first events of the stream of changes, until this agent's tenant has been told of.
async fn events(running: &Running, token: &str, query: &str, until: &str) -> String {
    let mut stream = TcpStream::connect(running.http()).await.unwrap();
    let head = format!(
        "GET /api/v1/events{query} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut told, mut piece) = (String::new(), [0; 4096]);
    while !told.contains(until) {
        let read = timeout(LONG, stream.read(&mut piece)).await.unwrap().unwrap();
        assert!(read > 0, "{told}");
        told.push_str(str::from_utf8(&piece[..read]).unwrap());
    }
    told
}

#[tokio::test]
async fn changes_are_told_to_whom_they_concern() {
    let (running, _) = with_tenants().await;
    let shop = "\"tenant\":\"shop\"";
    let bank = "\"tenant\":\"bank\"";
    for query in ["", "?tenant=bank", "?service_name=support"] {
        let told = events(&running, SHOP, query, shop).await;
        assert!(!told.contains("bank"), "{told}");
    }
    let told = events(&running, OPERATOR, "", shop).await;
    assert!(told.contains(bank), "{told}");
    assert!(!events(&running, OPERATOR, "?tenant=bank", bank).await.contains("shop"));
    running.daemon.stop().await;
}

/// Asks over gRPC; the first answer.
async fn call<Q, A>(running: &Running, method: &str, token: &str, question: Q) -> Result<A, Status>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let endpoint = Endpoint::from_shared(format!("http://{}", running.http())).unwrap();
    let mut client = tonic::client::Grpc::new(endpoint.connect().await.unwrap());
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<Q, A>::default();
    let path = format!("/{method}").parse().unwrap();
    let mut question = tonic::Request::new(futures_util::stream::iter([question]));
    let value = format!("Bearer {token}").parse().unwrap();
    question.metadata_mut().insert("authorization", value);
    let mut answers = client.streaming(question, path, codec).await?.into_inner();
    Ok(timeout(LONG, answers.message()).await.unwrap()?.unwrap())
}

#[tokio::test]
async fn over_grpc_a_tenant_is_told_of_its_own() {
    let (running, [first, second]) = with_tenants().await;
    let bank = || Some("bank".to_owned());
    let service = |method: &str| format!("agentgauge.v1.QueryService/{method}");
    let listed = v1::ListAgentsRequest { tenant: bank(), ..v1::ListAgentsRequest::default() };
    for (token, expected) in [(SHOP, "shop"), (OPERATOR, "bank")] {
        let page: v1::AgentsPage =
            call(&running, &service("ListAgents"), token, listed.clone()).await.unwrap();
        assert_eq!((page.total, page.agents[0].tenant()), (1, expected));
        let page: v1::FleetPage =
            call(&running, &service("ListFleet"), token, listed.clone()).await.unwrap();
        assert_eq!((page.total, page.agents[0].tenant()), (1, expected));
        let asked = v1::GetAgentHistoryRequest {
            service_name: "support".to_owned(),
            agent_name: "support".to_owned(),
            tenant: "bank".to_owned(),
            ..v1::GetAgentHistoryRequest::default()
        };
        let past: v1::HistoryView =
            call(&running, &service("GetAgentHistory"), token, asked).await.unwrap();
        assert_eq!(past.agent.unwrap().tenant(), expected);
        let asked =
            v1::ListSessionsRequest { tenant: bank(), ..v1::ListSessionsRequest::default() };
        let page: v1::SessionRowsPage =
            call(&running, &service("ListSessions"), token, asked).await.unwrap();
        assert_eq!((page.total, page.sessions[0].agent.clone().unwrap().tenant()), (1, expected));
        let asked =
            v1::GetSessionRequest { session_id: "same".to_owned(), tenant: "bank".to_owned() };
        let session: v1::SessionView =
            call(&running, &service("GetSession"), token, asked).await.unwrap();
        assert_eq!(session.agent.unwrap().tenant(), expected);
        let asked = v1::WatchAgentsRequest { tenant: bank(), ..v1::WatchAgentsRequest::default() };
        let changes: v1::Changes =
            call(&running, &service("WatchAgents"), token, asked).await.unwrap();
        let told: Vec<_> = changes.agents.iter().map(v1::FleetRow::tenant).collect();
        assert_eq!(told, [expected]);
    }
    for (trace, code) in [(first, Code::Ok), (second, Code::NotFound)] {
        let asked = v1::ExplainTraceRequest {
            trace_id: trace,
            session_id: None,
            tenant: "bank".to_owned(),
        };
        let explained: Result<v1::TraceExplanation, _> =
            call(&running, &service("ExplainTrace"), SHOP, asked).await;
        assert_eq!(explained.err().map_or(Code::Ok, |status| status.code()), code);
    }
    for (token, code) in [("wrong", Code::Unauthenticated), (SCRAPER, Code::PermissionDenied)] {
        for method in [
            service("ListAgents"),
            service("WatchAgents"),
            "grpc.reflection.v1.ServerReflection/ServerReflectionInfo".to_owned(),
            "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo".to_owned(),
        ] {
            let denied: Result<v1::AgentsPage, _> =
                call(&running, &method, token, v1::ListAgentsRequest::default()).await;
            assert_eq!(denied.err().map(|status| status.code()), Some(code), "{method}");
        }
    }
    running.daemon.stop().await;
}

#[tokio::test]
async fn what_cannot_be_used_says_which_option_and_shows_no_secret() {
    let authority = Authority::new();
    let (one, other) = (authority.server(), authority.server());
    let folder = tempfile::tempdir().unwrap();
    let files = [
        ("cert", &*one.cert),
        ("key", &*one.key),
        ("other", &*other.key),
        ("text", "-----BEGIN PRIVATE KEY-----\nverysecret!\n-----END PRIVATE KEY-----\n"),
    ];
    write(folder.path(), &files);
    for (options, expected) in [
        ("[tls]\ncert_file = \"{}/cert\"", "`tls.cert_file` needs `tls.key_file`"),
        ("[tls]\nclient_ca_file = \"{}/cert\"", "`tls.client_ca_file` needs `tls.cert_file`"),
        ("[tls]\ncert_file = \"{}/none\"\nkey_file = \"{}/key\"", "(`tls.cert_file`)"),
        ("[tls]\ncert_file = \"{}/key\"\nkey_file = \"{}/key\"", "holds no certificate (PEM)"),
        (
            "[tls]\ncert_file = \"{}/cert\"\nkey_file = \"{}/text\"",
            "holds no private key that can be read (PEM)",
        ),
        (
            "[tls]\ncert_file = \"{}/cert\"\nkey_file = \"{}/other\"",
            "cannot be used with `tls.key_file`",
        ),
        (
            "[access]\ntokens = [{ name = \"a\", file = \"{}/none\", may = [\"read\"] }]",
            "failed to read",
        ),
    ] {
        let config = configured(folder.path(), options);
        let error = Daemon::start(&config).await.err().unwrap().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(!error.contains("verysecret"), "{error}");
    }
}

fn text(answer: &Answer) -> String {
    assert_eq!(answer.status, StatusCode::OK);
    String::from_utf8(answer.body.to_vec()).unwrap()
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::prelude::BASE64_STANDARD.encode(text)
}
