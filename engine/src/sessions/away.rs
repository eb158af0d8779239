//! Sessions that had to leave because there was no room, and come back when they are spoken of.
//!
//! ```text
//! over max_sessions:  the quietest session --> bytes in a session store, and a stub here
//! a word about it, or its timer:     bytes --> the session, as it was
//! ```
//!
//! Nothing is closed or forgotten by that: what a session gives to sums stays, and it is scored as if it had never left. The
//! session store is an argument, as the time is: whoever has the stage has the disk. The stubs are saved with the stage, so what is in
//! the session store then has to be there as long as that state may be read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::key::{Agent, SessionId};
use super::reports::target;
use super::session::{EvictionOrder, Restless, Session, Shared};
use super::summary::SessionScores;
use super::{Sessions, is_usable};
use crate::limits::Cause;
use crate::runs::RunName;
use crate::saved;
use crate::silences::Level;
use crate::span::{Report, Target, Timestamp};
use crate::update::TraceUpdate;

/// Where bytes are kept for which there is no room in memory.
pub trait SessionStore {
    /// Puts bytes away; `None` if there is no room.
    fn put(&mut self, bytes: &[u8]) -> Option<SessionPlace>;

    /// What was put there; `None` if that cannot be read, or is not what it was.
    fn get(&self, place: SessionPlace) -> Option<Vec<u8>>;

    /// Lets go of what was put there.
    fn free(&mut self, place: SessionPlace);

    /// Makes what is there as safe as a state that is about to be saved, and removes what no saved state needs; returns
    /// whether it is safe.
    fn keep(&mut self) -> bool;
}

/// Where something is in a session store.
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

/// No session store: where nothing outlives the process, sessions are evicted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nowhere;

impl SessionStore for Nowhere {
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

/// The sessions that are away.
#[derive(Clone, Debug, Default)]
pub(super) struct EvictedSessions {
    /// Sessions leave, and are not evicted.
    pub(super) keeps: bool,
    stubs: BTreeMap<Arc<SessionId>, Stub>,
    // Invariant: when a timer of each is due.
    due: BTreeSet<(Timestamp, Arc<SessionId>)>,
}

/// What is known here of a session that is away.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Stub {
    place: SessionPlace,
    /// Since when it is quiet, and whether it is closed.
    quiet: Timestamp,
    closed: bool,
    deadline: Option<Timestamp>,
    gives: Box<GaugeShare>,
    /// When a timer of it is due: it follows from these and the options.
    #[serde(skip)]
    due: Timestamp,
}

/// What a session gives to gauges: to be taken back should its bytes be lost.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct GaugeShare {
    held: Vec<(Agent, u64)>,
    placed: Option<(Agent, SessionScores)>,
    runaways: BTreeSet<(Agent, Cause)>,
    #[serde(default)]
    silent: Vec<((Agent, Level), u64)>,
}

/// A session that somebody looks at.
pub(super) enum SessionRef<'a> {
    /// As it is held.
    Held(&'a Session),
    /// As it was when it left.
    Evicted(Box<Session>),
}

impl Deref for SessionRef<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        match self {
            SessionRef::Held(session) => session,
            SessionRef::Evicted(session) => session,
        }
    }
}

impl EvictedSessions {
    /// When a timer of one of them is due.
    pub(super) fn poll_timeout(&self) -> Option<Timestamp> {
        self.due.first().map(|(due, _)| *due)
    }

    /// All of them, as they are written down.
    pub(super) fn save(&self) -> Vec<(&SessionId, &Stub)> {
        self.stubs.iter().map(|(id, stub)| (id.as_ref(), stub)).collect()
    }

    /// Those of one id, in the order of their scopes.
    pub(super) fn of_id(&self, tenant: &str, id: &str) -> Vec<Arc<SessionId>> {
        let first = Arc::new(SessionId::from((tenant, id, "")));
        let following = self.stubs.range(first..).map(|(session, _)| session);
        let same = |session: &&Arc<SessionId>| session.tenant == tenant && session.id == id;
        following.take_while(same).cloned().collect()
    }

