//! Sessions that are evicted to a session store while there are too many in memory, and restored when something arrives for them.
//!
//! ```text
//! over max_sessions, max_bytes: the quietest session --> its bytes in the session store, and an `EvictedSession` here
//! an update, a report, a timer:            its bytes --> the session, unchanged
//! ```
//!
//! Eviction closes and forgets nothing: the contribution of a session to its agent's sums stays, and its scores are the same as in
//! memory. The session store is an argument, like the time: the stage itself does no input or output. The list of evicted sessions
//! is part of the stage's snapshot, so the session store must keep their bytes as long as that snapshot may be read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::reports::target;
use super::session::{EvictionOrder, Session, ShardContext, TimedState};
use super::summary::SessionScores;
use super::trace_index::TraceIndex;
use super::traces::hash;
use super::{Sessions, is_usable};
use crate::facts::{AgentKey, SessionId, TraceFacts};
use crate::limits::Cause;
use crate::runs::RunName;
use crate::saved;
use crate::silences::Level;
use crate::span::{Report, Target, Timestamp, TraceId};

/// Where the bytes of evicted sessions are.
pub trait SessionStore {
    /// Stores bytes; `None` if there is no room for them.
    fn put(&mut self, bytes: &[u8]) -> Option<SessionPlace>;

    /// The bytes at a place; `None` if they cannot be read, or are damaged.
    fn get(&self, place: SessionPlace) -> Option<Vec<u8>>;

    /// Frees a place: its bytes will not be read again.
    fn free(&mut self, place: SessionPlace);

    /// Makes all bytes as durable as the snapshot that is about to be written, and removes those that no snapshot needs. Returns
    /// whether they are durable.
    fn keep(&mut self) -> bool;
}

/// A place in a session store.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SessionPlace {
    /// The number of the file.
    pub file: u64,
    /// The byte at which it begins.
    pub at: u64,
    /// Its length.
    pub bytes: u32,
    /// Its CRC-32C.
    pub sum: u32,
}

/// The absence of a session store, for processes that persist nothing: an evicted session is closed and final.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSessionStore;

impl SessionStore for NoSessionStore {
    fn put(&mut self, _: &[u8]) -> Option<SessionPlace> {
        None
    }

    fn get(&self, _: SessionPlace) -> Option<Vec<u8>> {
        None
    }

    fn free(&mut self, _: SessionPlace) {}

    fn keep(&mut self) -> bool {
        true
    }
}

/// The sessions in the session store.
#[derive(Clone, Debug, Default)]
pub(super) struct EvictedSessions {
    /// Whether there is a session store.
    pub(super) has_store: bool,
    by_id: BTreeMap<Arc<SessionId>, EvictedSession>,
    // Invariant: the next timer of each of them.
    due: BTreeSet<(Timestamp, Arc<SessionId>)>,
    // Invariant: has every trace of each evicted session.
    by_trace: TraceIndex<Arc<SessionId>>,
}

/// What stays in memory of an evicted session.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct EvictedSession {
    place: SessionPlace,
    /// Arrival time of its newest update or report.
    touched: Timestamp,
    closed: bool,
    deadline: Option<Timestamp>,
    gauges: Box<GaugeShare>,
    // The hashes of the ids of its traces.
    traces: Box<[u32]>,
    /// Its next timer; it follows from the fields above and the options.
    #[serde(skip)]
    due: Timestamp,
}

/// The contribution of a session to gauges of agents: subtracted if its bytes are lost.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct GaugeShare {
    held: Vec<(AgentKey, u64)>,
    placed: Option<(AgentKey, SessionScores)>,
    runaways: BTreeSet<(AgentKey, Cause)>,
    silent: Vec<((AgentKey, Level), u64)>,
}

/// A session to be read.
pub(super) enum SessionRef<'a> {
    /// One in memory.
    InMemory(&'a Session),
    /// One read from the session store.
    Evicted(Box<Session>),
}

impl Deref for SessionRef<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        match self {
            SessionRef::InMemory(session) => session,
            SessionRef::Evicted(session) => session,
        }
    }
}

impl EvictedSessions {
    /// The first timer of all of them.
    pub(super) fn poll_timeout(&self) -> Option<Timestamp> {
        self.due.first().map(|(due, _)| *due)
    }

    /// All of them, for a snapshot.
    pub(super) fn save(&self) -> Vec<(&SessionId, &EvictedSession)> {
        self.by_id.iter().map(|(id, evicted)| (id.as_ref(), evicted)).collect()
    }

    /// The sessions of one id, in the order of their scopes.
    pub(super) fn of_id(&self, tenant: &str, id: &str) -> Vec<Arc<SessionId>> {
        let first = Arc::new(SessionId::from((tenant, id, "")));
        let following = self.by_id.range(first..).map(|(session, _)| session);
        let same = |session: &&Arc<SessionId>| *session.tenant == *tenant && *session.id == *id;
        following.take_while(same).cloned().collect()
    }

