//! The metrics of the workers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{GaugeVec, IntCounterVec, IntGauge, IntGaugeVec};

use super::options::Role;
use crate::health::Health;
use crate::ingest::kafka::SourceMetrics;
use crate::registry::metrics;

metrics! {
    /// The families of metrics.
    struct Families {
        records: IntCounterVec = counters("fleet_records_total",
            "Records between stages, by outcome.", &["role", "outcome"]),
        checkpoints: IntCounterVec = counters("fleet_checkpoints_total",
            "Checkpoints of partitions, by outcome.", &["role", "outcome"]),
        restarts: IntCounterVec = counters("fleet_restarts_total",
            "Times that an instance gave up all partitions because others might own them.", &["role"]),
        gone: IntCounterVec = counters("fleet_records_lost_total",
            "Records that the brokers had deleted, or lost from the end of a topic, before they were read.",
            &["role"]),
        owned: IntGaugeVec = gauges("fleet_partitions_owned", "Partitions of this instance.", &["role"]),
        behind: IntGaugeVec = gauges("fleet_partitions_behind",
            "Partitions of this instance that have not caught up since they were taken over.", &["role"]),
        ready: IntGaugeVec = gauges("fleet_ready",
            "Whether a role of this instance works: it is in its group, or has found its topics, and no problem is known.", &["role"]),
        lag: GaugeVec = gauges("input_lag_seconds",
            "How far the time of a partition is behind, while it is not at its end.", &["role", "partition"]),
        complete: IntGauge = gauge("state_complete",
            "1 once all roles of this instance have caught up; 0 also while a partition without a checkpoint rereads its topic."),
    }
}

/// The state that all workers of the instance share.
#[derive(Clone)]
pub(super) struct FleetMetrics {
    families: Families,
    standing: Arc<Mutex<BTreeMap<Role, WorkerStatus>>>,
    health: Arc<Health>,
}

/// The state of one worker.
#[derive(Debug, Default)]
struct WorkerStatus {
    joined: bool,
    behind: usize,
    partial: usize,
    problem: Option<String>,
    partitions: Vec<i32>,
}

/// The outcomes of a record.
const OUTCOMES: [&str; 8] = [
    "applied",
    "replaced_sender",
    "malformed",
    "misdirected",
    "not_held",
    "too_large",
    "unwritable",
    "internal",
];

/// The outcomes of a checkpoint.
const WRITTEN: &str = "written";
const FAILED: &str = "failed";

/// The metrics of one worker.
pub(super) struct WorkerMetrics {
    role: Role,
    fleet: FleetMetrics,
}

impl FleetMetrics {
    pub(super) fn new(health: &Arc<Health>) -> Result<Self, prometheus::Error> {
        let families = Families::new(health.registry())?;
        // An instance without workers has nothing to read again.
        families.complete.set(1);
        Ok(Self { families, standing: Arc::default(), health: Arc::clone(health) })
    }

    pub(super) fn of(&self, role: Role) -> Arc<WorkerMetrics> {
        self.change(role, |_| {});
        // Exported from zero on, as an alert sees no rise in a series that did not exist.
        let Families { gone, restarts, owned, behind, records, .. } = &self.families;
        for counter in [gone, restarts] {
            counter.with_label_values(&[role.name()]);
        }
        for gauge in [owned, behind] {
            gauge.with_label_values(&[role.name()]);
        }
        for outcome in OUTCOMES {
            records.with_label_values(&[role.name(), outcome]);
        }
        for outcome in [WRITTEN, FAILED] {
            self.families.checkpoints.with_label_values(&[role.name(), outcome]);
        }
        Arc::new(WorkerMetrics { role, fleet: self.clone() })
    }

    /// The watch of the gateway, which only sets whether it is ready.
    pub(super) fn gateway(&self) -> Arc<dyn SourceMetrics> {
        self.change(Role::Gateway, |_| {});
        Arc::new(WorkerMetrics { role: Role::Gateway, fleet: self.clone() })
    }

    /// Fails with a worker's problem while there is one.
    pub(super) fn unhindered(&self) -> Result<(), String> {
        let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut problems = standing.values().filter_map(|standing| standing.problem.clone());
        problems.next().map_or(Ok(()), Err)
    }

    /// Fails, with the reason, while a worker has not caught up.
    pub(super) fn ready(&self) -> Result<(), String> {
        let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        for (role, standing) in &*standing {
            if standing.behind > 0 {
                let (role, behind) = (role.name(), standing.behind);
                return Err(format!("{behind} partitions of role `{role}` have not caught up"));
            }
        }
        Ok(())
    }

    fn change(&self, role: Role, change: impl FnOnce(&mut WorkerStatus)) {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        change(standing.entry(role).or_default());
        for (role, standing) in &*standing {
            let ready = self.families.ready.with_label_values(&[role.name()]);
            ready.set(i64::from(standing.is_at_work()));
        }
        let mut readers = standing.iter().filter(|(role, _)| **role != Role::Gateway);
        let complete = readers.all(|(_, standing)| standing.is_at_work() && standing.partial == 0);
        self.families.complete.set(i64::from(complete));
    }
}

