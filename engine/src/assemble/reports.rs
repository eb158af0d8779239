//! Reports about traces, which come beside the spans.

use std::mem;

use super::open_trace::{Pending, State};
use super::{Assemble, Report, Target, Timestamp, TraceId, TraceKey};

impl Assemble {
    /// Takes a report about a trace, or keeps it until the trace comes.
    pub(super) fn report(&mut self, report: Report, now: Timestamp) {
        let Target::Trace(id) = report.target else {
            self.counts.add("reports", "misdirected");
            return;
        };
        // A report for all tenants is about the one trace of this id.
        let everybody = report.tenant.is_none().then(|| self.traces.only(id)).flatten();
        let key = everybody.unwrap_or_else(|| TraceKey::new(id, report.tenant.as_deref()));
        if self.sealed.contains(key) {
            self.counts.add("reports", "late");
            self.late_reports.push(report);
        } else if self.traces.contains(key) {
            self.apply_report(key, report, now);
        } else {
            self.wait(id, report, now);
        }
    }

    /// The reports about traces that are sealed, since this was last asked: for all session shards, as one of them may hold the trace.
    /// They are to be sent after the updates that were drained before.
    pub fn late_reports(&mut self) -> Vec<Report> {
        mem::take(&mut self.late_reports)
    }

    /// Adds a report to a trace, unless it is full or has one of the same name and identifier that ranks as high.
    pub(super) fn apply_report(&mut self, id: TraceKey, report: Report, now: Timestamp) {
        let max = self.options.max_reports_per_trace;
        let Some(held) = self.traces.get_mut(id) else { return };
        let key = (report.name.clone(), report.identifier.clone());
        let rank = |report: &Report| (report.source, report.time, report.score);
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

    /// Keeps a report until its trace comes.
    fn wait(&mut self, id: TraceId, report: Report, now: Timestamp) {
        let due = now.after(self.options.report_wait);
        let max = self.options.max_waiting_reports;
        self.waiting.put(id, report, due);
        if self.waiting.fit(max, &self.shares) {
            self.counts.add("reports", "waiting_full");
        }
    }

    /// Notes that a report or a reply changed the trace, which tells nothing about whether it is over: its timers stay.
    pub(super) fn reported(&mut self, id: TraceKey, now: Timestamp) {
        let Some(held) = self.traces.get_mut(id) else { return };
        held.revise(1);
        held.touched = held.touched.max(now);
        if held.state != State::Open {
            return self.deadlines.mark(id, held, Pending::News);
        }
        // Changes of an open trace are told after `trace_idle`, if nothing tells them before.
        held.wait_to_tell(now, &self.options);
        if held.due() < held.queued {
            self.deadlines.reschedule(id, held);
        }
    }
}
