//! Turns of those who ask for answers that are made of sessions: the shards look into each of them, which takes its time.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;

use super::http::{Count, Refused};
use crate::access::Identity;
use crate::fair::{Entered, Fair, Turn, Whose};

/// The most answers that are made of sessions at a time, and the most that wait for their turn.
pub(super) const MAX_LISTS: u32 = 2;
const MAX_WAITING_LISTS: usize = 256;

/// What the paths begin with whose answers are made of sessions.
const OF_SESSIONS: [&str; 7] = [
    "/api/v1/problems",
    "/api/v1/sessions",
    "/api/v1/traces",
    "/agentgauge.v1.QueryService/ListProblems",
    "/agentgauge.v1.QueryService/ListSessions",
    "/agentgauge.v1.QueryService/GetSession",
    "/agentgauge.v1.QueryService/ExplainTrace",
];

/// Turns of those who ask for answers that are made of sessions; tenants, and the connections of each, take turns.
#[derive(Clone)]
pub(super) struct Lists {
    pub(super) turns: Arc<Fair>,
    patience: Duration,
    full: Count,
}

impl Lists {
    /// Nobody asks. Whoever has waited for `patience` is turned away; `full` is called then.
    pub(super) fn new(patience: Duration, full: Count) -> Self {
        Self { turns: Fair::new(MAX_LISTS, MAX_WAITING_LISTS), patience, full }
    }

    /// Waits for a turn of an identity; `connection` is the number of its connection, or 0.
    pub(super) async fn turn(&self, who: &Identity, connection: u64) -> Result<Turn, Refused> {
        match self.turns.enter(&whose(who, connection), 1, self.patience).await {
            Entered::AtOnce(turn) | Entered::Waited(turn) => Ok(turn),
            Entered::TurnedAway => {
                (self.full)("api_lists");
                let message =
                    "too many others ask for sessions, traces or problems; come back later";
                Err(Refused::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_lists", message))
            }
        }
    }
}

/// Whose turn it is: that of an identity's tenant or, without one, of its name, and of its connection.
pub(super) fn whose(who: &Identity, connection: u64) -> Whose {
    Whose { tenant: Arc::clone(who.tenant.as_ref().unwrap_or(&who.name)), connection }
}

/// Whether the answer at this path is made of sessions.
pub(super) fn looks_into_sessions(path: &str) -> bool {
    OF_SESSIONS.iter().any(|start| path.starts_with(start))
}
