//! Turns of those who ask for answers that are made of sessions, as the shards look into each of them, or of the kept past, which is
//! read from files on threads that requests are decoded on, too.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;

use super::http::Count;
use crate::access::Identity;
use crate::fair::{Entered, Fair, Grant, Requester};
use crate::refused::Refused;

/// The most answers of one kind that are made at a time, and the most that wait for their turn.
pub(super) const MAX_LISTS: u32 = 2;
const MAX_WAITING_LISTS: usize = 256;

/// What the paths begin with whose answers are made of sessions.
const OF_SESSIONS: [&str; 7] = [
    "/api/v1/problems",
    "/api/v1/session",
    "/api/v1/traces",
    "/agentgauge.v1.QueryService/ListProblems",
    "/agentgauge.v1.QueryService/ListSessions",
    "/agentgauge.v1.QueryService/GetSession",
    "/agentgauge.v1.QueryService/ExplainTrace",
];

/// Turns of those who ask for answers of one kind; tenants, and the connections of each, take turns.
#[derive(Clone)]
pub(super) struct Lists {
    pub(super) turns: Arc<Fair>,
    kind: &'static Kind,
    patience: Duration,
    full: Count,
}

/// A kind of answer, and the words by which one is refused.
struct Kind {
    limit: &'static str,
    code: &'static str,
    message: &'static str,
}

const SESSIONS: Kind = Kind {
    limit: "api_lists",
    code: "too_many_lists",
    message: "too many requests for sessions, traces or problems are waiting; retry later",
};

const HISTORY: Kind = Kind {
    limit: "api_history",
    code: "too_many_histories",
    message: "too many requests for the history of agents are waiting; retry later, or ask for `range=1h`",
};

impl Lists {
    /// Nobody asks for what is made of sessions. Whoever has waited for `patience` is turned away; `full` is called then.
    pub(super) fn of_sessions(patience: Duration, full: Count) -> Self {
        Self::new(&SESSIONS, patience, full)
    }

    /// Nobody asks for the kept past, likewise.
    pub(super) fn of_the_past(patience: Duration, full: Count) -> Self {
        Self::new(&HISTORY, patience, full)
    }

    fn new(kind: &'static Kind, patience: Duration, full: Count) -> Self {
        Self { turns: Fair::new(MAX_LISTS, MAX_WAITING_LISTS), kind, patience, full }
    }

    /// Waits for a turn.
    pub(super) async fn turn(&self, requester: &Requester) -> Result<Grant, Refused> {
        match self.turns.enter(requester, 1, self.patience).await {
            Entered::AtOnce(turn) | Entered::Waited(turn) => Ok(turn),
            Entered::TurnedAway => {
                let Kind { limit, code, message } = self.kind;
                (self.full)(limit);
                Err(Refused::new(StatusCode::SERVICE_UNAVAILABLE, code, message))
            }
        }
    }
}

/// Whose turn it is: that of an identity's tenant or, without one, of its name, and of its connection, whose number is 0 if it has none.
pub(super) fn requester(who: &Identity, connection: u64) -> Requester {
    Requester { tenant: Arc::clone(who.tenant.as_ref().unwrap_or(&who.name)), connection }
}

/// Whether the answer at this path is made of sessions.
pub(super) fn looks_into_sessions(path: &str) -> bool {
    OF_SESSIONS.iter().any(|start| path.starts_with(start))
}
