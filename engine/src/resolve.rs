//! Which trace a response id belongs to: for scores that know nothing else of their target.
//!
//! Bounded: over the bound the oldest id, or the report that has waited longest, goes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::count::Counts;
use super::hash::FixedMap;
use super::span::{Report, Target, Timestamp, TraceId};

/// The tenant and the hash of the id: who makes ids whose hashes are equal confuses no trace but its own.
type Key = (Option<Arc<str>>, u64);

/// The index from response ids to traces.
#[derive(Debug, Deserialize, Serialize)]
pub struct Resolve {
    #[serde(skip)]
    max: usize,
    #[serde(skip)]
    wait: Duration,
    traces: FixedMap<Key, TraceId>,
    oldest_first: VecDeque<Key>,
    waiting: FixedMap<Key, Vec<Report>>,
    // When each waiting report gives up, in order of arrival.
    deadlines: BTreeMap<(Timestamp, u64), Key>,
    next: u64,
    #[serde(skip)]
    counts: Counts,
}

impl Resolve {
    /// An empty index of at most `max` ids and as many waiting reports.
    pub fn new(max: usize, wait: Duration) -> Self {
        Self {
            max,
            wait,
            traces: FixedMap::default(),
            oldest_first: VecDeque::new(),
            waiting: FixedMap::default(),
            deadlines: BTreeMap::new(),
            next: 0,
            counts: Counts::default(),
        }
    }

    /// Takes over what an earlier process held.
    pub fn restore(&mut self, saved: Self) {
        *self = Self { max: self.max, wait: self.wait, ..saved };
    }

    /// Learns the trace of a response; returns the reports that waited for it.
    pub fn seen(
        &mut self,
        tenant: Option<&Arc<str>>,
        id: &Arc<str>,
        trace_id: TraceId,
        now: Timestamp,
    ) -> Vec<Report> {
        self.handle_timeout(now);
        let key = key(tenant, id);
        let held = self.traces.entry(key.clone()).or_insert_with_key(|key| {
            self.oldest_first.push_back(key.clone());
            trace_id
        });
        // Should two traces claim one id, the lesser is its trace, whichever came first.
        *held = trace_id.min(*held);
        let target = *held;
        if self.traces.len() > self.max
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.traces.remove(&oldest);
            self.counts.add("response_ids", "forgotten");
        }
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let reports = self.waiting.remove(&key).unwrap_or_default();
        if !reports.is_empty() {
            self.deadlines.retain(|_, other| *other != key);
        }
        reports
            .into_iter()
            .map(|report| Report { target: Target::Trace(target), ..report })
            .collect()
    }

    /// Returns the report with its target resolved, or keeps it until that is known.
    pub fn report(&mut self, report: Report, now: Timestamp) -> Option<Report> {
        let Target::Response { tenant, id } = &report.target else { return Some(report) };
        let key = key(tenant.as_ref(), id);
        if let Some(trace_id) = self.traces.get(&key) {
            return Some(Report { target: Target::Trace(*trace_id), ..report });
        }
        if self.deadlines.len() >= self.max {
            self.give_up("waiting_full");
        }
        self.deadlines.insert((now.after(self.wait), self.next), key.clone());
        self.next += 1;
        self.waiting.entry(key).or_default().push(report);
        None
    }

    /// The next moment at which a report gives up.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.deadlines.first_key_value().map(|((due, _), _)| *due)
    }

    /// Drops the reports that have waited too long.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while self.poll_timeout().is_some_and(|due| due <= now) {
            self.give_up("unmatched");
        }
    }

    /// What became of reports, and of ids over the bound.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counts from zero again.
    pub fn restart_counts(&mut self) {
        self.counts = Counts::default();
    }

    /// Drops the report that has waited longest.
    fn give_up(&mut self, why: &'static str) {
        let Some((_, key)) = self.deadlines.pop_first() else { return };
        self.counts.add("reports", why);
        if let Some(reports) = self.waiting.get_mut(&key) {
            reports.remove(0);
            if reports.is_empty() {
                self.waiting.remove(&key);
            }
        }
    }
}

fn key(tenant: Option<&Arc<str>>, id: &str) -> Key {
    (tenant.cloned(), xxh3_64(id.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::Quanta;
    use crate::span::Source;

    fn report(id: &str) -> Report {
        Report {
            target: Target::Response { tenant: None, id: Arc::from(id) },
            name: Arc::from("relevance"),
            score: Quanta(1),
            label: None,
            explanation: None,
            source: Source::Reported,
            identifier: Arc::from(""),
            judge: None,
            time: Timestamp(0),
            tenant: None,
        }
    }

    #[test]
    fn a_report_finds_its_trace_whichever_comes_first() {
        let mut resolve = Resolve::new(10, Duration::from_secs(1));
        let trace = TraceId([1; 16]);
        assert_eq!(resolve.report(report("a"), Timestamp(0)), None);
        let found = resolve.seen(None, &Arc::from("a"), trace, Timestamp(1));
        assert_eq!(found[0].target, Target::Trace(trace));
        assert_eq!(resolve.report(report("a"), Timestamp(2)).unwrap().target, Target::Trace(trace));
        assert_eq!(resolve.poll_timeout(), None);
    }

    #[test]
    fn a_report_without_a_trace_gives_up() {
        let mut resolve = Resolve::new(1, Duration::from_secs(1));
        assert_eq!(resolve.report(report("a"), Timestamp(0)), None);
        assert_eq!(resolve.report(report("b"), Timestamp(1)), None);
        assert_eq!(resolve.counts().get("reports", "waiting_full"), 1);
        resolve.handle_timeout(Timestamp(2_000_000_000));
        assert_eq!(resolve.counts().get("reports", "unmatched"), 1);
        assert_eq!(resolve.seen(None, &Arc::from("b"), TraceId([1; 16]), Timestamp(3)), []);
    }
}
