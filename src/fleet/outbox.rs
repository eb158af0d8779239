//! The producer of a worker: it loses no record, however long the brokers are unavailable, and bounds the records that wait.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::Message as _;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};

use super::wire::{HOPS, Record, pack};
use crate::ingest::kafka::{KafkaOptions, SourceError, client};

/// The largest record that is sent, in bytes; `topics create` allows it.
pub(super) const MAX_RECORD_BYTES: u32 = 16 << 20;

/// The longest pause before another attempt to reach unavailable brokers, in milliseconds.
pub(super) const RECONNECT_MS: &str = "1000";

/// How long a record waits for others to be sent with it, in milliseconds.
const LINGER_MS: &str = "5";

/// The most bytes that wait to be delivered, in KiB.
const QUEUE_KBYTES: &str = "131072";

/// A record with at least this many bytes is sent alone: if a topic does not accept it, no other is refused with it.
const BATCH_BYTES: &str = "131072";

/// How long to wait for a full queue before `goes_on` is checked again.
const WAIT: Duration = Duration::from_millis(100);

/// The producer of a worker, and the names of the topics.
pub(super) struct Outbox {
    producer: BaseProducer<Deliveries>,
    topics: [String; HOPS.len()],
}

/// The outcome of sending a record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum SendOutcome {
    /// It is being delivered.
    OnItsWay,
    /// It can never be sent, for this reason.
    LeftOut(&'static str),
    /// It was not sent, for this reason.
    Failed(String),
}

/// The callbacks of the producer: what was not delivered.
#[derive(Default)]
struct Deliveries(Mutex<Undelivered>);

/// The records that were not delivered.
#[derive(Default)]
struct Undelivered {
    /// How many records the brokers refused as too large.
    too_large: u64,
    /// How many of these have been read by `too_large`.
    counted: u64,
    /// Why another record was lost that could be delivered if it were sent again.
    lost: Option<String>,
}

/// Whether the brokers refused a record for its size, and would at any time.
pub(super) fn is_too_large(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge)
}

/// Logs the 1st, 10th, 100th and so on of the records that the brokers refused for their size.
pub(super) fn note_too_large(refused: u64, topic: &str, bytes: usize) {
    if refused.checked_ilog10().is_some_and(|digits| refused == 10_u64.pow(digits)) {
        tracing::error!(
            topic,
            bytes,
            refused,
            "the brokers refuse a record as too large: raise `max.message.bytes` of the topic to {MAX_RECORD_BYTES}, as \
             `agentgauge topics create` sets it"
        );
    }
}

/// The configuration of a producer; a `timeout_ms` of zero is no timeout. A record that is delivered twice replaces itself.
pub(super) fn config(options: &KafkaOptions, timeout_ms: u64) -> Result<ClientConfig, SourceError> {
    let mut config = client(options)?;
    config
        .set("acks", "all")
        .set("message.timeout.ms", timeout_ms.to_string())
        .set("message.max.bytes", MAX_RECORD_BYTES.to_string())
        .set("linger.ms", LINGER_MS)
        .set("batch.size", BATCH_BYTES)
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

    /// Sends a record; waits for room as long as `goes_on` returns true.
    pub(super) fn send(&self, record: &Record, goes_on: impl Fn() -> bool) -> SendOutcome {
        // `pack` logs what cannot be encoded.
        let Some(payload) = pack(&record.envelope) else {
            return SendOutcome::LeftOut("unwritable");
        };
        let topic = &self.topics[record.hop as usize];
        let mut next: BaseRecord<'_, [u8], [u8], ()> = BaseRecord::to(topic)
            .partition(i32::try_from(record.partition).unwrap_or(0))
            .key(record.key.as_slice())
            .payload(payload.as_slice());
        loop {
            match self.producer.send(next) {
                Ok(()) => return SendOutcome::OnItsWay,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    if !goes_on() {
                        return SendOutcome::Failed("the brokers take no more records".to_owned());
                    }
                    self.producer.poll(WAIT);
                    next = back;
                }
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge), _)) => {
                    let bytes = payload.len();
                    tracing::error!(topic, bytes, "a record is too large, and was left out");
                    return SendOutcome::LeftOut("too_large");
                }
                Err((error, _)) => {
                    return SendOutcome::Failed(format!(
                        "a record to `{topic}` was not sent: {error}"
                    ));
                }
            }
        }
    }

    /// Handles delivery reports.
    pub(super) fn poll(&self) {
        self.producer.poll(Duration::ZERO);
    }

    /// Waits until all records are delivered, for `patience` at most; returns whether they are.
    pub(super) fn flush(&self, patience: Duration) -> bool {
        self.producer.flush(patience).is_ok()
    }

    /// How many records the brokers have refused as too large since the last call.
    pub(super) fn too_large(&self) -> u64 {
        let mut undelivered = self.producer.context().undelivered();
        let new = undelivered.too_large - undelivered.counted;
        undelivered.counted = undelivered.too_large;
        new
    }

    /// Why a record was lost, if one was: it was not delivered and never will be, although it could have been.
    pub(super) fn lost(&self) -> Option<String> {
        self.producer.context().undelivered().lost.clone()
    }
}

impl Deliveries {
    fn undelivered(&self) -> MutexGuard<'_, Undelivered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        let Err((error, message)) = result else { return };
        let (topic, bytes) = (message.topic(), message.payload_len());
        let mut undelivered = self.undelivered();
        if is_too_large(error) {
            undelivered.too_large += 1;
            note_too_large(undelivered.too_large, topic, bytes);
        } else {
            let why =
                || format!("a record of {bytes} bytes to `{topic}` was not delivered: {error}");
            undelivered.lost.get_or_insert_with(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::*;
    use crate::engine::span::Timestamp;
    use crate::fleet::wire::{Hop, Map};

    #[test]
    fn a_record_that_the_brokers_refuse_as_too_large_is_left_out_and_not_lost() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("agentgauge.spans", 4, 1).unwrap();
        let brokers = vec![cluster.bootstrap_servers()];
        let options = KafkaOptions { brokers, ..KafkaOptions::default() };
        let outbox = Outbox::new(&options, "agentgauge").unwrap();
        let send = || {
            let sent = outbox.send(&Map::tick(Hop::Spans, 1, Timestamp(1)), || true);
            assert_eq!(sent, SendOutcome::OnItsWay);
            assert!(outbox.flush(Duration::from_secs(60)));
            (outbox.too_large(), outbox.lost())
        };
        assert_eq!(send(), (0, None));
        let too_large = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
        cluster.request_errors(RDKafkaApiKey::Produce, &[too_large]);
        assert_eq!(send(), (1, None));
        assert_eq!(send(), (0, None), "and the next one arrives");
        let forbidden = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        cluster.request_errors(RDKafkaApiKey::Produce, &[forbidden]);
        let (too_large, lost) = send();
        assert_eq!(too_large, 0);
        assert!(lost.is_some_and(|why| why.contains("`agentgauge.spans`")));
    }
}
