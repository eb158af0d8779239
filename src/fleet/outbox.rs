//! The producer of a worker: it loses no record, however long the brokers are away, and bounds the records that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};

use super::wire::{HOPS, Record, pack};
use crate::ingest::kafka::{KafkaOptions, SourceError, client};

/// The largest record that is sent, in bytes; `topics create` allows it.
pub(super) const MAX_RECORD_BYTES: u32 = 16 << 20;

/// The longest pause before another attempt to reach brokers that are away, in milliseconds.
pub(super) const RECONNECT_MS: &str = "1000";

/// How long a record waits for others to be sent with it, in milliseconds.
const LINGER_MS: &str = "5";

/// The most that waits to be delivered, in KiB.
const QUEUE_KBYTES: &str = "131072";

/// How long a full queue is waited for before `goes_on` is asked again.
const WAIT: Duration = Duration::from_millis(100);

/// The producer of a worker, and the names of the topics.
pub(super) struct Outbox {
    producer: BaseProducer<Deliveries>,
    topics: [String; HOPS.len()],
}

/// What became of a record that was to be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sent {
    /// It is on its way.
    OnItsWay,
    /// It can never be sent, for this reason.
    LeftOut(&'static str),
    /// It was not sent.
    Failed,
}

/// The callbacks of the producer: whether a record was not delivered.
#[derive(Clone, Default)]
struct Deliveries(Arc<AtomicBool>);

/// The configuration of a producer; a `timeout_ms` of zero is no timeout. A record that is delivered twice replaces itself.
pub(super) fn config(options: &KafkaOptions, timeout_ms: u64) -> Result<ClientConfig, SourceError> {
    let mut config = client(options)?;
    config
        .set("acks", "all")
        .set("message.timeout.ms", timeout_ms.to_string())
        .set("message.max.bytes", MAX_RECORD_BYTES.to_string())
        .set("linger.ms", LINGER_MS)
        .set("queue.buffering.max.kbytes", QUEUE_KBYTES)
        .set("statistics.interval.ms", "1000")
        .set("reconnect.backoff.max.ms", RECONNECT_MS)
        .set("compression.codec", "lz4");
    Ok(config)
}

impl Outbox {
    pub(super) fn new(options: &KafkaOptions, prefix: &str) -> Result<Self, SourceError> {
        let mut config = config(options, 0)?;
        // This keeps records in order: the panes of one revision are sent one after the other.
        config.set("enable.idempotence", "true");
        let producer = config.create_with_context(Deliveries::default())?;
        Ok(Self { producer, topics: HOPS.map(|hop| hop.topic(prefix)) })
    }

    /// Sends a record; waits for room as long as `goes_on`.
    pub(super) fn send(&self, record: &Record, goes_on: impl Fn() -> bool) -> Sent {
        // `pack` logs what cannot be encoded.
        let Some(payload) = pack(&record.envelope) else { return Sent::LeftOut("unwritable") };
        let topic = &self.topics[record.hop as usize];
        let mut next: BaseRecord<'_, [u8], [u8], ()> = BaseRecord::to(topic)
            .partition(i32::try_from(record.partition).unwrap_or(0))
            .key(record.key.as_slice())
            .payload(payload.as_slice());
        loop {
            match self.producer.send(next) {
                Ok(()) => return Sent::OnItsWay,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    if !goes_on() {
                        return Sent::Failed;
                    }
                    self.producer.poll(WAIT);
                    next = back;
                }
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge), _)) => {
                    let bytes = payload.len();
                    tracing::error!(topic, bytes, "a record is too large, and was left out");
                    return Sent::LeftOut("too_large");
                }
                Err((error, _)) => {
                    tracing::error!(%error, topic, "a record was not sent");
                    return Sent::Failed;
                }
            }
        }
    }

    /// Handles reports of deliveries that have come in.
    pub(super) fn poll(&self) {
        self.producer.poll(Duration::ZERO);
    }

    /// Waits until all records have arrived, for `patience` at most; returns whether they have.
    pub(super) fn flush(&self, patience: Duration) -> bool {
        self.producer.flush(patience).is_ok()
    }

    /// Whether a record was lost: it did not arrive, and never will.
    pub(super) fn has_lost(&self) -> bool {
        self.producer.context().0.load(Ordering::Relaxed)
    }
}

impl ClientContext for Deliveries {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(target: "librdkafka", facility, "{message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, "{reason}");
    }

    // Ignored, as the consumer reports the state of the connection.
    fn stats_raw(&self, _: &[u8]) {}
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, message)) = result {
            use rdkafka::Message as _;
            let (topic, bytes) = (message.topic(), message.payload_len());
            tracing::debug!(%error, topic, bytes, "a record between the stages was not delivered");
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
