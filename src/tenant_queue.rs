//! What waits to be sent somewhere, in a line for each tenant: tenants share the room and take turns.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::engine::tenants::{Shares, TenantHash};

/// What waits, by tenant.
#[derive(Debug)]
pub(crate) struct TenantQueue<T> {
    shares: Shares,
    // Invariant: no line is empty; together they have `len` items.
    lines: BTreeMap<TenantHash, Line<T>>,
    len: usize,
}

/// What waits of one tenant, the oldest first, each with its bytes.
type Items<T> = VecDeque<(T, usize)>;

/// The line of one tenant.
#[derive(Debug)]
struct Line<T> {
    waiting: Items<T>,
    bytes: usize,
    // Items of the tenant that were taken, divided by its share; a new line begins with the least of the others.
    given: f64,
}

/// What there is too much of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Excess {
    /// Items.
    Items,
    /// Bytes.
    Bytes,
}

/// The lines, for whoever puts something there or takes something away.
pub(crate) fn lock<T>(lines: &Mutex<TenantQueue<T>>) -> MutexGuard<'_, TenantQueue<T>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes from lines what is next, and waits for it until it is woken; `None` once nothing waits and nobody is left to wake it.
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
    /// Nothing that waits, of tenants with these shares.
    pub(crate) fn new(shares: Shares) -> Self {
        Self { shares, lines: BTreeMap::new(), len: 0 }
    }

    /// How much waits.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Lets something of a tenant wait, which takes so many bytes.
    pub(crate) fn put(&mut self, tenant: TenantHash, item: T, bytes: usize) {
        let least = self.lines.values().map(|line| line.given).min_by(f64::total_cmp);
        let given = least.unwrap_or(0.0);
        let anew = || Line { waiting: VecDeque::new(), bytes: 0, given };
        let line = self.lines.entry(tenant).or_insert_with(anew);
        line.bytes += bytes;
        line.waiting.push_back((item, bytes));
        self.len += 1;
    }

    /// Takes the oldest of the tenant that was given least.
    pub(crate) fn take(&mut self) -> Option<T> {
        let least = self.lines.iter().min_by(|(_, a), (_, b)| a.given.total_cmp(&b.given));
        let tenant = *least?.0;
        let share = self.shares.of(tenant);
        let taken = self.remove(tenant, VecDeque::pop_front);
        self.lines.entry(tenant).and_modify(|line| line.given += 1.0 / share);
        taken
    }

    /// Removes the last of the tenant that has the most of its share.
    pub(crate) fn evict_last(&mut self, excess: Excess) -> Option<T> {
        let held = self.lines.iter().map(|(tenant, line)| match excess {
            Excess::Items => (*tenant, line.waiting.len()),
            Excess::Bytes => (*tenant, line.bytes),
        });
        let most_over_share = self.shares.most_over_share(held.filter(|(_, held)| *held > 0));
        self.remove(most_over_share?, VecDeque::pop_back)
    }

    /// The tenants that have three quarters or more of their share of `most` items or `most_bytes`; if none has, all of which something
    /// waits, and 0 for no tenant.
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
