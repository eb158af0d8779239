//! Traces that left their session, of which updates may still come. Where there is no room, the oldest is forgotten of the tenant that
//! uses the most of its share.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::tally::Tally;
use crate::hash::FixedMap;
use crate::tenants::{Shares, TenantCounts, TenantHash, TraceKey};

/// Why a trace left its session.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum Fate {
    /// Its session was evicted: the trace is final.
    Evicted,
    /// It moves to another session, which must not count again what this tally has counted.
    Moved(Box<Tally>),
}

/// The last `max` traces that left.
#[derive(Clone, Debug)]
pub(super) struct Departed {
    fates: FixedMap<TraceKey, (u64, Fate)>,
    // By tenant, then age.
    by_age: BTreeMap<(TenantHash, u64), TraceKey>,
    held: TenantCounts,
    next: u64,
    max: usize,
}

/// The traces in a snapshot.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Saved<F> {
    fates: BTreeMap<TraceKey, (u64, F)>,
    next: u64,
}

impl Departed {
    /// No traces yet.
    pub(super) fn new(max: usize) -> Self {
        let (fates, by_age, held) = Default::default();
        Self { fates, by_age, held, next: 0, max }
    }

    /// The traces for a snapshot.
    pub(super) fn save(&self) -> Saved<&Fate> {
        let ids = self.by_age.values();
        let fates = ids.filter_map(|id| self.fates.get(id).map(|(age, fate)| (*id, (*age, fate))));
        Saved { fates: fates.collect(), next: self.next }
    }

    /// Takes over the traces of a snapshot.
    pub(super) fn restore(&mut self, saved: Saved<Fate>) {
        let ages = saved.fates.iter().map(|(trace, (age, _))| ((trace.tenant, *age), *trace));
        self.by_age = ages.collect();
        self.held = TenantCounts::default();
        saved.fates.keys().for_each(|trace| self.held.add(trace.tenant));
        self.fates = saved.fates.into_iter().collect();
        self.next = saved.next;
    }

    /// Remembers a trace; returns whether one had to be forgotten for it.
    pub(super) fn insert(&mut self, trace: TraceKey, fate: Fate, shares: &Shares) -> bool {
        self.remove(trace);
        self.by_age.insert((trace.tenant, self.next), trace);
        self.held.add(trace.tenant);
        self.fates.insert(trace, (self.next, fate));
        self.next += 1;
        let over = self.fates.len() > self.max;
        if over && let Some(tenant) = self.held.greediest(shares) {
            let oldest = self.by_age.range((tenant, 0)..).next().map(|(_, oldest)| *oldest);
            oldest.into_iter().for_each(|oldest| drop(self.remove(oldest)));
        }
        over
    }

    /// Whether the trace left as its session was evicted.
    pub(super) fn is_evicted(&self, trace: TraceKey) -> bool {
        self.fates.get(&trace).is_some_and(|(_, fate)| matches!(fate, Fate::Evicted))
    }

    /// What a moved trace has counted. The trace stays known after that: an assembling stage that was restored from an earlier state
    /// may send it to its former session once more.
    pub(super) fn arrive(&self, trace: TraceKey) -> Option<Tally> {
        match self.fates.get(&trace)? {
            (_, Fate::Evicted) => None,
            (_, Fate::Moved(tally)) => Some(Tally::clone(tally)),
        }
    }

    fn remove(&mut self, trace: TraceKey) -> Option<Fate> {
        let (age, fate) = self.fates.remove(&trace)?;
        self.by_age.remove(&(trace.tenant, age));
        self.held.remove(trace.tenant);
        Some(fate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::TraceId;

    #[test]
    fn over_the_bound_the_oldest_is_forgotten() {
        let (mut departed, shares) = (Departed::new(2), Shares::default());
        let [a, b, c] = [1, 2, 3].map(|byte| TraceKey::from(TraceId([byte; 16])));
        assert!(!departed.insert(a, Fate::Evicted, &shares));
        assert!(!departed.insert(b, Fate::Moved(Box::default()), &shares));
        assert!(!departed.insert(a, Fate::Evicted, &shares));
        assert!(departed.insert(c, Fate::Evicted, &shares));
        assert!(departed.is_evicted(a) && departed.is_evicted(c));
        assert!(departed.arrive(b).is_none());
    }

    #[test]
    fn over_the_bound_the_tenant_with_the_most_makes_room() {
        let (mut departed, shares) = (Departed::new(6), Shares::default());
        let of = |tenant, byte| TraceKey { id: TraceId([byte; 16]), tenant };
        let of_both = (1..=2).map(|byte| of(1, byte)).chain((1..=50).map(|byte| of(2, byte)));
        let forgotten = of_both.filter(|trace| departed.insert(*trace, Fate::Evicted, &shares));
        assert_eq!(forgotten.count(), 46);
        assert!((1..=2).all(|byte| departed.is_evicted(of(1, byte))));
        assert!((1..=50).all(|byte| departed.is_evicted(of(2, byte)) == (byte > 46)));
        let mut restored = Departed::new(6);
        let saved = departed.save();
        let fates = saved.fates.into_iter().map(|(id, (age, fate))| (id, (age, fate.clone())));
        restored.restore(Saved { fates: fates.collect(), next: saved.next });
        assert!(restored.insert(of(2, 51), Fate::Evicted, &shares));
        assert!(!restored.is_evicted(of(2, 47)) && restored.is_evicted(of(1, 1)));
    }

    #[test]
    fn what_a_trace_has_counted_stays_known_when_it_has_arrived() {
        let mut departed = Departed::new(1);
        let trace = TraceKey::from(TraceId([1; 16]));
        departed.insert(trace, Fate::Moved(Box::default()), &Shares::default());
        assert!(departed.arrive(trace).is_some());
        assert!(departed.arrive(trace).is_some());
    }
}
