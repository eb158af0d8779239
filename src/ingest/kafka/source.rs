//! The thread that reads.
//!
//! Back-pressure: where the stages have no room, or too many records are in flight, the source waits a moment and then
//! pauses its partitions; it goes on polling, so that it keeps its place in the group. One record that cannot be read
//! holds up none after it.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver as Inbox, channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::BorrowedMessage;
use rdkafka::types::RDKafkaErrorCode;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::client::{self, SourceError};
use super::context::{Change, Closing, Context};
use super::dead_letter::DeadLetters;
use super::flight::{Flight, Outcome};
use super::options::KafkaOptions;
use super::probe::{Positions, Probe};
use super::status::{Problem, Status, Watch};
use super::topic::Topic;
use crate::engine::span::Timestamp;
use crate::ingest::receiver::{Receiver, Taken};
use crate::ingest::status::Failure;
use crate::ingest::{Refusal, Sink};

/// How long a poll waits for a record.
const POLL: Duration = Duration::from_millis(100);

/// How long is waited for room before it is looked for again, at first and when paused.
const WAIT: Duration = Duration::from_millis(10);
const WAIT_PAUSED: Duration = Duration::from_millis(100);

/// How many first waits go by before the partitions are paused: what was fetched ahead is fetched again after a pause.
const WAITS_BEFORE_PAUSE: u32 = 20;

/// How many first waits records in flight may take when partitions go, or the daemon.
const WAITS_TO_DRAIN: u32 = 500;

/// A Kafka source, in its group but not reading yet.
pub struct Source<S: Sink> {
    // Dropped before the consumer, which may wait for its brokers: the stages end when nobody can reach them.
    receiver: Receiver<S>,
    options: KafkaOptions,
    topics: Vec<Topic>,
    consumer: BaseConsumer<Context>,
    dead_letters: Option<DeadLetters>,
    delivered: Inbox<(usize, bool)>,
    status: Arc<Status>,
    watch: Arc<dyn Watch>,
    positions: Positions,
    stages: Handle,
    stopping: watch::Receiver<bool>,
}

/// The source at work.
struct Reading<'c, S: Sink> {
    source: &'c Source<S>,
    flight: Flight<'c>,
    paused: bool,
    /// Waits since anything went forward.
    waits: u32,
    /// A record was refused, and nothing was waited for since.
    refused: bool,
    /// Why it cannot go on at all.
    fatal: Option<String>,
    /// Records skipped, by topic and reason.
    skipped: BTreeMap<(usize, &'static str), u64>,
}

impl<S: Sink> Source<S> {
    /// A source that hands batches to `receiver` until `stopping` says so, or its sender is gone. Brokers that do not
    /// answer are no error: it goes on trying.
    ///
    /// # Errors
    ///
    /// Fails if an option cannot be followed at all, such as a certificate that cannot be read.
    pub fn new(
        options: &KafkaOptions,
        receiver: Receiver<S>,
        watch: Arc<dyn Watch>,
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
            stages,
            stopping,
        })
    }

    /// How it stands with its brokers.
    pub fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// Reads until it is told to stop, then waits for what is in flight, and commits. Blocks its thread.
    pub fn run(self) {
        let _closing = Closing(self.consumer.context());
        let names: Vec<&str> = self.topics.iter().map(|topic| topic.name.as_str()).collect();
        if let Err(error) = self.consumer.subscribe(&names) {
            tracing::error!(%error, "the Kafka source does not run; check `kafka.traces_topics`, `kafka.logs_topics`");
            return;
        }
        let probe = Probe {
            consumer: &self.consumer,
            topics: &self.topics,
            start: self.options.start,
            positions: &self.positions,
            status: &self.status,
            watch: &self.watch,
        };
        let interval = self.options.probe_interval;
        let fatal = std::thread::scope(|scope| {
            // Dropped when reading ends, however it does: then the probe ends too.
            let (_stop, stopped) = channel();
            scope.spawn(move || probe.run(interval, &stopped));
            Reading::new(&self).read()
        });
        if let Some(why) = fatal {
            self.status.problem(Problem::Other { why });
        }
    }

    fn stopping(&self) -> bool {
        // Without a sender the daemon has gone.
        *self.stopping.borrow() || self.stopping.has_changed().is_err()
    }

    /// Decodes a record where it lies; a panic is a record that cannot be read.
    fn take(&self, topic: &Topic, message: &BorrowedMessage<'_>) -> Result<Taken, Failure> {
        let payload = message.payload().filter(|payload| !payload.is_empty());
        let empty = || Refusal::Malformed { what: "record", why: "it is empty".to_owned() };
        let payload = payload.ok_or_else(empty)?;
        let kind = (topic.signal, topic.encoding.into());
        let take = || self.receiver.take(kind, payload, sent(message));
        catch_unwind(AssertUnwindSafe(take)).unwrap_or(Err(Failure::Internal))
    }
}

