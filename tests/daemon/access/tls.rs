//! TLS on every listener; client certificates that are requested, replaced, or unusable.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agentgauge::daemon::Daemon;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::support::{
    Answer, Running, anonymous, configured, eventually, exchange, get, http2, no_spans, plain,
    post, spans, write,
};

/// An authority and what it signs.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
#[derive(Clone)]
struct Certified {
    cert: String,
    key: String,
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

/// A daemon with a certificate of this authority's and, for those of clients, another one's; the options begin in `[tls]`.
async fn serving(authority: &Authority, clients: Option<&Authority>, options: &str) -> Running {
    let Certified { cert, key } = authority.server();
    let clients = clients.map(Authority::pem);
    let mut files = vec![("cert", &*cert), ("key", &*key)];
    files.extend(clients.iter().map(|pem| ("ca", pem.as_str())));
    let tls = "[tls]\ncert_file = \"{}/cert\"\nkey_file = \"{}/key\"\n";
    Running::start(&files, &format!("{tls}{options}")).await
}

/// A client that trusts this authority, and may show a certificate.
fn client(trusts: &Authority, shows: Option<&Certified>, protocol: &str) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusts.pem().as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
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

/// The answer to a client, or its error: with TLS 1.3 it learns of a refused certificate when it first reads.
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

#[tokio::test]
async fn every_listener_speaks_tls_and_nothing_else() {
    let authority = Authority::new();
    let running = serving(&authority, None, "").await;
    let http1 = client(&authority, None, "http/1.1");
    let answer = secure(running.otlp(), &http1, anonymous(export("s"))).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK);
    let page = secure(running.http(), &http1, anonymous(get("/metrics", ""))).await.unwrap();
    assert_eq!(page.status, StatusCode::OK);

    let grpc = running.daemon.bound().otlp_grpc;
    let stream = connect(grpc.unwrap(), &client(&authority, None, "h2")).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let answer = http2(stream).await.send_request(no_spans("https")).await.unwrap();
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
    let options = "client_ca_file = \"{}/ca\"\n[access]\ncertificates = [{ name = \"spiffe://t/shop\", tenant = \"shop\", may = [\"ingest\", \"read\"] }]\n[assemble]\ntrace_idle = \"50ms\"\n";
    let running = serving(&authority, Some(&clients), options).await;
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
    // Signed, but not a configured name.
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
    let options = "client_ca_file = \"{}/ca\"\nclient_auth = \"request\"\nlisteners = [\"http\"]\n";
    let running = serving(&authority, Some(&clients), options).await;
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
    // The other listeners use plain text, where no certificate can be shown.
    assert_eq!(plain(running.otlp(), anonymous(export("s"))).await.status, StatusCode::OK);
    running.daemon.stop().await;
}

#[tokio::test]
async fn a_certificate_that_was_replaced_holds_for_new_connections() {
    let (old, new) = (Authority::new(), Authority::new());
    let running = serving(&old, None, "reload_interval = \"20ms\"\n").await;
    let healthy = || anonymous(get("/healthz", ""));
    let before = client(&old, None, "http/1.1");
    assert!(secure(running.http(), &before, healthy()).await.is_ok());
    // Half of the pair: the old ones stay.
    let Certified { cert, key } = new.server();
    write(running.folder.path(), &[("cert", &cert)]);
    let failed = "agentgauge_certificate_reloads_total{outcome=\"failed\"} ";
    eventually("half of the pair was looked at", async || {
        let page = secure(running.http(), &before, anonymous(get("/metrics", ""))).await;
        page.is_ok_and(|page| {
            let page = String::from_utf8_lossy(&page.body);
            let mut lines = page.lines().filter_map(|line| line.strip_prefix(failed));
            lines.any(|count| count != "0")
        })
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
    let options = "[server]\nheader_read_timeout = \"1s\"\nmax_connections = 1\n";
    let running = serving(&authority, None, options).await;
    let mut silent = TcpStream::connect(running.http()).await.unwrap();
    silent.write_all(&[22, 3, 1]).await.unwrap();
    // The only slot is the silent client's until it is cut.
    let connector = client(&authority, None, "http/1.1");
    let answer = secure(running.http(), &connector, anonymous(get("/healthz", ""))).await;
    assert_eq!(answer.unwrap().status, StatusCode::OK);
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
