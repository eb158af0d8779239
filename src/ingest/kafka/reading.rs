//! The loop that reads records.
//!
//! Back-pressure: when the stages have no room or too many records are in flight, the source waits a moment and then pauses its
//! partitions. It keeps polling, so that it keeps its place in the group. A record that cannot be read does not delay later
//! records.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaError;
use rdkafka::{Message, TopicPartitionList};

use super::assignment::Change;
use super::client::fatal;
use super::dead_letter::is_for_good;
use super::flight::{Flight, Outcome};
use super::probe::MAX_JUMPS;
use super::source::Source;
use super::start_offsets::{begin, commit};
use crate::ingest::Sink;
use crate::ingest::status::Failure;

/// How long a poll waits for a record.
const POLL: Duration = Duration::from_millis(100);

/// The time to wait for room before trying again, at first and when paused.
const WAIT: Duration = Duration::from_millis(10);
const WAIT_PAUSED: Duration = Duration::from_millis(100);

/// The number of first waits before the partitions are paused. A pause is expensive: records fetched ahead are fetched again after
/// it.
const WAITS_BEFORE_PAUSE: u32 = 20;

/// The number of first waits that records in flight may take when partitions are revoked or the daemon stops.
const WAITS_TO_DRAIN: u32 = 500;

/// The pause before a dead letter that was not delivered is sent again.
const AGAIN: Duration = Duration::from_secs(1);

/// The state of a source that reads.
pub(super) struct Reading<'c, S: Sink> {
    source: &'c Source<S>,
    flight: Flight<'c>,
    paused: bool,
    /// The number of waits since a record was last applied.
    waits: u32,
    /// Whether a record was refused since the last wait.
    refused: bool,
    /// Why the source cannot continue at all.
    fatal: Option<String>,
    /// Records skipped, by topic and reason.
    skipped: BTreeMap<(usize, &'static str), u64>,
    /// The offset after the last record that was read of each partition, by the number of its topic.
    next: BTreeMap<(usize, i32), i64>,
    /// The offsets at which a new group began, to be committed.
    ends: TopicPartitionList,
}

impl<'c, S: Sink> Reading<'c, S> {
    pub(super) fn new(source: &'c Source<S>) -> Self {
        let (flight, skipped, next) = (Flight::new(), BTreeMap::new(), BTreeMap::new());
        let ends = TopicPartitionList::new();
        Self {
            source,
            flight,
            paused: false,
            waits: 0,
            refused: false,
            fatal: None,
            skipped,
            next,
            ends,
        }
    }

