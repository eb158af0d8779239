//! Probes the brokers every few seconds: whether they answer, whether the topics exist, and how far the source lags.
//!
//! The probe has its own thread, so that a broker that does not answer delays no record. The brokers are asked for the lag, because
//! the offsets of the last fetch would give a wrong one while the source is paused.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};

use super::context::Context;
use super::options::Start;
use super::status::{Problem, SourceMetrics, Status};
use super::topic::Topic;

/// The longest wait for an answer, which can delay a shutdown as much.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The offset after the last applied record of each partition, by the number of its topic.
pub(super) type Positions = Mutex<BTreeMap<(usize, i32), i64>>;

/// Offsets at which a partition should have continued, and at which it did: the records between them were deleted, unless there
/// were none, as in compacted topics and between transactions.
pub(super) type Jumps = Mutex<Vec<((usize, i32), i64, i64)>>;

/// Why the last dead letter was not delivered, while one waits to be sent again.
pub(super) type Undelivered = Mutex<Option<String>>;

/// The most jumps between two probes; any more come from transactions.
pub(super) const MAX_JUMPS: usize = 4096;

/// The probe of a source.
pub(super) struct Probe<'s> {
    pub(super) consumer: &'s BaseConsumer<Context>,
    pub(super) topics: &'s [Topic],
    /// The topic of dead letters; empty without one.
    pub(super) dead_letter_topic: &'s str,
    pub(super) start: Start,
    pub(super) positions: &'s Positions,
    pub(super) jumps: &'s Jumps,
    pub(super) undelivered: &'s Undelivered,
    pub(super) status: &'s Status,
    pub(super) watch: &'s Arc<dyn SourceMetrics>,
}

impl Probe<'_> {
    /// Probes every `interval` until the other end of `stop` is dropped.
    pub(super) fn run(&self, interval: Duration, stop: &Receiver<()>) {
        loop {
            self.look();
            match stop.recv_timeout(interval) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&self) {
        match self.topics_are_there() {
            Ok(None) => self.status.well(),
            Ok(Some(problem)) => self.status.problem(problem),
            Err(error) => self.status.problem(Problem::Unreachable { why: error.to_string() }),
        }
        // An unknown lag is not shown. It does not make the source unready, as the group's coordinator does not answer while the
        // group changes.
        let lags = self.lags().unwrap_or_else(|error| {
            tracing::debug!(%error, "the lag is not known");
            BTreeMap::new()
        });
        self.watch.lags(&lags);
    }

    /// The problem with the first topic that cannot be read, or with the dead-letter topic if it is missing; `None` if there is
    /// none.
    fn topics_are_there(&self) -> KafkaResult<Option<Problem>> {
        let topics = self.topics.iter().map(|topic| (topic.name.as_str(), topic.keys.0));
        let dead_letters = [(self.dead_letter_topic, "kafka.dead_letter_topic")];
        for (name, key) in topics.chain(dead_letters).filter(|(name, _)| !name.is_empty()) {
            let metadata = self.consumer.fetch_metadata(Some(name), PATIENCE)?;
            let found = metadata.topics().iter().find(|found| found.name() == name);
            let code = found
                .map_or(Some(Code::UnknownTopicOrPartition), |found| found.error().map(Code::from));
            let problem = match code {
                None => continue,
                Some(code) if [Code::TopicAuthorizationFailed].contains(&code) => {
                    Problem::Forbidden { what: format!("topic `{name}`"), key }
                }
                Some(code) if missing(code) => Problem::Missing { topic: name.to_owned(), key },
                // Errors that pass, such as a partition without a leader.
                Some(code) => Problem::Other { why: format!("topic `{name}` (`{key}`): {code}") },
            };
            return Ok(Some(problem));
        }
        let undelivered = self.undelivered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(undelivered.map(|why| Problem::Other { why }))
    }

    /// The number of records of each assigned partition that are not applied yet; partitions with an unknown lag are left out.
    fn lags(&self) -> KafkaResult<BTreeMap<(String, i32), i64>> {
        let assigned = self.consumer.assignment()?;
        if assigned.count() == 0 {
            return Ok(BTreeMap::new());
        }
        let ends = ask(self.consumer, &assigned, Offset::End)?;
        let begins = ask(self.consumer, &assigned, Offset::Beginning)?;
        self.notice_jumps(&begins);
        let committed = self.consumer.committed_offsets(assigned, PATIENCE);
        let known = committed.is_ok();
        let committed = committed.map(|committed| offsets(&committed)).unwrap_or_default();
        let mut lags = BTreeMap::new();
        for (key, end) in ends {
            let applied = self.position(&key).or_else(|| committed.get(&key).copied());
            let begin = begins.get(&key).copied();
            let position = match (applied, self.start) {
                // Records that the broker has deleted do not count.
                (Some(applied), _) => Some(begin.map_or(applied, |begin| begin.max(applied))),
                (None, Start::Earliest) if known => begin,
                (None, Start::Earliest | Start::Latest) => None,
            };
            if let Some(position) = position {
                lags.insert(key, end.saturating_sub(position).max(0));
            }
        }
        Ok(lags)
    }

    /// Logs and counts the deleted records that were jumped over.
    fn notice_jumps(&self, begins: &BTreeMap<(String, i32), i64>) {
        let jumps = std::mem::take(&mut *self.jumps.lock().unwrap_or_else(PoisonError::into_inner));
        for ((topic, partition), from, to) in jumps {
            let topic = &self.topics[topic].name;
            let begin = begins.get(&(topic.clone(), partition)).copied();
            if let Some(gone) = begin.and_then(|begin| deleted(begin, from, to)) {
                note_gone(self.watch, topic, partition, gone);
            }
        }
    }

    fn position(&self, (topic, partition): &(String, i32)) -> Option<i64> {
        let number = self.topics.iter().position(|known| known.name == *topic)?;
        let positions = self.positions.lock().unwrap_or_else(PoisonError::into_inner);
        positions.get(&(number, *partition)).copied()
    }
}

