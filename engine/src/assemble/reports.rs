//! Reports about traces, which arrive separately from the spans.

use std::mem;

use super::open_trace::{Pending, State};
use super::{Assembler, Report, Target, Timestamp, TraceId, TraceKey};
use crate::tenants::tenant_hash;
use crate::waiting::Subject;

/// The trace that a report is about.
impl Subject for TraceId {
    fn of(report: &Report) -> Option<Self> {
        let Target::Trace(trace) = report.target else { return None };
        Some(trace)
    }
}

impl Assembler {
    /// Applies a report about a trace, or keeps it until the trace arrives.
    pub(super) fn report(&mut self, mut report: Report, now: Timestamp) {
        let Target::Trace(id) = report.target else {
            self.counts.add("reports", "misdirected");
            return;
        };
        // A report for all tenants is about the only trace with this id.
        let only = || self.traces.only(id).or_else(|| self.sealed.only(id));
        let everybody = report.tenant.is_none().then(only).flatten();
        let key = everybody.unwrap_or_else(|| TraceKey::new(id, report.tenant.as_deref()));
        let key = self.reported_turn(key, report.time);
        report.target = Target::Trace(key.id);
        if self.sealed.contains(key) {
            self.counts.add("reports", "late");
            self.late_reports.push(report);
        } else if self.traces.contains(key) {
            self.apply_report(key, report, now);
        } else {
            let over = self.waiting.insert(report, now, &self.shares);
            self.counts.add_many("reports", "waiting_full", u64::from(over));
        }
    }

    /// The reports about sealed traces since the last call: for all session shards, as one of them may hold the trace. They must be
    /// sent after the updates that were drained before.
    pub fn late_reports(&mut self) -> Vec<Report> {
        mem::take(&mut self.late_reports)
    }

    /// Adds a report to a trace, unless the trace is full or has one with the same name and identifier that ranks as high.
    pub(super) fn apply_report(&mut self, id: TraceKey, report: Report, now: Timestamp) {
        let max = self.options.max_reports_per_trace;
        let Some(held) = self.traces.get_mut(id) else { return };
        let key = (report.name.clone(), report.identifier.clone());
        let rank =
            |report: &Report| (report.source, report.time, report.score, report.is_success());
        let reports = &mut held.parts.others.get_or_insert_default().reports;
        match reports.get(&key) {
            Some(other) if rank(other) >= rank(&report) => self.counts.add("reports", "duplicate"),
            None if reports.len() >= max => self.counts.add("reports", "trace_full"),
            Some(_) | None => {
                reports.insert(key, report);
                self.counts.add("reports", "applied");
                self.reported(id, now);
            }
        }
    }

    /// Takes the waiting reports for a trace that has arrived: those of its tenant, and those for all tenants.
    pub(super) fn take_waiting(&mut self, TraceKey { id, tenant }: TraceKey) -> Vec<Report> {
        self.waiting.take(&id, |report| {
            report.tenant.is_none() || tenant_hash(report.tenant.as_deref()) == tenant
        })
    }

    /// Drops the reports that have expired.
    pub(super) fn give_up_reports(&mut self, now: Timestamp) {
        let unmatched = self.waiting.handle_timeout(now).len();
        self.counts.add_many("reports", "unmatched", unmatched as u64);
    }

    /// Notes that a report or a reply changed the trace, which does not affect whether it is done: its timers stay.
    pub(super) fn reported(&mut self, id: TraceKey, now: Timestamp) {
        let Some(held) = self.traces.get_mut(id) else { return };
        held.revise(1);
        held.touched = held.touched.max(now);
        if held.state != State::Open {
            return self.deadlines.mark(id, held, Pending::News);
        }
        // Changes of an open trace are sent after `trace_idle`, if nothing sends them before.
        held.wait_to_tell(now, &self.options);
        if held.due() < held.queued {
            self.deadlines.reschedule(id, held);
        }
    }
}