    fn insert(&mut self, id: Arc<SessionId>, mut stub: Stub, idle: Duration) {
        let due = stub.quiet.after(idle);
        let due = if stub.closed { due.after(idle) } else { due };
        stub.due = stub.deadline.map_or(due, |deadline| deadline.min(due));
        self.due.insert((stub.due, Arc::clone(&id)));
        self.stubs.insert(id, stub);
    }

    fn remove(&mut self, id: &SessionId) -> Option<(Arc<SessionId>, Stub)> {
        let (id, stub) = self.stubs.remove_entry(id)?;
        self.due.remove(&(stub.due, Arc::clone(&id)));
        Some((id, stub))
    }
}

impl GaugeShare {
    fn of(session: &Session) -> Self {
        let mut held: BTreeMap<&Agent, u64> = BTreeMap::new();
        session.traces.iter().for_each(|trace| *held.entry(trace.agent()).or_default() += 1);
        let restless = session.restless.as_deref().cloned().unwrap_or_default();
        let Restless { runaways, silent, .. } = restless;
        Self {
            held: held.into_iter().map(|(agent, traces)| (agent.clone(), traces)).collect(),
            placed: session.placed.clone(),
            runaways,
            silent: silent.into_iter().collect(),
        }
    }

    /// The agents are those that the others have as well.
    fn shared(&mut self, shared: &Shared) {
        let known = |agent: &Agent| shared.fleet.known(agent.key());
        self.held.iter_mut().for_each(|(agent, _)| *agent = known(agent));
        self.placed.iter_mut().for_each(|(agent, _)| *agent = known(agent));
    }

    fn take_back(self, shared: &mut Shared) {
        for (agent, traces) in self.held {
            let summary = shared.fleet.summary(&agent);
            summary.held = summary.held.saturating_sub(traces);
        }
        if let Some((agent, scores)) = self.placed {
            shared.fleet.summary(&agent).unopen(scores);
        }
        for (agent, cause) in self.runaways {
            shared.fleet.summary(&agent).calm_down(cause);
        }
        for ((agent, level), traces) in self.silent {
            shared.fleet.summary(&agent).silences.unopen(level, traces);
        }
    }
}

impl Sessions {
    /// From now on sessions over `max_sessions` leave for a session store, and are not evicted: whoever says so calls
    /// [`Sessions::bring_for`] and [`Sessions::bring_for_report`] before each word, [`Sessions::run_timers`] for the
    /// timers, and [`Sessions::fit`] after each drain.
    pub fn keep_away(&mut self) {
        self.away.keeps = true;
    }

    /// How many sessions are away.
    pub fn away(&self) -> usize {
        self.away.stubs.len()
    }

