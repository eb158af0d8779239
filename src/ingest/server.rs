//! One accept loop for every port: HTTP/1 and HTTP/2 on the same socket, plain or over TLS, within limits.
//!
//! A client that is slow, idle or gone occupies a connection only for a limited time: for the handshake and the head of its first
//! request (`header_read_timeout`), for reading its answer (`read_timeout`), between requests and for the head of a further one
//! (`idle_timeout`: exporters send once a minute, and one that finds its connection closed sends again; an answer that continues,
//! such as a stream of events, keeps its connection). If there is no room for a new connection, the least useful one is closed (see
//! [`super::peer`]). A handler of large answers can end the [`Line`] of an answer that the client does not read.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONNECTION, TRANSFER_ENCODING};
use axum::http::uri::{Authority, PathAndQuery};
use axum::http::{Method, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::peer::{Arriving, Connected, Peer, Peers};
use super::write_timeout::TimedStream;
use crate::access::tls::Tls;
use crate::access::{Answer, Line, PeerNames, needed};
use crate::engine::options::{DAY, HOUR, MILLISECOND, MINUTE, SECOND};
use crate::telemetry;

crate::engine::options! {
    /// How connections are served, whatever they carry.
    pub struct ServerOptions in "server" {
        /// Connections of one listener; beyond that, a new one replaces one that never sent anything valid, else an idle one.
        /// The limit is lower if the process may not open as many files (`ulimit -n`): connections of all listeners take half
        /// of them.
        pub max_connections: usize = 1024, within 1..=1_000_000;
        /// How long a client may take to send the head of its first request.
        #[serde(with = "crate::engine::options::human")]
        pub header_read_timeout: Duration = 10 * SECOND, within MILLISECOND..=HOUR;
        /// How long a client may go without reading any part of a response, or without sending any part of a body (see
        /// `ingest.body_progress`).
        #[serde(with = "crate::engine::options::human")]
        pub read_timeout: Duration = 30 * SECOND, within MILLISECOND..=HOUR;
        /// How long a connection may be without a request and a response; it is closed before twice that time. It is also the
        /// time for the head of a further request.
        #[serde(with = "crate::engine::options::human")]
        pub idle_timeout: Duration = 2 * MINUTE, within MILLISECOND..=DAY;
        /// Largest head of a request, in bytes, over HTTP/2 as RFC 9113, 6.5.2, counts them; HTTP/1 takes at least 8 KiB.
        pub max_header_bytes: u32 = 16 << 10, within 1024..=1 << 20;
        /// How long connections may take to finish at shutdown.
        #[serde(with = "crate::engine::options::human")]
        pub drain_timeout: Duration = 10 * SECOND, within MILLISECOND..=HOUR;
    }
}

/// The address of a server, and how its connections are secured.
#[derive(Debug)]
pub struct Port {
    listener: TcpListener,
    tls: Option<Tls>,
}

/// An event at a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// The last free place for a connection was taken.
    Full,
    /// A TLS handshake with a client failed.
    Handshake,
    /// The head of a request was too large.
    LongHead,
    /// The head of a request was no HTTP/1, and the client was told so.
    BadHead,
    /// The server closed a connection, for one of a few reasons.
    Closed(&'static str),
}

/// What a server shares with its connections.
struct Server {
    builder: auto::Builder<Streams>,
    answers: Answer,
    options: ServerOptions,
    tls: Option<Tls>,
    tell: Arc<dyn Fn(Event) + Send + Sync>,
}

/// Runs the streams of HTTP/2 connections, each as a task that can be ended: while an answer is not read, hyper watches nothing but
/// the window of its stream.
#[derive(Clone, Copy, Debug)]
struct Streams;

/// A body that reports its progress to its connection, whatever reads it.
struct Tracked {
    body: Incoming,
    peer: Arc<Peer>,
    // Set until the whole body has arrived.
    arriving: Option<Arriving>,
}

/// Bytes that a client may send of a body before it is read; the rest of the body stays with the sender.
pub const STREAM_WINDOW_BYTES: u32 = 128 << 10;

/// Most requests of a connection at a time. The connection's window has room for what all of them may send, so that none delays
/// another.
pub const MAX_STREAMS: u32 = 64;

/// The smallest buffer that hyper allows for the head of an HTTP/1 request.
const MIN_HTTP1_HEAD_BYTES: usize = 8 << 10;

/// The listeners of a process.
const LISTENERS: u64 = 3;

/// Pause after the system could not accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a connection that has to leave may take to finish; then another one is asked to leave.
const LEAVING: Duration = Duration::from_millis(100);

tokio::task_local! {
    /// Ends the stream that this task runs when it is notified.
    static STREAM: Arc<Notify>;
}

impl ServerOptions {
    /// The same options for a process that may have `files` open files: connections of all listeners take at most half of them, so
    /// that a client that opens many connections does not keep the store from its files.
    #[must_use]
    pub fn within(self, files: Option<u64>) -> Self {
        let share = files.map_or(usize::MAX, |files| {
            usize::try_from(files / (2 * LISTENERS)).unwrap_or(usize::MAX).max(1)
        });
        if share < self.max_connections {
            tracing::warn!(
                connections = share,
                files,
                "`server.max_connections` is more than this process may have files open for: raise its limit (`ulimit -n`)"
            );
        }
        Self { max_connections: self.max_connections.min(share), ..self }
    }
}

impl Port {
    /// A port on a listener, with TLS, or plain text without `tls`.
    pub fn new(listener: TcpListener, tls: Option<Tls>) -> Self {
        Self { listener, tls }
    }
}

impl From<TcpListener> for Port {
    fn from(listener: TcpListener) -> Self {
        Self::new(listener, None)
    }
}

/// Answers requests at `port` with `answers` until `shutdown`, then lets requests in flight finish; calls `tell` with each event.
pub async fn serve(
    port: impl Into<Port>,
    answers: impl Into<Answer>,
    options: ServerOptions,
    tell: impl Fn(Event) + Send + Sync + 'static,
    shutdown: impl Future<Output = ()>,
) {
    let Port { listener, tls } = port.into();
    let tell: Arc<dyn Fn(Event) + Send + Sync> = Arc::new(tell);
    let slots = Arc::new(Semaphore::new(options.max_connections.min(Semaphore::MAX_PERMITS)));
    let peers = Arc::new(Peers::new(options.max_connections));
    let drain_timeout = options.drain_timeout;
    let (builder, told_by) = (builder(&options), Arc::clone(&tell));
    let server = Arc::new(Server { builder, answers: answers.into(), options, tls, tell: told_by });
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    let mut told = false;
    // An accepted connection for which there is no room yet.
    let mut waiting = None;
    loop {
        let (slot, (stream, address)) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(ended) = connections.join_next() => {
                report(ended);
                continue;
            }
            slot = room(&slots, &peers), if waiting.is_some() => match waiting.take() {
                Some(accepted) => (slot, accepted),
                None => continue,
            },
            accepted = accept(&listener, &peers), if waiting.is_none() => {
                match Arc::clone(&slots).try_acquire_owned() {
                    Ok(slot) => (slot, accepted),
                    Err(_) => {
                        waiting = Some(accepted);
                        continue;
                    }
                }
            }
        };
        let (server, stopped) = (Arc::clone(&server), stopped.clone());
        connections.spawn(connection(server, stream, peers.connect(address), stopped, slot));
        if slots.available_permits() == 0 {
            tell(Event::Full);
            // Once is enough: at the limit this is true again for every connection that replaces another.
            if !told {
                tracing::warn!(
                    "`server.max_connections` is reached; new connections take the place of idle ones"
                );
            }
            told = true;
        }
    }
    drop(listener);
    // Fails only if no connection is left to receive it.
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

fn builder(options: &ServerOptions) -> auto::Builder<Streams> {
    let head_bytes = usize::try_from(options.max_header_bytes).unwrap_or(usize::MAX);
    let mut builder = auto::Builder::new(Streams);
    builder
        .http1()
        .timer(TokioTimer::new())
        // This time runs from the end of the previous request; the first head has less time, in `serve_requests`.
        .header_read_timeout(options.idle_timeout.max(options.header_read_timeout))
        .max_buf_size(head_bytes.max(MIN_HTTP1_HEAD_BYTES));
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20))
        // hyper refuses a head over twice the limit on its own; `answer` refuses a smaller one over the limit, and counts it.
        .max_header_list_size(options.max_header_bytes.saturating_mul(2))
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

