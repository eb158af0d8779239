//! Questions about sessions: who answers them, and in which order sessions come.

use std::future::Future;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::explained::{SessionFilter, SessionRow, TraceExplanation};
use crate::engine::span::TraceId;
use crate::engine::view::SessionView;

/// Who can be asked about sessions.
pub trait Query: Clone + Send + Sync + 'static {
    /// A page of sessions.
    fn list(&self, request: ListRequest) -> impl Future<Output = Listing> + Send;

    /// One session; `None` if it is not held.
    fn session(&self, tenant: &str, id: &str) -> impl Future<Output = Option<SessionView>> + Send;

    /// One trace; `None` if no session holds it. Faster where the session is known.
    fn explain(
        &self,
        tenant: &str,
        session: Option<&str>,
        trace: TraceId,
    ) -> impl Future<Output = Option<TraceExplanation>> + Send;

    /// Whether all stages are running, and every source reads.
    ///
    /// # Errors
    ///
    /// What is missing.
    fn ready(&self) -> Result<(), String>;
}

/// In which order sessions come; of equal ones the one that started first.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sort {
    /// By start of the first trace.
    #[default]
    Start,
    /// The one that ended last first.
    Recent,
    /// The least reliable first; those without a score last.
    Reliability,
    /// The one with the most loops first.
    Loops,
    /// The dearest first; those of unknown cost last.
    Cost,
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

/// A place in an order; smaller comes first.
pub type Place = (u64, u64, String, Option<String>);

impl Sort {
    /// Where a session stands.
    pub fn place(self, row: &SessionRow) -> Place {
        let nanos = |text: &str| text.parse::<u64>().unwrap_or_default();
        // The bits of floats that are not negative are in their order.
        let bits = |value: f64| value.max(0.0).to_bits();
        let first = match self {
            Self::Start => 0,
            Self::Recent => u64::MAX - nanos(&row.end_unix_nano),
            Self::Reliability => row.reliability.map_or(u64::MAX, bits),
            Self::Loops => u64::MAX - row.loops,
            Self::Cost => row.cost_usd.map_or(u64::MAX, |cost| u64::MAX - 1 - bits(cost)),
        };
        (first, nanos(&row.start_unix_nano), row.session_id.clone(), row.agent.tenant.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_come_first_and_the_unknown_last() {
        let row = |reliability, cost_usd, loops| SessionRow {
            reliability,
            cost_usd,
            loops,
            ..SessionRow::default()
        };
        let rows = [row(Some(0.2), Some(0.5), 3), row(Some(0.9), Some(0.1), 1), row(None, None, 0)];
        for sort in [Sort::Reliability, Sort::Cost, Sort::Loops] {
            let places: Vec<_> = rows.iter().map(|row| sort.place(row)).collect();
            assert!(places.is_sorted(), "{sort:?}: {places:?}");
        }
    }
}