impl<S: Sink> fmt::Debug for Source<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<'c, S: Sink> Reading<'c, S> {
    fn new(source: &'c Source<S>) -> Self {
        let (flight, skipped) = (Flight::new(), BTreeMap::new());
        Self { source, flight, paused: false, waits: 0, refused: false, fatal: None, skipped }
    }

    /// Reads until it is told to stop, or cannot go on: then it says why.
    fn read(mut self) -> Option<String> {
        while !self.source.stopping() && self.fatal.is_none() {
            self.change_assignment();
            if !self.refused {
                self.decode_held();
            }
            if self.flight.len() < self.source.options.max_in_flight && !self.flight.holds() {
                self.go_on();
                self.poll(POLL);
                self.settle(Duration::ZERO);
            } else {
                self.wait();
            }
        }
        self.drain();
        self.fatal
    }

    /// Takes what librdkafka has: a record, or a change.
    fn poll(&mut self, wait: Duration) {
        match self.source.consumer.poll(wait) {
            Some(Ok(message)) => {
                let topics = &self.source.topics;
                if let Some(topic) = topics.iter().position(|topic| topic.name == message.topic()) {
                    self.flight.push(message, topic);
                }
            }
            Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => {
                let cause = self.source.consumer.client().fatal_error();
                self.fatal = Some(cause.map_or_else(|| error.to_string(), fatal));
            }
            // What stands in the way is told by the context and the probe.
            Some(Err(error)) => tracing::debug!(%error, "no Kafka record"),
            None => {}
        }
    }

    /// Decodes what is held, in its order, as far as there is room.
    fn decode_held(&mut self) {
        while let Some(number) = self.flight.first_held() {
            let Some(record) = self.flight.get(number) else { return };
            let topic = &self.source.topics[record.topic];
            match self.source.take(topic, &record.message) {
                Ok(taken) => {
                    let ticket = self.flight.run(number);
                    let receiver = self.source.receiver.clone();
                    self.source.stages.spawn(async move {
                        if receiver.hand_on("kafka", taken).await.is_ok() {
                            ticket.applied();
                        }
                    });
                }
                Err(Failure::Overloaded(_)) => {
                    self.refused = true;
                    return;
                }
                Err(failure) => self.skip(number, &failure),
            }
        }
    }

    /// Gives a record up, and sends it on if dead letters are wanted.
    fn skip(&mut self, number: usize, failure: &Failure) {
        let Some(record) = self.flight.get(number) else { return };
        let (topic, reason) = (&self.source.topics[record.topic], failure.reason());
        self.source.watch.skipped(&topic.name, reason);
        let count = self.skipped.entry((record.topic, reason)).or_default();
        *count += 1;
        // The 1st, 10th, 100th: a broken sender must not fill the log.
        if count.checked_ilog10().is_some_and(|digits| *count == 10_u64.pow(digits)) {
            let why = if let Failure::Refused(refusal) = failure {
                refusal.to_string()
            } else {
                reason.to_owned()
            };
            let (name, encoding, key) = (&topic.name, topic.encoding.name(), topic.keys.1);
            tracing::warn!(
                partition = record.message.partition(),
                offset = record.message.offset(),
                skipped = *count,
                "a record of Kafka topic `{name}` cannot be read as {encoding} (`{key}`): {why}; skipped"
            );
        }
        let sent = self
            .source
            .dead_letters
            .as_ref()
            .map(|letters| letters.send(number, &record.message, reason));
        match sent {
            Some(Ok(())) => self.flight.send(number),
            Some(Err(error)) => {
                tracing::warn!(%error, "a dead letter was not sent; check `kafka.dead_letter_topic`");
                self.source.watch.dead_letter(false);
                self.flight.settle(number);
            }
            None => self.flight.settle(number),
        }
    }

