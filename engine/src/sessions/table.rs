//! The sessions in memory, found by id, with and without a scope, and in the order in which they are evicted.
//!
//! A session has a number while it is in memory; everything else refers to it by that number.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashTable;
use serde::ser::{Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::card::{Card, Cards};
use super::halves::{halves, whole};
use super::session::{EvictionOrder, Session};
use super::trace_index::TraceIndex;
use super::traces::hash as hash_of;
use crate::facts::SessionId;
use crate::sorted::Sorted;
use crate::span::{Timestamp, TraceId};
use crate::tenants::{Shares, TenantHash, tenant_hash};

/// All sessions.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionTable {
    slots: Vec<Option<Box<Session>>>,
    // Of the sessions that have traces.
    cards: Cards,
    free: Vec<u32>,
    // Invariant: `by_id` and `by_id_without_scope` have the number of every session, each once.
    by_id: HashTable<u32>,
    by_id_without_scope: Sorted<Entry>,
    // Invariant: has every trace of every session.
    by_trace: TraceIndex<u32>,
    // Estimated bytes of memory that all sessions take.
    bytes: usize,
    // In the order of eviction. A session that gets more stays where it is filed until its turn comes: it may be filed earlier than
    // it belongs, under the same `EvictionOrder`.
    filed: Filed,
}

/// The sessions of each tenant that has any.
#[derive(Clone, Debug, Default)]
struct Filed(BTreeMap<TenantHash, OfTenant>);

/// The sessions of one tenant.
#[derive(Clone, Debug, Default)]
struct OfTenant {
    // By `EvictionOrder`, then by the arrival of the newest update or report of a session.
    orders: [Sorted<Entry>; ORDERS.len()],
    // The number of sessions, and the bytes of memory that they take.
    len: usize,
    bytes: usize,
}

/// The key by which sessions are sorted, in two halves so that an entry has no padding, and the number of a session.
type Entry = (u32, u32, u32);

/// A tenant, and the id and scope of a session.
pub(super) type Name<'a> = (&'a str, &'a str, &'a str);

impl SessionTable {
    /// The number of sessions.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Estimated bytes of memory that they take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Notes that the size of a session has changed from `before` bytes.
    pub(super) fn resized(&mut self, number: u32, before: usize) {
        let Some(Some(session)) = self.slots.get(index(number)) else { return };
        let after = session.bytes();
        if after != before {
            self.bytes = self.bytes + after - before;
            self.filed.resize(tenant_of(&session.id), before, after);
        }
    }

    /// Whether there is one with this id.
    pub(super) fn contains(&self, id: &SessionId) -> bool {
        self.number(id).is_some()
    }

    /// The session with this id.
    pub(super) fn get(&self, id: &SessionId) -> Option<&Session> {
        self.at(self.number(id)?)
    }

    /// The session with this id, mutable except for what its card shows.
    pub(super) fn get_mut(&mut self, id: &SessionId) -> Option<&mut Session> {
        self.at_mut(self.number(id)?)
    }

    /// The session of a number, mutable: `set_card` must follow.
    pub(super) fn at_mut(&mut self, number: u32) -> Option<&mut Session> {
        self.slots.get_mut(index(number))?.as_deref_mut()
    }

    /// Sets the card of a session.
    pub(super) fn set_card(&mut self, number: u32, card: Option<Card>) {
        self.cards.set(number, card);
    }

    /// Cards from a number on, with `None` for numbers without one.
    pub(super) fn cards(&self, first: u32) -> impl Iterator<Item = (u32, Option<&Card>)> {
        self.cards.from(first)
    }

    /// Adds a session with its card, and files it; there must be none with its id. Returns its number.
    pub(super) fn insert(&mut self, mut session: Box<Session>, card: Option<Card>) -> u32 {
        let (place, bytes) = (session.file(), session.bytes());
        let id = Arc::clone(&session.id);
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.slots.push(None);
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        session.traces.iter().for_each(|trace| self.by_trace.set(hash_of(trace.id), number, true));
        if let Some(slot) = self.slots.get_mut(index(number)) {
            *slot = Some(session);
        }
        self.cards.set(number, card);
        let Self { slots, by_id, .. } = self;
        let name = |number: u32| name_of(slots, number);
        by_id.insert_unique(hash(named(&id)), number, |number| hash(name(*number)));
        let without_scope = entry(hash_without_scope(&id.tenant, &id.id), number);
        self.by_id_without_scope.insert(without_scope, |other| other.cmp(&without_scope));
        self.filed.insert(tenant_of(&id), place, number);
        self.filed.resize(tenant_of(&id), 0, bytes);
        self.bytes += bytes;
        number
    }

