//! Ids of sealed traces, bounded: over the bound, the tenant that has the most in proportion to its share loses its oldest id.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashTable;
use serde::{Deserialize, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

use crate::span::TraceId;
use crate::tenants::{Shares, TenantHash, TraceKey};

/// A bounded set of sealed traces.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Written<Vec<TraceKey>>")]
pub(super) struct Sealed {
    // Invariant: no tenant without ids.
    tenants: BTreeMap<TenantHash, SealedOfTenant>,
    len: usize,
}

/// The serialised set: of each tenant the oldest first.
#[derive(Debug, Deserialize, Serialize)]
struct Written<I> {
    oldest_first: I,
}

#[derive(Clone, Debug, Default)]
struct SealedOfTenant {
    // Numbers of the ids in order of arrival, which wrap around.
    numbers: HashTable<u32>,
    first: u32,
    oldest_first: VecDeque<TraceId>,
}

impl Sealed {
    pub(super) fn contains(&self, id: TraceKey) -> bool {
        self.tenants.get(&id.tenant).is_some_and(|sealed| sealed.contains(id.id))
    }

    /// The sealed trace of this id, whosever it is, if only one tenant has one.
    pub(super) fn only(&self, id: TraceId) -> Option<TraceKey> {
        let mut of_id = self.tenants.iter().filter(|(_, sealed)| sealed.contains(id));
        let (tenant, _) = of_id.next().filter(|_| of_id.next().is_none())?;
        Some(TraceKey { id, tenant: *tenant })
    }

    /// Adds an id; returns how many had to be forgotten for it.
    pub(super) fn insert(&mut self, id: TraceKey, max: usize, shares: &Shares) -> u64 {
        self.len += usize::from(self.tenants.entry(id.tenant).or_default().insert(id.id));
        self.make_room(max, shares)
    }

    /// Forgets ids while there are too many; returns how many.
    pub(super) fn make_room(&mut self, max: usize, shares: &Shares) -> u64 {
        let mut forgotten = 0;
        while self.len > max {
            let held = self.tenants.iter();
            let held = held.map(|(tenant, sealed)| (*tenant, sealed.oldest_first.len()));
            let Some(greediest) = shares.greediest(held) else { break };
            self.forget_oldest(greediest);
            forgotten += 1;
        }
        forgotten
    }

    fn forget_oldest(&mut self, tenant: TenantHash) {
        let Some(sealed) = self.tenants.get_mut(&tenant) else { return };
        self.len -= usize::from(sealed.forget_oldest());
        if sealed.oldest_first.is_empty() {
            self.tenants.remove(&tenant);
        }
    }
}

impl Serialize for Sealed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ids = self.tenants.iter().flat_map(|(tenant, sealed)| {
            sealed.oldest_first.iter().map(|id| TraceKey { id: *id, tenant: *tenant })
        });
        Written { oldest_first: ids.collect::<Vec<_>>() }.serialize(serializer)
    }
}

impl From<Written<Vec<TraceKey>>> for Sealed {
    fn from(written: Written<Vec<TraceKey>>) -> Self {
        let mut sealed = Self::default();
        for id in written.oldest_first {
            sealed.len += usize::from(sealed.tenants.entry(id.tenant).or_default().insert(id.id));
        }
        sealed
    }
}

impl SealedOfTenant {
    fn contains(&self, id: TraceId) -> bool {
        self.numbers.find(hash(id), |number| self.id(*number) == Some(id)).is_some()
    }

    /// Adds an id; returns whether it is new.
    fn insert(&mut self, id: TraceId) -> bool {
        if self.contains(id) {
            return false;
        }
        let number = u32::try_from(self.oldest_first.len()).unwrap_or(u32::MAX);
        let number = self.first.wrapping_add(number);
        self.oldest_first.push_back(id);
        let Self { numbers, first, oldest_first } = self;
        let hashed = |number: &u32| at(oldest_first, *first, *number).map_or(0, hash);
        numbers.insert_unique(hash(id), number, hashed);
        true
    }

    /// Forgets the oldest id; returns whether there was one.
    fn forget_oldest(&mut self) -> bool {
        let Some(oldest) = self.oldest_first.front() else { return false };
        if let Ok(entry) = self.numbers.find_entry(hash(*oldest), |number| *number == self.first) {
            entry.remove();
        }
        self.oldest_first.pop_front();
        self.first = self.first.wrapping_add(1);
        true
    }

    fn id(&self, number: u32) -> Option<TraceId> {
        at(&self.oldest_first, self.first, number)
    }
}

fn at(ids: &VecDeque<TraceId>, first: u32, number: u32) -> Option<TraceId> {
    ids.get(usize::try_from(number.wrapping_sub(first)).ok()?).copied()
}

fn hash(id: TraceId) -> u64 {
    xxh3_64(&id.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tenant: TenantHash, number: u128) -> TraceKey {
        TraceKey { id: TraceId(number.to_be_bytes()), tenant }
    }

    #[test]
    fn over_the_bound_the_oldest_is_forgotten_also_where_numbers_begin_anew() {
        let (mut sealed, shares) = (Sealed::default(), Shares::default());
        let nobody = SealedOfTenant { first: u32::MAX - 3, ..SealedOfTenant::default() };
        sealed.tenants.insert(0, nobody);
        for number in 0..1_000_u128 {
            let id = of(0, number);
            assert_eq!(sealed.insert(id, 10, &shares), u64::from(number >= 10));
            assert_eq!(sealed.insert(id, 10, &shares), 0);
            for other in 0..=number {
                assert_eq!(sealed.contains(of(0, other)), number - other < 10);
            }
        }
        let restored: Sealed =
            rmp_serde::from_slice(&rmp_serde::to_vec_named(&sealed).unwrap()).unwrap();
        assert_eq!(restored.len, sealed.len);
        let held = sealed.tenants[&0].oldest_first.iter();
        let mut held = held.map(|id| TraceKey { id: *id, tenant: 0 });
        assert!(held.all(|id| restored.contains(id)));
    }

    #[test]
    fn a_trace_of_one_tenant_is_found_without_the_tenant() {
        let (mut sealed, shares) = (Sealed::default(), Shares::default());
        for id in [of(1, 1), of(1, 2), of(2, 2)] {
            sealed.insert(id, 10, &shares);
        }
        let only = |number: u128| sealed.only(TraceId(number.to_be_bytes()));
        assert_eq!([1, 2, 3].map(only), [Some(of(1, 1)), None, None]);
    }

    #[test]
    fn over_the_bound_the_tenant_with_the_most_makes_room() {
        let (mut sealed, shares) = (Sealed::default(), Shares::default());
        for number in 0..4 {
            sealed.insert(of(1, number), 10, &shares);
        }
        for number in 0..100 {
            sealed.insert(of(2, number), 10, &shares);
        }
        assert!((0..4).all(|number| sealed.contains(of(1, number))));
        let held = (0..100).filter(|number| sealed.contains(of(2, *number)));
        assert_eq!(held.collect::<Vec<_>>(), [94, 95, 96, 97, 98, 99]);
        assert_eq!((sealed.make_room(3, &shares), sealed.len), (7, 3));
        assert!(sealed.contains(of(1, 3)) && sealed.contains(of(2, 99)));
    }
}
