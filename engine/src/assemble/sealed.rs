//! Ids of sealed traces, each with the end of the trace, which separates late spans from a later turn of the id. At the bound, the
//! tenant that holds the most relative to its share loses its oldest id.

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use hashbrown::HashTable;
use serde::{Deserialize, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

use crate::span::{Timestamp, TraceId};
use crate::tenants::{Shares, TenantHash, TraceKey};

/// A bounded set of sealed traces.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Written<Vec<(TraceKey, Ending)>>")]
pub(super) struct Sealed {
    // Invariant: no tenant without ids.
    tenants: BTreeMap<TenantHash, SealedOfTenant>,
    len: usize,
}

/// How the last turn of a trace id ended.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Ending {
    /// When its last span or log record ended, by its own time.
    pub(super) end: Timestamp,
    /// The number of turns that the id has had.
    pub(super) turns: u16,
    /// Whether its root had not arrived.
    pub(super) rootless: bool,
    /// Whether it was made final early without its root, which may still arrive.
    pub(super) early: bool,
}

/// An id and its ending, in 28 bytes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    id: TraceId,
    end: [u8; 8],
    turns: [u8; 2],
    rootless: bool,
    early: bool,
}

impl Entry {
    fn new(id: TraceId, ending: Ending) -> Self {
        let Ending { end, turns, rootless, early } = ending;
        Self { id, end: end.0.to_ne_bytes(), turns: turns.to_ne_bytes(), rootless, early }
    }

    fn ending(&self) -> Ending {
        let Self { end, turns, rootless, early, .. } = *self;
        let (end, turns) = (Timestamp(u64::from_ne_bytes(end)), u16::from_ne_bytes(turns));
        Ending { end, turns, rootless, early }
    }
}

/// The serialised set: for each tenant the oldest first.
#[derive(Debug, Deserialize, Serialize)]
struct Written<I> {
    oldest_first: I,
}

#[derive(Clone, Debug, Default)]
struct SealedOfTenant {
    // Numbers of the ids in order of arrival, which wrap around.
    numbers: HashTable<u32>,
    first: u32,
    oldest_first: VecDeque<Entry>,
}

impl Sealed {
    pub(super) fn contains(&self, id: TraceKey) -> bool {
        self.tenants.get(&id.tenant).is_some_and(|sealed| sealed.contains(id.id))
    }

    /// The sealed trace with this id, of any tenant, if only one tenant has one.
    pub(super) fn only(&self, id: TraceId) -> Option<TraceKey> {
        let mut of_id = self.tenants.iter().filter(|(_, sealed)| sealed.contains(id));
        let (tenant, _) = of_id.next().filter(|_| of_id.next().is_none())?;
        Some(TraceKey { id, tenant: *tenant })
    }

    /// How the last turn of this id ended, if it is sealed.
    pub(super) fn ending(&self, id: TraceKey) -> Option<Ending> {
        let sealed = self.tenants.get(&id.tenant)?;
        Some(at(&sealed.oldest_first, sealed.first, sealed.number(id.id)?)?.ending())
    }

    /// Adds an id, or updates it for its next turn; returns how many were forgotten for it.
    pub(super) fn insert(
        &mut self,
        sealed: (TraceKey, Ending),
        max: usize,
        shares: &Shares,
    ) -> u64 {
        self.add(sealed);
        self.make_room(max, shares)
    }

    fn add(&mut self, (id, ending): (TraceKey, Ending)) {
        let of_tenant = self.tenants.entry(id.tenant).or_default();
        self.len += usize::from(of_tenant.insert(id.id, ending));
    }

    /// Notes that a root of a sealed trace has arrived; returns whether the trace ended early without it, and this is the first
    /// one.
    pub(super) fn finds_root(&mut self, id: TraceKey) -> bool {
        let sealed = self.tenants.get_mut(&id.tenant);
        let entry = sealed.and_then(|sealed| sealed.entry(id.id));
        entry.is_some_and(|entry| mem::take(&mut entry.early))
    }

    /// Forgets ids while there are too many; returns how many.
    pub(super) fn make_room(&mut self, max: usize, shares: &Shares) -> u64 {
        let mut forgotten = 0;
        while self.len > max {
            let held = self.tenants.iter();
            let held = held.map(|(tenant, sealed)| (*tenant, sealed.oldest_first.len()));
            let Some(most_over_share) = shares.most_over_share(held) else { break };
            self.forget_oldest(most_over_share);
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
            ids.map(|entry| (TraceKey { id: entry.id, tenant: *tenant }, entry.ending()))
        });
        Written { oldest_first: ids.collect::<Vec<_>>() }.serialize(serializer)
    }
}

