//! What librdkafka tells a worker between records.

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

/// Keeps changes of the assignment for the worker: it makes them, with what they take, outside of the callback.
pub(super) struct Context {
    pub(super) assignment: Assignment,
    lease: Lease,
}

impl Context {
    pub(super) fn new(status: Arc<Status>, lease: Lease) -> Self {
        Self { assignment: Assignment::new(status), lease }
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
            Some(problem) => self.assignment.status().problem(problem),
            None => tracing::debug!(target: "librdkafka", %error, "{reason}"),
        }
    }

    /// Every second: a broker that we are connected with is what a lease lives on.
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
            // A hint for people who look at lag: where to go on from is in the checkpoints.
            tracing::debug!(%error, "Kafka offsets were not committed");
        }
    }
}