/// Waits for a connection.
async fn accept(listener: &TcpListener, peers: &Peers) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(%error, "no connection could be accepted");
                if !is_of_one_connection(&error) {
                    // The process may have reached its limit of open files: one of them can be a useless connection.
                    peers.displace();
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Waits for a free slot; meanwhile asks the least useful connections to leave.
async fn room(slots: &Arc<Semaphore>, peers: &Peers) -> OwnedSemaphorePermit {
    loop {
        if let Ok(slot) = Arc::clone(slots).try_acquire_owned() {
            return slot;
        }
        peers.displace();
        // Acquiring fails only if the semaphore is closed, which never happens.
        if let Ok(Ok(slot)) = timeout(LEAVING, Arc::clone(slots).acquire_owned()).await {
            return slot;
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

/// Sets up TLS for a connection, if wanted, and serves it.
async fn connection(
    server: Arc<Server>,
    stream: TcpStream,
    connected: Connected,
    mut stopped: watch::Receiver<()>,
    _slot: OwnedSemaphorePermit,
) {
    // If this fails, only latency suffers.
    let _ = stream.set_nodelay(true);
    let patience = server.options.read_timeout;
    let peer = Arc::clone(&connected.peer);
    let stream = TimedStream::new(stream, patience, peer);
    let Some(tls) = &server.tls else {
        return serve_requests(&server, stream, None, &connected, stopped).await;
    };
    let shaken = tokio::select! {
        shaken = timeout(server.options.header_read_timeout, tls.accept(stream)) => shaken,
        _ = stopped.changed() => return,
        () = connected.peer.told_to_leave() => return (server.tell)(Event::Closed(DISPLACED)),
    };
    match shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok((stream, names)) => {
            serve_requests(&server, stream, names, &connected, stopped).await;
        }
        Err(error) => {
            (server.tell)(Event::Handshake);
            tracing::debug!(%error, peer = %connected.address, "no secure connection was made");
        }
    }
}

/// Serves one connection until it ends, becomes idle or has to stop.
async fn serve_requests<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    server: &Arc<Server>,
    stream: S,
    names: Option<PeerNames>,
    connected: &Connected,
    mut stopped: watch::Receiver<()>,
) {
    let ServerOptions { header_read_timeout, idle_timeout, .. } = server.options;
    let Connected { peer, address, .. } = connected;
    let service = hyper::service::service_fn(|mut request: hyper::Request<Incoming>| {
        let (server, peer, running) = (Arc::clone(server), Arc::clone(peer), peer.runs());
        // Requests that need no access do not make a connection count as served.
        let counts = needed(request.uri().path()).is_some();
        request.extensions_mut().insert(Arc::clone(&peer));
        if let Some(names) = &names {
            request.extensions_mut().insert(PeerNames::clone(names));
        }
        let mut step = telemetry::request(&request);
        let request = request.map(|body| Body::new(Tracked::new(body, Arc::clone(&peer))));
        async move {
            let response = answer(&server, peer.end(), request).await;
            step.answered(&response);
            if counts && is_success(&response) {
                peer.was_served();
            }
            drop(running);
            Ok::<_, Infallible>(under_way(response, &peer))
        }
    });
    let mut connection = pin!(server.builder.serve_connection(TokioIo::new(stream), service));
    let (mut stopping, mut closing, mut seen) = (false, None, 0);
    let mut wait = header_read_timeout;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, peer = %address, "connection closed");
                    why_ended(&*error).into_iter().for_each(|event| (server.tell)(event));
                } else if let Some(why) = closing {
                    (server.tell)(Event::Closed(why));
                }
                return;
            }
            _ = stopped.changed(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = peer.end().notified() => return (server.tell)(Event::Closed(STALLED)),
            () = peer.told_to_leave() => {
                let why = if peer.is_slow() { SLOW } else { DISPLACED };
                // Nothing is lost with a connection that was never served, however it ends.
                if !peer.is_served() {
                    return (server.tell)(Event::Closed(why));
                }
                connection.as_mut().graceful_shutdown();
                (closing, wait) = (Some(why), LEAVING);
            }
            () = sleep(wait) => {
                let started = peer.started();
                if started == 0 {
                    // Nothing was requested, so nothing is lost.
                    return (server.tell)(Event::Closed(SLOW_HEAD));
                }
                let idle = started == seen && peer.is_idle();
                if let Some(why) = closing.filter(|why| idle || *why != IDLE) {
                    tracing::debug!(peer = %address, why, "connection cut");
                    return (server.tell)(Event::Closed(why));
                }
                if idle {
                    connection.as_mut().graceful_shutdown();
                }
                closing = idle.then_some(IDLE);
                seen = started;
                wait = if idle { header_read_timeout } else { idle_timeout };
            }
        }
    }
}

