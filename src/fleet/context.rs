//! The callbacks of a worker's consumer.

use std::sync::Arc;

use rdkafka::ClientContext;
use rdkafka::Statistics;
use rdkafka::TopicPartitionList;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;

use super::lease::Lease;
use crate::ingest::kafka::{Assignment, Problem, Status};

/// The context of a consumer: it keeps changes of the assignment for the worker, which makes them outside of the callback.
pub(super) struct Context {
    pub(super) assignment: Assignment,
    lease: Lease,
}

impl Context {
    pub(super) fn new(status: Arc<Status>, lease: Lease) -> Self {
        Self { assignment: Assignment::new(status), lease }
    }
}

/// Whether a broker is connected.
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
            Some(problem) => self.assignment.status().problem(problem),
            None => tracing::debug!(target: "librdkafka", %error, "{reason}"),
        }
    }

    /// Extends the lease if a broker is connected; called every second.
    fn stats(&self, statistics: Statistics) {
        if connected(statistics) {
            self.lease.touch();
            self.assignment.status().well();
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
        self.assignment.ask(consumer, error, partitions);
    }

    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        if let Err(error) = result {
            // No error: the offset to go on from is in the checkpoints; the committed one is a hint for people who look at lag.
            tracing::debug!(%error, "Kafka offsets were not committed");
        }
    }
}
