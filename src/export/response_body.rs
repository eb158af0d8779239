//! The body of an answer as its reader takes it, and its unsent bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;

use super::readers::Readers;

/// The unsent bytes of an answer.
#[derive(Debug)]
pub(super) struct UnreadBytes {
    bytes: AtomicUsize,
    moved: AtomicU64,
    all: Arc<Progress>,
    /// Notified when some of it was sent, and when its reader is gone.
    pub(super) changed: Notify,
}

/// The progress of all answers.
#[derive(Debug, Default)]
pub(super) struct Progress {
    count: AtomicU64,
    /// Notified when bytes of an answer are no longer held.
    pub(super) freed: Notify,
}

/// Bytes of an answer; when they are dropped, they were sent or will not be.
pub(super) struct Piece {
    bytes: Bytes,
    // The bytes of memory that dropping this frees.
    weight: usize,
    held: Arc<UnreadBytes>,
}

/// The body of an answer: its pieces, then the rest of its body, then its end; or an error if it was cut off.
pub(super) struct ResponseBody {
    pub(super) readers: Arc<Readers>,
    pub(super) number: u64,
    /// A frame before the rest of the body that is no data.
    pub(super) ahead: Option<Result<Frame<Bytes>, axum::Error>>,
    /// The part of the answer that is not made yet.
    pub(super) body: Option<Body>,
    /// The bytes that are left, if known.
    pub(super) left: Option<u64>,
}

impl UnreadBytes {
    /// Unsent bytes, which count as progress now.
    pub(super) fn new(bytes: usize, all: &Arc<Progress>) -> Self {
        Self {
            bytes: AtomicUsize::new(bytes),
            moved: AtomicU64::new(all.next()),
            all: Arc::clone(all),
            changed: Notify::new(),
        }
    }

    /// Counts further bytes.
    pub(super) fn grow(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The number of unsent bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The time of the last progress, counted over all answers.
    pub(super) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Notes progress.
    pub(super) fn moves_on(&self) {
        self.moved.store(self.all.next(), Ordering::Relaxed);
    }
}

impl Progress {
    fn next(&self) -> u64 {
        self.count.fetch_add(1, Ordering::Relaxed)
    }
}

impl Piece {
    /// Data that is counted already, until all of it is dropped.
    pub(super) fn counted(bytes: Bytes, held: &Arc<UnreadBytes>) -> Bytes {
        Bytes::from_owner(Self { weight: bytes.len(), bytes, held: Arc::clone(held) })
    }

    /// A part of such data, which is noted when it is dropped.
    fn part(bytes: Bytes, held: &Arc<UnreadBytes>) -> Bytes {
        Bytes::from_owner(Self { weight: 0, bytes, held: Arc::clone(held) })
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.held.bytes.fetch_sub(self.weight, Ordering::Relaxed);
        self.held.moves_on();
        self.held.changed.notify_one();
        if self.weight > 0 {
            self.held.all.freed.notify_waiters();
        }
    }
}

impl ResponseBody {
    /// The next available piece; `None` if there is none.
    fn piece(&mut self, context: &Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let mut state = self.readers.state();
        // The answer was cut off, and its reader has to know that it is incomplete.
        let reader = state.readers.get_mut(&self.number).filter(|reader| !reader.is_over);
        let Some(reader) = reader else {
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        };
        if let Some(bytes) = reader.pieces.pop_front() {
            let left = self.left.as_mut();
            left.into_iter().for_each(|left| *left = left.saturating_sub(bytes.len() as u64));
            return Poll::Ready(Some(Ok(Piece::part(bytes, &reader.held))));
        }
        if reader.is_whole || self.body.is_some() {
            return Poll::Ready(None);
        }
        reader.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(frame) = self.ahead.take() {
            return Poll::Ready(Some(frame));
        }
        loop {
            if let Some(piece) = ready!(self.piece(context)) {
                return Poll::Ready(Some(piece.map(Frame::data).map_err(axum::Error::new)));
            }
            let Some(body) = self.body.as_mut() else { return Poll::Ready(None) };
            let frame = match ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                // If this cuts it off, the next poll returns the error.
                Ok(data) => drop(self.readers.push(self.number, data)),
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.readers.finish(self.number, false);
    }
}
