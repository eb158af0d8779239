//! When something has to be done about a trace, earliest first.
//!
//! A trace that something arrives for is due later than before; its entry stays where it is and is moved when it comes up,
//! so that what arrives costs no search.

use std::collections::BTreeMap;
use std::mem;

use super::open_trace::{OpenTrace, Pending, State};
use crate::sorted::Sorted;
use crate::span::Timestamp;
use crate::tenants::{Shares, TenantHash, TraceKey};

/// Traces by when they have to be looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    // Invariant: those of each tenant that has any.
    tenants: BTreeMap<TenantHash, Lists>,
    // Traces to look at with the next drain; each once, as the trace says.
    marked: Vec<TraceKey>,
}

/// The traces of one tenant.
#[derive(Clone, Debug, Default)]
struct Lists {
    // Those that are final before the others: they go first where there is no room.
    done: Sorted<Entry>,
    open: Sorted<Entry>,
    // Of both.
    len: usize,
}

/// Not later than the trace is due.
type Entry = (Timestamp, TraceKey);

impl Deadlines {
    /// The next moment to look at a trace.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.first().map(|(due, _)| due)
    }

    /// The trace to look at next, and when.
    pub(super) fn first(&self) -> Option<Entry> {
        let lists = self.tenants.values();
        lists.flat_map(|lists| lists.open.first().into_iter().chain(lists.done.first())).min()
    }

    /// The tenant that has the most traces in proportion to its share, with one more for this one.
    pub(super) fn greediest(&self, shares: &Shares, newcomer: TenantHash) -> Option<TenantHash> {
        let more = |tenant: TenantHash| usize::from(tenant == newcomer);
        shares.greediest(
            self.tenants.iter().map(|(tenant, lists)| (*tenant, lists.len + more(*tenant))),
        )
    }

    /// Of a tenant's traces that are done the one that is final first.
    pub(super) fn first_done(&self, tenant: TenantHash) -> Option<TraceKey> {
        self.tenants.get(&tenant)?.done.first().map(|(_, id)| id)
    }

    /// All traces held.
    pub(super) fn traces(&self) -> impl Iterator<Item = TraceKey> + '_ {
        let lists = self.tenants.values();
        lists.flat_map(|lists| lists.open.iter().chain(lists.done.iter())).map(|(_, id)| id)
    }

    /// Those of one tenant.
    pub(super) fn traces_of(&self, tenant: TenantHash) -> impl Iterator<Item = TraceKey> + '_ {
        let lists = self.tenants.get(&tenant).into_iter();
        lists.flat_map(|lists| lists.open.iter().chain(lists.done.iter())).map(|(_, id)| id)
    }

    /// The traces that are not done.
    pub(super) fn open(&self) -> impl Iterator<Item = TraceKey> + '_ {
        self.tenants.values().flat_map(|lists| lists.open.iter()).map(|(_, id)| id)
    }

    /// Those of one tenant.
    pub(super) fn open_of(&self, tenant: TenantHash) -> impl Iterator<Item = TraceKey> + '_ {
        self.tenants.get(&tenant).into_iter().flat_map(|lists| lists.open.iter()).map(|(_, id)| id)
    }

    /// Enters a trace.
    pub(super) fn insert(&mut self, (due, id): Entry, done: bool) {
        let lists = self.tenants.entry(id.tenant).or_default();
        let list = if done { &mut lists.done } else { &mut lists.open };
        lists.len += usize::from(list.insert((due, id), |other| other.cmp(&(due, id))));
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, entry: &Entry) {
        let Some(lists) = self.tenants.get_mut(&entry.1.tenant) else { return };
        let removed = lists.open.remove(|other| other.cmp(entry))
            || lists.done.remove(|other| other.cmp(entry));
        lists.len -= usize::from(removed);
        if lists.len == 0 {
            self.tenants.remove(&entry.1.tenant);
        }
    }

    /// Moves the entry of a trace to where it is due.
    pub(super) fn reschedule(&mut self, id: TraceKey, held: &mut OpenTrace) {
        self.remove(&(held.queued, id));
        held.queued = held.due();
        self.insert((held.queued, id), held.state != State::Open);
    }

    /// Something new has come: a trace that is re-opened is told of, and its timer may be earlier than it was.
    pub(super) fn touched(&mut self, id: TraceKey, held: &mut OpenTrace, reopened: bool) {
        self.mark(id, held, if reopened { Pending::Tell } else { Pending::News });
        if reopened || held.due() < held.queued {
            self.reschedule(id, held);
        }
    }

    /// Has the trace looked at with the next drain.
    pub(super) fn mark(&mut self, id: TraceKey, held: &mut OpenTrace, look: Pending) {
        if held.look == Pending::No && look != Pending::No {
            self.marked.push(id);
        }
        held.look = held.look.max(look);
    }

    /// Takes the traces to look at, in order.
    pub(super) fn take_marked(&mut self) -> Vec<TraceKey> {
        let mut marked = mem::take(&mut self.marked);
        marked.sort_unstable();
        marked
    }
}
