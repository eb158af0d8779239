//! The consumer of a worker: its configuration, and its callbacks.

use std::sync::Arc;

use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::Statistics;
use rdkafka::TopicPartitionList;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;

use super::lease::Lease;
use super::options::{FleetOptions, Role};
use super::outbox::RECONNECT_MS;
use crate::ingest::kafka::{Assignment, KafkaOptions, SourceError, Status, be_silent_for, client};

/// The context of a consumer: it queues changes of the assignment; the worker makes them outside of the callback.
pub(super) struct Context {
    pub(super) assignment: Assignment,
    lease: Lease,
}

impl Context {
    pub(super) fn new(status: Arc<Status>, lease: Lease) -> Self {
        Self { assignment: Assignment::new(status), lease }
    }
}

/// The configuration of the consumer of a role.
pub(super) fn consumer(
    kafka: &KafkaOptions,
    fleet: &FleetOptions,
    role: Role,
) -> Result<ClientConfig, SourceError> {
    let mut config = client(kafka)?;
    be_silent_for(fleet.session_timeout, &mut config);
    config
        .set("group.id", format!("{}.{}", fleet.prefix, role.name()))
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("enable.partition.eof", "true")
        .set("allow.auto.create.topics", "false")
        .set("statistics.interval.ms", "1000")
        .set("fetch.wait.max.ms", "100")
        .set("reconnect.backoff.max.ms", RECONNECT_MS)
        .set("queued.max.messages.kbytes", (kafka.max_queued_bytes >> 10).max(1).to_string());
    if !kafka.group_instance_id.is_empty() {
        config.set("group.instance.id", format!("{}.{}", kafka.group_instance_id, role.name()));
    }
    Ok(config)
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
        self.assignment.status().failed(&error, reason);
    }

    /// Extends the lease if a broker is connected; called every second.
    fn stats(&self, statistics: Statistics) {
        if connected(statistics) {
            self.lease.touch();
            self.assignment.status().connected();
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
            // No error: the offset to continue from is in the checkpoints; the committed one is a hint for people who look at lag.
            tracing::debug!(%error, "Kafka offsets were not committed");
        }
    }
}