    /// The sessions of a tenant (`None`: of any) that may hold a trace, in the order of their ids.
    fn of_trace(&self, tenant: Option<&str>, trace: TraceId) -> Vec<Arc<SessionId>> {
        let own = |id: &&Arc<SessionId>| tenant.is_none_or(|tenant| *id.tenant == *tenant);
        let mut ids: Vec<_> = self.by_trace.sessions(trace).filter(own).cloned().collect();
        ids.sort_unstable();
        ids
    }

    fn insert(&mut self, id: Arc<SessionId>, mut evicted: EvictedSession, idle: Duration) {
        let due = evicted.touched.after(idle);
        let due = if evicted.closed { due.after(idle) } else { due };
        evicted.due = evicted.deadline.map_or(due, |deadline| deadline.min(due));
        self.due.insert((evicted.due, Arc::clone(&id)));
        for trace in &evicted.traces {
            self.by_trace.set(*trace, Arc::clone(&id), true);
        }
        self.by_id.insert(id, evicted);
    }

    fn remove(&mut self, id: &SessionId) -> Option<(Arc<SessionId>, EvictedSession)> {
        let (id, evicted) = self.by_id.remove_entry(id)?;
        self.due.remove(&(evicted.due, Arc::clone(&id)));
        for trace in &evicted.traces {
            self.by_trace.set(*trace, Arc::clone(&id), false);
        }
        Some((id, evicted))
    }
}

impl GaugeShare {
    fn of(session: &Session) -> Self {
        let mut held: BTreeMap<&AgentKey, u64> = BTreeMap::new();
        session.traces.iter().for_each(|trace| *held.entry(trace.agent()).or_default() += 1);
        let restless = session.restless.as_deref().cloned().unwrap_or_default();
        let TimedState { runaways, silent, .. } = restless;
        Self {
            held: held.into_iter().map(|(agent, traces)| (agent.clone(), traces)).collect(),
            placed: session.placed.clone(),
            runaways,
            silent: silent.into_iter().collect(),
        }
    }

    /// Shares its agents with the rest of the shard.
    fn share(&mut self, shared: &ShardContext) {
        let known = |agent: &AgentKey| shared.shard_agents.known(agent);
        self.held.iter_mut().for_each(|(agent, _)| *agent = known(agent));
        self.placed.iter_mut().for_each(|(agent, _)| *agent = known(agent));
    }

    /// Subtracts the session from the gauges.
    fn take_back(self, shared: &mut ShardContext) {
        for (agent, traces) in self.held {
            let summary = shared.shard_agents.summary(&agent);
            summary.held = summary.held.saturating_sub(traces);
        }
        if let Some((agent, scores)) = self.placed {
            shared.shard_agents.summary(&agent).remove_open(scores);
        }
        shared.shard_agents.update_runaways(&self.runaways, &BTreeSet::new());
        for ((agent, level), traces) in self.silent {
            shared.shard_agents.summary(&agent).silences.remove_open(level, traces);
        }
    }
}

impl Sessions {
    /// From here on, sessions over `max_sessions` and `max_bytes` are evicted to a session store instead of closed. The caller must
    /// call [`Sessions::restore_for`] before each update, [`Sessions::restore_for_report`] before each report,
    /// [`Sessions::run_timers`] for timers, and [`Sessions::fit`] after each drain.
    pub fn use_session_store(&mut self) {
        self.evicted.has_store = true;
    }

    /// How many sessions are in the session store.
    pub fn evicted_sessions(&self) -> usize {
        self.evicted.by_id.len()
    }

