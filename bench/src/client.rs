//! The generator's client: raw HTTP/2, messages framed in advance, so that it costs less than any server.
//!
//! It sets its own frame size: Go's client sends 16 KiB whatever the server allows. Each connection has a few streams, and each
//! stream sends the next request when the previous one was answered.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::measure::waited_nanos;
use crate::pass::Pass;
use crate::since;
use crate::steady::Middle;
use agentgauge::clock::Clock;
use agentgauge::engine::span::Timestamp;
use agentgauge::ingest::Compression;

const PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// How late a timer may be.
const TICK: Duration = Duration::from_millis(1);

/// How requests are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    /// Connections.
    pub(super) connections: usize,
    /// Requests in flight on each connection.
    pub(super) streams: usize,
    /// Bytes of a data frame, at most what the server allows.
    pub(super) frame: usize,
    /// The compression of the messages.
    pub(super) compression: Compression,
}

/// The outcome of a pass.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Spans of the requests that were answered with success.
    pub(super) accepted_spans: u64,
    /// Requests that were answered otherwise.
    pub(super) refused: u64,
    /// Spans of these requests.
    pub(super) refused_spans: u64,
    /// The reason in the first of these answers.
    pub(super) why: Option<String>,
    /// The time of each answer; empty unless requests were offered.
    pub(super) took: Vec<Took>,
}

/// The time of one answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    /// The number of its message.
    pub(super) number: usize,
    /// Whether the message was accepted.
    pub(super) accepted: bool,
    /// When the message was sent.
    pub(super) sent: Timestamp,
    /// The time from sending to the answer, in nanoseconds.
    pub(super) nanos: u64,
    /// This time without the time that the server waited for a core used by others; the whole time if the server was not watched.
    pub(super) own_nanos: u64,
}

