//! Records that were read and are not settled yet, in the order read.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rdkafka::Message;
use rdkafka::TopicPartitionList;
use rdkafka::message::BorrowedMessage;

/// A record and its state. Its message stays in librdkafka's memory until it is settled, so that it can be decoded again if there
/// was no room for it.
pub(super) struct Record<'c> {
    pub(super) message: BorrowedMessage<'c>,
    /// The index of its topic.
    pub(super) topic: usize,
    state: State,
    /// Whether its partition was revoked after it was read: the new owner reads it again, and settles it.
    given_up: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Waiting to be decoded, or decoded again.
    Held,
    /// With the stages.
    Running,
    /// Being delivered as a dead letter, because it cannot be read for this reason.
    Sent(&'static str),
    /// Waiting to be sent again as a dead letter.
    Unsent(&'static str),
    /// Applied or given up.
    Settled,
}

/// The outcome of a running record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    /// Every shard has applied it.
    Applied,
    /// There was no room for it.
    Refused,
    /// It made the daemon panic.
    Failed,
    /// It is to be sent again as a dead letter.
    Again,
}

/// Reports the outcome of one record when dropped, even if the task that applies it is cancelled or panics.
pub(super) struct Ticket {
    number: usize,
    outcome: Outcome,
    told: Sender<(usize, Outcome)>,
}

/// The records in flight.
pub(super) struct Flight<'c> {
    records: BTreeMap<usize, Record<'c>>,
    next: usize,
    tell: Sender<(usize, Outcome)>,
    told: Receiver<(usize, Outcome)>,
}

impl<'c> Flight<'c> {
    pub(super) fn new() -> Self {
        let (tell, told) = channel();
        Self { records: BTreeMap::new(), next: 0, tell, told }
    }

    /// Adds a record to be decoded.
    pub(super) fn push(&mut self, message: BorrowedMessage<'c>, topic: usize) {
        let record = Record { message, topic, state: State::Held, given_up: false };
        self.records.insert(self.next, record);
        self.next += 1;
    }

    /// The number of records, settled or not.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether records wait to be decoded.
    pub(super) fn holds(&self) -> bool {
        self.first_held().is_some()
    }

    /// Whether records are with the stages, or being delivered as dead letters.
    pub(super) fn runs(&self) -> bool {
        self.records.values().any(Record::runs)
    }

    /// The number of the first record that waits to be decoded.
    pub(super) fn first_held(&self) -> Option<usize> {
        let held = |(number, record): (&usize, &Record<'_>)| {
            (record.state == State::Held).then_some(*number)
        };
        self.records.iter().find_map(held)
    }

    /// The record with a number, if it is still in flight.
    pub(super) fn get(&self, number: usize) -> Option<&Record<'c>> {
        self.records.get(&number)
    }

    /// Marks a record as with the stages; returns the ticket that reports its outcome.
    pub(super) fn run(&mut self, number: usize) -> Ticket {
        self.set(number, State::Running);
        Ticket { number, outcome: Outcome::Refused, told: self.tell.clone() }
    }

    /// Marks a record as being delivered as a dead letter.
    pub(super) fn send(&mut self, number: usize, reason: &'static str) {
        self.set(number, State::Sent(reason));
    }

    /// The reason why a record that is being delivered as a dead letter could not be read.
    pub(super) fn on_its_way(&self, number: usize) -> Option<&'static str> {
        match self.records.get(&number)?.state {
            State::Sent(reason) => Some(reason),
            State::Held | State::Running | State::Unsent(_) | State::Settled => None,
        }
    }

    /// Marks a record as not delivered as a dead letter, unless it was given up; returns the ticket that reports when it is to be
    /// sent again.
    pub(super) fn leave(&mut self, number: usize, reason: &'static str) -> Option<Ticket> {
        self.set(number, State::Unsent(reason));
        self.drop_given_up(number);
        let ticket = || Ticket { number, outcome: Outcome::Again, told: self.tell.clone() };
        self.records.contains_key(&number).then(ticket)
    }

    /// Whether records wait to be sent again as dead letters.
    pub(super) fn has_unsent(&self) -> bool {
        self.records.values().any(|record| matches!(record.state, State::Unsent(_)))
    }

    /// The reason why a record that is to be sent again as a dead letter could not be read.
    pub(super) fn unsent(&self, number: usize) -> Option<&'static str> {
        match self.records.get(&number)?.state {
            State::Unsent(reason) => Some(reason),
            State::Held | State::Running | State::Sent(_) | State::Settled => None,
        }
    }

    /// Marks a record as to be decoded again; drops one that was given up.
    pub(super) fn hold(&mut self, number: usize) {
        self.set(number, State::Held);
        self.drop_given_up(number);
    }

    /// Whether a record was given up.
    pub(super) fn has_given_up(&self, number: usize) -> bool {
        self.records.get(&number).is_some_and(|record| record.given_up)
    }

    /// Marks a record as applied or given up.
    pub(super) fn settle(&mut self, number: usize) {
        self.set(number, State::Settled);
    }

    /// The outcomes that were reported since the last call; waits at most `wait` for the first.
    pub(super) fn outcomes(&self, wait: Duration) -> Vec<(usize, Outcome)> {
        // `self.tell` keeps the channel open, so an error means that the time is over.
        let first = self.told.recv_timeout(wait).ok();
        first.into_iter().chain(self.told.try_iter()).collect()
    }

    /// Removes and returns the first record if it is settled; all records before it were removed already. Records that were given
    /// up are skipped: their offsets must not be stored.
    pub(super) fn pop(&mut self) -> Option<Record<'c>> {
        loop {
            let first = self.records.first_entry().filter(|it| it.get().state == State::Settled)?;
            let record = first.remove();
            if !record.given_up {
                return Some(record);
            }
        }
    }

    /// Gives up the records of revoked partitions, which the next owner reads again, even if that is this instance. Running records
    /// stay until they are done. None of their offsets is stored any more: it could be past a record that was given up before it
    /// was applied.
    pub(super) fn give_up(&mut self, partitions: &TopicPartitionList) {
        let revoked = |record: &Record<'_>| {
            let message = &record.message;
            partitions.find_partition(message.topic(), message.partition()).is_some()
        };
        self.records.retain(|_, record| {
            record.given_up |= revoked(record);
            !record.given_up || record.runs()
        });
    }

    fn drop_given_up(&mut self, number: usize) {
        self.records.retain(|of, record| *of != number || !record.given_up);
    }

    fn set(&mut self, number: usize, state: State) {
        if let Some(record) = self.records.get_mut(&number) {
            record.state = state;
        }
    }
}

