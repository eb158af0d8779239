//! The callbacks of librdkafka: changes of the assignment, errors, logs and commits.

use std::sync::Arc;

use rdkafka::ClientContext;
use rdkafka::TopicPartitionList;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;

use super::assignment::Assignment;
use super::status::Status;

/// The context of the consumer. It queues changes of the assignment; the source makes them when its records are settled.
pub(super) struct Context {
    pub(super) assignment: Assignment,
}

/// Makes the consumer ready to be dropped, even after a panic: dropping waits until its partitions are given back.
pub(super) struct Closing<'c>(pub(super) &'c BaseConsumer<Context>);

impl Context {
    pub(super) fn new(status: Arc<Status>) -> Self {
        Self { assignment: Assignment::new(status) }
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.context().assignment.close(self.0);
    }
}

impl ClientContext for Context {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        // `error` and the probe report what a person has to mend, once.
        tracing::debug!(target: "librdkafka", facility, "{message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.assignment.status().failed(&error, reason);
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
            // The next commit covers these offsets, too; after a crash before it, records are read again.
            tracing::warn!(%error, "Kafka offsets were not committed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use rdkafka::ClientConfig;
    use rdkafka::mocking::MockCluster;

    use super::super::status::WithoutMetrics;
    use super::*;

    #[test]
    fn a_change_that_waits_to_be_made_does_not_hold_up_the_end() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("spans", 2, 1).unwrap();
        for strategy in ["range", "cooperative-sticky"] {
            let mut config = ClientConfig::new();
            config
                .set("bootstrap.servers", cluster.bootstrap_servers())
                .set("group.id", strategy)
                .set("partition.assignment.strategy", strategy);
            let (ended, end) = channel();
            thread::spawn(move || {
                let context = Context::new(Arc::new(Status::new(Arc::new(WithoutMetrics), &[])));
                let consumer: BaseConsumer<Context> = config.create_with_context(context).unwrap();
                consumer.subscribe(&["spans"]).unwrap();
                let asked = || !consumer.context().assignment.is_quiet();
                while !asked() {
                    drop(consumer.poll(Duration::from_millis(100)));
                }
                drop(Closing(&consumer));
                drop(consumer);
                ended.send(()).unwrap();
            });
            let ended = end.recv_timeout(Duration::from_secs(60));
            assert!(ended.is_ok(), "{strategy}: it waits for an answer that nobody gives");
        }
    }
}
