//! The source: it is set up from its options, then one thread reads, and another probes the brokers.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Inbox, channel};

use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::client::{self, SourceError};
use super::context::{Closing, Context};
use super::dead_letter::{DeadLetters, Delivery};
use super::options::KafkaOptions;
use super::probe::{Jumps, Positions, Probe, Undelivered};
use super::reading::Reading;
use super::status::{Problem, SourceMetrics, Status};
use super::topic::Topic;
use crate::engine::span::Timestamp;
use crate::ingest::receiver::{DecodedRequest, Envelope, Receiver};
use crate::ingest::status::Failure;
use crate::ingest::{Compression, Refusal, Sink};

/// The longest name of a tenant in a header; a longer one is ignored.
const MAX_TENANT_BYTES: usize = 256;

/// A Kafka source, in its group but not reading yet.
pub struct Source<S: Sink> {
    // Dropped before the consumer, which may wait for its brokers: the stages end when nothing refers to them.
    pub(super) receiver: Receiver<S>,
    pub(super) options: KafkaOptions,
    pub(super) topics: Vec<Topic>,
    pub(super) consumer: BaseConsumer<Context>,
    pub(super) dead_letters: Option<DeadLetters>,
    pub(super) delivered: Inbox<Delivery>,
    status: Arc<Status>,
    pub(super) watch: Arc<dyn SourceMetrics>,
    pub(super) positions: Positions,
    pub(super) jumps: Jumps,
    pub(super) undelivered: Undelivered,
    pub(super) stages: Handle,
    stopping: watch::Receiver<bool>,
}

impl<S: Sink> Source<S> {
    /// A source that hands batches to `receiver` until `stopping` is true or its sender is dropped. Brokers that do not answer are
    /// no error: the source keeps trying.
    ///
    /// # Errors
    ///
    /// Fails if an option can never work, such as a certificate that cannot be read.
    pub fn new(
        options: &KafkaOptions,
        receiver: Receiver<S>,
        watch: Arc<dyn SourceMetrics>,
        stages: Handle,
        stopping: watch::Receiver<bool>,
    ) -> Result<Self, SourceError> {
        let topics = Topic::all(options);
        let status = Arc::new(Status::new(watch.clone(), &options.brokers));
        let context = Context::new(status.clone());
        let consumer: BaseConsumer<Context> =
            client::consumer(options)?.create_with_context(context)?;
        let (told, delivered) = channel();
        let dead_letters = DeadLetters::new(options, told)?;
        Ok(Self {
            receiver,
            options: options.clone(),
            topics,
            consumer,
            dead_letters,
            delivered,
            status,
            watch,
            positions: Positions::default(),
            jumps: Jumps::default(),
            undelivered: Undelivered::default(),
            stages,
            stopping,
        })
    }

    /// The status of the source.
    pub fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// Reads until the source is told to stop, then waits for records in flight, and commits. Blocks the calling thread.
    pub fn run(self) {
        let _closing = Closing(&self.consumer);
        let names: Vec<&str> = self.topics.iter().map(|topic| topic.name.as_str()).collect();
        if let Err(error) = self.consumer.subscribe(&names) {
            let why = format!("{error}; check `kafka.traces_topics` and `kafka.logs_topics`");
            return self.status.problem(Problem::Other { why });
        }
        let probe = Probe {
            consumer: &self.consumer,
            topics: &self.topics,
            dead_letter_topic: &self.options.dead_letter_topic,
            start: self.options.start,
            positions: &self.positions,
            jumps: &self.jumps,
            undelivered: &self.undelivered,
            status: &self.status,
            watch: &self.watch,
        };
        let interval = self.options.probe_interval;
        let fatal = std::thread::scope(|scope| {
            // Dropped when reading ends, even by a panic, so that the probe ends too.
            let (_stop, stopped) = channel();
            scope.spawn(move || probe.run(interval, &stopped));
            Reading::new(&self).read()
        });
        if let Some(why) = fatal {
            self.status.problem(Problem::Other { why });
        }
    }

    /// Whether the source should end.
    pub(super) fn stopping(&self) -> bool {
        // If the sender is dropped, the daemon has ended.
        *self.stopping.borrow() || self.stopping.has_changed().is_err()
    }

    /// Decodes a record in place; a panic counts as a record that cannot be read.
    pub(super) fn take(
        &self,
        topic: &Topic,
        message: &BorrowedMessage<'_>,
    ) -> Result<DecodedRequest, Failure> {
        let payload = message.payload().filter(|payload| !payload.is_empty());
        let empty = || Refusal::Malformed { what: "record", why: "it is empty".to_owned() };
        let payload = payload.ok_or_else(empty)?;
        let envelope = Envelope {
            transport: "kafka",
            signal: topic.signal,
            encoding: topic.encoding.into(),
            compression: Compression::None,
            tenant: tenant(&self.options, message),
        };
        let take = || self.receiver.take(envelope, payload, sent(message));
        catch_unwind(AssertUnwindSafe(take)).unwrap_or(Err(Failure::Internal))
    }
}

impl<S: Sink> fmt::Debug for Source<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The tenant of a record: from the trusted header, else from its topic.
fn tenant<M: Message>(options: &KafkaOptions, message: &M) -> Option<Arc<str>> {
    let named = options.tenant_header.as_str();
    let headers = message.headers().filter(|_| !named.is_empty());
    let header = headers.and_then(|headers| headers.iter().find(|header| header.key == named));
    let value = header.and_then(|header| str::from_utf8(header.value?).ok());
    let told = value.filter(|name| !name.is_empty() && name.len() <= MAX_TENANT_BYTES);
    told.map(Arc::from).or_else(|| options.tenants.get(message.topic()).cloned())
}

/// The time of a record, set by the broker or the sender; `None` if it has none above 0.
fn sent(message: &BorrowedMessage<'_>) -> Option<Timestamp> {
    let millis =
        u64::try_from(message.timestamp().to_millis()?).ok().filter(|millis| *millis > 0)?;
    millis.checked_mul(1_000_000).map(Timestamp)
}

#[cfg(test)]
mod tests {
    use rdkafka::message::{Header, OwnedHeaders, OwnedMessage};

    use super::*;

    #[test]
    fn a_tenant_is_its_topic_s_unless_a_header_is_believed() {
        let mut options = KafkaOptions::default();
        options.tenants.insert("a".to_owned(), "topic".into());
        let of = |options: &KafkaOptions, topic: &str, value: Option<&str>| {
            let headers = OwnedHeaders::new().insert(Header { key: "tenant", value });
            let topic = topic.to_owned();
            let time = rdkafka::Timestamp::NotAvailable;
            let message = OwnedMessage::new(None, None, topic, time, 0, 0, Some(headers));
            tenant(options, &message).map(|tenant| tenant.to_string())
        };
        assert_eq!(of(&options, "a", Some("header")).as_deref(), Some("topic"));
        assert_eq!(of(&options, "b", Some("header")), None);
        options.tenant_header = "tenant".to_owned();
        assert_eq!(of(&options, "a", Some("header")).as_deref(), Some("header"));
        let long = "x".repeat(MAX_TENANT_BYTES + 1);
        for nothing in [None, Some(""), Some(long.as_str())] {
            assert_eq!(of(&options, "a", nothing).as_deref(), Some("topic"));
        }
    }
}
