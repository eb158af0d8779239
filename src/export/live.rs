//! A live stream of changes, as server-sent events.
//!
//! Each stream checks the board once a second and sends the agents that changed since its last check: one `agents` event with their
//! newest rows. A slow reader gets fewer events, never old rows, and nothing queues up for it. The id of an event is the board's
//! revision, so a client that reconnects with `Last-Event-ID` gets what it missed.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::api::{FleetRow, fleet_row};
use super::board::Board;
use super::history::{Lookback, Range};
use super::http::{Count, Exporter};
use super::params::ApiRequest;
use super::query::Query;
use crate::access::Identity;
use crate::engine::agent_facts::AgentFacts;
use crate::engine::explained::AgentFilter;
use crate::engine::facts::AgentKey;
use crate::engine::span::Timestamp;
use crate::engine::view::AgentName;
use crate::refused::Refused;

/// Time between two checks of the board.
const STEP: Duration = Duration::from_secs(1);

/// Quiet time after which a line keeps the connection alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The content of an `agents` event.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct Changes {
    /// The agents that changed, by name.
    agents: Vec<FleetRow>,
    /// Agents that are gone.
    gone: Vec<AgentName>,
}

/// Room for streams: a number for each identity, so that no identity takes the room of others.
#[derive(Clone)]
pub(super) struct Streams {
    most: usize,
    full: Count,
    // Invariant: bounded, as tenants and names come from the configuration.
    of: Arc<Mutex<BTreeMap<Who, Arc<Semaphore>>>>,
}

type Who = (Option<Arc<str>>, Arc<str>);

impl Streams {
    /// Room for `most` streams of each identity; `full` is called if none is left.
    pub(super) fn new(most: usize, full: Count) -> Self {
        Self { most, full, of: Arc::default() }
    }

    /// Takes room for a stream of an identity, which is returned when dropped; `None` if none is left.
    fn begin(&self, identity: &Identity) -> Option<OwnedSemaphorePermit> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let room = of.entry((identity.tenant.clone(), Arc::clone(&identity.name)));
        let room = room.or_insert_with(|| Arc::new(Semaphore::new(self.most)));
        let permit = Arc::clone(room).try_acquire_owned().ok();
        if permit.is_none() {
            (self.full)("api_streams");
        }
        permit
    }
}

/// The stream of one reader.
pub(super) struct Stream {
    board: Arc<Board>,
    filter: AgentFilter,
    since: u64,
    told: BTreeSet<AgentKey>,
    stopping: watch::Receiver<bool>,
    // Whether the stream has checked the board; the first check is immediate.
    looked: bool,
    _permit: OwnedSemaphorePermit,
}

/// Answers with a stream of events.
pub(super) async fn events<Q: Query>(
    headers: HeaderMap,
    request: ApiRequest<Q, AgentFilter>,
) -> Result<Response, Refused> {
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let start = Stream::new(&request.exporter, &request.identity, request.params, last)?;
    let events = stream::unfold(start, Stream::next);
    let events = events.map(|(changes, id)| {
        let event = Event::default().event("agents").id(id.to_string());
        Ok::<_, Infallible>(event.json_data(changes).unwrap_or_default())
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

impl Stream {
    /// A stream of changes after the revision `last`, if there is room for one.
    pub(super) fn new<Q: Query>(
        exporter: &Exporter<Q>,
        identity: &Identity,
        requester: AgentFilter,
        last: Option<u64>,
    ) -> Result<Self, Refused> {
        let filter = AgentFilter { tenant: identity.scope(requester.tenant), ..requester };
        let Some(permit) = exporter.streams.begin(identity) else {
            let message = "too many streams are open (`api.max_streams`); retry later";
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return Err(Refused::new(status, "too_many_streams", message));
        };
        let Exporter { board, stopping, .. } = exporter.clone();
        // A revision that the board has not reached comes from an earlier process.
        let since = last.filter(|last| *last <= board.revision()).unwrap_or(0);
        // A reader that reconnects knows the agents that it was sent before.
        let wanted = |update: &AgentFacts| since > 0 && filter.admits(Some(&update.agent));
        let (known, _) = board.changed(0, wanted);
        let told = known.iter().map(|update| update.agent.clone()).collect();
        Ok(Self { board, filter, since, told, stopping, looked: false, _permit: permit })
    }

    /// Waits for changes; returns them with the revision that they cover, and `None` when the daemon shuts down.
    pub(super) async fn next(mut self) -> Option<((Changes, u64), Self)> {
        loop {
            if self.looked {
                tokio::select! {
                    () = stopped(&mut self.stopping) => return None,
                    () = tokio::time::sleep(STEP) => {}
                }
            }
            let changes = self.changes();
            self.looked = true;
            if let Some(changes) = changes {
                return Some(((changes, self.since), self));
            }
        }
    }

    /// The changes since the last check; `None` if there are none, except at the first.
    fn changes(&mut self) -> Option<Changes> {
        let wanted = |update: &AgentFacts| self.filter.admits(Some(&update.agent));
        let (updates, revision) = self.board.changed(self.since, wanted);
        let mut agents = Vec::new();
        for update in &updates {
            self.told.insert(update.agent.clone());
            let lookback = Lookback { range: Range::Hour, now: Timestamp(0) };
            agents.push(fleet_row(&self.board, update, lookback));
        }
        let gone: Vec<AgentKey> =
            self.told.iter().filter(|key| !self.board.holds(key)).cloned().collect();
        for key in &gone {
            self.told.remove(key);
        }
        let nothing = agents.is_empty() && gone.is_empty();
        self.since = revision;
        // The first check always gives an event, so that a reader knows that the stream works.
        (!nothing || !self.looked)
            .then(|| Changes { agents, gone: gone.iter().map(AgentName::from).collect() })
    }
}

/// Waits for the daemon to shut down; for ever if the sender is dropped.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    if stopping.wait_for(|stopping| *stopping).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn reader(tenant: &str) -> Identity {
        let mut identity = Identity::default();
        identity.name = "reader".into();
        identity.tenant = Some(tenant.into());
        identity
    }

    #[test]
    fn nobody_uses_up_the_streams_of_others() {
        let refused = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&refused);
        let full = move |_: &'static str| _ = counted.fetch_add(1, Ordering::Relaxed);
        let streams = Streams::new(2, Arc::new(full));
        let held = [streams.begin(&reader("shop")), streams.begin(&reader("shop"))];
        assert!(held.iter().all(Option::is_some) && streams.begin(&reader("shop")).is_none());
        assert!(streams.begin(&reader("bank")).is_some());
        assert!(streams.begin(&Identity::default()).is_some());
        drop(held);
        assert!(streams.begin(&reader("shop")).is_some());
        assert_eq!(refused.load(Ordering::Relaxed), 1);
    }
}
