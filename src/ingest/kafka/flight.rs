//! Records that were read and are not settled yet, in the order read.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rdkafka::Message;
use rdkafka::TopicPartitionList;
use rdkafka::message::BorrowedMessage;

/// A record and its state. Its message stays in librdkafka's memory until it is settled, so that it can be decoded again if
/// there was no room for it.
pub(super) struct Record<'c> {
    pub(super) message: BorrowedMessage<'c>,
    /// The index of its topic.
    pub(super) topic: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Waiting to be decoded, or decoded again.
    Held,
    /// With the stages, or on its way as a dead letter.
    Running,
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
}

/// Reports the outcome of one record when dropped, so even if the task that applies it is cancelled or panics.
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

    /// Adds a record, to be decoded.
    pub(super) fn push(&mut self, message: BorrowedMessage<'c>, topic: usize) {
        self.records.insert(self.next, Record { message, topic, state: State::Held });
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

    /// Whether records are with the stages, or on their way as dead letters.
    pub(super) fn runs(&self) -> bool {
        self.records.values().any(|record| record.state == State::Running)
    }

    /// The number of the first record that waits to be decoded.
    pub(super) fn first_held(&self) -> Option<usize> {
        let held = |(number, record): (&usize, &Record<'_>)| {
            (record.state == State::Held).then_some(*number)
        };
        self.records.iter().find_map(held)
    }

    /// The record of a number, if it is still in flight.
    pub(super) fn get(&self, number: usize) -> Option<&Record<'c>> {
        self.records.get(&number)
    }

    /// Marks a record as with the stages; returns the ticket that reports its outcome.
    pub(super) fn run(&mut self, number: usize) -> Ticket {
        self.set(number, State::Running);
        Ticket { number, outcome: Outcome::Refused, told: self.tell.clone() }
    }

    /// Marks a record as on its way as a dead letter.
    pub(super) fn send(&mut self, number: usize) {
        self.set(number, State::Running);
    }

    /// Marks a record as to be decoded again.
    pub(super) fn hold(&mut self, number: usize) {
        self.set(number, State::Held);
    }

    /// Marks a record as applied or given up.
    pub(super) fn settle(&mut self, number: usize) {
        self.set(number, State::Settled);
    }

    /// The outcomes that were reported since the last call, waiting at most `wait` for the first.
    pub(super) fn told(&self, wait: Duration) -> Vec<(usize, Outcome)> {
        // `self.tell` keeps the channel open, so an error means that the time is over.
        let first = self.told.recv_timeout(wait).ok();
        first.into_iter().chain(self.told.try_iter()).collect()
    }

    /// Takes out the first record if it is settled; all records before it are taken out already.
    pub(super) fn pop(&mut self) -> Option<Record<'c>> {
        let first = self.records.first_entry()?;
        (first.get().state == State::Settled).then(|| first.remove())
    }

    /// Drops the held records of revoked partitions: the next owner reads them.
    pub(super) fn give_up(&mut self, partitions: &TopicPartitionList) {
        self.records.retain(|_, record| {
            let message = &record.message;
            record.state != State::Held
                || partitions.find_partition(message.topic(), message.partition()).is_none()
        });
    }

    fn set(&mut self, number: usize, state: State) {
        if let Some(record) = self.records.get_mut(&number) {
            record.state = state;
        }
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
        // This fails only if the source is gone, which needs no outcome then.
        let _ = self.told.send((self.number, self.outcome));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(flight: &Flight<'_>) -> Vec<Outcome> {
        flight.told(Duration::ZERO).into_iter().map(|(_, outcome)| outcome).collect()
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
