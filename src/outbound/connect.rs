//! Connections to an endpoint: TLS with the system's authorities, and none to a refused address.

use std::error::Error;
use std::fmt;
use std::future::ready;
use std::io;
use std::mem;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tower::Service;

use super::address::{is_refused, is_refused_host};
use crate::blocking::blocking;

/// Connects to addresses that are not refused, within a time limit.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    inner: HttpsConnector<HttpConnector<Guarded>>,
    limit: Duration,
}

/// Looks up a name, as the system does or as a test needs it.
pub(super) type Lookup = dyn Fn(Name) -> Soon<io::Result<Vec<SocketAddr>>> + Send + Sync;

pub(super) type Soon<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A connection that yields to other tasks after each read, however fast an endpoint sends: hyper reads interim answers without a
/// limit.
#[derive(Debug)]
pub(super) struct Courteous {
    stream: MaybeHttpsStream<TokioIo<TcpStream>>,
    // Whether something was read since it last yielded.
    has_read: bool,
}

type BoxError = Box<dyn Error + Send + Sync>;

impl Connector {
    /// A connector that takes at most `limit`, lookup and handshake included.
    ///
    /// # Errors
    ///
    /// Fails if the system has no certificates of authorities, or TLS cannot be set up.
    pub(super) fn new(
        allow_http: bool,
        limit: Duration,
        lookup: Arc<Lookup>,
    ) -> Result<Self, String> {
        let mut http = HttpConnector::new_with_resolver(Guarded(lookup));
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(limit));
        // Keepalive notices a peer that is silently gone before a request is lost to it.
        http.set_keepalive(Some(KEEPALIVE));
        http.set_keepalive_interval(Some(KEEPALIVE));
        http.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        #[cfg(target_os = "linux")]
        http.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        let https = HttpsConnectorBuilder::new().with_tls_config(tls()?);
        let https = if allow_http { https.https_or_http() } else { https.https_only() };
        // HTTP/2 is used if the other side offers it in TLS.
        Ok(Self { inner: https.enable_all_versions().wrap_connector(http), limit })
    }
}

impl Service<Uri> for Connector {
    type Response = Courteous;
    type Error = BoxError;
    type Future = Soon<Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        // A host that is an address is not looked up, so it is checked here.
        if to.host().is_some_and(is_refused_host) {
            return Box::pin(ready(Err("the address is one that may not be used".into())));
        }
        let connecting = timeout(self.limit, self.inner.call(to));
        Box::pin(async move {
            let stream = connecting.await.map_err(io::Error::from)??;
            Ok(Courteous { stream, has_read: false })
        })
    }
}

impl Connection for Courteous {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

impl Read for Courteous {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if mem::take(&mut self.has_read) {
            // A task that wakes itself runs after all that are ready.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.has_read = read.is_ready();
        read
    }
}

impl Write for Courteous {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

fn tls() -> Result<ClientConfig, String> {
    let found = rustls_native_certs::load_native_certs();
    for error in found.errors {
        tracing::warn!(%error, "some of the system's certificates cannot be read");
    }
    let mut roots = RootCertStore::empty();
    let (_, unusable) = roots.add_parsable_certificates(found.certs);
    if unusable > 0 {
        tracing::warn!(unusable, "some of the system's certificates cannot be used");
    }
    if roots.is_empty() {
        return Err(
            "no certificate of an authority was found: install the system's (ca-certificates), or name a file of them in \
             SSL_CERT_FILE"
                .to_owned(),
        );
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Looks names up as the system does.
pub(super) fn system(name: Name) -> Soon<io::Result<Vec<SocketAddr>>> {
    let look = move || Ok((name.as_str(), 0).to_socket_addrs()?.collect());
    Box::pin(async move { blocking(look).await? })
}

/// A lookup without refused addresses. Its results are connected to directly: names are not looked up a second time.
#[derive(Clone)]
struct Guarded(Arc<Lookup>);

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guarded(..)")
    }
}

impl Service<Name> for Guarded {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Soon<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let found = (self.0)(name);
        Box::pin(async move {
            let usable = usable(found.await?);
            if usable.is_empty() {
                return Err(io::Error::other("the name has no address that may be used"));
            }
            Ok(usable.into_iter())
        })
    }
}

/// The addresses of a name that may be used.
fn usable(found: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    found.into_iter().filter(|at| !is_refused(at.ip())).collect()
}

/// How long a connection is silent before a keepalive probe, and the time between two probes.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The number of unanswered probes after which the connection is dead.
const KEEPALIVE_RETRIES: u32 = 3;

/// The longest time for which sent data may stay unacknowledged.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_name_leads_to_no_address_that_is_refused() {
        let at = |address: &str| SocketAddr::new(address.parse().unwrap(), 443);
        let refused = ["169.254.169.254", "fe80::1", "::ffff:169.254.1.1", "fd00:ec2::254"].map(at);
        assert!(usable(refused).is_empty());
        let good = [at("127.0.0.1"), at("2001:db8::1"), at("10.0.0.1"), at("64:ff9b::a00:1")];
        assert_eq!(usable(refused.into_iter().chain(good)), good);
    }

    #[tokio::test]
    async fn names_go_through_the_guard() {
        let found = |name: &str| Guarded(Arc::new(system)).call(name.parse().unwrap());
        // The system's resolver accepts this form of an address, which a URL never contains.
        assert!(found("169.254.169.254").await.is_err());
        assert!(found("localhost").await.unwrap().all(|at| at.ip().is_loopback()));
    }

    #[tokio::test]
    async fn an_endpoint_that_never_stops_sending_holds_up_no_other_task() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = format!("http://{}/", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}
        });
        let limit = Duration::from_secs(20);
        let mut connector = Connector::new(true, limit, Arc::new(system)).unwrap();
        let mut stream = connector.call(to.parse().unwrap()).await.unwrap();
        let mut most = 0;
        for _ in 0..100 {
            let in_a_row = std::future::poll_fn(|context| {
                let mut reads = 0;
                loop {
                    let mut byte = [0];
                    let mut buffer = hyper::rt::ReadBuf::new(&mut byte);
                    let read = Pin::new(&mut stream).poll_read(context, buffer.unfilled());
                    if read.is_pending() {
                        return if reads > 0 { Poll::Ready(reads) } else { Poll::Pending };
                    }
                    reads += 1;
                }
            });
            most = most.max(in_a_row.await);
        }
        assert_eq!(most, 1);
    }
}
