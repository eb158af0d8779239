//! One accept loop for everything that speaks HTTP: OTLP over gRPC and HTTP, metrics, API.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// How connections are served, whatever they carry.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerOptions {
    /// Connections of one listener; over it new ones wait to be accepted.
    pub max_connections: usize,
    /// How long a client may take over the head of a request.
    #[serde(with = "crate::engine::options::human")]
    pub header_read_timeout: Duration,
    /// How long a client may take over the body of a request.
    #[serde(with = "crate::engine::options::human")]
    pub read_timeout: Duration,
    /// Largest head of a request, in bytes.
    pub max_header_bytes: u32,
    /// How long connections may take to finish at shutdown.
    #[serde(with = "crate::engine::options::human")]
    pub drain_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            header_read_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(30),
            max_header_bytes: 16 << 10,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// HTTP/2 as large batches like it: fewer, larger frames, and windows that hold a batch.
const MAX_FRAME_BYTES: u32 = 256 << 10;
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;

/// What one peer may have going on at a time, and how often it may call it off.
const MAX_STREAMS: u32 = 64;
const MAX_RESETS: usize = 20;

/// How often a silent HTTP/2 peer is asked whether it is there, and how long it may take to say so.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Serves a router on a listener, HTTP/1 and HTTP/2, until `shutdown`; then lets what is in flight finish, for
/// `drain_timeout` at most.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    options: ServerOptions,
    shutdown: impl Future<Output = ()>,
) {
    let builder = builder(&options);
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(options.max_connections));
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = async {
            // The semaphore is never closed.
            let place = places.clone().acquire_owned().await.ok();
            (place, listener.accept().await)
        };
        let (place, stream) = tokio::select! {
            (place, accepted) = accepted => match accepted {
                Ok((stream, _)) => (place, stream),
                Err(error) => {
                    // Out of descriptors, most likely: give the others time to finish.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = &mut shutdown => break,
        };
        // An answer is one small write, which should not wait for another.
        let _ = stream.set_nodelay(true);
        let service =
            router.clone().map_request(|request: Request<Incoming>| request.map(Body::new));
        let (builder, watcher) = (builder.clone(), graceful.watcher());
        let patience = options.header_read_timeout;
        tokio::spawn(async move {
            // A peer that says nothing at all is not even asked which protocol it speaks.
            if matches!(tokio::time::timeout(patience, stream.readable()).await, Ok(Ok(()))) {
                let connection = builder
                    .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
                    .into_owned();
                if let Err(error) = watcher.watch(connection).await {
                    tracing::debug!(%error, "connection ended");
                }
            }
            drop(place);
        });
    }
    if tokio::time::timeout(options.drain_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("connections were cut that did not finish in time");
    }
}

/// How long to wait when no connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

fn builder(options: &ServerOptions) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(options.header_read_timeout)
        .max_buf_size(
            usize::try_from(options.max_header_bytes).unwrap_or(usize::MAX).max(MIN_BUFFER_BYTES),
        );
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_frame_size(MAX_FRAME_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_header_list_size(options.max_header_bytes)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(options.header_read_timeout);
    builder
}

/// The least that the HTTP/1 reader works with.
const MIN_BUFFER_BYTES: usize = 8 << 10;
