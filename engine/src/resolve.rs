//! Which trace a response id belongs to, for scores that identify their target by nothing else.
//!
//! At the bound, the oldest id of the tenant that holds the most relative to its share is forgotten.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::count::Counts;
use super::hash::FixedMap;
use super::span::{IdHash, Report, Target, Timestamp, TraceId};
use super::tenants::{Shares, TenantHash, tenant_hash};
use super::waiting::{Subject, Waiting};

/// The tenant and the hash of the id: a tenant that makes ids with equal hashes confuses only its own traces.
type Key = (TenantHash, IdHash);

/// The traces of response ids, and the reports that wait for one.
#[derive(Debug, Deserialize, Serialize)]
pub struct ResponseIndex {
    #[serde(skip)]
    max: usize,
    #[serde(skip)]
    shares: Shares,
    // Invariant: no tenant without any.
    by_tenant: BTreeMap<TenantHash, ResponseIds>,
    // Number of ids of all tenants.
    #[serde(skip)]
    held: usize,
    waiting: Waiting<Key>,
    #[serde(skip)]
    counts: Counts,
}

/// The response ids of one tenant.
///
/// Few senders report by response id, but every model call has one: ids are only recorded when they arrive, and indexed once a
/// report asks for one.
#[derive(Debug, Default, Deserialize, Serialize)]
struct ResponseIds {
    // Oldest first.
    seen: VecDeque<(IdHash, TraceId)>,
    // The first `indexed` entries of `seen`, by id.
    #[serde(skip)]
    index: FixedMap<IdHash, Indexed>,
    #[serde(skip)]
    indexed: usize,
}

/// The least trace that has an id, and the number of entries of `seen` with that id.
#[derive(Debug)]
struct Indexed {
    trace_id: TraceId,
    times: u32,
}

impl ResponseIndex {
    /// Remembers the last `max` response ids, and holds as many waiting reports, each for `wait`.
    pub fn new(max: usize, wait: Duration, shares: Shares) -> Self {
        Self {
            max,
            shares,
            by_tenant: BTreeMap::new(),
            held: 0,
            waiting: Waiting::new(max, wait),
            counts: Counts::default(),
        }
    }

    /// Takes over the ids and reports from a snapshot.
    pub fn restore(&mut self, saved: Self) {
        let over = self.waiting.restore(saved.waiting, &self.shares);
        self.counts.add_many("reports", "waiting_full", over);
        self.by_tenant = saved.by_tenant;
        self.held = self.by_tenant.values().map(|ids| ids.seen.len()).sum();
        self.make_room();
    }

    /// Remembers the trace of a response; returns the reports that waited for it.
    pub fn seen(
        &mut self,
        tenant: Option<&str>,
        id: IdHash,
        trace_id: TraceId,
        now: Timestamp,
    ) -> Vec<Report> {
        self.handle_timeout(now);
        let key = (tenant_hash(tenant), id);
        self.by_tenant.entry(key.0).or_default().seen.push_back((id, trace_id));
        self.held += 1;
        self.make_room();
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let reports = self.waiting.take(&key, |_| true);
        if reports.is_empty() {
            return reports;
        }
        let target = self.trace(key).unwrap_or(trace_id);
        let resolved = |report| Report { target: Target::Trace(target), ..report };
        reports.into_iter().map(resolved).collect()
    }

    /// Returns the report with its target resolved; keeps it if the trace is not known yet.
    pub fn report(&mut self, report: Report, now: Timestamp) -> Option<Report> {
        let Some(key) = Key::of(&report) else { return Some(report) };
        if let Some(trace_id) = self.trace(key) {
            return Some(Report { target: Target::Trace(trace_id), ..report });
        }
        let over = self.waiting.insert(report, now, &self.shares);
        self.counts.add_many("reports", "waiting_full", u64::from(over));
        None
    }

    /// The next moment at which a waiting report expires.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.waiting.poll_timeout()
    }

    /// Drops the reports that have waited too long.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        let unmatched = self.waiting.handle_timeout(now).len();
        self.counts.add_many("reports", "unmatched", unmatched as u64);
    }

    /// Counts of expired reports and of forgotten ids.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counts from zero again.
    pub fn restart_counts(&mut self) {
        self.counts = Counts::default();
    }

    /// The trace of an id; if there are several, the least of them, whatever the order of arrival.
    fn trace(&mut self, (tenant, id): Key) -> Option<TraceId> {
        self.by_tenant.get_mut(&tenant)?.trace(id)
    }

    /// Forgets ids while there are more than the maximum.
    fn make_room(&mut self) {
        let held = |(tenant, ids): (&TenantHash, &ResponseIds)| (*tenant, ids.seen.len());
        while self.held > self.max
            && let Some(tenant) = self.shares.most_over_share(self.by_tenant.iter().map(held))
            && let Some(ids) = self.by_tenant.get_mut(&tenant)
        {
            ids.forget_oldest();
            self.held -= 1;
            if ids.seen.is_empty() {
                self.by_tenant.remove(&tenant);
            }
            self.counts.add("response_ids", "forgotten");
        }
    }
}

impl ResponseIds {
    fn trace(&mut self, id: IdHash) -> Option<TraceId> {
        for (id, trace_id) in self.seen.range(self.indexed..) {
            let new = || Indexed { trace_id: *trace_id, times: 0 };
            let held = self.index.entry(*id).or_insert_with(new);
            held.trace_id = held.trace_id.min(*trace_id);
            held.times += 1;
        }
        self.indexed = self.seen.len();
        self.index.get(&id).map(|held| held.trace_id)
    }