impl From<Written<Vec<(TraceKey, Ending)>>> for Sealed {
    fn from(written: Written<Vec<(TraceKey, Ending)>>) -> Self {
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

    /// The entry of an id, mutable.
    fn entry(&mut self, id: TraceId) -> Option<&mut Entry> {
        let place = usize::try_from(self.number(id)?.wrapping_sub(self.first)).ok()?;
        self.oldest_first.get_mut(place)
    }

    /// Adds an id, or updates it for a later turn; returns whether it is new.
    fn insert(&mut self, id: TraceId, ending: Ending) -> bool {
        if let Some(entry) = self.entry(id) {
            let former = entry.ending();
            if former.turns < ending.turns {
                let end = former.end.max(ending.end);
                *entry = Entry::new(id, Ending { end, ..ending });
            }
            return false;
        }
        let number = u32::try_from(self.oldest_first.len()).unwrap_or(u32::MAX);
        let number = self.first.wrapping_add(number);
        self.oldest_first.push_back(Entry::new(id, ending));
        let Self { numbers, first, oldest_first } = self;
        let hashed =
            |number: &u32| at(oldest_first, *first, *number).map_or(0, |entry| hash(entry.id));
        numbers.insert_unique(hash(id), number, hashed);
        true
    }

    /// Forgets the oldest id; returns whether there was one.
    fn forget_oldest(&mut self) -> bool {
        let Some(oldest) = self.oldest_first.front() else { return false };
        if let Ok(entry) = self.numbers.find_entry(hash(oldest.id), |number| *number == self.first)
        {
            entry.remove();
        }
        self.oldest_first.pop_front();
        self.first = self.first.wrapping_add(1);
        true
    }

    fn id(&self, number: u32) -> Option<TraceId> {
        at(&self.oldest_first, self.first, number).map(|entry| entry.id)
    }
}

fn at(ids: &VecDeque<Entry>, first: u32, number: u32) -> Option<&Entry> {
    ids.get(usize::try_from(number.wrapping_sub(first)).ok()?)
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

    /// The end of a first turn.
    fn ended(early: bool) -> Ending {
        Ending { end: Timestamp(7), turns: 1, rootless: early, early }
    }

    #[test]
    fn an_entry_is_small() {
        assert_eq!(size_of::<Entry>(), 28);
    }

    #[test]
    fn an_id_has_the_ending_of_its_last_turn() {
        let (mut sealed, shares) = (Sealed::default(), Shares::default());
        let turn = |turns, end| Ending { end: Timestamp(end), turns, ..Ending::default() };
        for (ending, expected) in [
            (turn(1, 10), turn(1, 10)),
            (turn(1, 90), turn(1, 10)),
            (turn(2, 30), turn(2, 30)),
            (turn(3, 20), turn(3, 30)),
            (turn(2, 99), turn(3, 30)),
        ] {
            sealed.insert((of(0, 1), ending), 10, &shares);
            assert_eq!(sealed.ending(of(0, 1)), Some(expected));
        }
        let written = rmp_serde::to_vec_named(&sealed).unwrap();
        let restored: Sealed = rmp_serde::from_slice(&written).unwrap();
        assert_eq!(restored.ending(of(0, 1)), Some(turn(3, 30)));
        assert_eq!((restored.ending(of(1, 1)), sealed.len), (None, 1));
    }

    #[test]
    fn over_the_bound_the_oldest_is_forgotten_also_where_numbers_begin_anew() {
        let (mut sealed, shares) = (Sealed::default(), Shares::default());
        let nobody = SealedOfTenant { first: u32::MAX - 3, ..SealedOfTenant::default() };
        sealed.tenants.insert(0, nobody);
        for number in 0..1_000_u128 {
            let id = of(0, number);
            assert_eq!(sealed.insert((id, ended(false)), 10, &shares), u64::from(number >= 10));
            assert_eq!(sealed.insert((id, ended(true)), 10, &shares), 0);
            assert!(!sealed.finds_root(id));
            for other in 0..=number {
                assert_eq!(sealed.contains(of(0, other)), number - other < 10);
            }
        }
        let restored: Sealed =
            rmp_serde::from_slice(&rmp_serde::to_vec_named(&sealed).unwrap()).unwrap();
        assert_eq!(restored.len, sealed.len);
        let held = sealed.tenants[&0].oldest_first.iter();
        let mut held = held.map(|entry| TraceKey { id: entry.id, tenant: 0 });
        assert!(held.all(|id| restored.contains(id)));
    }

    #[test]
    fn the_root_of_a_trace_that_ended_early_is_found_once_also_after_a_restart() {
        let (mut sealed, shares) = (Sealed::default(), Shares::default());
        for number in 0..10_u128 {
            sealed.insert((of(0, number), ended(number % 2 == 0)), 8, &shares);
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
            sealed.insert((id, ended(false)), 10, &shares);
        }
        let only = |number: u128| sealed.only(TraceId(number.to_be_bytes()));
        assert_eq!([1, 2, 3].map(only), [Some(of(1, 1)), None, None]);
    }

    #[test]
    fn over_the_bound_the_tenant_with_the_most_makes_room() {
        let (mut sealed, shares) = (Sealed::default(), Shares::default());
        for number in 0..4 {
            sealed.insert((of(1, number), ended(false)), 10, &shares);
        }
        for number in 0..100 {
            sealed.insert((of(2, number), ended(false)), 10, &shares);
        }
        assert!((0..4).all(|number| sealed.contains(of(1, number))));
        let held = (0..100).filter(|number| sealed.contains(of(2, *number)));
        assert_eq!(held.collect::<Vec<_>>(), [94, 95, 96, 97, 98, 99]);
        assert_eq!((sealed.make_room(3, &shares), sealed.len), (7, 3));
        assert!(sealed.contains(of(1, 3)) && sealed.contains(of(2, 99)));
    }
}
