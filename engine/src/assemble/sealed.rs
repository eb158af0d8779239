//! Ids of sealed traces, each with whether it was made final early without its root, which may still come. They are bounded: over the
//! bound, the tenant that has the most in proportion to its share loses its oldest id.

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use hashbrown::HashTable;
use serde::{Deserialize, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

use crate::span::TraceId;
use crate::tenants::{Shares, TenantHash, TraceKey};

/// A bounded set of sealed traces.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Written<Vec<(TraceKey, bool)>>")]
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
    oldest_first: VecDeque<(TraceId, bool)>,
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

    /// Adds an id, and whether the trace ended early without its root; returns how many had to be forgotten for it.
    pub(super) fn insert(&mut self, sealed: (TraceKey, bool), max: usize, shares: &Shares) -> u64 {
        self.add(sealed);
        self.make_room(max, shares)
    }

    fn add(&mut self, (id, early): (TraceKey, bool)) {
        let of_tenant = self.tenants.entry(id.tenant).or_default();
        self.len += usize::from(of_tenant.insert(id.id, early));
    }

    /// Notes that a root of a sealed trace has come; returns whether the trace ended early without it, and this is the first one.
    pub(super) fn finds_root(&mut self, id: TraceKey) -> bool {
        let sealed = self.tenants.get_mut(&id.tenant);
        sealed.and_then(|sealed| sealed.early(id.id)).is_some_and(mem::take)
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
            let ids = sealed.oldest_first.iter();
            ids.map(|(id, early)| (TraceKey { id: *id, tenant: *tenant }, *early))
        });
        Written { oldest_first: ids.collect::<Vec<_>>() }.serialize(serializer)
    }
}

impl From<Written<Vec<(TraceKey, bool)>>> for Sealed {
    fn from(written: Written<Vec<(TraceKey, bool)>>) -> Self {
        let mut sealed = Self::default();
        written.oldest_first.into_iter().for_each(|id| sealed.add(id));
        sealed
    }
}

impl SealedOfTenant {
    fn contains(&self, id: TraceId) -> bool {
        self.number(id).is_some()
    }

    fn number(&self, id: TraceId) -> Option<u32> {
        self.numbers.find(hash(id), |number| self.id(*number) == Some(id)).copied()
    }

    /// Whether the trace ended early without its root, to be changed.
    fn early(&mut self, id: TraceId) -> Option<&mut bool> {
        let place = usize::try_from(self.number(id)?.wrapping_sub(self.first)).ok()?;
        self.oldest_first.get_mut(place).map(|(_, early)| early)
    }

    /// Adds an id; returns whether it is new.
    fn insert(&mut self, id: TraceId, early: bool) -> bool {
        if self.contains(id) {
            return false;
        }
        let number = u32::try_from(self.oldest_first.len()).unwrap_or(u32::MAX);
        let number = self.first.wrapping_add(number);
        self.oldest_first.push_back((id, early));
        let Self { numbers, first, oldest_first } = self;
        let hashed = |number: &u32| at(oldest_first, *first, *number).map_or(0, hash);
        numbers.insert_unique(hash(id), number, hashed);
        true
    }

    /// Forgets the oldest id; returns whether there was one.
    fn forget_oldest(&mut self) -> bool {
        let Some((oldest, _)) = self.oldest_first.front() else { return false };
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

fn at(ids: &VecDeque<(TraceId, bool)>, first: u32, number: u32) -> Option<TraceId> {
    ids.get(usize::try_from(number.wrapping_sub(first)).ok()?).map(|(id, _)| *id)
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
            assert_eq!(sealed.insert((id, false), 10, &shares), u64::from(number >= 10));
            assert_eq!(sealed.insert((id, true), 10, &shares), 0);
            assert!(!sealed.finds_root(id));
            for other in 0..=number {
                assert_eq!(sealed.contains(of(0, other)), number - other < 10);
            }
        }
        let restored: Sealed =
            rmp_serde::from_slice(&rmp_serde::to_vec_named(&sealed).unwrap()).unwrap();
        assert_eq!(restored.len, sealed.len);
        let held = sealed.tenants[&0].oldest_first.iter();
        let mut held = held.map(|(id, _)| TraceKey { id: *id, tenant: 0 });
        assert!(held.all(|id| restored.contains(id)));
    }

    #[test]
    fn the_root_of_a_trace_that_ended_early_is_found_once_also_after_a_restart() {
        let (mut sealed, shares) = (Sealed::default(), Shares::default());
        for number in 0..10_u128 {
            sealed.insert((of(0, number), number % 2 == 0), 8, &shares);
        }
        let written = rmp_serde::to_vec_named(&sealed).unwrap();
        let mut sealed: Sealed = rmp_serde::from_slice(&written).unwrap();
        let found = (0..11).filter(|number| sealed.finds_root(of(0, *number)));
        assert_eq!(found.collect::<Vec<_>>(), [2, 4, 6, 8]);
        assert!((0..11).all(|number| !sealed.finds_root(of(0, number))));
    }

    #[test]
    fn a_trace_of_one_tenant_is_found_without_the_tenant() {
        let (mut sealed, shares) = (Sealed::default(), Shares::default());
        for id in [of(1, 1), of(1, 2), of(2, 2)] {
            sealed.insert((id, false), 10, &shares);
        }
        let only = |number: u128| sealed.only(TraceId(number.to_be_bytes()));
        assert_eq!([1, 2, 3].map(only), [Some(of(1, 1)), None, None]);
    }

    #[test]
    fn over_the_bound_the_tenant_with_the_most_makes_room() {
        let (mut sealed, shares) = (Sealed::default(), Shares::default());
        for number in 0..4 {
            sealed.insert((of(1, number), false), 10, &shares);
        }
        for number in 0..100 {
            sealed.insert((of(2, number), false), 10, &shares);
        }
        assert!((0..4).all(|number| sealed.contains(of(1, number))));
        let held = (0..100).filter(|number| sealed.contains(of(2, *number)));
        assert_eq!(held.collect::<Vec<_>>(), [94, 95, 96, 97, 98, 99]);
        assert_eq!((sealed.make_room(3, &shares), sealed.len), (7, 3));
        assert!(sealed.contains(of(1, 3)) && sealed.contains(of(2, 99)));
    }
}