    /// The places in the session store that are in use.
    pub fn session_places(&self) -> impl Iterator<Item = SessionPlace> + '_ {
        self.evicted.by_id.values().map(|evicted| evicted.place)
    }

    /// Restores the session of an update, if it is evicted.
    pub fn restore_for(&mut self, update: &TraceFacts, session_store: &mut dyn SessionStore) {
        if self.evicted.by_id.is_empty() {
            return;
        }
        let session = update.session.as_ref().filter(|_| is_usable(update));
        let Some(id) = session.map(SessionId::from) else { return };
        if update.tombstone {
            // Reports for this session may turn out to be for another session of the same id.
            self.restore_all_of(&id.tenant, &id.id, session_store);
        }
        self.restore_session(&id, session_store);
    }

    /// Restores the sessions that a report may be about, if they are evicted.
    pub fn restore_for_report(&mut self, report: &Report, session_store: &mut dyn SessionStore) {
        if let Some((tenant, id, _)) = target(report) {
            self.restore_all_of(tenant, id, session_store);
        }
        if let Target::Trace(trace) = report.target {
            for id in self.evicted.of_trace(report.tenant.as_deref(), trace) {
                self.restore_session(&id, session_store);
            }
        }
        if let Target::Run(run) = &report.target {
            for id in self.shared.runs.sessions(&RunName::from(&**run)) {
                self.restore_session(&id, session_store);
            }
        }
    }

    /// Restores all sessions, whatever their number, for the end of the input; none is evicted after that.
    pub fn restore_all(&mut self, session_store: &mut dyn SessionStore) {
        self.evicted.has_store = false;
        while let Some((_, id)) = self.evicted.due.first().cloned() {
            self.restore_session(&id, session_store);
        }
    }

    /// Restores the sessions of one id, whatever their scope.
    fn restore_all_of(&mut self, tenant: &str, id: &str, session_store: &mut dyn SessionStore) {
        for id in self.evicted.of_id(tenant, id) {
            self.restore_session(&id, session_store);
        }
    }

    /// Runs timers, including those of evicted sessions: these one session at a time, so that few are in memory at once.
    pub fn run_timers(&mut self, now: Timestamp, session_store: &mut dyn SessionStore) {
        self.advance(now);
        let now = self.shared.now;
        while let Some((_, id)) = self.evicted.due.first().filter(|(due, _)| *due <= now).cloned() {
            self.restore_session(&id, session_store);
            self.handle_timeout(now);
            self.fit(session_store);
        }
        self.handle_timeout(now);
        self.fit(session_store);
    }

    /// Evicts the quietest sessions until the others fit. A session with verdicts that are not counted yet stays until it is drained.
    pub fn fit(&mut self, session_store: &mut dyn SessionStore) {
        while let Some(giver) = self.giver().filter(|_| self.evicted.has_store) {
            let Some((order, id)) = self.first_to_go(giver) else { return };
            if self.sessions.get(&id).is_some_and(Session::is_unsettled) {
                return;
            }
            if !self.evict_to(&id, session_store) {
                self.push_out(order, &id);
            }
        }
    }

    /// A session, in memory or evicted.
    pub(super) fn session_ref(
        &self,
        id: &SessionId,
        session_store: &dyn SessionStore,
    ) -> Option<SessionRef<'_>> {
        if let Some(session) = self.sessions.get(id) {
            return Some(SessionRef::InMemory(session));
        }
        let bytes = session_store.get(self.evicted.by_id.get(id)?.place)?;
        Some(SessionRef::Evicted(Box::new(saved::read(bytes.as_slice()).ok()?)))
    }

    /// The session of a tenant (`None`: of any) that holds a trace, in memory or evicted; the time does not depend on the number of
    /// sessions.
    pub fn find(
        &self,
        tenant: Option<&str>,
        trace: TraceId,
        session_store: &dyn SessionStore,
    ) -> Option<SessionId> {
        let in_memory = self.sessions.of_trace(tenant, trace);
        let in_memory = in_memory.map(|(_, session)| Arc::clone(&session.id));
        let holds = |id: &Arc<SessionId>| {
            let session = self.session_ref(id, session_store);
            session.is_some_and(|session| session.traces.number(trace).is_some())
        };
        let evicted = || self.evicted.of_trace(tenant, trace).into_iter().find(holds);
        in_memory.or_else(evicted).map(Arc::unwrap_or_clone)
    }

    /// Takes over the evicted sessions from a snapshot.
    pub(super) fn restore_evicted(&mut self, sessions: Vec<(SessionId, EvictedSession)>) {
        for (id, mut evicted) in sessions {
            evicted.gauges.share(&self.shared);
            self.evicted.insert(Arc::new(id), evicted, self.shared.rules.session_idle);
        }
    }

    /// Restores a session, if it is evicted; one whose bytes are damaged is lost.
    fn restore_session(&mut self, id: &SessionId, session_store: &mut dyn SessionStore) {
        let Some((id, evicted)) = self.evicted.remove(id) else { return };
        let bytes = session_store.get(evicted.place);
        session_store.free(evicted.place);
        let session = bytes.and_then(|bytes| saved::read::<Session>(bytes.as_slice()).ok());
        if let Some(mut session) = session {
            session.adopt(&mut self.shared);
            self.shared.counts.add("evicted_sessions", "restored");
            self.file(Box::new(session));
        } else {
            self.shared.counts.add("evicted_sessions", "lost");
            self.shared.runaways.retain(|(runaway, _), _| *runaway != id);
            self.shared.runs.lost(&id);
            evicted.gauges.take_back(&mut self.shared);
        }
    }

    /// Moves a session from memory to the session store; returns whether there was room for it.
    fn evict_to(&mut self, id: &Arc<SessionId>, session_store: &mut dyn SessionStore) -> bool {
        let Some(session) = self.sessions.remove(id) else { return false };
        self.unfile(&session);
        let bytes = saved::write(&session).ok();
        let Some(place) = bytes.and_then(|bytes| session_store.put(&bytes)) else {
            self.file(session);
            return false;
        };
        self.shared.counts.add("evicted_sessions", "evicted");
        let (order, touched) = session.place();
        let evicted = EvictedSession {
            place,
            touched,
            closed: order == EvictionOrder::Closed,
            deadline: session.deadline(),
            gauges: Box::new(GaugeShare::of(&session)),
            traces: session.traces.iter().map(|trace| hash(trace.id)).collect(),
            due: touched,
        };
        self.evicted.insert(Arc::clone(&session.id), evicted, self.shared.rules.session_idle);
        true
    }
}