    /// Forgets the oldest entry of `seen`; the index keeps its id if that was seen again.
    fn forget_oldest(&mut self) {
        let Some((id, _)) = self.seen.pop_front() else { return };
        let Some(indexed) = self.indexed.checked_sub(1) else { return };
        self.indexed = indexed;
        if let Entry::Occupied(mut held) = self.index.entry(id) {
            held.get_mut().times -= 1;
            if held.get().times == 0 {
                held.remove();
            }
        }
    }
}

/// The response that a report is about.
impl Subject for Key {
    fn of(report: &Report) -> Option<Self> {
        let Target::Response { tenant, id } = &report.target else { return None };
        Some((tenant_hash(tenant.as_deref()), IdHash::from(&**id)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::math::Quanta;
    use crate::span::Source;

    fn report(id: &str) -> Report {
        Report {
            target: Target::Response { tenant: None, id: Arc::from(id) },
            name: Arc::from("relevance"),
            score: Quanta(1),
            label: None,
            success: None,
            explanation: None,
            source: Source::Reported,
            identifier: Arc::from(""),
            judge: None,
            time: Timestamp(0),
            tenant: None,
        }
    }

    fn resolve(max: usize) -> ResponseIndex {
        ResponseIndex::new(max, Duration::from_secs(1), Shares::default())
    }

    #[test]
    fn a_report_finds_its_trace_whichever_comes_first() {
        let mut resolve = resolve(10);
        let trace = TraceId([1; 16]);
        assert_eq!(resolve.report(report("a"), Timestamp(0)), None);
        let found = resolve.seen(None, IdHash::from("a"), trace, Timestamp(1));
        assert_eq!(found[0].target, Target::Trace(trace));
        assert_eq!(resolve.report(report("a"), Timestamp(2)).unwrap().target, Target::Trace(trace));
        assert_eq!(resolve.poll_timeout(), None);
    }

    #[test]
    fn a_report_without_a_trace_gives_up() {
        let mut resolve = resolve(1);
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
        let target = |resolve: &mut ResponseIndex, id: &str| {
            resolve.report(report(id), Timestamp(0)).map(|report| report.target)
        };
        for asks_at_once in [false, true] {
            let mut resolve = resolve(3);
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
            assert_eq!(resolve.by_tenant[&0].index.len(), 2);
        }
    }

    #[test]
    fn as_many_reports_as_may_wait_find_their_traces_in_time() {
        // Half a minute and more, were each compared with all others.
        let all = 50_000_u32;
        let mut resolve = resolve(50_000);
        for id in (0..all).map(|id| id.to_string()) {
            assert_eq!(resolve.report(report(&id), Timestamp(0)), None);
        }
        for id in (0..all).map(|id| IdHash::from(&*id.to_string())) {
            assert_eq!(resolve.seen(None, id, TraceId([1; 16]), Timestamp(1)).len(), 1);
        }
        assert_eq!(resolve.poll_timeout(), None);
    }

    #[test]
    fn a_tenant_that_floods_makes_room_for_others() {
        let mut resolve = resolve(3);
        let of = |tenant: &str, id: &str| {
            let tenant: Option<Arc<str>> = Some(tenant.into());
            let target = Target::Response { tenant: tenant.clone(), id: id.into() };
            Report { target, tenant, ..report(id) }
        };
        resolve.report(of("shop", "a"), Timestamp(0));
        for id in 0..10 {
            resolve.report(of("bank", &id.to_string()), Timestamp(1));
        }
        let found = resolve.seen(Some("shop"), IdHash::from("a"), TraceId([1; 16]), Timestamp(2));
        assert_eq!(found.len(), 1);
        assert_eq!(resolve.counts().get("reports", "waiting_full"), 8);
        for id in (0..10_u8).map(|id| id.to_string()) {
            resolve.seen(Some("bank"), IdHash::from(&*id), TraceId([2; 16]), Timestamp(3));
        }
        assert_eq!(resolve.counts().get("response_ids", "forgotten"), 8);
        let known = resolve.report(of("shop", "a"), Timestamp(4)).unwrap();
        assert_eq!(known.target, Target::Trace(TraceId([1; 16])));
    }

    #[test]
    fn a_restart_with_less_room_forgets_what_came_first() {
        let mut before = resolve(10);
        for id in ["a", "b", "c"] {
            before.seen(None, IdHash::from(id), TraceId([1; 16]), Timestamp(0));
        }
        for id in ["d", "e", "f"] {
            assert_eq!(before.report(report(id), Timestamp(0)), None);
        }
        let saved = rmp_serde::to_vec_named(&before).unwrap();
        let mut after = resolve(2);
        after.restore(rmp_serde::from_slice(&saved).unwrap());
        let counted = |what, how| after.counts().get(what, how);
        assert_eq!(
            (counted("response_ids", "forgotten"), counted("reports", "waiting_full")),
            (1, 1)
        );
        assert_eq!(after.report(report("a"), Timestamp(0)), None);
        assert!(after.report(report("b"), Timestamp(0)).is_some());
        after.seen(None, IdHash::from("x"), TraceId([2; 16]), Timestamp(1));
        assert_eq!((after.held, after.by_tenant[&0].seen.len()), (2, 2));
    }
}
