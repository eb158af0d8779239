//! The stream of a connection whose peer must keep reading what is written.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::peer::Peer;

/// A stream that writes answers of about the same time together, and fails when its peer reads nothing for too long.
pub(super) struct TimedStream {
    stream: TcpStream,
    patience: Duration,
    // Set while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
    peer: Arc<Peer>,
    // How often other tasks have had their turn since there was first something to write.
    rounds: u8,
}

/// How often other tasks get their turn before an answer is written, as long as more answers are pending: a request passes through
/// that many tasks before it is answered.
const ROUNDS: u8 = 4;

impl TimedStream {
    /// A stream whose writes wait for the peer for at most `patience`.
    pub(super) fn new(stream: TcpStream, patience: Duration, peer: Arc<Peer>) -> Self {
        Self { stream, patience, stalled: None, peer, rounds: 0 }
    }

    /// Whether a write has to wait until other tasks have had their turn, so that their answers are written with it. Each write is
    /// a system call that costs as much as a small request.
    fn gathers(&mut self, context: &Context<'_>) -> bool {
        let gathers = self.rounds < ROUNDS && self.peer.is_running();
        if gathers {
            self.rounds += 1;
            // A task that wakes itself runs after all that are ready.
            context.waker().wake_by_ref();
        }
        gathers
    }

    /// Passes on the result of a write, unless the write has waited too long.
    fn within_patience<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            self.rounds = 0;
            self.peer.moves_on();
            return written;
        }
        // A write that waits for its peer does not wait for other tasks as well.
        self.rounds = ROUNDS;
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for TimedStream {
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
