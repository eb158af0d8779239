//! Reports that wait for their subject, bounded in number and in time. At the bound, the oldest one of the tenant that holds the
//! most relative to its share is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use super::span::{Report, Timestamp};
use super::tenants::{Shares, TenantHash, tenant_hash};

/// What a group of waiting reports is about.
pub trait Subject: Clone + Ord {
    /// The subject of a report; `None` if it is of another kind.
    fn of(report: &Report) -> Option<Self>;

    /// The tenant whose share a report counts against.
    fn tenant(report: &Report) -> TenantHash {
        tenant_hash(report.tenant.as_deref())
    }
}

/// Reports about subjects that are not known yet.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Written<Reports>", bound = "S: Subject")]
pub struct Waiting<S> {
    reports: Reports,
    // Invariant: the places of all reports; no subject and no tenant without any.
    by_subject: BTreeMap<S, BTreeSet<Place>>,
    by_tenant: BTreeMap<TenantHash, BTreeSet<Place>>,
    next: u64,
    max: usize,
    wait: Duration,
}

/// When a report expires, and its number. As all wait equally long, this is the order of arrival.
type Place = (Timestamp, u64);

type Reports = BTreeMap<Place, Report>;

/// The reports in a snapshot.
#[derive(Debug, Deserialize, Serialize)]
struct Written<R> {
    reports: R,
    next: u64,
}

impl<S: Subject> Waiting<S> {
    /// No reports yet; at most `max` wait, each for `wait`.
    pub fn new(max: usize, wait: Duration) -> Self {
        let (reports, by_subject, by_tenant) = Default::default();
        Self { reports, by_subject, by_tenant, next: 0, max, wait }
    }

    /// Takes over the reports from a snapshot; returns how many were dropped, as it may have been written with a larger bound.
    pub fn restore(&mut self, saved: Self, shares: &Shares) -> u64 {
        *self = Self { max: self.max, wait: self.wait, ..saved };
        self.make_room(shares)
    }

    /// Whether no report waits.
    pub fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    /// Whether any report about this subject waits.
    pub fn has_any(&self, subject: &S) -> bool {
        self.by_subject.contains_key(subject)
    }

    /// Adds a report, unless it is about something else; returns whether another one was dropped for it.
    pub fn insert(&mut self, report: Report, now: Timestamp, shares: &Shares) -> bool {
        let place = (now.after(self.wait), self.next);
        self.next += 1;
        self.put(place, report);
        self.make_room(shares) > 0
    }

    /// Takes the reports about a subject for which `is_meant` holds, in order of arrival.
    pub fn take(&mut self, subject: &S, is_meant: impl Fn(&Report) -> bool) -> Vec<Report> {
        let places = self.by_subject.get(subject).into_iter().flatten();
        let meant = places.filter(|place| self.reports.get(place).is_some_and(&is_meant));
        let meant: Vec<Place> = meant.copied().collect();
        meant.into_iter().filter_map(|place| self.remove(place)).collect()
    }

    /// When the next report expires.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.reports.first_key_value().map(|((due, _), _)| *due)
    }

    /// Takes the reports that have expired.
    pub fn handle_timeout(&mut self, now: Timestamp) -> Vec<Report> {
        let mut given_up = Vec::new();
        while let Some(place) = self.reports.first_key_value().map(|(place, _)| *place)
            && place.0 <= now
        {
            given_up.extend(self.remove(place));
        }
        given_up
    }

    /// Drops reports while there are too many; returns how many.
    fn make_room(&mut self, shares: &Shares) -> u64 {
        let mut dropped = 0;
        while self.reports.len() > self.max {
            let held = self.by_tenant.iter().map(|(tenant, places)| (*tenant, places.len()));
            let most_over_share =
                shares.most_over_share(held).and_then(|tenant| self.by_tenant.get(&tenant));
            let Some(oldest) = most_over_share.and_then(BTreeSet::first).copied() else { break };
            self.remove(oldest);
            dropped += 1;
        }
        dropped
    }

    fn put(&mut self, place: Place, report: Report) {
        let Some(subject) = S::of(&report) else { return };
        self.by_subject.entry(subject).or_default().insert(place);
        self.by_tenant.entry(S::tenant(&report)).or_default().insert(place);
        self.reports.insert(place, report);
    }

    fn remove(&mut self, place: Place) -> Option<Report> {
        let report = self.reports.remove(&place)?;
        leave(&mut self.by_tenant, &S::tenant(&report), place);
        if let Some(subject) = S::of(&report) {
            leave(&mut self.by_subject, &subject, place);
        }
        Some(report)
    }
}