/// Answers a request, if its head is not too large. `end` ends its connection.
async fn answer(server: &Server, end: &Arc<Notify>, mut request: hyper::Request<Body>) -> Response {
    let stream = STREAM.try_with(Arc::clone).unwrap_or_else(|_| Arc::clone(end));
    request.extensions_mut().insert(Line::new(stream, Arc::clone(end)));
    let max_bytes = u64::from(server.options.max_header_bytes);
    if request.version() == Version::HTTP_2 && head_bytes(&request) > max_bytes {
        (server.tell)(Event::LongHead);
        return StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response();
    }
    let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
    if codings.any(|coding| !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")) {
        (server.tell)(Event::BadHead);
        let why = "only `chunked` is a transfer coding here: compress by `content-encoding`\n";
        return (StatusCode::NOT_IMPLEMENTED, [(CONNECTION, "close")], why).into_response();
    }
    let asks_for_head = request.method() == Method::HEAD;
    let response = server.answers.to(request).await;
    if asks_for_head { response.map(|_| Body::empty()) } else { response }
}

/// Reasons for which the server closes connections.
const DISPLACED: &str = "displaced";
const IDLE: &str = "idle";
const PROTOCOL: &str = "protocol";
const SLOW: &str = "slow_bodies";
const SLOW_HEAD: &str = "slow_head";
const STALLED: &str = "stalled";

