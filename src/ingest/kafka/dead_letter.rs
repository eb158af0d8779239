//! Forwards unreadable records unchanged, with headers that state their origin and why they were skipped.

use std::sync::mpsc::Sender;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::Message;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};

use super::client::{self, SourceError};
use super::options::KafkaOptions;

/// The number of a record that was sent, and the error if it did not arrive.
pub(super) type Delivery = (usize, Option<KafkaError>);

/// The sender of dead letters, which reports by number which were delivered.
pub(super) struct DeadLetters {
    topic: String,
    producer: BaseProducer<Deliveries>,
}

/// The channel for delivery reports.
struct Deliveries(Sender<Delivery>);

/// Whether the brokers refuse a record for what it is, and would refuse it at any time.
pub(super) fn is_for_good(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    code.is_some_and(|code| [Code::MessageSizeTooLarge, Code::InvalidRecord].contains(&code))
}

impl DeadLetters {
    /// A sender to the topic of the options; `None` if they name none.
    pub(super) fn new(
        options: &KafkaOptions,
        delivered: Sender<Delivery>,
    ) -> Result<Option<Self>, SourceError> {
        if options.dead_letter_topic.is_empty() {
            return Ok(None);
        }
        let producer = client::producer(options)?.create_with_context(Deliveries(delivered))?;
        Ok(Some(Self { topic: options.dead_letter_topic.clone(), producer }))
    }

    /// Forwards a record; its delivery is reported later under `number`.
    pub(super) fn send(
        &self,
        number: usize,
        message: &BorrowedMessage<'_>,
        reason: &'static str,
    ) -> Result<(), KafkaError> {
        let mut headers = message.headers().map_or_else(OwnedHeaders::new, BorrowedHeaders::detach);
        for (key, value) in [
            ("agentgauge.reason", reason),
            ("agentgauge.topic", message.topic()),
            ("agentgauge.partition", &message.partition().to_string()),
            ("agentgauge.offset", &message.offset().to_string()),
        ] {
            headers = headers.insert(Header { key, value: Some(value) });
        }
        let mut record: BaseRecord<'_, [u8], [u8], usize> =
            BaseRecord::with_opaque_to(&self.topic, number).headers(headers);
        if let Some(payload) = message.payload() {
            record = record.payload(payload);
        }
        if let Some(key) = message.key() {
            record = record.key(key);
        }
        self.producer.send(record).map_err(|(error, _)| error)
    }

    /// Lets the producer report deliveries.
    pub(super) fn poll(&self) {
        if self.producer.in_flight_count() > 0 {
            self.producer.poll(Duration::ZERO);
        }
    }
}

impl ClientContext for Deliveries {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(target: "librdkafka", facility, "{message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, "{reason}");
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, number: usize) {
        let error = result.as_ref().err().map(|(error, _)| error.clone());
        // This fails only after the source has ended, when no report is needed.
        let _ = self.0.send((number, error));
    }
}