impl Record<'_> {
    fn runs(&self) -> bool {
        matches!(self.state, State::Running | State::Sent(_))
    }
}

impl Ticket {
    /// Reports that the record was applied.
    pub(super) fn applied(mut self) {
        self.outcome = Outcome::Applied;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.outcome = Outcome::Failed;
        }
        // This fails only after the source has ended, when no outcome is needed.
        let _ = self.told.send((self.number, self.outcome));
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::Offset;
    use rdkafka::consumer::{BaseConsumer, Consumer};
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A consumer of a topic with two partitions that have this many records each.
    fn consumer(
        cluster: &MockCluster<'_, impl rdkafka::producer::ProducerContext>,
    ) -> BaseConsumer {
        cluster.create_topic("spans", 2, 1).unwrap();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.bootstrap_servers()).set("group.id", "group");
        let producer: BaseProducer = config.create().unwrap();
        for (partition, records) in [(0, 1), (1, 3)] {
            for _ in 0..records {
                let record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to("spans").payload(b"x");
                producer.send(record.partition(partition)).map_err(|(error, _)| error).unwrap();
            }
        }
        producer.flush(PATIENCE).unwrap();
        let consumer: BaseConsumer = config.create().unwrap();
        let mut all = TopicPartitionList::new();
        all.add_partition_range("spans", 0, 1);
        all.set_all_offsets(Offset::Beginning).unwrap();
        consumer.assign(&all).unwrap();
        consumer
    }

    /// The records of these partitions in flight, as (partition, offset), in the order read.
    fn read<'c>(flight: &mut Flight<'c>, consumer: &'c BaseConsumer) -> Vec<(i32, i64)> {
        let mut messages = Vec::new();
        while messages.len() < 4 {
            messages.push(consumer.poll(PATIENCE).unwrap().unwrap());
        }
        // Partition 0 first, whatever arrived first.
        messages.sort_by_key(|message| (message.partition(), message.offset()));
        let read = messages.iter().map(|message| (message.partition(), message.offset())).collect();
        messages.into_iter().for_each(|message| flight.push(message, 0));
        read
    }

    #[test]
    fn no_offset_of_a_revoked_partition_is_stored() {
        let cluster = MockCluster::new(1).unwrap();
        let consumer = consumer(&cluster);
        let mut flight = Flight::new();
        assert_eq!(read(&mut flight, &consumer), [(0, 0), (1, 0), (1, 1), (1, 2)]);
        // The first record of partition 0 runs for long. Of partition 1, one record waits for room, one is applied, one runs.
        let slow = flight.run(0);
        flight.run(2).applied();
        flight.settle(2);
        let running = flight.run(3);
        assert_eq!(flight.first_held(), Some(1));
        let mut revoked = TopicPartitionList::new();
        revoked.add_partition("spans", 1);
        flight.give_up(&revoked);
        assert_eq!((flight.first_held(), flight.len()), (None, 2));
        drop((slow, running));
        flight.settle(0);
        flight.settle(3);
        let popped = std::iter::from_fn(|| flight.pop());
        let popped: Vec<i32> = popped.map(|record| record.message.partition()).collect();
        assert_eq!(popped, [0], "the record that waits is read again after those that are stored");
        assert_eq!(flight.len(), 0);
    }

    #[test]
    fn a_record_that_was_given_up_while_it_ran_is_not_decoded_again() {
        let cluster = MockCluster::new(1).unwrap();
        let consumer = consumer(&cluster);
        let mut flight = Flight::new();
        read(&mut flight, &consumer);
        let ticket = flight.run(3);
        let mut revoked = TopicPartitionList::new();
        revoked.add_partition("spans", 1);
        flight.give_up(&revoked);
        assert!(flight.has_given_up(3) && !flight.has_given_up(0));
        drop(ticket);
        flight.hold(3);
        assert_eq!((flight.first_held(), flight.len()), (Some(0), 1));
    }

    fn outcomes(flight: &Flight<'_>) -> Vec<Outcome> {
        flight.outcomes(Duration::ZERO).into_iter().map(|(_, outcome)| outcome).collect()
    }

    #[test]
    fn a_ticket_tells_what_became_of_its_record() {
        let mut flight = Flight::new();
        flight.run(1).applied();
        drop(flight.run(2));
        assert_eq!(outcomes(&flight), [Outcome::Applied, Outcome::Refused]);
    }

    #[test]
    fn a_panic_is_told_as_such() {
        let mut flight = Flight::new();
        let ticket = flight.run(1);
        let panicked = std::thread::spawn(move || {
            let _ticket = ticket;
            panic!("the stage was told to");
        });
        assert!(panicked.join().is_err());
        assert_eq!(outcomes(&flight), [Outcome::Failed]);
    }
}