/// The size of the head of an HTTP/2 request, in bytes as RFC 9113, 6.5.2, counts them.
fn head_bytes<B>(request: &hyper::Request<B>) -> u64 {
    let uri = request.uri();
    let pseudo = [
        (":method", Some(request.method().as_str())),
        (":scheme", uri.scheme_str()),
        (":authority", uri.authority().map(Authority::as_str)),
        (":path", uri.path_and_query().map(PathAndQuery::as_str)),
    ];
    let pseudo =
        pseudo.iter().filter_map(|(name, value)| Some((name.len(), value.as_ref()?.len())));
    let fields = request.headers().iter().map(|(name, value)| (name.as_str().len(), value.len()));
    pseudo.chain(fields).map(|(name, value)| (name + value + 32) as u64).sum()
}

/// Why the server ended a connection; `None` if the client was not the cause.
fn why_ended(error: &(dyn Error + 'static)) -> Option<Event> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return (error.kind() == io::ErrorKind::TimedOut).then_some(Event::Closed(STALLED));
        }
        let h2 = error.downcast_ref::<h2::Error>();
        if h2.is_some_and(|error| error.is_library() && error.is_go_away()) {
            return Some(Event::Closed(PROTOCOL));
        }
        let hyper = error.downcast_ref::<hyper::Error>();
        if hyper.is_some_and(|error| error.is_timeout() && error.source().is_none()) {
            return Some(Event::Closed(IDLE));
        }
        if hyper.is_some_and(hyper::Error::is_parse_too_large) {
            return Some(Event::LongHead);
        }
        if hyper.is_some_and(hyper::Error::is_parse) {
            return Some(Event::BadHead);
        }
        cause = error.source();
    }
    None
}

/// Counts an answer that continues after its head, such as a stream of events, as under way until its body is dropped.
fn under_way(response: Response, peer: &Arc<Peer>) -> Response {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    let streaming = peer.streams();
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &streaming;
            frame
        }))
    })
}

/// Whether a request was answered successfully, over HTTP or over gRPC, whose failures have their status in the head.
fn is_success(response: &Response) -> bool {
    let status = response.headers().get("grpc-status");
    response.status().is_success() && status.is_none_or(|status| status == "0")
}

impl<F> Executor<F> for Streams
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let end = Arc::<Notify>::default();
        // A task is moved as it begins and ends; a stream takes kilobytes.
        let stream = Box::pin(stream);
        tokio::spawn(async move {
            tokio::select! {
                _ = STREAM.scope(Arc::clone(&end), stream) => {}
                // This drops the stream, which resets it and drops unsent bytes.
                () = end.notified() => {}
            }
        });
    }
}

impl Tracked {
    fn new(body: Incoming, peer: Arc<Peer>) -> Self {
        let arriving = (!body.is_end_stream()).then(|| peer.arriving());
        Self { body, peer, arriving }
    }
}

impl http_body::Body for Tracked {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_ready() {
            self.peer.moves_on();
            if self.body.is_end_stream() || matches!(polled, Poll::Ready(None)) {
                self.arriving = None;
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_half_of_the_files_that_may_be_open() {
        let connections = |files| ServerOptions::default().within(files).max_connections;
        assert_eq!([None, Some(1 << 20), Some(6_144)].map(connections), [1_024; 3]);
        assert_eq!([Some(1_024), Some(64), Some(3)].map(connections), [170, 10, 1]);
    }
}