    /// Reads until the source is told to stop or cannot continue; returns why it cannot.
    pub(super) fn read(mut self) -> Option<String> {
        while !self.source.stopping() && self.fatal.is_none() {
            self.change_assignment();
            self.commit_ends();
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

    /// Polls librdkafka, and takes the record if there is one.
    fn poll(&mut self, wait: Duration) {
        match self.source.consumer.poll(wait) {
            Some(Ok(message)) => {
                let topics = &self.source.topics;
                if let Some(topic) = topics.iter().position(|topic| topic.name == message.topic()) {
                    self.goes_on_to((topic, message.partition()), message.offset());
                    self.flight.push(message, topic);
                }
            }
            Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => {
                self.fatal = Some(fatal(&self.source.consumer, &error));
            }
            // The context and the probe report lasting problems.
            Some(Err(error)) => tracing::debug!(%error, "no Kafka record"),
            None => {}
        }
    }

    /// Notes the offset of a record that was read, and for the probe any jump over other offsets.
    fn goes_on_to(&mut self, partition: (usize, i32), offset: i64) {
        if let Some(from) = self.next.insert(partition, offset + 1).filter(|from| *from < offset) {
            let mut jumps = self.source.jumps.lock().unwrap_or_else(PoisonError::into_inner);
            if jumps.len() < MAX_JUMPS {
                jumps.push((partition, from, offset));
            }
        }
    }

    /// Decodes held records in their order, as far as there is room.
    fn decode_held(&mut self) {
        while let Some(number) = self.flight.first_held() {
            let Some(record) = self.flight.get(number) else { return };
            let topic = &self.source.topics[record.topic];
            match self.source.take(topic, &record.message) {
                Ok(taken) => {
                    let ticket = self.flight.run(number);
                    let receiver = self.source.receiver.clone();
                    self.source.stages.spawn(async move {
                        if receiver.hand_on(taken).await.is_ok() {
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

    /// Skips a record, and forwards it if there is a topic for dead letters.
    fn skip(&mut self, number: usize, failure: &Failure) {
        let Some(record) = self.flight.get(number) else { return };
        let (topic, reason) = (&self.source.topics[record.topic], failure.reason());
        self.source.watch.skipped(&topic.name, reason);
        let count = self.skipped.entry((record.topic, reason)).or_default();
        *count += 1;
        // Only the 1st, 10th, 100th is logged: a broken sender must not fill the log.
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
        self.send_on(number, reason);
    }

    /// Forwards an unreadable record to the topic for dead letters, if there is one.
    fn send_on(&mut self, number: usize, reason: &'static str) {
        let (letters, record) = (self.source.dead_letters.as_ref(), self.flight.get(number));
        let (Some(letters), Some(record)) = (letters, record) else {
            return self.flight.settle(number);
        };
        match letters.send(number, &record.message, reason) {
            Ok(()) => self.flight.send(number, reason),
            Err(error) => self.was_not_delivered(number, reason, &error),
        }
    }

    /// Keeps a dead letter until it is delivered, unless the brokers refuse it for what it is.
    fn was_not_delivered(&mut self, number: usize, reason: &'static str, error: &KafkaError) {
        if is_for_good(error) {
            tracing::warn!(%error, "a dead letter is refused, and lost; check `kafka.dead_letter_topic`");
            self.source.watch.dead_letter(false);
            return self.flight.settle(number);
        }
        let why = format!(
            "a record that cannot be read is not taken by `kafka.dead_letter_topic`: {error}; holding it, and trying again"
        );
        *self.undelivered() = Some(why);
        if let Some(ticket) = self.flight.leave(number, reason) {
            self.source.stages.spawn(async move {
                tokio::time::sleep(AGAIN).await;
                drop(ticket);
            });
        }
    }

    fn undelivered(&self) -> MutexGuard<'c, Option<String>> {
        self.source.undelivered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the outcomes of records, waiting at most `wait` for one, and stores the offsets of those settled in order.
    /// Returns whether any was applied.
    fn settle(&mut self, wait: Duration) -> bool {
        let mut forward = false;
        for (number, outcome) in self.flight.outcomes(wait) {
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
                // It fails again where it is read again.
                Outcome::Failed if self.flight.has_given_up(number) => self.flight.settle(number),
                Outcome::Failed => self.skip(number, &Failure::Internal),
                Outcome::Again => {
                    if let Some(reason) = self.flight.unsent(number) {
                        self.send_on(number, reason);
                    }
                }
            }
        }
        if let Some(letters) = &self.source.dead_letters {
            letters.poll();
            for (number, error) in self.source.delivered.try_iter() {
                let Some(error) = error else {
                    self.source.watch.dead_letter(true);
                    *self.undelivered() = None;
                    self.flight.settle(number);
                    continue;
                };
                if let Some(reason) = self.flight.on_its_way(number) {
                    self.was_not_delivered(number, reason, &error);
                }
            }
        }
        while let Some(record) = self.flight.pop() {
            let message = &record.message;
            // Storing fails if the partition is being revoked: its next owner reads the record again.
            if self.source.consumer.store_offset_from_message(message).is_ok() {
                let mut positions =
                    self.source.positions.lock().unwrap_or_else(PoisonError::into_inner);
                positions.insert((record.topic, message.partition()), message.offset() + 1);
            }
        }
        forward
    }

    /// Waits for room, and pauses the partitions when that takes long.
    fn wait(&mut self) {
        let wait = if self.paused { WAIT_PAUSED } else { WAIT };
        let forward = self.settle(wait);
        if std::mem::take(&mut self.refused) {
            // The stages need time to make room.
            std::thread::sleep(wait);
        }
        self.waits = if forward { 0 } else { self.waits.saturating_add(1) };
        if self.paused || self.waits >= WAITS_BEFORE_PAUSE {
            self.pause();
            // Polling keeps the place in the group; a record that still arrives is put behind those held.
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
            Err(error) => tracing::debug!(%error, "the Kafka source did not continue"),
        }
    }

    /// Makes the changes that the group asks for. Before partitions are revoked, records in flight are drained, so that their
    /// offsets are committed and the next owner does not read them again.
    fn change_assignment(&mut self) {
        let assignment = &self.source.consumer.context().assignment;
        while let Some(mut change) = assignment.change() {
            if let Change::Revoke(partitions) = &change {
                self.drain();
                self.flight.give_up(partitions);
                if !self.flight.has_unsent() {
                    *self.undelivered() = None;
                }
                let mut positions =
                    self.source.positions.lock().unwrap_or_else(PoisonError::into_inner);
                let gone = |(topic, partition): &(usize, i32)| {
                    let name = &self.source.topics[*topic].name;
                    partitions.find_partition(name, *partition).is_some()
                };
                positions.retain(|key, _| !gone(key));
                self.next.retain(|key, _| !gone(key));
            }
            if let Change::Assign(partitions) = &mut change {
                let Source { consumer, options, watch, .. } = self.source;
                let stopping = || self.source.stopping();
                let beginning = begin(consumer, partitions, options.start, watch, stopping);
                *partitions = beginning.partitions;
                for end in beginning.ends.elements() {
                    let (topic, partition, offset) = (end.topic(), end.partition(), end.offset());
                    // Fails for invalid offsets only.
                    let _ = self.ends.add_partition_offset(topic, partition, offset);
                }
            }
            if let Err(error) = assignment.make(&self.source.consumer, &change) {
                tracing::warn!(%error, "the assignment of Kafka partitions did not change");
            }
            if let (true, Change::Assign(partitions)) = (self.paused, &change)
                && let Err(error) = self.source.consumer.pause(partitions)
            {
                tracing::debug!(%error, "new Kafka partitions were not paused");
            }
        }
    }

    /// Commits the offsets at which a new group began. That fails while the group changes.
    fn commit_ends(&mut self) {
        if self.ends.count() == 0 {
            return;
        }
        match commit(&self.source.consumer, &self.ends) {
            Ok(()) => self.ends = TopicPartitionList::new(),
            Err(error) => tracing::debug!(%error, "Kafka offsets were not committed"),
        }
    }

    /// Waits for running records, not for those held.
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
