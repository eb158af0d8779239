//! The gateway of a cluster: it sends the content of a request to the partitions of its traces, and acknowledges the request when
//! the brokers have all of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::Message as _;
use rdkafka::Statistics;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::context::connected;
use super::outbox::{MAX_RECORD_BYTES, config, is_too_large, note_too_large};
use super::topics::look;
use super::wire::{Envelope, HOPS, Hop, Map, Message, Record, Response, pack, unpack};
use crate::engine::assemble::Input;
use crate::engine::span::{Target, Timestamp, TraceId};
use crate::ingest::kafka::{KafkaOptions, Problem, SourceError, SourceMetrics, Status};
use crate::ingest::{Batch, Lacks, LeftOut, Overloaded, Sink};

/// When a refused sender should retry.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long the brokers may take for a record, in milliseconds.
const TIMEOUT_MS: u64 = 10_000;

/// The most bytes of a record's content, which leaves room for its key and its head.
const MAX_PAYLOAD_BYTES: usize = MAX_RECORD_BYTES as usize - (64 << 10);

/// The pause before the topics are checked again.
const AGAIN: Duration = Duration::from_millis(500);

/// The error of a producer that has no room.
const FULL: KafkaError = KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull);

/// The most inputs of one trace in one record.
const CHUNK: usize = 64;

/// A sink that writes requests as records to Kafka. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    producer: Arc<ThreadedProducer<Deliveries>>,
    topics: Arc<[String; HOPS.len()]>,
    map: Map,
    status: Arc<Status>,
    room: Arc<Notify>,
}

/// A record that is ready to be sent.
struct Packed {
    hop: Hop,
    partition: u32,
    key: Vec<u8>,
    payload: Vec<u8>,
}

/// The records of one request that were not delivered yet.
struct Pending {
    left: AtomicUsize,
    failed: AtomicBool,
    /// The indices of records that the brokers refused as too large.
    refused: Mutex<Vec<usize>>,
    done: Mutex<Option<oneshot::Sender<bool>>>,
}

/// A record that was sent: its request, and its index in the request.
struct OnItsWay {
    pending: Arc<Pending>,
    at: usize,
}

/// The callbacks of the producer: deliveries, and problems with the brokers.
struct Deliveries {
    status: Arc<Status>,
    /// How many records the brokers refused as too large.
    refused: AtomicU64,
    /// Notified of each delivery, as it makes room.
    room: Arc<Notify>,
}

impl Gateway {
    /// Makes a gateway to these brokers.
    ///
    /// # Errors
    ///
    /// Fails if the client cannot be set up with these options.
    pub fn new(
        options: &KafkaOptions,
        prefix: &str,
        partitions: u32,
        watch: Arc<dyn SourceMetrics>,
    ) -> Result<Self, SourceError> {
        let status = Arc::new(Status::new(watch, &options.brokers));
        Self::with(&config(options, TIMEOUT_MS)?, status, prefix, partitions)
    }

    fn with(
        config: &ClientConfig,
        status: Arc<Status>,
        prefix: &str,
        partitions: u32,
    ) -> Result<Self, SourceError> {
        let room = Arc::new(Notify::new());
        let (refused, told) = (AtomicU64::new(0), room.clone());
        let context = Deliveries { status: status.clone(), refused, room: told };
        let producer = Arc::new(config.create_with_context(context)?);
        let topics = Arc::new(HOPS.map(|hop| hop.topic(prefix)));
        let gateway = Self { producer, topics, map: Map::new(partitions), status, room };
        gateway.find_topics(prefix.to_owned(), partitions)?;
        Ok(gateway)
    }

