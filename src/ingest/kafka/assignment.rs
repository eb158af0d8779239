//! Changes of the partitions that a group member reads: queued when librdkafka requests them, made later.
//!
//! librdkafka requests a change while it is polled. The reader makes the change outside of the poll, once the records of revoked
//! partitions are settled. The group waits for each change, and so does a consumer that closes, so every requested change must be
//! made.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::KafkaResult;
use rdkafka::types::RDKafkaRespErr;

use super::status::Status;

/// The changes that were requested and not made yet.
pub(crate) struct Assignment {
    status: Arc<Status>,
    changes: Mutex<VecDeque<Change>>,
    closing: AtomicBool,
}

/// A change of the assignment that the group requests.
pub(crate) enum Change {
    /// Adds these partitions to those that this member reads.
    Assign(TopicPartitionList),
    /// Takes these partitions from this member.
    Revoke(TopicPartitionList),
}

impl Assignment {
    /// An assignment without changes.
    pub(crate) fn new(status: Arc<Status>) -> Self {
        Self { status, changes: Mutex::default(), closing: AtomicBool::new(false) }
    }

    /// The status of the member's source.
    pub(crate) fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// Queues a change that librdkafka requests; makes it at once while closing.
    pub(crate) fn ask<C: ConsumerContext>(
        &self,
        consumer: &BaseConsumer<C>,
        error: RDKafkaRespErr,
        partitions: &TopicPartitionList,
    ) {
        let assigned = error == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let change = if assigned { Change::Assign } else { Change::Revoke }(partitions.clone());
        if self.closing.load(Ordering::SeqCst) {
            self.make_at_once(consumer, &change);
        } else {
            self.changes.lock().unwrap_or_else(PoisonError::into_inner).push_back(change);
        }
    }

    /// Takes the next requested change.
    pub(crate) fn change(&self) -> Option<Change> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Whether no change is requested.
    #[cfg(test)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Makes a change. The first assignment, even an empty one, means that the member is in the group.
    pub(crate) fn make<C: ConsumerContext>(
        &self,
        consumer: &BaseConsumer<C>,
        change: &Change,
    ) -> KafkaResult<()> {
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

    /// Prepares for dropping the consumer: makes the queued changes, and has later ones made as soon as they are requested, because
    /// nothing reads the queue any more.
    pub(crate) fn close<C: ConsumerContext>(&self, consumer: &BaseConsumer<C>) {
        self.closing.store(true, Ordering::SeqCst);
        while let Some(change) = self.change() {
            self.make_at_once(consumer, &change);
        }
        self.status.joined(false);
    }

    fn make_at_once<C: ConsumerContext>(&self, consumer: &BaseConsumer<C>, change: &Change) {
        if let Err(error) = self.make(consumer, change) {
            tracing::debug!(%error, "the assignment did not change while closing");
        }
    }
}
