//! The queries about sessions that the endpoints make.

use std::future::Future;

use crate::engine::explained::{SessionFilter, SessionRow, Sort, TraceExplanation};
use crate::engine::sessions::Found;
use crate::engine::span::TraceId;

/// The source of answers about sessions.
pub trait Query: Clone + Send + Sync + 'static {
    /// A page of sessions.
    fn list(&self, request: ListRequest) -> impl Future<Output = Listing> + Send;

    /// The session with an id and, if given, a scope.
    fn session(
        &self,
        tenant: &str,
        id: &str,
        scope: Option<&str>,
    ) -> impl Future<Output = Found> + Send;

    /// One trace of a tenant, or of any; `None` if no session holds it. Faster if `session` gives the id of its session, or id and
    /// scope.
    fn explain(
        &self,
        tenant: Option<&str>,
        session: Option<(&str, Option<&str>)>,
        trace: TraceId,
    ) -> impl Future<Output = Option<TraceExplanation>> + Send;

    /// Succeeds if all stages run and every source reads.
    ///
    /// # Errors
    ///
    /// Returns what is missing.
    fn ready(&self) -> Result<(), String>;

    /// A remark for operators on a daemon that is ready.
    fn remark(&self) -> Option<String> {
        None
    }
}

/// A request for a page of sessions.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// The sessions to list.
    pub filter: SessionFilter,
    /// The order.
    pub sort: Sort,
    /// The most sessions on the page.
    pub limit: usize,
    /// The number of sessions to leave out before the page.
    pub offset: usize,
}

/// A page of sessions.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The page.
    pub rows: Vec<SessionRow>,
    /// The number of sessions that match, on all pages.
    pub total: u64,
    /// Whether sessions are missing, because other instances hold them or they were evicted to disk.
    pub partial: bool,
}
