//! When something must be done about a trace, earliest first.
//!
//! Input postpones the deadline of its trace; the entry of the trace stays where it is and is moved when its turn comes, so that
//! input costs no search.

use std::collections::BTreeMap;
use std::mem;

use super::open_trace::{OpenTrace, Pending, State};
use crate::sorted::Sorted;
use crate::span::{Timestamp, TraceId};
use crate::tenants::{Shares, TenantHash, TraceKey};

/// Traces by the time of their next check.
#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    // Invariant: no tenant without traces.
    tenants: BTreeMap<TenantHash, Lists>,
    // Traces to check in the next drain, each once, as its `look` field shows.
    marked: Vec<TraceKey>,
    // Whether these are in order, with the first one last.
    in_order: bool,
}

/// The traces of one tenant.
#[derive(Clone, Debug, Default)]
struct Lists {
    // By `Order`, then by when a trace is looked at.
    orders: [Sorted<Due>; ORDERS.len()],
    // Number of traces in all lists.
    len: usize,
}

/// The order in which traces are evicted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Order {
    /// It is done, and no agent is at work in it.
    Foreign,
    /// It is done, or sealed.
    Done,
    /// It is open.
    Open,
}

/// In the order of eviction.
const ORDERS: [Order; 3] = [Order::Foreign, Order::Done, Order::Open];

/// When a trace has to be checked, which is not later than its deadline, and the trace.
type Entry = (Timestamp, TraceKey);

/// An [`Entry`] among those of its tenant.
type Due = (Timestamp, TraceId);

/// How much is read at a time.
#[derive(Clone, Copy, Debug)]
pub struct AtMost {
    /// The most traces.
    pub traces: usize,
    /// No further trace is read once so many spans are.
    pub spans: usize,
}

impl Deadlines {
    /// The next moment to check a trace.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.first().map(|(due, _)| due)
    }

    /// The entry of the trace to check next.
    pub(super) fn first(&self) -> Option<Entry> {
        let firsts = self.tenants.iter().filter_map(|(tenant, lists)| {
            let (due, id) = lists.orders.iter().filter_map(Sorted::first).min()?;
            Some((due, TraceKey { id, tenant: *tenant }))
        });
        firsts.min()
    }

    /// The tenant that has the most traces relative to its share, counting one more for the newcomer.
    pub(super) fn most_over_share(
        &self,
        shares: &Shares,
        newcomer: TenantHash,
    ) -> Option<TenantHash> {
        let more = |tenant: TenantHash| usize::from(tenant == newcomer);
        shares.most_over_share(
            self.tenants.iter().map(|(tenant, lists)| (*tenant, lists.len + more(*tenant))),
        )
    }

    /// The done trace of a tenant that is sealed first, of those in which no agent is at work or, if there is none, of all.
    pub(super) fn first_done(&self, tenant: TenantHash) -> Option<TraceKey> {
        let lists = self.tenants.get(&tenant)?;
        let first = |order: Order| lists.orders[order as usize].first();
        let (_, id) = first(Order::Foreign).or_else(|| first(Order::Done))?;
        Some(TraceKey { id, tenant })
    }

    /// All traces held.
    pub(super) fn traces(&self) -> impl Iterator<Item = TraceKey> + '_ {
        self.tenants.keys().flat_map(|tenant| self.traces_of(*tenant))
    }

    /// All traces of one tenant.
    pub(super) fn traces_of(&self, tenant: TenantHash) -> impl Iterator<Item = TraceKey> + '_ {
        let lists = self.tenants.get(&tenant).into_iter();
        let all = lists.flat_map(|lists| lists.orders.iter().flat_map(Sorted::iter));
        all.map(move |(_, id)| TraceKey { id, tenant })
    }

    /// The traces that are not done.
    pub(super) fn open(&self) -> impl Iterator<Item = TraceKey> + '_ {
        self.tenants.keys().flat_map(|tenant| self.open_of(*tenant))
    }

    /// The traces of one tenant that are not done.
    pub(super) fn open_of(&self, tenant: TenantHash) -> impl Iterator<Item = TraceKey> + '_ {
        let lists = self.tenants.get(&tenant).into_iter();
        let open = lists.flat_map(|lists| lists.orders[Order::Open as usize].iter());
        open.map(move |(_, id)| TraceKey { id, tenant })
    }

    /// Adds a trace.
    pub(super) fn insert(&mut self, held: &OpenTrace) {
        let (due, TraceKey { id, tenant }) = (held.queued, held.id);
        let lists = self.tenants.entry(tenant).or_default();
        let list = &mut lists.orders[Order::of(held) as usize];
        lists.len += usize::from(list.insert((due, id), |other| other.cmp(&(due, id))));
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, (due, TraceKey { id, tenant }): Entry) {
        let Some(lists) = self.tenants.get_mut(&tenant) else { return };
        let is_meant = |other: Due| other.cmp(&(due, id));
        // Most are open.
        let removed = lists.orders.iter_mut().rev().any(|list| list.remove(is_meant));
        lists.len -= usize::from(removed);
        if lists.len == 0 {
            self.tenants.remove(&tenant);
        }
    }

    /// Moves the entry of a trace to its deadline.
    pub(super) fn reschedule(&mut self, id: TraceKey, held: &mut OpenTrace) {
        self.remove((held.queued, id));
        held.queued = held.due();
        self.insert(held);
    }

    /// Marks a trace that got input, to be sent or checked, and moves its entry if its deadline is earlier.
    pub(super) fn touched(&mut self, id: TraceKey, held: &mut OpenTrace, tells: bool) {
        self.mark(id, held, if tells { Pending::Tell } else { Pending::News });
        if held.due() < held.queued {
            self.reschedule(id, held);
        }
    }

    /// Makes the next drain check the trace.
    pub(super) fn mark(&mut self, id: TraceKey, held: &mut OpenTrace, look: Pending) {
        if held.look == Pending::No && look != Pending::No {
            self.marked.push(id);
            self.in_order = false;
        }
        held.look = held.look.max(look);
    }

    /// Takes the first traces to check, in order: at most as many as this, and none once those before it have that many spans.
    pub(super) fn take_marked(
        &mut self,
        at_most: AtMost,
        spans: impl Fn(TraceKey) -> usize,
    ) -> Vec<TraceKey> {
        if !mem::replace(&mut self.in_order, true) {
            self.marked.sort_unstable_by(|one, other| other.cmp(one));
        }
        let mut room = at_most.spans;
        let fits = |id: &&TraceKey| {
            let fits = room > 0;
            room = room.saturating_sub(spans(**id));
            fits
        };
        let first = self.marked.iter().rev().take(at_most.traces).take_while(fits).count();
        let mut first = self.marked.split_off(self.marked.len() - first);
        first.reverse();
        first
    }

    /// Whether there are traces to check.
    pub(super) fn has_marked(&self) -> bool {
        !self.marked.is_empty()
    }
}

impl Order {
    fn of(held: &OpenTrace) -> Self {
        match held.state {
            State::Open => Self::Open,
            State::Done | State::Sealed if held.is_agents() => Self::Done,
            State::Done | State::Sealed => Self::Foreign,
        }
    }
}
