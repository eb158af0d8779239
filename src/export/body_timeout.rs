//! Request bodies that a library reads, which would wait for them without a limit. Bodies that `ingest` reads have a pace of their
//! own.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

/// A body that fails when nothing more of it arrives for a given time.
struct TimedBody {
    body: Body,
    patience: Duration,
    // Set while its reader waits.
    wait: Option<Pin<Box<Sleep>>>,
}

/// The request with a body that fails when nothing more of it arrives for `patience`.
pub(super) fn awaited(request: Request, patience: Duration) -> Request {
    request.map(|body| Body::new(TimedBody { body, patience, wait: None }))
}

impl http_body::Body for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.wait = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let patience = self.patience;
        let wait = self.wait.get_or_insert_with(|| Box::pin(sleep(patience)));
        let why = "the body arrived too slowly (`server.read_timeout`)";
        wait.as_mut().poll(context).map(|()| Some(Err(Status::deadline_exceeded(why).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
