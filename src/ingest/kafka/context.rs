//! What librdkafka tells between records.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::ClientContext;
use rdkafka::TopicPartitionList;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;

use super::status::{Problem, Status};

/// Keeps changes of the assignment for the source, which makes them when its records are settled.
pub(super) struct Context {
    status: Arc<Status>,
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

/// Makes the consumer close when dropped, whatever happened: it waits for its partitions to be given back.
pub(super) struct Closing<'c>(pub(super) &'c Context);

impl Context {
    pub(super) fn new(status: Arc<Status>) -> Self {
        Self { status, changes: Mutex::default(), closing: AtomicBool::new(false) }
    }

    /// The next change that was asked for.
    pub(super) fn change(&self) -> Option<Change> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
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

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.closing.store(true, Ordering::SeqCst);
        self.0.status.joined(false);
    }
}

impl ClientContext for Context {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        // What needs a person is told by `error` and the probe, once.
        tracing::debug!(target: "librdkafka", facility, "{message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let problem = error.rdkafka_error_code().and_then(|code| Problem::of(code, reason));
        match problem {
            Some(problem) => self.status.problem(problem),
            None => tracing::debug!(target: "librdkafka", %error, "{reason}"),
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
            // The next commit goes further; until then records would be read again.
            tracing::warn!(%error, "Kafka offsets were not committed");
        }
    }
}