/// How many records between two offsets were deleted, if the partition begins at `begin`; `None` if none was.
fn deleted(begin: i64, from: i64, to: i64) -> Option<u64> {
    u64::try_from(begin.min(to).saturating_sub(from)).ok().filter(|gone| *gone > 0)
}

pub(super) fn note_gone(watch: &Arc<dyn SourceMetrics>, topic: &str, partition: i32, gone: u64) {
    tracing::error!(
        topic,
        partition,
        gone,
        "records were deleted before they were read; the topic keeps them too briefly"
    );
    watch.gone(topic, gone);
}

/// Asks for the offsets at which partitions begin or end.
pub(super) fn ask(
    consumer: &BaseConsumer<Context>,
    partitions: &TopicPartitionList,
    which: Offset,
) -> Result<BTreeMap<(String, i32), i64>, KafkaError> {
    let mut asked = partitions.clone();
    asked.set_all_offsets(which)?;
    Ok(offsets(&consumer.offsets_for_times(asked, PATIENCE)?))
}

fn missing(code: Code) -> bool {
    [Code::UnknownTopicOrPartition, Code::UnknownTopic, Code::UnknownPartition, Code::InvalidTopic]
        .contains(&code)
}

/// The offsets of partitions, by topic and partition, where they are numbers.
pub(super) fn offsets(partitions: &TopicPartitionList) -> BTreeMap<(String, i32), i64> {
    let elements = partitions.elements();
    let known = elements.iter().filter_map(|element| match element.offset() {
        Offset::Offset(offset) if element.error().is_ok() => {
            Some(((element.topic().to_owned(), element.partition()), offset))
        }
        Offset::Offset(_)
        | Offset::Beginning
        | Offset::End
        | Offset::Stored
        | Offset::Invalid
        | Offset::OffsetTail(_) => None,
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_before_the_first_record_was_deleted() {
        for (begin, from, to, gone) in [
            (100, 10, 100, Some(90)),
            (120, 10, 100, Some(90)),
            (50, 10, 100, Some(40)),
            // A compacted topic, or the end of a transaction.
            (10, 10, 100, None),
            (0, 10, 11, None),
        ] {
            assert_eq!(deleted(begin, from, to), gone, "{begin} {from} {to}");
        }
    }
}
