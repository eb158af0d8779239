//! Reports whose trace has not come yet.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use crate::span::{Report, Target, Timestamp, TraceId};
use crate::tenants::{TraceKey, tenant_hash};

/// Reports by when they give up and then in order of arrival.
pub(super) type Reports = BTreeMap<(Timestamp, u64), Report>;

/// Reports that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    reports: Reports,
    by_trace: BTreeMap<TraceId, BTreeSet<(Timestamp, u64)>>,
    next: u64,
}

impl Waiting {
    /// Those that an earlier process kept, and the number that the next one gets.
    pub(super) fn restored(reports: Reports, next: u64) -> Self {
        let mut by_trace: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (key, report) in &reports {
            if let Target::Trace(id) = report.target {
                by_trace.entry(id).or_default().insert(*key);
            }
        }
        Self { reports, by_trace, next }
    }

    /// What is written down.
    pub(super) fn saved(&self) -> (&Reports, u64) {
        (&self.reports, self.next)
    }

    /// When the next one gives up.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.reports.first_key_value().map(|((due, _), _)| *due)
    }

    /// Keeps a report for a trace until it gives up. Returns whether there were more than may wait: the one that has waited longest has gone.
    pub(super) fn put(&mut self, id: TraceId, report: Report, due: Timestamp, max: usize) -> bool {
        let key = (due, self.next);
        self.next += 1;
        self.by_trace.entry(id).or_default().insert(key);
        self.reports.insert(key, report);
        self.reports.len() > max && self.drop_first()
    }

    /// The reports for a trace that has come, in order of arrival: its tenant's, and those of who reports for all.
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
        meant.iter().filter_map(|key| self.reports.remove(key)).collect()
    }

    /// Gives up those that are due; returns how many.
    pub(super) fn give_up(&mut self, now: Timestamp) -> u64 {
        let mut gone = 0;
        while self.due().is_some_and(|due| due <= now) && self.drop_first() {
            gone += 1;
        }
        gone
    }

    /// Gives up all; returns how many.
    pub(super) fn give_up_all(&mut self) -> u64 {
        self.by_trace.clear();
        mem::take(&mut self.reports).len() as u64
    }

    /// Returns whether there was one.
    fn drop_first(&mut self) -> bool {
        let Some((key, report)) = self.reports.pop_first() else { return false };
        if let Target::Trace(id) = report.target
            && let Some(keys) = self.by_trace.get_mut(&id)
        {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_trace.remove(&id);
            }
        }
        true
    }
}