    /// Where those are that are away.
    pub fn session_places(&self) -> impl Iterator<Item = SessionPlace> + '_ {
        self.away.stubs.values().map(|stub| stub.place)
    }

    /// Brings the session back that an update is about, if it is away.
    pub fn bring_for(&mut self, update: &TraceUpdate, session_store: &mut dyn SessionStore) {
        if self.away.stubs.is_empty() {
            return;
        }
        let session = update.session.as_ref().filter(|_| is_usable(update));
        let Some(id) = session.map(SessionId::from) else { return };
        if update.tombstone {
            // What was reported of the session may be another one's of its id.
            self.bring_all_of(&id.tenant, &id.id, session_store);
        }
        self.come_back(&id, session_store);
    }

    /// Likewise for a report.
    pub fn bring_for_report(&mut self, report: &Report, session_store: &mut dyn SessionStore) {
        if let Some((tenant, id, _)) = target(report) {
            self.bring_all_of(tenant, id, session_store);
        }
        if let Target::Run(run) = &report.target {
            for id in self.shared.runs.sessions(&RunName::from(&**run)) {
                self.come_back(&id, session_store);
            }
        }
    }

    /// Brings all back, however many, for the end of input. None leaves after that.
    pub fn bring_all(&mut self, session_store: &mut dyn SessionStore) {
        self.away.keeps = false;
        while let Some((_, id)) = self.away.due.first().cloned() {
            self.come_back(&id, session_store);
        }
    }

    /// Brings those of one id back, of whatever scope.
    fn bring_all_of(&mut self, tenant: &str, id: &str, session_store: &mut dyn SessionStore) {
        for id in self.away.of_id(tenant, id) {
            self.come_back(&id, session_store);
        }
    }

    /// Runs timers, of those that are away too: these one after the other, so that few are here at a time.
    pub fn run_timers(&mut self, now: Timestamp, session_store: &mut dyn SessionStore) {
        self.advance(now);
        let now = self.shared.now;
        while let Some((_, id)) = self.away.due.first().filter(|(due, _)| *due <= now).cloned() {
            self.come_back(&id, session_store);
            self.handle_timeout(now);
            self.fit(session_store);
        }
        self.handle_timeout(now);
        self.fit(session_store);
    }

    /// Lets the quietest leave until the others fit. One with verdicts that are not counted stays until it is drained.
    pub fn fit(&mut self, session_store: &mut dyn SessionStore) {
        while self.away.keeps && self.sessions.len() > self.max_sessions {
            let Some((standing, id)) = self.first_to_go(None) else { return };
            if self.sessions.get(&id).is_some_and(Session::is_unsettled) {
                return;
            }
            if !self.leave(&id, session_store) {
                self.push_out(standing, &id);
            }
        }
    }

    /// A session, in memory or not.
    pub(super) fn look(
        &self,
        id: &SessionId,
        session_store: &dyn SessionStore,
    ) -> Option<SessionRef<'_>> {
        if let Some(session) = self.sessions.get(id) {
            return Some(SessionRef::Held(session));
        }
        let bytes = session_store.get(self.away.stubs.get(id)?.place)?;
        Some(SessionRef::Evicted(Box::new(saved::read(bytes.as_slice()).ok()?)))
    }

    /// Takes over what was away when a state was written down.
    pub(super) fn restore_away(&mut self, stubs: Vec<(SessionId, Stub)>) {
        for (id, mut stub) in stubs {
            stub.gives.shared(&self.shared);
            self.away.insert(Arc::new(id), stub, self.shared.rules.session_idle);
        }
    }

    /// A session comes back, if it is away; one of which the bytes are damaged is lost.
    fn come_back(&mut self, id: &SessionId, session_store: &mut dyn SessionStore) {
        let Some((id, stub)) = self.away.remove(id) else { return };
        let bytes = session_store.get(stub.place);
        session_store.free(stub.place);
        let session = bytes.and_then(|bytes| saved::read::<Session>(bytes.as_slice()).ok());
        if let Some(mut session) = session {
            session.settle_in(&mut self.shared);
            self.shared.counts.add("away", "returned");
            self.file(Box::new(session));
        } else {
            self.shared.counts.add("away", "lost");
            self.shared.runaways.retain(|(runaway, _), _| *runaway != id);
            self.shared.runs.lost(&id);
            stub.gives.take_back(&mut self.shared);
        }
    }

    /// A session leaves; returns whether there was room for it.
    fn leave(&mut self, id: &Arc<SessionId>, session_store: &mut dyn SessionStore) -> bool {
        let Some(session) = self.sessions.remove(id) else { return false };
        self.unfile(&session);
        let bytes = saved::write(&session).ok();
        let Some(place) = bytes.and_then(|bytes| session_store.put(&bytes)) else {
            self.file(session);
            return false;
        };
        self.shared.counts.add("away", "left");
        let (standing, quiet) = session.place();
        let (closed, deadline) = (standing == EvictionOrder::Closed, session.deadline());
        let (gives, due) = (Box::new(GaugeShare::of(&session)), quiet);
        let stub = Stub { place, quiet, closed, deadline, gives, due };
        self.away.insert(Arc::clone(&session.id), stub, self.shared.rules.session_idle);
        true
    }
}
