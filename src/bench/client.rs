//! The generator's client: raw HTTP/2, messages framed ahead of time, so that it costs less than any server.
//!
//! Frames are cut to a size of its own: Go's client sends 16 KiB whatever the server allows. Each connection has a few
//! streams, and each stream sends the next request when the last one was answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::pass::Pass;
use crate::ingest::Compression;

const PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// How requests are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    /// Connections.
    pub(super) connections: usize,
    /// Requests in flight on each connection.
    pub(super) streams: usize,
    /// Bytes of a data frame, at most what the server allows.
    pub(super) frame: usize,
    /// What the messages are compressed by.
    pub(super) compression: Compression,
}

/// What became of a pass.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Spans of the requests that were answered with success.
    pub(super) accepted_spans: u64,
    /// Requests that were answered with anything else.
    pub(super) refused: u64,
    /// What the first of these said.
    pub(super) why: Option<String>,
}

/// Why a pass came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// There is no connection.
    #[error("no connection: {0}")]
    Connect(#[from] std::io::Error),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Http(#[from] h2::Error),
    /// A request cannot be made.
    #[error("no such request: {0}")]
    Request(#[from] http::Error),
}

/// What the streams of a pass share.
struct Shared {
    pass: Arc<Pass>,
    sending: Sending,
    address: SocketAddr,
    next: AtomicUsize,
    accepted_spans: AtomicU64,
}

/// Sends all of a pass to `address`.
pub(super) async fn send(
    address: SocketAddr,
    pass: &Arc<Pass>,
    sending: Sending,
) -> Result<Outcome, SendError> {
    let shared = Arc::new(Shared {
        pass: Arc::clone(pass),
        sending,
        address,
        next: AtomicUsize::new(0),
        accepted_spans: AtomicU64::new(0),
    });
    let mut streams = JoinSet::new();
    let mut connections = JoinSet::new();
    for _ in 0..sending.connections {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (client, connection) = h2::client::handshake(socket).await?;
        // What breaks a connection breaks its streams too, and these tell.
        connections.spawn(async { drop(connection.await) });
        for _ in 0..sending.streams {
            streams.spawn(stream(client.clone(), Arc::clone(&shared)));
        }
    }
    let mut outcome = Outcome::default();
    while let Some(ended) = streams.join_next().await {
        let of_stream = ended.map_err(std::io::Error::other)??;
        outcome.refused += of_stream.refused;
        outcome.why = outcome.why.or(of_stream.why);
    }
    outcome.accepted_spans = shared.accepted_spans.load(Ordering::Relaxed);
    Ok(outcome)
}

/// Sends the next request until there is none.
async fn stream(client: SendRequest<Bytes>, shared: Arc<Shared>) -> Result<Outcome, SendError> {
    let mut outcome = Outcome::default();
    loop {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let Some(message) = shared.pass.messages.get(number) else { return Ok(outcome) };
        match shared.exchange(&client, message.clone()).await? {
            None => {
                let spans = shared.pass.message_spans.get(number).copied().unwrap_or(0);
                shared.accepted_spans.fetch_add(spans, Ordering::Relaxed);
            }
            Some(why) => {
                outcome.refused += 1;
                outcome.why.get_or_insert(why);
            }
        }
    }
}

impl Shared {
    /// Sends one message; returns what was wrong with it, if anything.
    async fn exchange(
        &self,
        client: &SendRequest<Bytes>,
        mut message: Bytes,
    ) -> Result<Option<String>, SendError> {
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
        Ok(complaint(&trailers))
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

/// What trailers say, unless it is success.
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
