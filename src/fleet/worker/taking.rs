//! How a worker takes partitions over.

use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{Offset, TopicPartitionList};

use super::super::owned::OwnedPartition;
use super::super::partition::{Begin, PartitionState, Stage, TakenOver};
use super::{AGAIN, GONE_BACK, PATIENCE, Worker};
use crate::engine::span::Timestamp;
use crate::engine::time::WallShift;

impl<S: Stage> Worker<S> {
    /// Loads the checkpoints of these partitions; returns the partitions with the offsets to begin at.
    pub(super) fn take_over(&mut self, partitions: &[i32]) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            let offset = loop {
                match self.load(*partition) {
                    Ok(offset) => break offset,
                    Err(why) => {
                        tracing::error!(partition, role = S::ROLE.name(), "cannot begin: {why}");
                        self.metrics.problem(why);
                    }
                }
                if self.stopping() || self.lease.has_lapsed() {
                    break Offset::Invalid;
                }
                std::thread::sleep(AGAIN);
            };
            // Fails for invalid offsets only.
            let _ = list.add_partition_offset(&self.topic, *partition, offset);
        }
        list
    }

    fn load(&mut self, partition: i32) -> Result<Offset, String> {
        let number = u32::try_from(partition).map_err(|_| "no such partition".to_owned())?;
        if number >= self.fleet.partitions {
            // A partition beyond `fleet.partitions`, to which nobody writes.
            return Ok(Offset::End);
        }
        let moment = self.clock.moment();
        let told = |error: KafkaError| error.to_string();
        let ends = self.consumer.fetch_watermarks(&self.topic, partition, PATIENCE);
        let (low, target) = ends.map_err(told)?;
        self.lease.touch();
        let of = format!("{}/{partition}", self.topic);
        let claimed = self.checkpoints.claim(&of, moment.wall);
        let (generation, checkpoint) = claimed.map_err(|error| error.to_string())?;
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
                // A lookback that goes before the beginning of time takes all records.
                match moment.wall.before(self.fleet.lookback) {
                    Timestamp(0) => low,
                    from => {
                        self.offset_at(partition, from).map_err(told)?.unwrap_or(target).max(low)
                    }
                }
            }
        };
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
            next,
            target,
            live: next >= target,
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
        Ok(Offset::Offset(next))
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
