//! Where sessions are kept: found by id, listed in the order of ids.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use super::hash::FixedMap;
use super::key::SessionId;
use super::session::Session;

/// All sessions.
#[derive(Clone, Debug, Default)]
pub(super) struct Shelf {
    sessions: FixedMap<Arc<SessionId>, Box<Session>>,
    // Invariant: the ids of all of them.
    in_order: BTreeSet<Arc<SessionId>>,
}

impl Shelf {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there is one of this id.
    pub(super) fn contains(&self, id: &SessionId) -> bool {
        self.sessions.contains_key(id)
    }

    /// The session of this id.
    pub(super) fn get(&self, id: &SessionId) -> Option<&Session> {
        self.sessions.get(id).map(AsRef::as_ref)
    }

    /// The session of this id, to be changed.
    pub(super) fn get_mut(&mut self, id: &SessionId) -> Option<&mut Session> {
        self.sessions.get_mut(id).map(AsMut::as_mut)
    }

    /// Keeps a session; there is none of its id.
    pub(super) fn insert(&mut self, session: Box<Session>) {
        self.in_order.insert(Arc::clone(&session.id));
        self.sessions.insert(Arc::clone(&session.id), session);
    }

    /// Takes a session out.
    pub(super) fn remove(&mut self, id: &SessionId) -> Option<Box<Session>> {
        let session = self.sessions.remove(id)?;
        self.in_order.remove(&session.id);
        // Gives memory back after a burst.
        if self.sessions.capacity() > 4 * self.sessions.len().max(1_024) {
            self.sessions.shrink_to(2 * self.sessions.len());
        }
        Some(session)
    }

    /// All sessions, in the order of tenants and ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.in_order.iter().filter_map(|id| self.get(id))
    }

    /// The sessions of a tenant after an id.
    pub(super) fn following<'a>(
        &'a self,
        tenant: &'a str,
        after: Option<&str>,
    ) -> impl Iterator<Item = (&'a Arc<SessionId>, &'a Session)> {
        let id = |id: &str| Arc::new(SessionId { tenant: tenant.to_owned(), id: id.to_owned() });
        let from =
            after.map_or_else(|| Bound::Included(id("")), |after| Bound::Excluded(id(after)));
        let ids = self.in_order.range((from, Bound::Unbounded));
        ids.take_while(move |id| id.tenant == tenant).filter_map(|id| Some((id, self.get(id)?)))
    }
}
