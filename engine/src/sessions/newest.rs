//! A table that keeps its newest entries. At the bound, the oldest one of the tenant that holds the most relative to its share is
//! forgotten.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use serde::{Deserialize, Serialize};

use crate::tenants::{Shares, TenantCounts, TenantHash, TraceKey};

/// A key that belongs to a tenant.
pub(super) trait OfTenant {
    /// The tenant.
    fn tenant(&self) -> TenantHash;
}

impl OfTenant for TraceKey {
    fn tenant(&self) -> TenantHash {
        self.tenant
    }
}

/// The newest `max` entries.
#[derive(Clone, Debug)]
pub(super) struct Newest<K, V> {
    // Each with its age: the greater, the newer.
    entries: BTreeMap<K, (u64, V)>,
    // By tenant, then age.
    by_age: BTreeMap<(TenantHash, u64), K>,
    held: TenantCounts,
    next: u64,
    max: usize,
}

/// The entries in a snapshot.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Saved<E> {
    entries: E,
    next: u64,
}

/// The entries that were read from a snapshot.
pub(super) type Restored<K, V> = Saved<BTreeMap<K, (u64, V)>>;

impl<K: OfTenant + Ord + Clone, V> Newest<K, V> {
    /// No entries yet.
    pub(super) fn new(max: usize) -> Self {
        let (entries, by_age, held) = Default::default();
        Self { entries, by_age, held, next: 0, max }
    }

    /// The entries for a snapshot.
    pub(super) fn save(&self) -> Saved<&BTreeMap<K, (u64, V)>> {
        Saved { entries: &self.entries, next: self.next }
    }

    /// Takes over the entries from a snapshot; returns how many were forgotten, as it may have been written with a larger bound.
    pub(super) fn restore(
        &mut self,
        Saved { entries, next }: Restored<K, V>,
        shares: &Shares,
    ) -> u64 {
        let ages = entries.iter().map(|(key, (age, _))| ((key.tenant(), *age), key.clone()));
        self.by_age = ages.collect();
        self.held = TenantCounts::default();
        entries.keys().for_each(|key| self.held.add(key.tenant()));
        (self.entries, self.next) = (entries, next);
        self.make_room(shares)
    }

    /// Adds an entry, or replaces the one with its key; returns whether another one was forgotten for it.
    pub(super) fn insert(&mut self, key: K, value: V, shares: &Shares) -> bool {
        self.remove(&key);
        self.by_age.insert((key.tenant(), self.next), key.clone());
        self.held.add(key.tenant());
        self.entries.insert(key, (self.next, value));
        self.next += 1;
        self.make_room(shares) > 0
    }

    /// The entry of a key.
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// All values, in the order of their keys.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.values_mut().map(|(_, value)| value)
    }

    /// The keys in a range, in their order.
    pub(super) fn keys(&self, range: impl RangeBounds<K>) -> impl Iterator<Item = &K> {
        self.entries.range(range).map(|(key, _)| key)
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let (age, value) = self.entries.remove(key)?;
        self.by_age.remove(&(key.tenant(), age));
        self.held.remove(key.tenant());
        Some(value)
    }

    /// Forgets entries while there are too many; returns how many.
    fn make_room(&mut self, shares: &Shares) -> u64 {
        let mut forgotten = 0;
        while self.entries.len() > self.max
            && let Some(tenant) = self.held.most_over_share(shares)
            && let Some((_, oldest)) = self.by_age.range((tenant, 0)..).next()
        {
            let oldest = oldest.clone();
            self.remove(&oldest);
            forgotten += 1;
        }
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::TraceId;

    fn of(tenant: TenantHash, byte: u8) -> TraceKey {
        TraceKey { id: TraceId([byte; 16]), tenant }
    }

    #[test]
    fn over_the_bound_the_oldest_is_forgotten() {
        let (mut newest, shares) = (Newest::new(2), Shares::default());
        let [a, b, c] = [1, 2, 3].map(|byte| of(0, byte));
        assert!(!newest.insert(a, "a", &shares));
        assert!(!newest.insert(b, "b", &shares));
        assert!(!newest.insert(a, "a again", &shares));
        assert!(newest.insert(c, "c", &shares));
        assert_eq!(
            [a, b, c].map(|key| newest.get(&key).copied()),
            [Some("a again"), None, Some("c")]
        );
        assert_eq!((newest.remove(&a), newest.remove(&a)), (Some("a again"), None));
        assert!(!newest.insert(b, "b", &shares));
    }

    #[test]
    fn over_the_bound_the_tenant_with_the_most_makes_room() {
        let (mut newest, shares) = (Newest::new(6), Shares::default());
        let of_both = (1..=2).map(|byte| of(1, byte)).chain((1..=50).map(|byte| of(2, byte)));
        let forgotten = of_both.filter(|key| newest.insert(*key, (), &shares));
        assert_eq!(forgotten.count(), 46);
        assert!((1..=2).all(|byte| newest.get(&of(1, byte)).is_some()));
        assert!((1..=50).all(|byte| newest.get(&of(2, byte)).is_some() == (byte > 46)));
        let mut restored = Newest::new(6);
        let Saved { entries, next } = newest.save();
        let saved = || Saved { entries: entries.clone(), next };
        assert_eq!(restored.restore(saved(), &shares), 0);
        assert!(restored.insert(of(2, 51), (), &shares));
        assert!(restored.get(&of(2, 47)).is_none() && restored.get(&of(1, 1)).is_some());
        let mut smaller = Newest::new(3);
        assert_eq!(smaller.restore(saved(), &shares), 3);
        assert_eq!(smaller.keys(..).collect::<Vec<_>>(), [&of(1, 1), &of(1, 2), &of(2, 50)]);
    }
}