    /// Hears what became of records, waiting at most so long, and stores the offsets of those settled in order.
    /// Returns whether any went forward.
    fn settle(&mut self, wait: Duration) -> bool {
        let mut forward = false;
        for (number, outcome) in self.flight.told(wait) {
            match outcome {
                Outcome::Applied => {
                    forward = true;
                    if let Some(record) = self.flight.get(number) {
                        self.source.watch.applied(&self.source.topics[record.topic].name);
                    }
                    self.flight.settle(number);
                }
                Outcome::Refused => {
                    self.refused = true;
                    self.flight.hold(number);
                }
                Outcome::Failed => self.skip(number, &Failure::Internal),
            }
        }
        if let Some(letters) = &self.source.dead_letters {
            letters.poll();
            for (number, delivered) in self.source.delivered.try_iter() {
                self.source.watch.dead_letter(delivered);
                self.flight.settle(number);
            }
        }
        while let Some(record) = self.flight.pop() {
            let message = &record.message;
            // A partition that is no longer ours has no place for it: its next owner reads the record again.
            if self.source.consumer.store_offset_from_message(message).is_ok() {
                let mut positions =
                    self.source.positions.lock().unwrap_or_else(PoisonError::into_inner);
                positions.insert((record.topic, message.partition()), message.offset() + 1);
            }
        }
        forward
    }

    /// Waits for room, and pauses when that takes long.
    fn wait(&mut self) {
        let wait = if self.paused { WAIT_PAUSED } else { WAIT };
        let forward = self.settle(wait);
        if std::mem::take(&mut self.refused) {
            // Whoever refused it needs the time.
            std::thread::sleep(wait);
        }
        self.waits = if forward { 0 } else { self.waits.saturating_add(1) };
        if self.paused || self.waits >= WAITS_BEFORE_PAUSE {
            self.pause();
            // Serves the group; a record that was under way comes to the end of those held.
            self.poll(Duration::ZERO);
        }
    }

    fn pause(&mut self) {
        if self.paused {
            return;
        }
        let paused =
            self.source.consumer.assignment().and_then(|all| self.source.consumer.pause(&all));
        match paused {
            Ok(()) => {
                self.paused = true;
                self.source.watch.paused(true);
            }
            Err(error) => tracing::debug!(%error, "the Kafka source did not pause"),
        }
    }

    fn go_on(&mut self) {
        self.waits = 0;
        if !self.paused {
            return;
        }
        let resumed =
            self.source.consumer.assignment().and_then(|all| self.source.consumer.resume(&all));
        match resumed {
            Ok(()) => {
                self.paused = false;
                self.source.watch.paused(false);
            }
            Err(error) => tracing::debug!(%error, "the Kafka source did not go on"),
        }
    }

    /// Makes the changes that the group asks for. What goes is drained first, so that its offsets are committed and
    /// its next owner does not read it again.
    fn change_assignment(&mut self) {
        let context = self.source.consumer.context();
        while let Some(change) = context.change() {
            if let Change::Revoke(partitions) = &change {
                self.drain();
                self.flight.give_up(partitions);
                let mut positions =
                    self.source.positions.lock().unwrap_or_else(PoisonError::into_inner);
                let gone = |(topic, partition): &(usize, i32)| {
                    let name = &self.source.topics[*topic].name;
                    partitions.find_partition(name, *partition).is_some()
                };
                positions.retain(|key, _| !gone(key));
            }
            if let Err(error) = context.make(&self.source.consumer, &change) {
                tracing::warn!(%error, "the assignment of Kafka partitions did not change");
            }
            if let (true, Change::Assign(partitions)) = (self.paused, &change)
                && let Err(error) = self.source.consumer.pause(partitions)
            {
                tracing::debug!(%error, "new Kafka partitions were not paused");
            }
        }
    }

    /// Waits for what is in flight, not for what is held.
    fn drain(&mut self) {
        for _ in 0..WAITS_TO_DRAIN {
            if !self.flight.runs() {
                return;
            }
            self.settle(WAIT);
        }
        tracing::warn!("records are still in flight; they will be read again");
    }
}

/// Why a client cannot go on.
fn fatal((code, reason): (RDKafkaErrorCode, String)) -> String {
    if code == RDKafkaErrorCode::FencedInstanceId {
        "another instance took its place in the group; give each its own `kafka.group_instance_id`, and restart"
            .to_owned()
    } else {
        format!("{reason} ({code}); restart")
    }
}

/// When the broker or the sender had the record; a time that says nothing is none.
fn sent(message: &BorrowedMessage<'_>) -> Option<Timestamp> {
    let millis =
        u64::try_from(message.timestamp().to_millis()?).ok().filter(|millis| *millis > 0)?;
    millis.checked_mul(1_000_000).map(Timestamp)
}
