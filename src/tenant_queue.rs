//! Queues of outgoing items, one line for each tenant: tenants share the room and take turns.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::engine::tenants::{Shares, TenantHash};

/// Waiting items, by tenant.
#[derive(Debug)]
pub(crate) struct TenantQueue<T> {
    shares: Shares,
    // Invariant: no line is empty; together they have `len` items.
    lines: BTreeMap<TenantHash, Line<T>>,
    len: usize,
}

/// The waiting items of one tenant, the oldest first, each with its bytes.
type Items<T> = VecDeque<(T, usize)>;

/// The line of one tenant.
#[derive(Debug)]
struct Line<T> {
    waiting: Items<T>,
    bytes: usize,
    // The number of items that were taken, divided by the tenant's share; a new line begins with the least of the others.
    given: f64,
}

/// The kind of excess.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Excess {
    /// Items.
    Items,
    /// Bytes.
    Bytes,
}

/// The lines, for adding or taking items.
pub(crate) fn lock<T>(lines: &Mutex<TenantQueue<T>>) -> MutexGuard<'_, TenantQueue<T>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the next item, and waits for a signal if there is none; `None` once nothing waits and no sender is left.
pub(crate) async fn next<T>(
    lines: &Mutex<TenantQueue<T>>,
    woken: &mut mpsc::Receiver<()>,
) -> Option<T> {
    loop {
        let next = lock(lines).take();
        if next.is_some() {
            return next;
        }
        if woken.recv().await.is_none() {
            return lock(lines).take();
        }
    }
}

impl<T> TenantQueue<T> {
    /// Empty lines, for tenants with these shares.
    pub(crate) fn new(shares: Shares) -> Self {
        Self { shares, lines: BTreeMap::new(), len: 0 }
    }

    /// The number of waiting items.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Queues an item of a tenant, with its size in bytes.
    pub(crate) fn put(&mut self, tenant: TenantHash, item: T, bytes: usize) {
        let least = self.lines.values().map(|line| line.given).min_by(f64::total_cmp);
        let given = least.unwrap_or(0.0);
        let anew = || Line { waiting: VecDeque::new(), bytes: 0, given };
        let line = self.lines.entry(tenant).or_insert_with(anew);
        line.bytes += bytes;
        line.waiting.push_back((item, bytes));
        self.len += 1;
    }

    /// Takes the oldest item of the tenant that was given least.
    pub(crate) fn take(&mut self) -> Option<T> {
        let least = self.lines.iter().min_by(|(_, a), (_, b)| a.given.total_cmp(&b.given));
        let tenant = *least?.0;
        let share = self.shares.of(tenant);
        let taken = self.remove(tenant, VecDeque::pop_front);
        self.lines.entry(tenant).and_modify(|line| line.given += 1.0 / share);
        taken
    }

    /// Removes the newest item of the tenant that holds the most relative to its share.
    pub(crate) fn evict_last(&mut self, excess: Excess) -> Option<T> {
        let held = self.lines.iter().map(|(tenant, line)| match excess {
            Excess::Items => (*tenant, line.waiting.len()),
            Excess::Bytes => (*tenant, line.bytes),
        });
        let most_over_share = self.shares.most_over_share(held.filter(|(_, held)| *held > 0));
        self.remove(most_over_share?, VecDeque::pop_back)
    }

    /// The tenants that hold three quarters or more of their share of `most` items or `most_bytes`; if none does, all with waiting
    /// items, and 0 for no tenant.
    pub(crate) fn over(&self, most: usize, most_bytes: usize) -> BTreeSet<TenantHash> {
        let fills = |of: usize, quota: usize| of >= quota - quota / 4;
        let over = self.lines.iter().filter(|(tenant, line)| {
            fills(line.waiting.len(), self.shares.quota(**tenant, most))
                || fills(line.bytes, self.shares.quota(**tenant, most_bytes))
        });
        let over: BTreeSet<_> = over.map(|(tenant, _)| *tenant).collect();
        if over.is_empty() { self.lines.keys().copied().chain([0]).collect() } else { over }
    }

    fn remove(
        &mut self,
        tenant: TenantHash,
        one: fn(&mut Items<T>) -> Option<(T, usize)>,
    ) -> Option<T> {
        let line = self.lines.get_mut(&tenant)?;
        let (removed, bytes) = one(&mut line.waiting)?;
        line.bytes -= bytes;
        self.len -= 1;
        if line.waiting.is_empty() {
            self.lines.remove(&tenant);
        }
        Some(removed)
    }
}
