//! Traces that left a session and may be heard of again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::tally::Tally;
use crate::hash::FixedMap;
use crate::tenants::TraceKey;

/// What became of a trace.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum Fate {
    /// It went with its evicted session: final.
    Evicted,
    /// It moves to another session, which must not count again what was counted.
    Moved(Box<Tally>),
}

/// The last traces that left, at most so many; over it the oldest is forgotten.
#[derive(Clone, Debug)]
pub(super) struct Departed {
    fates: FixedMap<TraceKey, (u64, Fate)>,
    by_age: BTreeMap<u64, TraceKey>,
    next: u64,
    max: usize,
}

/// The same as it is written down.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Saved<F> {
    fates: BTreeMap<TraceKey, (u64, F)>,
    next: u64,
}

impl Departed {
    /// Makes room for `max` traces.
    pub(super) fn new(max: usize) -> Self {
        Self { fates: FixedMap::default(), by_age: BTreeMap::new(), next: 0, max }
    }

    /// What outlives the process.
    pub(super) fn save(&self) -> Saved<&Fate> {
        let ids = self.by_age.values();
        let fates = ids.filter_map(|id| self.fates.get(id).map(|(age, fate)| (*id, (*age, fate))));
        Saved { fates: fates.collect(), next: self.next }
    }

    /// Takes over what an earlier process remembered.
    pub(super) fn restore(&mut self, saved: Saved<Fate>) {
        self.by_age = saved.fates.iter().map(|(trace, (age, _))| (*age, *trace)).collect();
        self.fates = saved.fates.into_iter().collect();
        self.next = saved.next;
    }

    /// Remembers a trace; returns whether one had to be forgotten for it.
    pub(super) fn insert(&mut self, trace: TraceKey, fate: Fate) -> bool {
        self.remove(trace);
        self.by_age.insert(self.next, trace);
        self.fates.insert(trace, (self.next, fate));
        self.next += 1;
        let over = self.fates.len() > self.max;
        if over && let Some((_, oldest)) = self.by_age.pop_first() {
            self.fates.remove(&oldest);
        }
        over
    }

    /// Returns whether the trace went with its session.
    pub(super) fn is_evicted(&self, trace: TraceKey) -> bool {
        self.fates.get(&trace).is_some_and(|(_, fate)| matches!(fate, Fate::Evicted))
    }

    /// What a moved trace has counted. It stays known when it has arrived: an owner of the stage before, who begins further
    /// back, tells it to the session that it left once more.
    pub(super) fn arrive(&self, trace: TraceKey) -> Option<Tally> {
        match self.fates.get(&trace)? {
            (_, Fate::Evicted) => None,
            (_, Fate::Moved(tally)) => Some(Tally::clone(tally)),
        }
    }

    fn remove(&mut self, trace: TraceKey) -> Option<Fate> {
        let (age, fate) = self.fates.remove(&trace)?;
        self.by_age.remove(&age);
        Some(fate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::TraceId;

    #[test]
    fn over_the_bound_the_oldest_is_forgotten() {
        let mut departed = Departed::new(2);
        let [a, b, c] = [1, 2, 3].map(|byte| TraceKey::from(TraceId([byte; 16])));
        assert!(!departed.insert(a, Fate::Evicted));
        assert!(!departed.insert(b, Fate::Moved(Box::default())));
        assert!(!departed.insert(a, Fate::Evicted));
        assert!(departed.insert(c, Fate::Evicted));
        assert!(departed.is_evicted(a) && departed.is_evicted(c));
        assert!(departed.arrive(b).is_none());
    }

    #[test]
    fn what_a_trace_has_counted_stays_known_when_it_has_arrived() {
        let mut departed = Departed::new(1);
        let trace = TraceKey::from(TraceId([1; 16]));
        departed.insert(trace, Fate::Moved(Box::default()));
        assert!(departed.arrive(trace).is_some());
        assert!(departed.arrive(trace).is_some());
    }
}