impl WorkerStatus {
    fn is_at_work(&self) -> bool {
        self.joined && self.problem.is_none()
    }
}

/// Only the readiness of a worker's connection to its brokers is exported here.
impl SourceMetrics for WorkerMetrics {
    fn ready(&self, ready: bool) {
        self.fleet.change(self.role, |standing| standing.joined = ready);
    }

    fn applied(&self, _: &str) {}
    fn skipped(&self, _: &str, _: &'static str) {}
    fn gone(&self, _: &str, _: u64) {}
    fn dead_letter(&self, _: bool) {}
    fn paused(&self, _: bool) {}
    fn lags(&self, _: &BTreeMap<(String, i32), i64>) {}
}

impl WorkerMetrics {
    /// Counts a record as applied, or by the reason why it was not.
    pub(super) fn record(&self, result: Result<(), &'static str>) {
        let outcome = result.err().unwrap_or("applied");
        self.fleet.families.records.with_label_values(&[self.role.name(), outcome]).inc();
    }

    pub(super) fn checkpoint(&self, written: bool) {
        let outcome = if written { WRITTEN } else { FAILED };
        self.fleet.families.checkpoints.with_label_values(&[self.role.name(), outcome]).inc();
    }

    pub(super) fn restarted(&self) {
        self.fleet.families.restarts.with_label_values(&[self.role.name()]).inc();
    }

    pub(super) fn gone(&self, records: i64) {
        let records = u64::try_from(records).unwrap_or(0);
        self.fleet.families.gone.with_label_values(&[self.role.name()]).inc_by(records);
    }

    /// Notes a problem that keeps a partition from being used.
    pub(super) fn problem(&self, why: String) {
        self.fleet.change(self.role, |standing| standing.problem = Some(why));
    }

    pub(super) fn well(&self) {
        self.fleet.change(self.role, |standing| standing.problem = None);
    }

    /// Sets how many partitions are owned, how many of them have not caught up, and how many of these began without a checkpoint.
    pub(super) fn held(&self, owned: usize, behind: usize, partial: usize) {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let role = [self.role.name()];
        self.fleet.families.owned.with_label_values(&role).set(gauge(owned));
        self.fleet.families.behind.with_label_values(&role).set(gauge(behind));
        self.fleet.change(self.role, |standing| {
            (standing.behind, standing.partial) = (behind, partial);
        });
    }

    /// Sets how far each partition is behind, in nanoseconds.
    pub(super) fn lags(&self, lags: BTreeMap<i32, u64>) {
        let (role, lag) = (self.role.name(), &self.fleet.families.lag);
        self.fleet.change(self.role, |standing| {
            for partition in &standing.partitions {
                if !lags.contains_key(partition) {
                    // Fails if the series does not exist.
                    let _ = lag.remove_label_values(&[role, &partition.to_string()]);
                }
            }
            standing.partitions = lags.keys().copied().collect();
        });
        for (partition, nanos) in lags {
            let seconds = std::time::Duration::from_nanos(nanos).as_secs_f64();
            lag.with_label_values(&[role, &partition.to_string()]).set(seconds);
        }
    }

    /// The metrics of the contents and counts of the partitions.
    pub(super) fn health(&self) -> &Health {
        &self.fleet.health
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_ready_in_its_group_without_a_problem_and_the_state_is_complete_with_all_roles() {
        let health = Health::new(crate::engine::span::Timestamp(1)).unwrap();
        let fleet = FleetMetrics::new(&health).unwrap();
        let shown = |name: &str, role: Option<&str>| {
            let page = health.registry().gather();
            let family = page.iter().find(|family| family.name() == name)?;
            let mut series = family.get_metric().iter();
            let found = series.find(|one| {
                one.get_label().first().map(prometheus::proto::LabelPair::value) == role
            })?;
            Some(found.get_gauge().get_value() > 0.5)
        };
        let ready = |role: &str| shown("agentgauge_fleet_ready", Some(role));
        let complete = || shown("agentgauge_state_complete", None);
        assert_eq!(complete(), Some(true), "without roles that read");
        let (gateway, assemble) = (fleet.gateway(), fleet.of(Role::Assemble));
        assert_eq!(
            (ready("gateway"), ready("assemble"), complete()),
            (Some(false), Some(false), Some(false))
        );
        gateway.ready(true);
        assert_eq!(
            (ready("gateway"), ready("assemble"), complete()),
            (Some(true), Some(false), Some(false))
        );
        assemble.ready(true);
        assert_eq!((ready("assemble"), complete()), (Some(true), Some(true)));
        assemble.problem("a checkpoint cannot be read".to_owned());
        assert_eq!((ready("assemble"), complete()), (Some(false), Some(false)));
        assemble.well();
        assert_eq!((ready("assemble"), complete()), (Some(true), Some(true)));
    }
}
