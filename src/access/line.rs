//! What an answer goes over, and how to end that when nobody takes the answer.

use std::sync::Arc;

use tokio::sync::Notify;

/// The line of a request: its stream and its connection, which are one over HTTP/1. The server puts it into the extensions of each
/// request, and waits for both to be ended.
#[derive(Clone, Debug, Default)]
pub struct Line {
    stream: Arc<Notify>,
    connection: Arc<Notify>,
}

impl Line {
    /// The line over this stream of this connection.
    pub fn new(stream: Arc<Notify>, connection: Arc<Notify>) -> Self {
        Self { stream, connection }
    }

    /// A number that no other connection has while this one lasts.
    pub fn connection_number(&self) -> u64 {
        Arc::as_ptr(&self.connection).addr() as u64
    }

    /// Ends the stream: what was not sent of its answer is dropped, up to what is in the buffers of the connection.
    pub fn end_stream(&self) {
        self.stream.notify_one();
    }

    /// Ends the connection, with all that its buffers hold.
    pub fn end_connection(&self) {
        self.connection.notify_one();
    }
}
