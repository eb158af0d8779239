//! Questions about sessions, and who answers them.

use std::future::Future;

use crate::engine::explained::{SessionFilter, SessionRow, Sort, TraceExplanation};
use crate::engine::sessions::Found;
use crate::engine::span::TraceId;

/// Who can be asked about sessions.
pub trait Query: Clone + Send + Sync + 'static {
    /// A page of sessions.
    fn list(&self, request: ListRequest) -> impl Future<Output = Listing> + Send;

    /// What is held under an id, and, if it is told, a scope.
    fn session(
        &self,
        tenant: &str,
        id: &str,
        scope: Option<&str>,
    ) -> impl Future<Output = Found> + Send;

    /// One trace; `None` if no session holds it. Faster where the session is known, by its id, or by its id and its scope.
    fn explain(
        &self,
        tenant: &str,
        session: Option<(&str, Option<&str>)>,
        trace: TraceId,
    ) -> impl Future<Output = Option<TraceExplanation>> + Send;

    /// Whether all stages are running, and every source reads.
    ///
    /// # Errors
    ///
    /// What is missing.
    fn ready(&self) -> Result<(), String>;

    /// What those who run it should know although it is ready.
    fn remark(&self) -> Option<String> {
        None
    }
}

/// A page of sessions that is asked for.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// Which.
    pub filter: SessionFilter,
    /// In which order.
    pub sort: Sort,
    /// How many at most.
    pub limit: usize,
    /// How many to leave out before them.
    pub offset: usize,
}

/// A page of sessions.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The page.
    pub rows: Vec<SessionRow>,
    /// How many sessions fit, on all pages.
    pub total: u64,
    /// Sessions that others hold are not among them.
    pub partial: bool,
}