    /// Checks the topics until they have as many partitions as `fleet.partitions` says; only from then on are requests accepted.
    fn find_topics(&self, prefix: String, partitions: u32) -> Result<(), SourceError> {
        let (producer, status) = (Arc::downgrade(&self.producer), self.status.clone());
        let name = thread::Builder::new().name("topics".to_owned());
        let look = move || {
            // This ends with the gateway.
            while let Some(producer) = producer.upgrade() {
                let problem = match look(producer.client(), &prefix, partitions) {
                    Ok(None) => {
                        status.well();
                        return status.joined(true);
                    }
                    Ok(Some(why)) => Problem::Other { why },
                    Err(error) => Problem::Unreachable { why: error.to_string() },
                };
                status.problem(problem);
                drop(producer);
                thread::sleep(AGAIN);
            }
        };
        name.spawn(look).map(drop).map_err(SourceError::Thread)
    }

    /// The state of the connection to the brokers.
    pub fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// Gives a record to the producer; while that is full, waits as long as a record is delivered within `patience`.
    async fn enqueue(
        &self,
        (at, packed): (usize, &Packed),
        pending: &Arc<Pending>,
        patience: Duration,
    ) -> Result<(), KafkaError> {
        loop {
            let mut room = pin!(self.room.notified());
            // From here on, no delivery is missed.
            room.as_mut().enable();
            let next = OnItsWay { pending: pending.clone(), at };
            match self.offer(packed, next) {
                Err(error)
                    if error == FULL
                        && patience > Duration::ZERO
                        && !pending.failed.load(Ordering::SeqCst) =>
                {
                    timeout(patience, room).await.map_err(|_| error)?;
                }
                offered => return offered,
            }
        }
    }

    /// Sends records; returns the indices of those that are too large for their topic, once the brokers have the others. While the
    /// producer is full, the first one waits for `patience`, and the others, which would be sent again with it, for longer.
    async fn deliver(
        &self,
        records: &[Packed],
        patience: Duration,
    ) -> Result<Vec<usize>, KafkaError> {
        let (done, delivered) = oneshot::channel();
        let pending = Arc::new(Pending {
            left: AtomicUsize::new(records.len()),
            failed: AtomicBool::new(false),
            refused: Mutex::default(),
            done: Mutex::new(Some(done)),
        });
        for (at, record) in records.iter().enumerate() {
            let patience = if at == 0 { patience } else { Duration::from_millis(TIMEOUT_MS) };
            self.enqueue((at, record), &pending, patience).await?;
        }
        if !delivered.await.unwrap_or(false) {
            return Err(KafkaError::Canceled);
        }
        let mut refused = pending.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let mut refused = std::mem::take(&mut *refused);
        refused.sort_unstable();
        Ok(refused)
    }

    fn offer(&self, packed: &Packed, opaque: OnItsWay) -> Result<(), KafkaError> {
        let Packed { hop, partition, key, payload } = packed;
        let next: BaseRecord<'_, [u8], [u8], Box<OnItsWay>> =
            BaseRecord::with_opaque_to(&self.topics[*hop as usize], Box::new(opaque))
                .partition(i32::try_from(*partition).unwrap_or(0))
                .key(key.as_slice())
                .payload(payload.as_slice());
        self.producer.send(next).map_err(|(error, _)| error)
    }