    /// Removes a session.
    pub(super) fn remove(&mut self, id: &SessionId) -> Option<Box<Session>> {
        let number = self.number(id)?;
        let (place, bytes) = (self.at(number)?.filed(), self.at(number)?.bytes());
        self.bytes -= bytes;
        self.filed.resize(tenant_of(id), bytes, 0);
        self.filed.remove(tenant_of(id), place, number);
        let without_scope = entry(hash_without_scope(&id.tenant, &id.id), number);
        self.by_id_without_scope.remove(|other| other.cmp(&without_scope));
        let Self { slots, by_id, .. } = self;
        let name = |number: u32| name_of(slots, number);
        if let Ok(entry) = by_id.find_entry(hash(named(id)), |other| *other == number) {
            entry.remove();
        }
        // Releases memory after a burst.
        if by_id.capacity() > 4 * by_id.len().max(1_024) {
            by_id.shrink_to(2 * by_id.len(), |number| hash(name(*number)));
        }
        let session = self.slots.get_mut(index(number))?.take();
        let traces = session.iter().flat_map(|session| session.traces.iter());
        traces.for_each(|trace| self.by_trace.set(hash_of(trace.id), number, false));
        self.free.push(number);
        self.cards.set(number, None);
        if self.by_id.is_empty() {
            (self.slots, self.free, self.cards) = (Vec::new(), Vec::new(), Cards::default());
        }
        session
    }

    /// Files a session where it belongs in the order of eviction; returns whether it was filed elsewhere.
    pub(super) fn refile(&mut self, number: u32) -> bool {
        let Some(Some(session)) = self.slots.get_mut(index(number)) else { return false };
        let (before, after) = (session.filed(), session.file());
        if before == after {
            return false;
        }
        let tenant = tenant_of(&session.id);
        // In this order, so that the tenant has a session all the time.
        let moved = self.filed.insert(tenant, after, number);
        self.filed.remove(tenant, before, number);
        moved
    }

    /// For the session that is filed first under an order, the arrival of its newest update or report, and its number.
    pub(super) fn quietest(&self, order: EvictionOrder) -> Option<(Timestamp, u32)> {
        self.filed.first(order)
    }

    /// The session of a number.
    pub(super) fn at(&self, number: u32) -> Option<&Session> {
        self.slots.get(index(number))?.as_deref()
    }

    /// The tenant that holds the most sessions relative to its share, counting one more for the tenant of a session to be added.
    pub(super) fn most_over_share(
        &self,
        shares: &Shares,
        newcomer: Option<TenantHash>,
    ) -> Option<TenantHash> {
        let more = |tenant: TenantHash| usize::from(newcomer == Some(tenant));
        let held = self.filed.0.iter();
        shares.most_over_share(held.map(|(tenant, own)| (*tenant, own.len + more(*tenant))))
    }

    /// The tenant whose sessions take the most bytes relative to its share.
    pub(super) fn greediest_in_bytes(&self, shares: &Shares) -> Option<TenantHash> {
        shares.most_over_share(self.filed.0.iter().map(|(tenant, own)| (*tenant, own.bytes)))
    }

    /// The session of a tenant to evict first; ties are broken by id.
    pub(super) fn first_to_go(
        &self,
        tenant: TenantHash,
    ) -> Option<(EvictionOrder, Arc<SessionId>)> {
        let own = self.filed.0.get(&tenant)?;
        let (order, quiet) =
            ORDERS.into_iter().find_map(|order| Some((order, own.iter(order).next()?.0)))?;
        let same = own.iter(order).take_while(|other| other.0 == quiet);
        let first = same.filter_map(|(_, number)| self.at(number)).min_by_key(|one| &one.id)?;
        Some((order, Arc::clone(&first.id)))
    }

    /// The sessions with this id that have traces, in the order of their scopes.
    pub(super) fn of_id(&self, tenant: &str, id: &str) -> Vec<Arc<SessionId>> {
        let hash = hash_without_scope(tenant, id);
        let first = entry(hash, 0);
        let entries = self.by_id_without_scope.from(&|other| other.cmp(&first));
        let same = entries.take_while(|(high, low, _)| whole(*high, *low) == hash);
        let sessions = same.filter_map(|(.., number)| self.at(number)).filter(|session| {
            *session.id.tenant == *tenant && *session.id.id == *id && !session.traces.is_empty()
        });
        let mut ids: Vec<_> = sessions.map(|session| Arc::clone(&session.id)).collect();
        ids.sort_unstable_by(|one, other| one.scope.cmp(&other.scope));
        ids
    }

