//! A bounded table of what was learned lately, by the hash of what it is about: over the bound goes what was not used for longest,
//! nearly.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::hash::FixedMap;

/// What was learned, by hash.
#[derive(Clone, Debug)]
pub(super) struct Recent<V> {
    max: usize,
    // And whether it was used since its turn last came.
    values: FixedMap<u64, (V, bool)>,
    // Invariant: the keys of the values, each once.
    turns: VecDeque<u64>,
    /// How often something had to be forgotten.
    forgotten: u64,
}

/// The same as it is written down: in the order in which turns come.
#[derive(Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub(super) struct Saved<V>(Vec<(u64, V, bool)>);

impl<V> Default for Saved<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V: Default> Recent<V> {
    /// Nothing is known yet; at most so much will be.
    pub(super) fn new(max: usize) -> Self {
        Self { max: max.max(1), values: FixedMap::default(), turns: VecDeque::new(), forgotten: 0 }
    }

    /// What is known of this.
    pub(super) fn get(&self, key: u64) -> Option<&V> {
        self.values.get(&key).map(|(value, _)| value)
    }

    /// What is known of this, to be changed.
    pub(super) fn learn(&mut self, key: u64) -> &mut V {
        let forgets = !self.values.contains_key(&key) && self.make_room();
        self.forgotten += u64::from(forgets);
        let (value, used) = self.values.entry(key).or_insert_with(|| {
            self.turns.push_back(key);
            (V::default(), false)
        });
        *used = true;
        value
    }

    /// How often something was forgotten since this was last asked.
    pub(super) fn take_forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
    }

    /// What outlives the process.
    pub(super) fn save(&self) -> Saved<&V> {
        let turns = self.turns.iter();
        let known = turns.filter_map(|key| self.values.get(key).map(|known| (*key, known)));
        Saved(known.map(|(key, (value, used))| (key, value, *used)).collect())
    }

    /// Takes over what an earlier process knew.
    pub(super) fn restore(&mut self, saved: Saved<V>) {
        (self.values, self.turns) = Default::default();
        for (key, value, used) in saved.0 {
            self.make_room();
            self.turns.push_back(key);
            self.values.insert(key, (value, used));
        }
    }

    /// Forgets something if there is no room for one more; returns whether it did.
    fn make_room(&mut self) -> bool {
        if self.values.len() < self.max {
            return false;
        }
        while let Some(key) = self.turns.pop_front() {
            let used = self.values.get_mut(&key).is_some_and(|(_, used)| std::mem::take(used));
            if !used {
                self.values.remove(&key);
                return true;
            }
            self.turns.push_back(key);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_the_bound_what_is_used_stays() {
        let mut recent: Recent<u64> = Recent::new(3);
        for key in 0..3 {
            *recent.learn(key) = key;
        }
        for key in 10..100 {
            assert_eq!((*recent.learn(1), recent.take_forgotten()), (1, 0));
            recent.learn(key);
            assert_eq!(recent.take_forgotten(), 1, "{key}");
        }
        assert_eq!((recent.values.len(), recent.turns.len()), (3, 3));
        assert_eq!((recent.get(1), recent.get(0)), (Some(&1), None));
        let saved = rmp_serde::to_vec(&recent.save()).unwrap();
        let mut other: Recent<u64> = Recent::new(2);
        other.restore(rmp_serde::from_slice(&saved).unwrap());
        assert_eq!((other.values.len(), other.turns.len()), (2, 2));
    }
}