    /// The records of a batch; `None` if a report cannot be encoded.
    fn records(&self, batch: Batch) -> Option<Vec<Record>> {
        let mut traces: BTreeMap<TraceId, Vec<Input>> = BTreeMap::new();
        let mut responses: BTreeMap<u32, Vec<Response>> = BTreeMap::new();
        let mut records = Vec::new();
        for span in batch.spans {
            if let Some(id) = span.model.as_ref().and_then(|model| model.response_id) {
                let tenant = span.resource.tenant.clone();
                let seen = Response { tenant, id, trace_id: span.trace_id };
                responses.entry(self.map.of_response(id)).or_default().push(seen);
            }
            traces.entry(span.trace_id).or_default().push(Input::Span(Box::new(span)));
        }
        for log in batch.logs {
            traces.entry(log.trace_id).or_default().push(Input::Log(Box::new(log)));
        }
        for reply in batch.judged {
            traces.entry(reply.trace.id).or_default().push(Input::Judged(Box::new(reply)));
        }
        for (trace, embedded) in batch.embedded {
            traces.entry(trace.id).or_default().push(Input::Embedded(trace, embedded));
        }
        for report in batch.reports {
            match report.target {
                Target::Trace(trace) => {
                    traces.entry(trace).or_default().push(Input::Report(Box::new(report)));
                }
                Target::Response { .. }
                | Target::Session { .. }
                | Target::Run(_)
                | Target::Agent(_) => {
                    records.extend(self.map.to_report(&report)?);
                }
            }
        }
        // The latest prompt of a session first, as within one instance: each takes only the spans before the next one.
        let mut traces: Vec<_> = traces.into_iter().collect();
        traces.sort_by_key(|(id, inputs)| {
            inputs.iter().find_map(prompts_at).map(|time| Reverse((time, *id)))
        });
        for (trace, mut inputs) in traces {
            while !inputs.is_empty() {
                let chunk = inputs.drain(..inputs.len().min(CHUNK)).collect();
                records.push(self.map.to_trace(trace, Message::Inputs(chunk)));
            }
        }
        for (partition, seen) in responses {
            records.push(self.map.to_responses(partition, Message::Responses(seen)));
        }
        for record in &mut records {
            record.envelope.time = batch.arrival;
        }
        Some(records)
    }
}

impl Sink for Gateway {
    /// Writes a batch; refuses it unless the brokers take all of it. Records that they already have are sent again and count once.
    async fn submit(&self, batch: Batch) -> Result<LeftOut, Overloaded> {
        let overloaded = Overloaded::after(RETRY_AFTER);
        let failed = Overloaded { lacks: Lacks::Brokers, ..overloaded };
        let mut records = Vec::new();
        let mut left_out = LeftOut::default();
        if !self.status.has_joined() {
            return Err(failed);
        }
        for record in self.records(batch).ok_or(overloaded)? {
            left_out.record_too_large +=
                pack_up(record, MAX_PAYLOAD_BYTES, &mut records).ok_or(overloaded)?;
        }
        let mut patience = Duration::ZERO;
        while !records.is_empty() {
            let delivered = self.deliver(&records, patience).await;
            let refused = delivered.map_err(|error| {
                tracing::debug!(%error, "a request was refused");
                if error == FULL { overloaded } else { failed }
            })?;
            let mut smaller = Vec::new();
            for at in refused {
                left_out.record_too_large +=
                    pack_smaller(&records[at], &mut smaller).ok_or(overloaded)?;
            }
            records = smaller;
            // A partly delivered request waits: sent again, it would be as large.
            patience = Duration::from_millis(TIMEOUT_MS);
        }
        Ok(left_out)
    }
}

/// Packs the content of a record that the brokers refused as too large into several; returns the same as `pack_up`.
fn pack_smaller(refused: &Packed, packed: &mut Vec<Packed>) -> Option<u64> {
    let Packed { hop, partition, key, payload } = refused;
    let (hop, partition, key) = (*hop, *partition, key.clone());
    let record = Record { hop, partition, key, envelope: unpack(payload).ok()? };
    pack_up(record, payload.len().saturating_sub(1), packed)
}

