//! Where sessions are kept: found by id, listed in the order of ids; those that rest are bytes.

use std::collections::BTreeSet;
use std::ops::{Bound, Deref};
use std::sync::Arc;

use serde::ser::{Serialize, Serializer};

use super::codec::Codec;
use super::hash::FixedMap;
use super::held::Held;
use super::key::SessionId;
use super::packed::Packed;
use super::rules::Rules;
use super::session::{Session, Standing};
use crate::engine::span::{Timestamp, TraceId};
use crate::engine::update::TraceUpdate;

/// All sessions.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    sessions: FixedMap<Arc<SessionId>, Kept>,
    // Invariant: the ids of all of them.
    in_order: BTreeSet<Arc<SessionId>>,
    codec: Codec,
}

#[derive(Clone, Debug)]
enum Kept {
    Awake(Box<Session>),
    /// Filed where it belongs.
    AtRest(Packed),
}

/// A session that somebody looks at.
pub(super) enum Seen<'a> {
    /// As it is kept.
    Awake(&'a Session),
    /// Unpacked for the purpose.
    Copy(Box<Session>),
}

/// All sessions as they are written down: one after the other, so that few are unpacked at a time.
pub(super) struct Written<'a>(pub(super) &'a Shelf, pub(super) &'a Rules);

impl Shelf {
    /// No sessions yet, for panes of these widths.
    pub(super) fn new(widths: Arc<[u64]>) -> Self {
        Self { sessions: FixedMap::default(), in_order: BTreeSet::new(), codec: Codec::new(widths) }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there is one of this id.
    pub(super) fn contains(&self, id: &SessionId) -> bool {
        self.sessions.contains_key(id)
    }

    /// The session of this id.
    pub(super) fn get(&self, id: &SessionId, rules: &Rules) -> Option<Seen<'_>> {
        let (id, kept) = self.sessions.get_key_value(id)?;
        Some(match kept {
            Kept::Awake(session) => Seen::Awake(session),
            Kept::AtRest(packed) => Seen::Copy(Box::new(packed.unpack(id, rules, &self.codec))),
        })
    }

    /// Unpacks the session of this id; `None` if it is not at rest.
    pub(super) fn wake(&mut self, id: &SessionId, rules: &Rules) -> Option<&mut Session> {
        let kept = self.sessions.get_mut(id)?;
        let Kept::AtRest(packed) = kept else { return None };
        let id = self.in_order.get(id)?;
        *kept = Kept::Awake(Box::new(packed.unpack(id, rules, &self.codec)));
        match kept {
            Kept::Awake(session) => Some(session),
            Kept::AtRest(_) => None,
        }
    }

    /// The session of this id, if it is not at rest.
    pub(super) fn awake(&mut self, id: &SessionId) -> Option<&mut Session> {
        match self.sessions.get_mut(id)? {
            Kept::Awake(session) => Some(session),
            Kept::AtRest(_) => None,
        }
    }

    /// Where a session is filed and where it belongs.
    pub(super) fn places(
        &self,
        id: &SessionId,
    ) -> Option<((Standing, Timestamp), (Standing, Timestamp))> {
        Some(match self.sessions.get(id)? {
            Kept::Awake(session) => (session.filed, session.place()),
            Kept::AtRest(packed) => (packed.place(), packed.place()),
        })
    }

    /// Keeps a session; there is none of its id.
    pub(super) fn insert(&mut self, session: Box<Session>) {
        self.in_order.insert(Arc::clone(&session.id));
        self.sessions.insert(Arc::clone(&session.id), Kept::Awake(session));
    }

    /// Takes a session out.
    pub(super) fn remove(&mut self, id: &SessionId, rules: &Rules) -> Option<Box<Session>> {
        self.wake(id, rules);
        let Some((id, Kept::Awake(session))) = self.sessions.remove_entry(id) else { return None };
        self.in_order.remove(&id);
        // Gives memory back after a burst.
        if self.sessions.capacity() > 4 * self.sessions.len().max(1_024) {
            self.sessions.shrink_to(2 * self.sessions.len());
        }
        Some(session)
    }

    /// Packs a session that is filed where it belongs, if it rests; returns whether it does.
    pub(super) fn pack(&mut self, id: &SessionId, rules: &Rules) -> bool {
        if self.awake(id).is_none() {
            return false;
        }
        let Some((id, Kept::Awake(session))) = self.sessions.remove_entry(id) else { return false };
        let kept = match Packed::new(session, rules, &mut self.codec) {
            Ok(packed) => Kept::AtRest(packed),
            Err(session) => Kept::Awake(session),
        };
        let at_rest = matches!(kept, Kept::AtRest(_));
        self.sessions.insert(id, kept);
        at_rest
    }

    /// Notes that nothing more will come of a trace of a session at rest, if that is all that an update says; returns the
    /// trace.
    pub(super) fn seal(
        &mut self,
        id: &SessionId,
        trace: (TraceId, &TraceUpdate),
        rules: &Rules,
    ) -> Option<Held> {
        let Kept::AtRest(packed) = self.sessions.get_mut(id)? else { return None };
        let id = self.in_order.get(id)?;
        let sealed = packed.seal(id, trace, (rules, &mut self.codec))?;
        *packed = sealed.session;
        Some(sealed.trace)
    }

    /// All sessions, in the order of tenants and ids.
    pub(super) fn iter<'a>(&'a self, rules: &'a Rules) -> impl Iterator<Item = Seen<'a>> {
        self.in_order.iter().filter_map(|id| self.get(id, rules))
    }

    /// The ids of all, in their order.
    pub(super) fn ids(&self) -> impl Iterator<Item = &Arc<SessionId>> {
        self.in_order.iter()
    }

    /// The sessions of a tenant, or of all, after one.
    pub(super) fn following<'a>(
        &'a self,
        tenant: Option<&'a str>,
        after: Option<SessionId>,
        rules: &'a Rules,
    ) -> impl Iterator<Item = (&'a Arc<SessionId>, Seen<'a>)> {
        let first =
            || SessionId { tenant: tenant.unwrap_or_default().to_owned(), id: String::new() };
        let from = match after {
            Some(after) => Bound::Excluded(Arc::new(after)),
            None => Bound::Included(Arc::new(first())),
        };
        let ids = self.in_order.range((from, Bound::Unbounded));
        ids.take_while(move |id| tenant.is_none_or(|tenant| id.tenant == tenant))
            .filter_map(|id| Some((id, self.get(id, rules)?)))
    }
}

impl Deref for Seen<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        match self {
            Seen::Awake(session) => session,
            Seen::Copy(session) => session,
        }
    }
}

impl Serialize for Seen<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Session::serialize(self, to)
    }
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // The number of them comes first.
        let ids: Vec<_> = self.0.ids().collect();
        to.collect_seq(ids.into_iter().map(|id| self.0.get(id, self.1)))
    }
}