    /// All sessions, in an order that follows from their names alone.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Session> {
        let mut entries: Vec<_> = self.by_id_without_scope.iter().collect();
        let runs = entries.chunk_by_mut(|(high, low, _), next| (*high, *low) == (next.0, next.1));
        for run in runs.filter(|run| run.len() > 1) {
            run.sort_unstable_by(|(.., one), (.., other)| self.name(*one).cmp(&self.name(*other)));
        }
        let sessions: Vec<_> =
            entries.into_iter().filter_map(|(.., number)| self.at(number)).collect();
        sessions.into_iter()
    }

    /// The session that holds a trace of this tenant, and its number; without a tenant: the only one that holds a trace with this
    /// id.
    pub(super) fn of_trace(&self, tenant: Option<&str>, trace: TraceId) -> Option<(u32, &Session)> {
        let numbers = self.by_trace.sessions(trace).copied();
        let sessions = numbers.filter_map(|number| Some((number, self.at(number)?)));
        let mut holding = sessions.filter(|(_, session)| {
            tenant.is_none_or(|tenant| *session.id.tenant == *tenant)
                && session.traces.number(trace).is_some()
        });
        if tenant.is_none() {
            return holding.next().filter(|_| holding.next().is_none());
        }
        holding.min_by_key(|(_, session)| &session.id)
    }

    /// How many sessions are searched for a trace.
    #[cfg(test)]
    pub(super) fn looked_into(&self, trace: TraceId) -> usize {
        self.by_trace.sessions(trace).count()
    }

    /// Notes that a trace was added to a session, or has left it.
    pub(super) fn moved(&mut self, trace: TraceId, number: u32) {
        let session = self.at(number);
        let holds = session.is_some_and(|session| session.traces.number(trace).is_some());
        self.by_trace.set(hash_of(trace), number, holds);
    }

    /// The number of the session with this id.
    pub(super) fn number(&self, id: &SessionId) -> Option<u32> {
        let name = named(id);
        self.by_id.find(hash(name), |number| self.name(*number) == name).copied()
    }

    /// The id of the session of a number.
    pub(super) fn name(&self, number: u32) -> Name<'_> {
        name_of(&self.slots, number)
    }
}

/// Sessions are serialised one after the other.
impl Serialize for SessionTable {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter())
    }
}

impl Filed {
    fn first(&self, order: EvictionOrder) -> Option<(Timestamp, u32)> {
        self.0.values().filter_map(|own| own.iter(order).next()).min()
    }

    /// Returns whether it is new.
    fn insert(
        &mut self,
        tenant: TenantHash,
        (order, quiet): (EvictionOrder, Timestamp),
        number: u32,
    ) -> bool {
        let (own, entry) = (self.0.entry(tenant).or_default(), entry(quiet.0, number));
        let is_new = own.orders[order as usize].insert(entry, |other| other.cmp(&entry));
        own.len += usize::from(is_new);
        is_new
    }

    fn resize(&mut self, tenant: TenantHash, before: usize, after: usize) {
        if let Some(own) = self.0.get_mut(&tenant) {
            own.bytes = own.bytes + after - before;
        }
    }

    fn remove(
        &mut self,
        tenant: TenantHash,
        (order, quiet): (EvictionOrder, Timestamp),
        number: u32,
    ) {
        let Some(own) = self.0.get_mut(&tenant) else { return };
        let entry = entry(quiet.0, number);
        let removed = own.orders[order as usize].remove(|other| other.cmp(&entry));
        own.len -= usize::from(removed);
        if own.len == 0 {
            self.0.remove(&tenant);
        }
    }
}

impl OfTenant {
    fn iter(&self, order: EvictionOrder) -> impl Iterator<Item = (Timestamp, u32)> + '_ {
        self.orders[order as usize]
            .iter()
            .map(|(high, low, number)| (Timestamp(whole(high, low)), number))
    }
}

fn tenant_of(id: &SessionId) -> TenantHash {
    tenant_hash(Some(&id.tenant))
}

fn entry(sorted_by: u64, number: u32) -> Entry {
    let (high, low) = halves(sorted_by);
    (high, low, number)
}

fn name_of(slots: &[Option<Box<Session>>], number: u32) -> Name<'_> {
    let session = slots.get(index(number)).and_then(Option::as_ref);
    session.map_or(("", "", ""), |session| named(&session.id))
}

pub(super) fn named(id: &SessionId) -> Name<'_> {
    (&id.tenant, &id.id, &id.scope)
}

fn hash((tenant, id, scope): Name<'_>) -> u64 {
    let seed = xxh3_64_with_seed(scope.as_bytes(), xxh3_64_with_seed(tenant.as_bytes(), 0));
    xxh3_64_with_seed(id.as_bytes(), seed)
}

fn hash_without_scope(tenant: &str, id: &str) -> u64 {
    hash((tenant, id, ""))
}

/// In the order of eviction.
const ORDERS: [EvictionOrder; 3] =
    [EvictionOrder::Empty, EvictionOrder::Closed, EvictionOrder::Open];

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
