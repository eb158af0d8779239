//! Which trace a response id belongs to, for scores that name nothing else of their target.
//!
//! Bounded: over the bound, the id that was seen first, or the report that has waited longest, is dropped.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::count::Counts;
use super::hash::FixedMap;
use super::span::{IdHash, Report, Target, Timestamp, TraceId};

/// The tenant and the hash of the id: a tenant that makes ids with equal hashes confuses only its own traces.
type Key = (Option<Arc<str>>, IdHash);

/// The least trace that has an id, and the number of entries of `seen` with that id.
#[derive(Debug)]
struct Indexed {
    trace_id: TraceId,
    times: u32,
}

/// The traces of response ids, and the reports that wait for one.
///
/// Few senders report by response id, and every model call has one: ids are noted as they come, and only
/// put into an index when a report asks for one.
#[derive(Debug, Deserialize, Serialize)]
pub struct Resolve {
    #[serde(skip)]
    max: usize,
    #[serde(skip)]
    wait: Duration,
    // Oldest first.
    seen: VecDeque<(Key, TraceId)>,
    // The first `indexed` entries of `seen`, by key.
    #[serde(skip)]
    index: FixedMap<Key, Indexed>,
    #[serde(skip)]
    indexed: usize,
    waiting: FixedMap<Key, Vec<Report>>,
    // When each waiting report is given up, in order of arrival.
    deadlines: BTreeMap<(Timestamp, u64), Key>,
    next: u64,
    #[serde(skip)]
    counts: Counts,
}

impl Resolve {
    /// Remembers the last `max` response ids, and lets as many reports wait.
    pub fn new(max: usize, wait: Duration) -> Self {
        Self {
            max,
            wait,
            seen: VecDeque::new(),
            index: FixedMap::default(),
            indexed: 0,
            waiting: FixedMap::default(),
            deadlines: BTreeMap::new(),
            next: 0,
            counts: Counts::default(),
        }
    }

    /// Takes over the ids and reports of a snapshot.
    pub fn restore(&mut self, saved: Self) {
        *self = Self { max: self.max, wait: self.wait, ..saved };
    }

    /// Remembers the trace of a response; returns the reports that waited for it.
    pub fn seen(
        &mut self,
        tenant: Option<&Arc<str>>,
        id: IdHash,
        trace_id: TraceId,
        now: Timestamp,
    ) -> Vec<Report> {
        self.handle_timeout(now);
        self.seen.push_back(((tenant.cloned(), id), trace_id));
        while self.seen.len() > self.max {
            self.forget_oldest();
        }
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let key = (tenant.cloned(), id);
        let Some(reports) = self.waiting.remove(&key) else { return Vec::new() };
        self.deadlines.retain(|_, other| *other != key);
        let target = self.trace(&key).unwrap_or(trace_id);
        let resolved = |report| Report { target: Target::Trace(target), ..report };
        reports.into_iter().map(resolved).collect()
    }

    /// Returns the report with its target resolved; keeps it if the trace is not known yet.
    pub fn report(&mut self, report: Report, now: Timestamp) -> Option<Report> {
        let Target::Response { tenant, id } = &report.target else { return Some(report) };
        let key = (tenant.clone(), IdHash::from(&**id));
        if let Some(trace_id) = self.trace(&key) {
            return Some(Report { target: Target::Trace(trace_id), ..report });
        }
        if self.deadlines.len() >= self.max {
            self.give_up("waiting_full");
        }
        self.deadlines.insert((now.after(self.wait), self.next), key.clone());
        self.next += 1;
        self.waiting.entry(key).or_default().push(report);
        None
    }

    /// The next moment at which a report is given up.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.deadlines.first_key_value().map(|((due, _), _)| *due)
    }

    /// Drops the reports that have waited too long.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while self.poll_timeout().is_some_and(|due| due <= now) {
            self.give_up("unmatched");
        }
    }

    /// Counts of reports that were given up, and of ids that were forgotten.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counts from zero again.
    pub fn restart_counts(&mut self) {
        self.counts = Counts::default();
    }

    /// The trace of an id; of several, the least, whichever came first.
    fn trace(&mut self, key: &Key) -> Option<TraceId> {
        for (key, trace_id) in self.seen.range(self.indexed..) {
            let new = || Indexed { trace_id: *trace_id, times: 0 };
            let held = self.index.entry(key.clone()).or_insert_with(new);
            held.trace_id = held.trace_id.min(*trace_id);
            held.times += 1;
        }
        self.indexed = self.seen.len();
        self.index.get(key).map(|held| held.trace_id)
    }

    /// Forgets the oldest entry of `seen`; the index keeps its id if that was seen again.
    fn forget_oldest(&mut self) {
        let Some((key, _)) = self.seen.pop_front() else { return };
        self.counts.add("response_ids", "forgotten");
        let Some(indexed) = self.indexed.checked_sub(1) else { return };
        self.indexed = indexed;
        if let Entry::Occupied(mut held) = self.index.entry(key) {
            held.get_mut().times -= 1;
            if held.get().times == 0 {
                held.remove();
            }
        }
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
        let found = resolve.seen(None, IdHash::from("a"), trace, Timestamp(1));
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
        assert_eq!(resolve.seen(None, IdHash::from("b"), TraceId([1; 16]), Timestamp(3)), []);
    }

    #[test]
    fn the_ids_seen_last_are_remembered_whenever_they_are_asked_for() {
        let trace = |number| TraceId([number; 16]);
        let target = |resolve: &mut Resolve, id: &str| {
            resolve.report(report(id), Timestamp(0)).map(|report| report.target)
        };
        for asks_at_once in [false, true] {
            let mut resolve = Resolve::new(3, Duration::from_secs(1));
            let seen = [("a", 1, 1), ("b", 4, 4), ("b", 3, 3), ("b", 5, 3), ("c", 6, 6)];
            for (id, number, least) in seen {
                assert_eq!(resolve.seen(None, IdHash::from(id), trace(number), Timestamp(0)), []);
                if asks_at_once {
                    assert_eq!(target(&mut resolve, id), Some(Target::Trace(trace(least))));
                }
            }
            assert_eq!(resolve.counts().get("response_ids", "forgotten"), 2);
            assert_eq!(target(&mut resolve, "b"), Some(Target::Trace(trace(3))));
            assert_eq!(target(&mut resolve, "c"), Some(Target::Trace(trace(6))));
            assert_eq!(target(&mut resolve, "a"), None);
            assert_eq!(resolve.index.len(), 2);
        }
    }
}