impl<S: Subject> From<Written<Reports>> for Waiting<S> {
    fn from(Written { reports, next }: Written<Reports>) -> Self {
        let mut waiting = Self { next, ..Self::new(0, Duration::ZERO) };
        reports.into_iter().for_each(|(place, report)| waiting.put(place, report));
        waiting
    }
}

impl<S> Serialize for Waiting<S> {
    fn serialize<To: Serializer>(&self, to: To) -> Result<To::Ok, To::Error> {
        Written { reports: &self.reports, next: self.next }.serialize(to)
    }
}

/// Removes a place from those of a key, and the key if it has no other.
fn leave<K: Ord>(places: &mut BTreeMap<K, BTreeSet<Place>>, key: &K, place: Place) {
    if let Some(of_key) = places.get_mut(key) {
        of_key.remove(&place);
        if of_key.is_empty() {
            places.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::math::Quanta;
    use crate::span::{Source, Target, TraceId};

    fn report(tenant: &str, byte: u8) -> Report {
        Report {
            target: Target::Trace(TraceId([byte; 16])),
            name: Arc::from("outcome"),
            score: Quanta(0),
            label: None,
            success: None,
            explanation: None,
            source: Source::Reported,
            identifier: Arc::from(""),
            judge: None,
            time: Timestamp(0),
            tenant: Some(Arc::from(tenant)),
        }
    }

    #[test]
    fn over_the_bound_the_tenant_with_the_most_makes_room() {
        let mut waiting = Waiting::<TraceId>::new(5, Duration::from_secs(1));
        let shares = Shares::default();
        let reports = (2..50).map(|byte| report("bank", byte));
        let over = [report("shop", 1)].into_iter().chain(reports).filter(|report| {
            let Target::Trace(TraceId([second, ..])) = report.target else { return false };
            waiting.insert(report.clone(), Timestamp(u64::from(second)), &shares)
        });
        assert_eq!(over.count(), 44);
        let saved = rmp_serde::to_vec_named(&waiting).unwrap();
        let mut restored = Waiting::new(5, Duration::from_secs(1));
        assert_eq!(restored.restore(rmp_serde::from_slice(&saved).unwrap(), &shares), 0);
        let mut smaller = Waiting::new(2, Duration::from_secs(1));
        assert_eq!(smaller.restore(rmp_serde::from_slice(&saved).unwrap(), &shares), 3);
        assert_eq!(smaller.take(&TraceId([1; 16]), |_| true), [report("shop", 1)]);
        assert_eq!(smaller.handle_timeout(Timestamp(u64::MAX)), [report("bank", 49)]);
        for waiting in [&mut waiting, &mut restored] {
            let mut take = |byte: u8| waiting.take(&TraceId([byte; 16]), |_| true);
            assert_eq!(take(1), [report("shop", 1)]);
            let kept: Vec<u8> = (2..50).filter(|byte| !take(*byte).is_empty()).collect();
            assert_eq!(kept, [46, 47, 48, 49]);
            assert!(waiting.by_tenant.is_empty() && waiting.by_subject.is_empty());
            assert!(waiting.is_empty() && waiting.poll_timeout().is_none());
        }
    }

    #[test]
    fn what_is_not_meant_waits_on_until_its_time_is_over() {
        let mut waiting = Waiting::<TraceId>::new(5, Duration::from_nanos(10));
        let of_tenant =
            |name: &'static str| move |report: &Report| report.tenant.as_deref() == Some(name);
        for (tenant, at) in [("a", 1), ("b", 2), ("a", 3)] {
            waiting.insert(report(tenant, 1), Timestamp(at), &Shares::default());
        }
        let subject = TraceId([1; 16]);
        assert_eq!(waiting.take(&subject, of_tenant("a")).len(), 2);
        assert!(waiting.has_any(&subject) && waiting.take(&subject, of_tenant("a")).is_empty());
        assert_eq!(waiting.poll_timeout(), Some(Timestamp(12)));
        assert_eq!(waiting.handle_timeout(Timestamp(11)), []);
        assert_eq!(waiting.handle_timeout(Timestamp(12)), [report("b", 1)]);
        assert!(!waiting.has_any(&subject));
    }
}