/// Packs a record, as several if one would have more bytes than `max_bytes`. Returns how many spans and log records are too large
/// alone, which their sender could send for ever, or `None` if it cannot be encoded.
fn pack_up(record: Record, max_bytes: usize, packed: &mut Vec<Packed>) -> Option<u64> {
    let Record { hop, partition, key, envelope } = record;
    let payload = pack(&envelope)?;
    if payload.len() <= max_bytes {
        packed.push(Packed { hop, partition, key, payload });
        return Some(0);
    }
    let Envelope { mut message, shard, generation, time } = envelope;
    let rest = match &mut message {
        Message::Inputs(inputs) if inputs.len() > 1 => {
            Message::Inputs(inputs.split_off(inputs.len() / 2))
        }
        Message::Responses(seen) if seen.len() > 1 => {
            Message::Responses(seen.split_off(seen.len() / 2))
        }
        Message::Inputs(inputs) => {
            tracing::warn!(bytes = payload.len(), "an item of a request is too large for a record");
            let is_sent = |input: &&Input| matches!(input, Input::Span(_) | Input::Log(_));
            return Some(inputs.iter().filter(is_sent).count() as u64);
        }
        Message::Responses(_)
        | Message::Trace(_)
        | Message::Session(_)
        | Message::Report(_)
        | Message::Learned(_)
        | Message::Began(_)
        | Message::Tick => return Some(0),
    };
    let halves = [message, rest].map(|message| {
        let envelope = Envelope { message, shard, generation, time };
        pack_up(Record { hop, partition, key: key.clone(), envelope }, max_bytes, packed)
    });
    halves.into_iter().sum()
}

impl ClientContext for Deliveries {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(target: "librdkafka", facility, "{message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.status.failed(&error, reason);
    }

    /// Clears a problem with brokers if one is connected; called every second.
    fn stats(&self, statistics: Statistics) {
        if connected(statistics) {
            self.status.connected();
        }
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<OnItsWay>;

    fn delivery(&self, result: &DeliveryResult<'_>, on_its_way: Box<OnItsWay>) {
        let OnItsWay { pending, at } = *on_its_way;
        match result {
            Ok(_) => {}
            Err((error, message)) if is_too_large(error) => {
                let refused = self.refused.fetch_add(1, Ordering::SeqCst) + 1;
                note_too_large(refused, message.topic(), message.payload_len());
                pending.refused.lock().unwrap_or_else(PoisonError::into_inner).push(at);
            }
            Err((error, _)) => {
                tracing::debug!(%error, "a record of a request was not delivered");
                pending.failed.store(true, Ordering::SeqCst);
            }
        }
        self.room.notify_waiters();
        if pending.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let done = pending.done.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(done) = done {
                // Fails if the sender of the request has disconnected.
                let _ = done.send(!pending.failed.load(Ordering::SeqCst));
            }
        }
    }
}

