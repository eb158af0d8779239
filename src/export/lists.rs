//! Turns for answers about sessions, as shards have to read each session, and for answers from the stored history, which is read
//! from files on threads that also decode requests.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;

use super::http::Count;
use crate::access::Identity;
use crate::fair::{Entered, Fair, Grant, Requester};
use crate::refused::Refused;

/// The most answers of one kind that are made at a time, and the most requests that wait for their turn.
pub(super) const MAX_LISTS: u32 = 2;
const MAX_WAITING_LISTS: usize = 256;

/// The beginnings of the paths whose answers are about sessions.
const OF_SESSIONS: [&str; 7] = [
    "/api/v1/problems",
    "/api/v1/session",
    "/api/v1/traces",
    "/agentgauge.v1.QueryService/ListProblems",
    "/agentgauge.v1.QueryService/ListSessions",
    "/agentgauge.v1.QueryService/GetSession",
    "/agentgauge.v1.QueryService/ExplainTrace",
];

/// Turns for answers of one kind; tenants, and the connections of each, take turns.
#[derive(Clone)]
pub(super) struct Lists {
    pub(super) turns: Arc<Fair>,
    kind: &'static Kind,
    patience: Duration,
    full: Count,
}

/// A kind of answer, and the words by which a request is refused.
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
    /// Turns for answers about sessions. A request that has waited for `patience` is refused; `full` is called then.
    pub(super) fn of_sessions(patience: Duration, full: Count) -> Self {
        Self::new(&SESSIONS, patience, full)
    }

    /// Turns for answers from the stored history, likewise.
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

/// The requester for turns: the identity's tenant or, without one, its name, and its connection, whose number is 0 if there is
/// none.
pub(super) fn requester(who: &Identity, connection: u64) -> Requester {
    Requester { tenant: Arc::clone(who.tenant.as_ref().unwrap_or(&who.name)), connection }
}

/// Whether the answer at this path is about sessions.
pub(super) fn looks_into_sessions(path: &str) -> bool {
    OF_SESSIONS.iter().any(|start| path.starts_with(start))
}
