//! The handler of the requests of a port.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use tower::ServiceExt;

/// A function that answers requests. On ports for data it matches the path itself: a router and its middleware would take a tenth
/// of the cost of a request with one span.
#[derive(Clone)]
pub struct Answer(Arc<dyn Fn(Request) -> Answering + Send + Sync>);

/// An answer in the making.
pub(super) type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

impl Answer {
    /// Answers requests with `answer`.
    pub fn by(answer: impl Fn(Request) -> Answering + Send + Sync + 'static) -> Self {
        Self(Arc::new(answer))
    }

    /// Answers a request.
    pub fn to(&self, request: Request) -> Answering {
        self.0(request)
    }
}

impl From<Router> for Answer {
    fn from(router: Router) -> Self {
        Self::by(move |request| {
            let answered = router.clone().oneshot(request);
            Box::pin(async move { answered.await.unwrap_or_else(|never| match never {}) })
        })
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Answer").finish_non_exhaustive()
    }
}