/// The pace at which requests are offered, and the watched server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace<'p> {
    /// Spans a second.
    pub(super) rate: f64,
    /// The clock for the due times of requests.
    pub(super) clock: &'p Clock,
    /// The id of the server's process, if its waiting for a core is measured.
    pub(super) watched: Option<u32>,
}

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// A connection cannot be made.
    #[error("no connection: {0}")]
    Connect(#[from] std::io::Error),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Http(#[from] h2::Error),
    /// A request cannot be made.
    #[error("no such request: {0}")]
    Request(#[from] http::Error),
}

/// The state that the streams of a pass share.
struct Shared {
    pass: Arc<Pass>,
    sending: Sending,
    address: SocketAddr,
    next: AtomicUsize,
    accepted_spans: AtomicU64,
    refused: AtomicU64,
    refused_spans: AtomicU64,
    why: OnceLock<String>,
    took: Mutex<Vec<Took>>,
    middle: Option<Arc<Middle>>,
}

/// Sends a pass to `address`, each stream one request after the other; `middle` is notified of answers.
pub(super) async fn send(
    address: SocketAddr,
    pass: &Arc<Pass>,
    sending: Sending,
    middle: Option<Arc<Middle>>,
) -> Result<Outcome, SendError> {
    let shared = Arc::new(Shared { middle, ..Shared::new(address, pass, sending) });
    let (clients, _connections) = shared.connect().await?;
    let mut streams = JoinSet::new();
    for client in clients.iter().flat_map(|client| vec![client; sending.streams]) {
        let (client, shared) = (client.clone(), Arc::clone(&shared));
        streams.spawn(async move {
            loop {
                let number = shared.next.fetch_add(1, Ordering::Relaxed);
                if number >= shared.pass.messages.len() {
                    return Ok(());
                }
                shared.exchange(&client, number).await?;
            }
        });
    }
    shared.outcome(streams).await
}

/// Sends a pass to `address` at a pace, whether answers come or not.
pub(super) async fn offer(
    address: SocketAddr,
    pass: &Arc<Pass>,
    sending: Sending,
    Pace { rate, clock, watched }: Pace<'_>,
) -> Result<Outcome, SendError> {
    let shared = Arc::new(Shared::new(address, pass, sending));
    let (clients, _connections) = shared.connect().await?;
    let mut exchanges = JoinSet::new();
    let start = clock.now();
    let mut before = 0;
    for (number, client) in (0..pass.messages.len()).zip(clients.iter().cycle()) {
        let due = Duration::from_secs_f64(before as f64 / rate);
        let passed = Duration::from_nanos(clock.now().0.saturating_sub(start.0));
        // A delay of less than a tick of the timer needs no wait.
        if let Some(wait) = due.checked_sub(passed).filter(|wait| *wait > TICK) {
            tokio::time::sleep(wait).await;
        }
        before += pass.message_spans.get(number).copied().unwrap_or(0);
        let (client, shared, clock) = (client.clone(), Arc::clone(&shared), clock.clone());
        exchanges.spawn(async move {
            let waited = || watched.map_or(0, waited_nanos);
            let (before, sent) = (waited(), clock.now());
            let accepted = shared.exchange(&client, number).await?;
            let nanos = since(sent, clock.now());
            // The sum excludes ended threads, so it may be lower than before.
            let waited = waited().saturating_sub(before);
            let own_nanos = nanos.saturating_sub(waited);
            let took = Took { number, accepted, sent, nanos, own_nanos };
            shared.took.lock().await.push(took);
            Ok(())
        });
    }
    shared.outcome(exchanges).await
}

impl Shared {
    fn new(address: SocketAddr, pass: &Arc<Pass>, sending: Sending) -> Self {
        Self {
            pass: Arc::clone(pass),
            sending,
            address,
            next: AtomicUsize::new(0),
            accepted_spans: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            refused_spans: AtomicU64::new(0),
            why: OnceLock::new(),
            took: Mutex::default(),
            middle: None,
        }
    }

    /// Makes the connections; returns their clients, and the tasks that drive them.
    async fn connect(&self) -> Result<(Vec<SendRequest<Bytes>>, JoinSet<()>), SendError> {
        let (mut clients, mut connections) = (Vec::new(), JoinSet::new());
        for _ in 0..self.sending.connections {
            let socket = TcpStream::connect(self.address).await?;
            socket.set_nodelay(true)?;
            let (client, connection) = h2::client::handshake(socket).await?;
            // An error of a connection is also an error of its streams, which report it.
            connections.spawn(async { drop(connection.await) });
            clients.push(client);
        }
        Ok((clients, connections))
    }

    /// Waits for all tasks; returns the outcome of the pass.
    async fn outcome(
        &self,
        mut tasks: JoinSet<Result<(), SendError>>,
    ) -> Result<Outcome, SendError> {
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(std::io::Error::other)??;
        }
        Ok(Outcome {
            accepted_spans: self.accepted_spans.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            refused_spans: self.refused_spans.load(Ordering::Relaxed),
            why: self.why.get().cloned(),
            took: self.took.lock().await.clone(),
        })
    }

    /// Sends one message and counts its outcome; returns whether it was accepted.
    async fn exchange(
        &self,
        client: &SendRequest<Bytes>,
        number: usize,
    ) -> Result<bool, SendError> {
        let Some(mut message) = self.pass.messages.get(number).cloned() else { return Ok(false) };
        let mut client = client.clone().ready().await?;
        let (response, mut body) = client.send_request(self.head()?, false)?;
        while !message.is_empty() {
            let frame = message.split_to(self.sending.frame.min(message.len()));
            body.send_data(frame, message.is_empty())?;
        }
        let (head, mut answer) = response.await?.into_parts();
        while let Some(data) = answer.data().await {
            let bytes = data?.len();
            answer.flow_control().release_capacity(bytes)?;
        }
        // An answer without a message has its status in the head.
        let trailers = answer.trailers().await?.unwrap_or(head.headers);
        let spans = self.pass.message_spans.get(number).copied().unwrap_or(0);
        let complaint = complaint(&trailers);
        let accepted = complaint.is_none();
        match complaint {
            None => {
                let before = self.accepted_spans.fetch_add(spans, Ordering::Relaxed);
                if let Some(middle) = &self.middle {
                    middle.answered(before, before + spans);
                }
            }
            Some(why) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                self.refused_spans.fetch_add(spans, Ordering::Relaxed);
                // Only the first reason is kept.
                let _ = self.why.set(why);
            }
        }
        Ok(accepted)
    }

    fn head(&self) -> Result<Request<()>, http::Error> {
        let encoding = match self.sending.compression {
            Compression::None => "identity",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        };
        Request::post(format!("http://{}{PATH}", self.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("user-agent", concat!("agentgauge-bench/", env!("CARGO_PKG_VERSION")))
            .header("grpc-encoding", encoding)
            .body(())
    }
}

/// The reason in trailers; `None` for success.
fn complaint(trailers: &HeaderMap) -> Option<String> {
    let text = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok());
    match text("grpc-status") {
        Some("0") => None,
        Some(status) => Some(format!(
            "gRPC status {status}: {}",
            text("grpc-message").unwrap_or("without a message")
        )),
        None => Some("an answer without a gRPC status".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_status_0_is_success() {
        let mut trailers = HeaderMap::new();
        assert!(complaint(&trailers).is_some());
        trailers.insert("grpc-status", "14".parse().unwrap());
        assert!(complaint(&trailers).is_some_and(|why| why.contains("14")));
        trailers.insert("grpc-status", "0".parse().unwrap());
        assert_eq!(complaint(&trailers), None);
    }
}
