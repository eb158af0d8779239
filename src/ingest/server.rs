//! One accept loop for every port: HTTP/1 and HTTP/2 on the same socket, plain or over TLS, within limits.
//!
//! A client that is slow, idle or gone holds a connection only for so long: over the handshake and the head of a request
//! (`header_read_timeout`), over taking its answer (`read_timeout`), between requests (`idle_timeout`).

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tower::ServiceExt;

use crate::access::PeerNames;
use crate::access::tls::Tls;

/// How connections are served, whatever they carry.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerOptions {
    /// Connections of one listener; over it new ones wait to be accepted.
    pub max_connections: usize,
    /// How long a client may take over the head of a request, and to send its first one.
    #[serde(with = "crate::engine::options::human")]
    pub header_read_timeout: Duration,
    /// How long a client may take over the body of a request, and to take any part of an answer.
    #[serde(with = "crate::engine::options::human")]
    pub read_timeout: Duration,
    /// How long an HTTP/2 connection may be without a request; it is closed before twice that time.
    #[serde(with = "crate::engine::options::human")]
    pub idle_timeout: Duration,
    /// Largest head of a request, in bytes; HTTP/1 takes at least 8 KiB.
    pub max_header_bytes: u32,
    /// How long connections may take to finish at shutdown; then they are cut.
    #[serde(with = "crate::engine::options::human")]
    pub drain_timeout: Duration,
}

/// Where a server listens, and how its connections are made secure.
#[derive(Debug)]
pub struct Port {
    listener: TcpListener,
    tls: Option<Tls>,
}

/// What a server has to tell.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// The last connection that there may be was taken.
    Full,
    /// A client and we found no secure connection.
    Handshake,
}

/// What a server shares with its connections.
struct Server {
    builder: auto::Builder<TokioExecutor>,
    router: Router,
    options: ServerOptions,
    tls: Option<Tls>,
    tell: Arc<dyn Fn(Event) + Send + Sync>,
}

/// The requests of one connection.
#[derive(Debug, Default)]
struct Requests {
    started: AtomicU64,
    running: AtomicUsize,
}

/// Counts a request as running until it is dropped.
struct Running(Arc<Requests>);

/// A stream that writes together what is answered at about the same time, and fails when its peer takes nothing for too long.
struct Impatient {
    stream: TcpStream,
    patience: Duration,
    // Set while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
    requests: Arc<Requests>,
    // How often others had their turn since something was first to be written.
    rounds: u8,
}

/// What a client may send of a body that nobody reads yet; the rest of it stays with the sender.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 128 << 10;

/// Requests of a connection. Its window has room for what all of them may send, so that none holds up another.
pub(crate) const MAX_STREAMS: u32 = 64;

/// How often others have their turn before an answer is written, as long as more answers are to come: from a request to its
/// answer it is so many tasks.
const ROUNDS: u8 = 4;

/// The smallest buffer that hyper allows for the head of an HTTP/1 request.
const MIN_HTTP1_HEAD_BYTES: usize = 8 << 10;

/// How long to wait after the system could not give us a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            header_read_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(120),
            max_header_bytes: 16 << 10,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

impl Port {
    /// Speaks TLS on a listener, or plain text.
    pub fn new(listener: TcpListener, tls: Option<Tls>) -> Self {
        Self { listener, tls }
    }
}

impl From<TcpListener> for Port {
    fn from(listener: TcpListener) -> Self {
        Self::new(listener, None)
    }
}

/// Serves `router` on `port` until `shutdown`, then lets requests in flight finish; `tell` is called with what happens.
pub async fn serve(
    port: impl Into<Port>,
    router: Router,
    options: ServerOptions,
    tell: impl Fn(Event) + Send + Sync + 'static,
    shutdown: impl Future<Output = ()>,
) {
    let Port { listener, tls } = port.into();
    let tell: Arc<dyn Fn(Event) + Send + Sync> = Arc::new(tell);
    let slots = Arc::new(Semaphore::new(options.max_connections.min(Semaphore::MAX_PERMITS)));
    let drain_timeout = options.drain_timeout;
    let (builder, told_by) = (builder(&options), Arc::clone(&tell));
    let server = Arc::new(Server { builder, router, options, tls, tell: told_by });
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    let mut told = false;
    loop {
        let (slot, stream, peer) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(ended) = connections.join_next() => {
                report(ended);
                continue;
            }
            accepted = accept(&listener, &slots) => accepted,
        };
        connections.spawn(connection(Arc::clone(&server), stream, peer, stopped.clone(), slot));
        if slots.available_permits() == 0 {
            tell(Event::Full);
            // Once is enough: at the limit this is true again for every connection that takes the place of another.
            if !told {
                tracing::warn!(
                    "`server.max_connections` is reached; new connections wait for old ones"
                );
            }
            told = true;
        }
    }
    drop(listener);
    // Fails only if no connection is left to hear it.
    let _ = stop.send(());
    let drained = timeout(drain_timeout, async {
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    });
    if drained.await.is_err() {
        tracing::warn!(connections = connections.len(), "connections were cut at shutdown");
        connections.shutdown().await;
    }
}

