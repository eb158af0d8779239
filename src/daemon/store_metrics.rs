//! The metrics of the store: bytes, records, duration of commits, what recovery found, when its budget is exhausted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::{Gauge, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use crate::clock::Clock;
use crate::registry::{Registry, metrics};
use crate::store::{Budget, Found, Refused, Watch};

metrics! {
    /// The families of metrics.
    struct Families {
        bytes: IntGaugeVec = gauges("store_bytes", "Bytes on disk.", &["what"]),
        records: IntCounter = counter("store_records_total", "Records written."),
        written: IntCounter = counter("store_written_bytes_total", "Bytes of log written, frames included."),
        commit: Histogram = histogram("store_commit_seconds", "Time to write a group, sync included.", &COMMIT_BUCKETS),
        refused: IntCounterVec = counters("store_refused_total",
            "Requests refused because they could not be made durable.", &["reason"]),
        missing: IntCounter = counter("store_files_missing_total",
            "Files that were removed while in use; a snapshot replaces all but those of evicted sessions, which are lost."),
        recovered: IntGaugeVec = gauges("store_recovered", "What the last start found in the store.", &["what"]),
        recovery: Gauge = gauge("store_recovery_seconds", "Duration of the recovery at the last start."),
        snapshots: IntCounterVec = counters("store_snapshots_total", "Snapshots, by outcome: written or failed.", &["outcome"]),
        snapshot_failing: IntGauge = gauge("store_snapshot_failing",
            "1 while the last snapshot could not be written, else 0."),
        unapplied: IntGauge = gauge("store_replay_records", "Records that a restart would replay."),
        failing: IntGauge = gauge("store_failing",
            "1 while records cannot be written because the disk is full or fails, or the directory is gone, else 0."),
    }
}

/// The store's metrics.
pub(super) struct StoreMetrics {
    clock: Clock,
    budget: Arc<Budget>,
    families: Families,
    // Whether the budget was exhausted, or the disk began to fail, since this was last read.
    pressed: AtomicBool,
    fails: Mutex<Option<Failure>>,
}

/// A failure of the disk to store records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    /// The reason of the last failure.
    pub(super) why: Refused,
    /// The bytes of the largest piece that failed. Success with fewer does not show that the disk is well: there is often room for
    /// a few.
    pub(super) bytes: u64,
}

impl StoreMetrics {
    /// Registers the metrics in this registry.
    ///
    /// # Errors
    ///
    /// Fails if two metrics have the same name.
    pub(super) fn new(
        registry: &Registry,
        clock: Clock,
        budget: Arc<Budget>,
    ) -> Result<Arc<Self>, prometheus::Error> {
        let metrics = Self {
            clock,
            budget,
            families: Families::new(registry)?,
            pressed: AtomicBool::new(false),
            fails: Mutex::new(None),
        };
        metrics.measure();
        Ok(Arc::new(metrics))
    }

    /// Notes what recovery found, how many records it replayed, and how long it took.
    pub(super) fn recovered(&self, found: &Found, records: u64, took: Duration) {
        let Found { bad_snapshots, cut_bytes, lost_records, lost_marks } = *found;
        for (what, count) in [
            ("records", records),
            ("cut_bytes", cut_bytes),
            ("lost_records", lost_records),
            ("bad_snapshots", bad_snapshots),
            ("lost_marks", lost_marks),
        ] {
            self.families.recovered.with_label_values(&[what]).set(signed(count));
        }
        self.families.unapplied.set(signed(records));
        self.families.recovery.set(took.as_secs_f64());
    }

    /// Counts a snapshot that was written or failed; `replay_records` are those that a start would replay.
    pub(super) fn snapshot(&self, written: bool, replay_records: u64) {
        let outcome = if written { "written" } else { "failed" };
        self.families.snapshots.with_label_values(&[outcome]).inc();
        self.families.snapshot_failing.set(i64::from(!written));
        self.families.unapplied.set(signed(replay_records));
        self.measure();
    }

    /// Whether the budget was exhausted, or the disk began to fail, since the last call.
    pub(super) fn was_pressed(&self) -> bool {
        self.pressed.swap(false, Ordering::Relaxed)
    }

    /// The failure of the disk; `None` if it stores records.
    pub(super) fn fails(&self) -> Option<Failure> {
        *self.failure()
    }

    /// Notes that the disk stored this many bytes: if the failure was not over more, the disk works again.
    pub(super) fn took(&self, bytes: u64) {
        let mut failure = self.failure();
        if failure.is_some_and(|failure| bytes >= failure.bytes) {
            tracing::info!("the store accepts records again");
            *failure = None;
            self.families.failing.set(0);
        }
    }

    /// Notes that this many bytes were not stored, and logs it once, if the cause is the disk.
    pub(super) fn fell_short(&self, bytes: u64, why: Refused) {
        if !why.is_of_disk() {
            return;
        }
        let mut failure = self.failure();
        if failure.is_none() {
            tracing::error!(
                reason = why.reason(),
                "{why}: requests are refused until it accepts records again"
            );
            self.pressed.store(true, Ordering::Relaxed);
        }
        let most = failure.map_or(bytes, |failure| failure.bytes.max(bytes));
        *failure = Some(Failure { why, bytes: most });
        self.families.failing.set(1);
    }

    fn failure(&self) -> MutexGuard<'_, Option<Failure>> {
        self.fails.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn measure(&self) {
        self.families.bytes.with_label_values(&["log"]).set(signed(self.budget.log()));
        self.families.bytes.with_label_values(&["evicted"]).set(signed(self.budget.evicted()));
        self.families.bytes.with_label_values(&["snapshots"]).set(signed(self.budget.snapshots()));
    }
}

impl Watch for StoreMetrics {
    fn nanos(&self) -> u64 {
        self.clock.now().0
    }

    fn committed(&self, records: u64, bytes: u64, nanos: u64) {
        self.took(bytes);
        self.families.records.inc_by(records);
        self.families.written.inc_by(bytes);
        self.families.unapplied.add(signed(records));
        self.families.commit.observe(Duration::from_nanos(nanos).as_secs_f64());
        self.measure();
    }

    fn missing(&self, name: &str) {
        tracing::error!(
            file = name,
            "a file of the store was removed while in use; a snapshot is written in its place, but sessions in an `evicted` file are lost"
        );
        self.families.missing.inc();
    }

    fn refused(&self, records: u64, bytes: u64, why: Refused) {
        self.families.refused.with_label_values(&[why.reason()]).inc_by(records);
        self.fell_short(bytes, why);
        if why == Refused::Budget {
            self.pressed.store(true, Ordering::Relaxed);
        }
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Upper bounds in seconds: a sync takes from a tenth of a millisecond to a bad second.
const COMMIT_BUCKETS: [f64; 10] =
    [0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_bytes_that_are_taken_do_not_hide_that_requests_are_refused() {
        let budget = Arc::new(Budget::new(1 << 20));
        let metrics = StoreMetrics::new(&Registry::new(), Clock::system(), budget).unwrap();
        metrics.refused(1, 5_000, Refused::Disk);
        metrics.refused(1, 300, Refused::Disk);
        metrics.refused(1, 9_000, Refused::Budget);
        metrics.committed(1, 300, 0);
        let fails = |metrics: &StoreMetrics| metrics.fails().map(|failure| failure.bytes);
        assert_eq!((fails(&metrics), metrics.families.failing.get()), (Some(5_000), 1));
        metrics.took(5_000);
        assert_eq!((fails(&metrics), metrics.families.failing.get()), (None, 0));
    }
}
