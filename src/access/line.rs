//! The stream and the connection of an answer, and how to end them when the client does not read the answer.

use std::sync::Arc;

use tokio::sync::Notify;

/// The stream and the connection of a request, which are one over HTTP/1. The server puts the line into the extensions of each
/// request, and waits for both to be ended.
#[derive(Clone, Debug, Default)]
pub struct Line {
    stream: Arc<Notify>,
    connection: Arc<Notify>,
}

impl Line {
    /// The line for this stream of this connection.
    pub fn new(stream: Arc<Notify>, connection: Arc<Notify>) -> Self {
        Self { stream, connection }
    }

    /// A number that no other open connection has.
    pub fn connection_number(&self) -> u64 {
        Arc::as_ptr(&self.connection).addr() as u64
    }

    /// Ends the stream: what was not sent of its answer is dropped, except what is in the buffers of the connection.
    pub fn end_stream(&self) {
        self.stream.notify_one();
    }

    /// Ends the connection, with everything in its buffers.
    pub fn end_connection(&self) {
        self.connection.notify_one();
    }
}
