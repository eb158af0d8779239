//! What somebody says of a trace beside its spans.

use super::open_trace::{Pending, State};
use super::{Assemble, Report, Target, Timestamp, TraceId, TraceKey};

impl Assemble {
    /// Takes a report about a trace, or keeps it until that comes.
    pub(super) fn report(&mut self, report: Report, now: Timestamp) {
        let Target::Trace(id) = report.target else {
            self.counts.add("reports", "misdirected");
            return;
        };
        // Who reports for all tenants means the one trace of this id.
        let everybody = report.tenant.is_none().then(|| self.traces.only(id)).flatten();
        let key = everybody.unwrap_or_else(|| TraceKey::new(id, report.tenant.as_deref()));
        if self.sealed.contains(key) {
            self.counts.add("late", "report_dropped");
        } else if self.traces.contains(key) {
            self.apply_report(key, report, now);
        } else {
            self.wait(id, report, now);
        }
    }

    /// Has a trace take a report, unless it has one that ranks higher.
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

    /// Something was said of the trace, which tells nothing about its being over: its timers stay.
    pub(super) fn reported(&mut self, id: TraceKey, now: Timestamp) {
        let Some(held) = self.traces.get_mut(id) else { return };
        held.revise(1);
        held.touched = held.touched.max(now);
        if held.state != State::Open {
            return self.deadlines.mark(id, held, Pending::News);
        }
        // What is new of an open trace is told in a while, if nothing tells it before.
        held.wait_to_tell(now, &self.options);
        if held.due() < held.queued {
            self.deadlines.reschedule(id, held);
        }
    }
}
