//! What librdkafka tells a worker between records.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::ClientContext;
use rdkafka::Statistics;
use rdkafka::TopicPartitionList;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;

use super::lease::Lease;
use crate::ingest::kafka::{Problem, Status};

/// Keeps changes of the assignment for the worker: it makes them, with what they take, outside of the callback.
pub(super) struct Context {
    status: Arc<Status>,
    lease: Lease,
    changes: Mutex<VecDeque<Change>>,
    closing: AtomicBool,
}

/// A change of the assignment that the group asks for.
pub(super) enum Change {
    /// These partitions are ours as well.
    Assign(TopicPartitionList),
    /// These are no longer.
    Revoke(TopicPartitionList),
}

impl Context {
    pub(super) fn new(status: Arc<Status>, lease: Lease) -> Self {
        Self { status, lease, changes: Mutex::default(), closing: AtomicBool::new(false) }
    }

    /// The next change that was asked for.
    pub(super) fn change(&self) -> Option<Change> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// From here on changes are made where they are asked for: nobody looks any more.
    pub(super) fn close(&self, consumer: &BaseConsumer<Self>) {
        self.closing.store(true, Ordering::SeqCst);
        // The group waits for an answer to what was asked for before.
        while let Some(change) = self.change() {
            if let Err(error) = self.make(consumer, &change) {
                tracing::debug!(%error, "the assignment did not change while closing");
            }
        }
        self.status.joined(false);
    }

    /// Makes a change. The first assignment, though it may be empty, means that we are in the group.
    pub(super) fn make(&self, consumer: &BaseConsumer<Self>, change: &Change) -> KafkaResult<()> {
        let cooperative = matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative);
        match change {
            Change::Assign(partitions) => {
                self.status.joined(true);
                if cooperative {
                    consumer.incremental_assign(partitions)
                } else {
                    consumer.assign(partitions)
                }
            }
            Change::Revoke(partitions) => {
                if consumer.assignment_lost() {
                    self.status.joined(false);
                }
                if cooperative {
                    consumer.incremental_unassign(partitions)
                } else {
                    consumer.unassign()
                }
            }
        }
    }
}

/// Whether there is a broker that we are connected with.
pub(super) fn connected(statistics: Statistics) -> bool {
    let mut brokers = statistics.brokers.into_iter();
    brokers.any(|(_, broker)| broker.state == "UP" && broker.nodeid >= 0)
}

impl ClientContext for Context {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(target: "librdkafka", facility, "{message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let problem = error.rdkafka_error_code().and_then(|code| Problem::of(code, reason));
        match problem {
            Some(problem) => self.status.problem(problem),
            None => tracing::debug!(target: "librdkafka", %error, "{reason}"),
        }
    }

    /// Every second: a broker that we are connected with is what a lease lives on.
    fn stats(&self, statistics: Statistics) {
        if connected(statistics) {
            self.lease.touch();
            self.status.well();
        }
    }
}

impl ConsumerContext for Context {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        error: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let assigned = error == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let change = if assigned { Change::Assign } else { Change::Revoke }(partitions.clone());
        if !self.closing.load(Ordering::SeqCst) {
            self.changes.lock().unwrap_or_else(PoisonError::into_inner).push_back(change);
        } else if let Err(error) = self.make(consumer, &change) {
            tracing::debug!(%error, "the assignment did not change while closing");
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        if let Err(error) = result {
            // A hint for people who look at lag: where to go on from is in the checkpoints.
            tracing::debug!(%error, "Kafka offsets were not committed");
        }
    }
}
