//! Reports whose trace has not come yet; if there is no room, the tenant that has the most in proportion to its share loses its oldest.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use crate::span::{Report, Target, Timestamp, TraceId};
use crate::tenants::{Shares, TenantHash, TraceKey, tenant_hash};

/// Reports by when they are dropped, and then in order of arrival.
pub(super) type Reports = BTreeMap<(Timestamp, u64), Report>;

/// Reports that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    reports: Reports,
    by_trace: BTreeMap<TraceId, BTreeSet<(Timestamp, u64)>>,
    // Invariant: the keys of all reports; no tenant without any.
    by_tenant: BTreeMap<TenantHash, BTreeSet<(Timestamp, u64)>>,
    next: u64,
}

impl Waiting {
    /// The waiting reports of a snapshot; the next report gets the number `next`.
    pub(super) fn restored(reports: Reports, next: u64) -> Self {
        let mut by_trace: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        let mut by_tenant: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (key, report) in &reports {
            by_tenant.entry(whose(report)).or_default().insert(*key);
            if let Target::Trace(id) = report.target {
                by_trace.entry(id).or_default().insert(*key);
            }
        }
        Self { reports, by_trace, by_tenant, next }
    }

    /// The reports for a snapshot, and the number that the next one gets.
    pub(super) fn saved(&self) -> (&Reports, u64) {
        (&self.reports, self.next)
    }

    /// When the next report is dropped.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.reports.first_key_value().map(|((due, _), _)| *due)
    }

    /// Adds a report about a trace that has not come; `due` is when it is dropped.
    pub(super) fn put(&mut self, id: TraceId, report: Report, due: Timestamp) {
        let key = (due, self.next);
        self.next += 1;
        self.by_trace.entry(id).or_default().insert(key);
        self.by_tenant.entry(whose(&report)).or_default().insert(key);
        self.reports.insert(key, report);
    }

    /// Drops the oldest report of the tenant that has the most in proportion to its share if there are more than `max`; returns whether it
    /// did.
    pub(super) fn fit(&mut self, max: usize, shares: &Shares) -> bool {
        if self.reports.len() <= max {
            return false;
        }
        let held = self.by_tenant.iter().map(|(tenant, keys)| (*tenant, keys.len()));
        let greediest = shares.greediest(held).and_then(|tenant| self.by_tenant.get(&tenant));
        let oldest = greediest.and_then(BTreeSet::first).copied();
        oldest.is_some_and(|key| self.remove(key).is_some())
    }

    /// Takes the reports for a trace that has come, in order of arrival: those of its tenant, and those for all tenants.
    pub(super) fn take(&mut self, trace: TraceKey) -> Vec<Report> {
        let Some(keys) = self.by_trace.remove(&trace.id) else { return Vec::new() };
        let is_meant = |key: &(Timestamp, u64)| {
            let tenant = self.reports.get(key).and_then(|report| report.tenant.as_deref());
            tenant.is_none() || tenant_hash(tenant) == trace.tenant
        };
        let (meant, others): (BTreeSet<_>, BTreeSet<_>) = keys.into_iter().partition(is_meant);
        if !others.is_empty() {
            self.by_trace.insert(trace.id, others);
        }
        meant.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Drops the reports that are due; returns how many.
    pub(super) fn give_up(&mut self, now: Timestamp) -> u64 {
        let mut gone = 0;
        let first = |reports: &Reports| reports.first_key_value().map(|(key, _)| *key);
        while let Some(key) = first(&self.reports).filter(|(due, _)| *due <= now) {
            gone += u64::from(self.remove(key).is_some());
        }
        gone
    }

    /// Drops all reports; returns how many.
    pub(super) fn give_up_all(&mut self) -> u64 {
        self.by_trace.clear();
        self.by_tenant.clear();
        mem::take(&mut self.reports).len() as u64
    }

    fn remove(&mut self, key: (Timestamp, u64)) -> Option<Report> {
        let report = self.reports.remove(&key)?;
        let tenant = whose(&report);
        if let Some(keys) = self.by_tenant.get_mut(&tenant) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_tenant.remove(&tenant);
            }
        }
        if let Target::Trace(id) = report.target
            && let Some(keys) = self.by_trace.get_mut(&id)
        {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_trace.remove(&id);
            }
        }
        Some(report)
    }
}

/// The tenant of a report.
fn whose(report: &Report) -> TenantHash {
    tenant_hash(report.tenant.as_deref())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::math::Quanta;
    use crate::span::Source;

    fn report(tenant: &str, byte: u8) -> (TraceId, Report) {
        let id = TraceId([byte; 16]);
        let report = Report {
            target: Target::Trace(id),
            name: Arc::from("outcome"),
            score: Quanta(0),
            label: None,
            explanation: None,
            source: Source::Reported,
            identifier: Arc::from(""),
            judge: None,
            time: Timestamp(0),
            tenant: Some(Arc::from(tenant)),
        };
        (id, report)
    }

    #[test]
    fn over_the_bound_the_tenant_with_the_most_makes_room() {
        let (mut waiting, shares) = (Waiting::default(), Shares::default());
        let reports =
            [report("shop", 1)].into_iter().chain((2..50).map(|byte| report("bank", byte)));
        let over = reports.filter(|report| {
            let due = Timestamp(u64::from(report.0.0[0]));
            waiting.put(report.0, report.1.clone(), due);
            waiting.fit(5, &shares)
        });
        assert_eq!(over.count(), 44);
        let of = |byte, tenant| TraceKey::new(TraceId([byte; 16]), Some(tenant));
        assert_eq!(waiting.take(of(1, "shop")).len(), 1);
        let kept: Vec<u8> =
            (2..50).filter(|byte| !waiting.take(of(*byte, "bank")).is_empty()).collect();
        assert_eq!(kept, [46, 47, 48, 49]);
        assert!(waiting.by_tenant.is_empty() && waiting.due().is_none());
    }
}
