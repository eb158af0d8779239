//! Changes of what a member of a group reads: from where librdkafka asks for them to where they are made.
//!
//! It asks while it is polled. They are made outside of that, by whoever reads, once what they take away is settled. The
//! group waits for each answer, and so does a consumer that closes: nothing that was asked for may be left without one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::KafkaResult;
use rdkafka::types::RDKafkaRespErr;

use super::status::Status;

/// The changes that were asked for and not made yet.
pub(crate) struct Assignment {
    status: Arc<Status>,
    changes: Mutex<VecDeque<Change>>,
    closing: AtomicBool,
}

/// A change of the assignment that the group asks for.
pub(crate) enum Change {
    /// These partitions are ours as well.
    Assign(TopicPartitionList),
    /// These are no longer.
    Revoke(TopicPartitionList),
}

impl Assignment {
    /// Nothing is asked for yet.
    pub(crate) fn new(status: Arc<Status>) -> Self {
        Self { status, changes: Mutex::default(), closing: AtomicBool::new(false) }
    }

    /// How the member stands with its brokers.
    pub(crate) fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// librdkafka asks for a change.
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

    /// The next change that was asked for.
    pub(crate) fn change(&self) -> Option<Change> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Whether nothing is asked for.
    #[cfg(test)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Makes a change. The first assignment, though it may be empty, means that we are in the group.
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

    /// Before the consumer is dropped: nobody looks any more, so changes are made where they are asked for, and those asked
    /// for before are made now.
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
