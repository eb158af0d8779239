//! A bounded table of what was learned recently, by topic: at the bound, the tenant that holds the most relative to its share loses
//! its (approximately) least recently used entry.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::hash::FixedMap;
use crate::tenants::{Shares, TenantHash};

/// The key of an entry: a tenant and a hash.
pub(super) type LearnedKey = (TenantHash, u64);

/// A value that merges with others, in any order and any number of times.
pub(super) trait Join {
    /// Merges another value into this one.
    fn join(&mut self, other: Self);
}

/// What was learned, by hash.
#[derive(Clone, Debug)]
pub(super) struct Recent<V> {
    max: usize,
    shares: Shares,
    // Each with whether it was used since its turn last came up.
    values: FixedMap<LearnedKey, (V, bool)>,
    // Invariant: the keys of the values, each once; no tenant without any.
    turns: BTreeMap<TenantHash, VecDeque<u64>>,
    /// Number of forgotten entries.
    forgotten: u64,
}

/// The table for a snapshot: the entries of each tenant in the order of their turns.
#[derive(Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub(super) struct Saved<V>(Vec<(LearnedKey, V, bool)>);

impl<V> Default for Saved<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V: Default> Recent<V> {
    /// An empty table of at most `max` entries.
    pub(super) fn new(max: usize) -> Self {
        let (values, turns) = Default::default();
        Self { max: max.max(1), shares: Shares::default(), values, turns, forgotten: 0 }
    }

    /// Sets the shares by which tenants divide the bound.
    pub(super) fn shared_by(&mut self, shares: Shares) {
        self.shares = shares;
    }

    /// What is known about a topic.
    pub(super) fn get(&self, topic: LearnedKey) -> Option<&V> {
        self.values.get(&topic).map(|(value, _)| value)
    }

    /// Whether a topic survives when room is made, as it was used since its turn last came up.
    pub(super) fn is_safe(&self, topic: LearnedKey) -> bool {
        self.values.get(&topic).is_some_and(|(_, used)| *used)
    }

    /// What is known about a topic, mutable; the default if it is new.
    pub(super) fn learn(&mut self, topic: LearnedKey) -> &mut V {
        let forgets = !self.values.contains_key(&topic) && self.make_room(topic.0);
        self.forgotten += u64::from(forgets);
        let (value, used) = self.values.entry(topic).or_insert_with(|| {
            self.turns.entry(topic.0).or_default().push_back(topic.1);
            (V::default(), false)
        });
        *used = true;
        value
    }

    /// The number of entries forgotten since the last call.
    pub(super) fn take_forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
    }

    /// The table for a snapshot.
    pub(super) fn save(&self) -> Saved<&V> {
        let turns = self.turns.iter();
        let topics = turns.flat_map(|(tenant, own)| own.iter().map(|hash| (*tenant, *hash)));
        let known = topics.filter_map(|topic| self.values.get(&topic).map(|known| (topic, known)));
        Saved(known.map(|(topic, (value, used))| (topic, value, *used)).collect())
    }

    /// Takes over the table from a snapshot.
    pub(super) fn restore(&mut self, saved: Saved<V>) {
        (self.values, self.turns) = Default::default();
        for ((tenant, hash), value, used) in saved.0 {
            self.make_room(tenant);
            self.turns.entry(tenant).or_default().push_back(hash);
            self.values.insert((tenant, hash), (value, used));
        }
    }

    /// Forgets an entry if there is no room for another one of this tenant; returns whether it did.
    fn make_room(&mut self, newcomer: TenantHash) -> bool {
        if self.values.len() < self.max {
            return false;
        }
        let held = self.turns.iter();
        let held =
            held.map(|(tenant, own)| (*tenant, own.len() + usize::from(*tenant == newcomer)));
        let Some(tenant) = self.shares.most_over_share(held) else { return false };
        let Some(own) = self.turns.get_mut(&tenant) else { return false };
        while let Some(hash) = own.pop_front() {
            let topic = (tenant, hash);
            let used = self.values.get_mut(&topic).is_some_and(|(_, used)| std::mem::take(used));
            if !used {
                self.values.remove(&topic);
                break;
            }
            own.push_back(hash);
        }
        if own.is_empty() {
            self.turns.remove(&tenant);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_the_bound_what_is_used_stays() {
        let mut recent: Recent<u64> = Recent::new(3);
        for key in 0..3 {
            *recent.learn((0, key)) = key;
        }
        for key in 10..100 {
            assert_eq!((*recent.learn((0, 1)), recent.take_forgotten()), (1, 0));
            recent.learn((0, key));
            assert_eq!(recent.take_forgotten(), 1, "{key}");
        }
        assert_eq!((recent.values.len(), recent.turns[&0].len()), (3, 3));
        assert_eq!((recent.get((0, 1)), recent.get((0, 0))), (Some(&1), None));
        let saved = rmp_serde::to_vec(&recent.save()).unwrap();
        let mut other: Recent<u64> = Recent::new(2);
        other.restore(rmp_serde::from_slice(&saved).unwrap());
        assert_eq!((other.values.len(), other.turns[&0].len()), (2, 2));
    }

    #[test]
    fn a_flood_of_one_tenant_forgets_nothing_of_another() {
        let mut recent: Recent<u64> = Recent::new(100);
        for key in 0..20 {
            *recent.learn((1, key)) = key;
        }
        for key in 0..10_000 {
            recent.learn((2, key));
        }
        assert!((0..20).all(|key| recent.get((1, key)) == Some(&key)));
        assert_eq!((recent.values.len(), recent.take_forgotten()), (100, 9_920));
        // Whoever comes late has as much in the end.
        for key in 0..1_000 {
            recent.learn((3, key));
        }
        let held = |tenant| recent.turns[&tenant].len();
        assert_eq!((held(1), held(2), held(3)), (20, 40, 40));
    }
}
