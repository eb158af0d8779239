//! How a worker takes over partitions.

use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{Offset, TopicPartitionList};

use super::super::owned::OwnedPartition;
use super::super::partition::{Begin, PartitionState, Stage, TakenOver};
use super::{AGAIN, GONE_BACK, INTERNAL, MAX_LEFT_OUT, PATIENCE, Worker};
use crate::engine::span::Timestamp;
use crate::engine::time::WallShift;

/// The longest pause before a checkpoint that could not be loaded is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl<S: Stage> Worker<S> {
    /// Loads the checkpoints of these partitions; returns the partitions with the offsets to begin at.
    pub(super) fn take_over(&mut self, partitions: &[i32]) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            let offset = self.load_in_time(*partition);
            // Fails for invalid offsets only.
            let _ = list.add_partition_offset(&self.topic, *partition, offset);
        }
        list
    }

    /// Loads the checkpoint of a partition, however often that fails; gives up when the lease on its partitions is about to lapse.
    fn load_in_time(&mut self, partition: i32) -> Offset {
        let (mut told, mut pause, mut claimed) = (String::new(), AGAIN, None);
        while !self.stopping() && !self.lease.has_lapsed() {
            let why = match self.load(partition, &mut claimed) {
                Ok(offset) => return offset,
                Err(why) => why,
            };
            self.metrics.problem(why.clone());
            if told != why {
                tracing::error!(partition, role = S::ROLE.name(), "cannot begin: {why}");
                told = why;
            }
            // Meanwhile it is unknown whether there are more records for the others.
            self.held.values_mut().for_each(|held| held.at_end = false);
            self.show();
            let end = self.clock.now().after(pause);
            while self.clock.now() < end && !self.stopping() && !self.lease.has_lapsed() {
                std::thread::sleep(AGAIN);
                self.keep_lease();
            }
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
        Offset::Invalid
    }

    /// Loads the checkpoint of a partition; `claimed` is the generation that an earlier attempt has claimed.
    fn load(&mut self, partition: i32, claimed: &mut Option<u64>) -> Result<Offset, String> {
        let number = u32::try_from(partition).map_err(|_| "no such partition".to_owned())?;
        if number >= self.fleet.partitions {
            // A partition beyond `fleet.partitions`, to which nothing is written.
            return Ok(Offset::End);
        }
        let moment = self.clock.moment();
        let told = |error: KafkaError| error.to_string();
        let ends = self.consumer.fetch_watermarks(&self.topic, partition, PATIENCE);
        let (low, target) = ends.map_err(told)?;
        self.lease.touch();
        let of = format!("{}/{partition}", self.topic);
        let found = self.checkpoints.claim(&of, *claimed, moment.wall);
        let (generation, checkpoint) = found.map_err(|error| error.to_string())?;
        *claimed = Some(generation);
        let gone_back = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.next - target);
        let is_anew = gone_back > 0;
        if is_anew {
            tracing::error!(of, gone = gone_back, end = target, "{GONE_BACK}");
            self.metrics.gone(gone_back);
        }
        let next = match (&checkpoint, S::BEGIN) {
            (_, Begin::Everything) => low,
            (Some(_), Begin::Lookback) if is_anew => low,
            (Some(checkpoint), Begin::Lookback) => {
                if checkpoint.next < low {
                    tracing::error!(of, from = checkpoint.next, to = low, "records are gone");
                    self.metrics.gone(low - checkpoint.next);
                }
                checkpoint.next.max(low)
            }
            (None, Begin::Lookback) => {
                let from = moment.wall.before(self.fleet.lookback);
                self.offset_from(partition, from, (low, target)).map_err(told)?
            }
        };
        let last = checkpoint.as_ref().filter(|_| !is_anew);
        let last = last.and_then(|checkpoint| checkpoint.last_record_from(low));
        let begin = last.map_or(next, |(at, _)| next.min(at));
        let taken = TakenOver { partition: number, generation, checkpoint: checkpoint.as_ref() };
        let mut part = self.stage.take_over(&taken)?;
        if is_anew {
            part.restart_offsets();
        }
        self.metrics.well();
        let whole = checkpoint.is_some() || S::BEGIN == Begin::Everything || next == low;
        let now = checkpoint.as_ref().map_or(Timestamp(0), |checkpoint| checkpoint.now);
        let mut held = OwnedPartition {
            part,
            generation,
            next: begin,
            last_record: last.map(|(_, sum)| sum),
            expected: last,
            target,
            live: begin >= target,
            listened: None,
            at_end: false,
            whole,
            now,
            seen: (now, moment.now),
            shift: WallShift::default(),
            ticked: Timestamp(0),
            senders: checkpoint.map(|checkpoint| checkpoint.senders).unwrap_or_default(),
            saved: None,
        };
        held.follow(moment);
        tracing::info!(of, generation, next, target, "took a partition over");
        self.held.insert(partition, held);
        Ok(Offset::Offset(begin))
    }

    /// Takes over a partition once more without the record at this offset, at which the stage panicked and so may have broken its
    /// state.
    pub(super) fn leave_out(&mut self, partition: i32, offset: i64) {
        let (topic, role) = (&self.topic, S::ROLE.name());
        tracing::error!(topic, partition, offset, role, "a record caused a panic and was left out");
        self.metrics.record(Err(INTERNAL));
        self.left_out.insert((partition, offset));
        if self.left_out.len() > MAX_LEFT_OUT {
            self.fatal = Some(format!("it panicked at {MAX_LEFT_OUT} records"));
            return;
        }
        self.out.clear();
        self.forget(&[partition]);
        let begin = self.load_in_time(partition);
        if begin == Offset::Invalid {
            return;
        }
        if let Err(error) = self.consumer.seek(&self.topic, partition, begin, PATIENCE) {
            let why = format!("partition {partition} was not read from its checkpoint: {error}");
            self.broken.get_or_insert(why);
        }
    }

    /// Reads a partition from its first record on, as another record is in the place of the last one that was read: it is unknown
    /// how many of the read records are gone, but that one is.
    pub(super) fn read_from_the_first(&mut self, partition: i32) {
        tracing::error!(topic = self.topic, partition, "{GONE_BACK}");
        self.metrics.gone(1);
        let ends = self.consumer.fetch_watermarks(&self.topic, partition, PATIENCE);
        let sought = ends.and_then(|(low, end)| {
            let first = Offset::Offset(low);
            self.consumer.seek(&self.topic, partition, first, PATIENCE)?;
            Ok((low, end))
        });
        match (sought, self.held.get_mut(&partition)) {
            (Ok((low, end)), Some(held)) => held.begin_anew(low, end),
            (Err(error), _) => {
                let why =
                    format!("partition {partition} was not read from its first record: {error}");
                self.broken.get_or_insert(why);
            }
            (Ok(_), None) => {}
        }
    }

    /// The offset of the first record from this time on, among the records with these offsets; the end if there is none. All
    /// records are after the beginning of time.
    fn offset_from(
        &self,
        partition: i32,
        from: Timestamp,
        (low, end): (i64, i64),
    ) -> KafkaResult<i64> {
        if from == Timestamp(0) {
            return Ok(low);
        }
        Ok(self.offset_at(partition, from)?.unwrap_or(end).max(low))
    }

    /// The offset of the first record from this time on; `None` if there is none.
    fn offset_at(&self, partition: i32, from: Timestamp) -> KafkaResult<Option<i64>> {
        let mut asked = TopicPartitionList::new();
        let millis = i64::try_from(from.0 / 1_000_000).unwrap_or(i64::MAX);
        asked.add_partition_offset(&self.topic, partition, Offset::Offset(millis))?;
        let found = self.consumer.offsets_for_times(asked, PATIENCE)?;
        let found = found.find_partition(&self.topic, partition);
        Ok(found.and_then(|found| found.offset().to_raw()).filter(|offset| *offset >= 0))
    }
}