/// When a turn begins with an input that is a prompt.
fn prompts_at(input: &Input) -> Option<Timestamp> {
    if let Input::Span(span) = input { span.prompts_at() } else { None }
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::DefaultProducerContext;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::*;
    use crate::engine::span::{Span, SpanId, Text};
    use crate::ingest::kafka::WithoutMetrics;

    fn make_topics(cluster: &MockCluster<'_, DefaultProducerContext>, partitions: i32) {
        for topic in HOPS.map(|hop| hop.topic("agentgauge")) {
            cluster.create_topic(&topic, partitions, 1).unwrap();
        }
    }

    /// Waits until the readiness of a gateway meets a condition; fails if it does not within a minute.
    async fn becomes(gateway: &Gateway, is_so: impl Fn(Result<(), String>) -> bool) {
        for _ in 0..1200 {
            if is_so(gateway.status().ready()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{:?}", gateway.status().ready());
    }

    /// Waits until the gateway accepts requests.
    async fn ready(gateway: &Gateway) {
        becomes(gateway, |ready| ready.is_ok()).await;
    }

    #[tokio::test]
    async fn with_another_number_of_partitions_than_the_topics_have_it_takes_nothing_and_says_why()
    {
        let cluster = MockCluster::new(1).unwrap();
        make_topics(&cluster, 8);
        let brokers = vec![cluster.bootstrap_servers()];
        let options = KafkaOptions { brokers, ..KafkaOptions::default() };
        let gateway = Gateway::new(&options, "agentgauge", 4, Arc::new(WithoutMetrics)).unwrap();
        let says_so = |ready: Result<(), String>| {
            ready.is_err_and(|why| why.contains("has 8 partitions, and `fleet.partitions` is 4"))
        };
        becomes(&gateway, says_so).await;
        // The brokers answer, which does not mend the problem.
        gateway.status().connected();
        assert!(says_so(gateway.status().ready()), "{:?}", gateway.status().ready());
        let batch = Batch { spans: vec![Span::default()], ..Batch::default() };
        assert!(gateway.submit(batch).await.is_err());
    }

    #[tokio::test]
    async fn a_request_larger_than_the_queue_waits_for_its_own_deliveries() {
        let cluster = MockCluster::new(1).unwrap();
        make_topics(&cluster, 4);
        let brokers = vec![cluster.bootstrap_servers()];
        let options = KafkaOptions { brokers: brokers.clone(), ..KafkaOptions::default() };
        let mut config = config(&options, TIMEOUT_MS).unwrap();
        config.set("queue.buffering.max.messages", "10");
        let status = Arc::new(Status::new(Arc::new(WithoutMetrics), &brokers));
        let gateway = Gateway::with(&config, status, "agentgauge", 4).unwrap();
        ready(&gateway).await;
        let span = |trace: u8| Span { trace_id: TraceId([trace; 16]), ..Span::default() };
        let spans = (1..=100).map(span).collect();
        let batch = Batch { spans, ..Batch::default() };
        assert!(gateway.submit(batch).await.is_ok());
    }

    #[tokio::test]
    async fn what_the_brokers_refuse_as_too_large_goes_in_smaller_records_or_is_left_out() {
        let cluster = MockCluster::new(1).unwrap();
        make_topics(&cluster, 4);
        let brokers = vec![cluster.bootstrap_servers()];
        let options = KafkaOptions { brokers, ..KafkaOptions::default() };
        let gateway = Gateway::new(&options, "agentgauge", 4, Arc::new(WithoutMetrics)).unwrap();
        ready(&gateway).await;
        for (spans, refusals, too_large) in [(1, 0, 0), (1, 1, 1), (2, 1, 0), (1, 0, 0)] {
            let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
            cluster.request_errors(RDKafkaApiKey::Produce, &vec![error; refusals]);
            let span = |span: u8| Span { span_id: SpanId([span; 8]), ..Span::default() };
            let spans = (1..=spans).map(span).collect();
            let left_out = gateway.submit(Batch { spans, ..Batch::default() }).await.unwrap();
            assert_eq!(left_out.record_too_large, too_large, "{refusals} refusals");
        }
    }

    /// A span with a text of this many bytes.
    fn span(bytes: usize) -> Input {
        let output = Some(Text { rank: 0, text: "x".repeat(bytes).into() });
        Input::Span(Box::new(Span { output, ..Span::default() }))
    }

    #[test]
    fn inputs_that_are_too_large_for_one_record_go_into_several() {
        const MIB: usize = 1 << 20;
        let map = Map::new(4);
        for (mebibytes, records, too_large) in
            [(&[1, 2, 3][..], 1, 0), (&[9, 9], 2, 0), (&[17], 0, 1), (&[1, 17, 1, 9, 9], 4, 1)]
        {
            let inputs = mebibytes.iter().map(|size| span(size * MIB)).collect();
            let record = map.to_trace(TraceId([7; 16]), Message::Inputs(inputs));
            let (partition, mut packed) = (record.partition, Vec::new());
            let left_out = pack_up(record, MAX_PAYLOAD_BYTES, &mut packed);
            assert_eq!(left_out, Some(too_large), "{mebibytes:?}");
            assert!(packed.iter().all(|record| record.payload.len() <= MAX_PAYLOAD_BYTES));
            assert!(packed.iter().all(|record| record.partition == partition));
            assert_eq!(packed.len(), records, "{mebibytes:?}");
        }
    }
}
