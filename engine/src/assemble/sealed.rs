//! Ids of traces that are final: bounded, the oldest forgotten first.

use std::collections::VecDeque;

use hashbrown::HashTable;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::tenants::TraceKey;

/// A bounded set of sealed traces.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Sealed {
    // Their numbers, which go up and begin anew.
    #[serde(skip)]
    numbers: HashTable<u32>,
    #[serde(skip)]
    first: u32,
    oldest_first: VecDeque<TraceKey>,
}

impl Sealed {
    /// Takes over what an earlier process had sealed.
    pub(super) fn restore(&mut self, saved: Self) {
        *self = Self::default();
        for id in saved.oldest_first {
            self.insert(id, usize::MAX);
        }
    }

    pub(super) fn contains(&self, id: TraceKey) -> bool {
        self.numbers.find(hash(id), |number| self.id(*number) == Some(id)).is_some()
    }

    /// Adds an id; returns whether another one had to go for it.
    pub(super) fn insert(&mut self, id: TraceKey, max: usize) -> bool {
        if !self.contains(id) {
            let number = u32::try_from(self.oldest_first.len()).unwrap_or(u32::MAX);
            let number = self.first.wrapping_add(number);
            self.oldest_first.push_back(id);
            let Self { numbers, first, oldest_first } = self;
            let hashed = |number: &u32| at(oldest_first, *first, *number).map_or(0, hash);
            numbers.insert_unique(hash(id), number, hashed);
        }
        if self.oldest_first.len() <= max {
            return false;
        }
        if let Some(oldest) = self.oldest_first.front()
            && let Ok(entry) =
                self.numbers.find_entry(hash(*oldest), |number| *number == self.first)
        {
            entry.remove();
            self.oldest_first.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        true
    }

    fn id(&self, number: u32) -> Option<TraceKey> {
        at(&self.oldest_first, self.first, number)
    }
}

fn at(ids: &VecDeque<TraceKey>, first: u32, number: u32) -> Option<TraceKey> {
    ids.get(usize::try_from(number.wrapping_sub(first)).ok()?).copied()
}

fn hash(id: TraceKey) -> u64 {
    xxh3_64(&id.id.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::TraceId;

    #[test]
    fn over_the_bound_the_oldest_is_forgotten_also_where_numbers_begin_anew() {
        let mut sealed = Sealed { first: u32::MAX - 3, ..Sealed::default() };
        for number in 0..1_000_u128 {
            let id = TraceKey::from(TraceId(number.to_be_bytes()));
            assert_eq!(sealed.insert(id, 10), number >= 10);
            assert!(!sealed.insert(id, 10));
            for other in 0..=number {
                let held = number - other < 10;
                assert_eq!(sealed.contains(TraceId(other.to_be_bytes()).into()), held);
            }
        }
        let mut restored = Sealed::default();
        restored.restore(sealed.clone());
        assert_eq!(restored.oldest_first, sealed.oldest_first);
        assert!(sealed.oldest_first.iter().all(|id| restored.contains(*id)));
    }
}