fn builder(options: &ServerOptions) -> auto::Builder<TokioExecutor> {
    let head_bytes = usize::try_from(options.max_header_bytes).unwrap_or(usize::MAX);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(options.header_read_timeout)
        .max_buf_size(head_bytes.max(MIN_HTTP1_HEAD_BYTES));
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20))
        .max_header_list_size(options.max_header_bytes)
        .max_frame_size(256 << 10)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(MAX_STREAMS * STREAM_WINDOW_BYTES)
        .max_concurrent_streams(MAX_STREAMS)
        .max_send_buf_size(1 << 20)
        // Streams that a client opens and resets at once ("rapid reset") end the connection soon.
        .max_pending_accept_reset_streams(20)
        .max_local_error_reset_streams(1024);
    builder
}

/// Waits for a free slot, then for a connection.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (Option<OwnedSemaphorePermit>, TcpStream, SocketAddr) {
    // Fails only if the semaphore were closed, which nobody does.
    let slot = Arc::clone(slots).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return (slot, stream, peer),
            Err(error) => {
                tracing::warn!(%error, "no connection could be accepted");
                if !is_of_one_connection(&error) {
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Whether an error concerns the connection that was to be accepted, rather than the process.
fn is_of_one_connection(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == io::ErrorKind::ConnectionAborted
        || kind == io::ErrorKind::ConnectionReset
        || kind == io::ErrorKind::ConnectionRefused
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection failed");
    }
}

/// Makes a connection secure, if that is wanted, and serves it.
async fn connection(
    server: Arc<Server>,
    stream: TcpStream,
    peer: SocketAddr,
    mut stopped: watch::Receiver<()>,
    _slot: Option<OwnedSemaphorePermit>,
) {
    // Only latency is lost without it.
    let _ = stream.set_nodelay(true);
    let patience = server.options.read_timeout;
    let requests = Arc::<Requests>::default();
    let stream =
        Impatient { stream, patience, stalled: None, requests: Arc::clone(&requests), rounds: 0 };
    let Some(tls) = &server.tls else {
        return serve_requests(&server, (stream, peer), None, requests, stopped).await;
    };
    let shaken = tokio::select! {
        shaken = timeout(server.options.header_read_timeout, tls.accept(stream)) => shaken,
        _ = stopped.changed() => return,
    };
    match shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok((stream, names)) => {
            serve_requests(&server, (stream, peer), names, requests, stopped).await;
        }
        Err(error) => {
            (server.tell)(Event::Handshake);
            tracing::debug!(%error, %peer, "no secure connection was made");
        }
    }
}

/// Serves one connection until it ends, idles or has to stop.
async fn serve_requests<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    server: &Server,
    (stream, peer): (S, SocketAddr),
    names: Option<PeerNames>,
    requests: Arc<Requests>,
    mut stopped: watch::Receiver<()>,
) {
    let ServerOptions { header_read_timeout, idle_timeout, .. } = server.options;
    let service = hyper::service::service_fn(|mut request: hyper::Request<Incoming>| {
        let running = Running::new(&requests);
        if let Some(names) = &names {
            request.extensions_mut().insert(PeerNames::clone(names));
        }
        let answered = server.router.clone().oneshot(request.map(Body::new));
        async move {
            let response = answered.await;
            drop(running);
            response
        }
    });
    let mut connection = pin!(server.builder.serve_connection(TokioIo::new(stream), service));
    let (mut stopping, mut closing, mut seen) = (false, false, 0);
    let mut wait = header_read_timeout;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, %peer, "connection closed");
                }
                return;
            }
            _ = stopped.changed(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = sleep(wait) => {
                let started = requests.started.load(Ordering::Relaxed);
                let idle = started == seen && requests.running.load(Ordering::Relaxed) == 0;
                if idle && closing {
                    tracing::debug!(%peer, "idle connection cut");
                    return;
                }
                if idle {
                    connection.as_mut().graceful_shutdown();
                }
                closing = idle;
                seen = started;
                wait = if idle { header_read_timeout } else { idle_timeout };
            }
        }
    }
}

impl Running {
    fn new(requests: &Arc<Requests>) -> Self {
        requests.started.fetch_add(1, Ordering::Relaxed);
        requests.running.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(requests))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Impatient {
    /// Whether a write has to wait until other tasks have had their turn: answers that they have ready go with it. Each write
    /// is a call to the system that costs as much as a small request.
    fn gathers(&mut self, context: &Context<'_>) -> bool {
        let gathers = self.rounds < ROUNDS && self.requests.running.load(Ordering::Relaxed) > 0;
        if gathers {
            self.rounds += 1;
            // A task that wakes itself comes after all that are ready.
            context.waker().wake_by_ref();
        }
        gathers
    }

    /// Passes on what a write came to, unless it has waited for too long.
    fn within_patience<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            self.rounds = 0;
            return written;
        }
        // What waits for its peer waits for nobody else.
        self.rounds = ROUNDS;
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.gathers(context) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write(context, buffer);
        self.within_patience(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.gathers(context) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.within_patience(written, context)
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
