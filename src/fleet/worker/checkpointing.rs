//! How a worker writes checkpoints: one at a time, on another thread, so that a slow or unavailable store delays no record.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::{Offset, TopicPartitionList};

use super::super::checkpoint::{Checkpoint, CheckpointError};
use super::super::partition::{PartitionState, Stage};
use super::{AGAIN, PATIENCE, Worker};
use crate::engine::span::Timestamp;

/// The message if no state can be saved, because records that follow from it were not delivered.
const UNDELIVERED: &str = "records between the stages were not delivered in time, so no checkpoint was written; check the brokers \
                           (`kafka.brokers`), and `min.insync.replicas` of their topics";

/// The message if the store takes too long for the partitions that are given up.
const UNSAVED: &str = "the store of checkpoints (`fleet.checkpoints`) did not take the state of partitions that are given up in time; their next \
                       owner reads back from their last checkpoint";

/// How long all partitions that are given up may take to be saved.
const HAND_OVER: Duration = Duration::from_secs(20);

/// A checkpoint that is being written.
pub(super) struct Writing {
    partition: i32,
    generation: u64,
    next: i64,
    told: Receiver<Result<(), CheckpointError>>,
}

impl<S: Stage> Worker<S> {
    /// Continues the round of checkpoints: notes the written one, and begins the next.
    pub(super) fn save_next(&mut self) {
        if let Some(writing) = self.writing.take() {
            match writing.told.try_recv() {
                Ok(written) => self.was_written(&writing, written),
                Err(TryRecvError::Empty) => self.writing = Some(writing),
                // Its runtime ends, and so does the worker.
                Err(TryRecvError::Disconnected) => {}
            }
        }
        if self.writing.is_none()
            && let Some(partition) = self.unsaved.pop_front()
        {
            self.begin_to_save(partition);
        }
    }

    /// Sends what a partition has not sent yet, and begins to write its checkpoint, once all records that follow from its state are
    /// delivered. A partition that has not caught up has sent nothing, so the checkpoint that it began with is still valid.
    fn begin_to_save(&mut self, partition: i32) {
        let Some(held) = self.held.get_mut(&partition).filter(|held| held.live) else { return };
        held.part.publish(held.now, &mut self.out);
        self.send();
        if self.broken.is_some() {
            return;
        }
        let arrived = self.outbox.flush(PATIENCE);
        self.note_undelivered();
        if !arrived || self.broken.is_some() {
            return self.failed(UNDELIVERED.to_owned());
        }
        let Some(held) = self.held.get_mut(&partition) else { return };
        let Some(sections) = held.part.save() else {
            self.metrics.checkpoint(false);
            return self.metrics.problem(CheckpointError::Unwritable.to_string());
        };
        let checkpoint = Checkpoint {
            partitions: self.fleet.partitions,
            next: held.next,
            last_record: held.last_record,
            now: held.now,
            senders: held.senders.clone(),
            sections,
        };
        let (generation, next) = (held.generation, held.next);
        let of = format!("{}/{partition}", self.topic);
        let told = self.checkpoints.write_beside(of, generation, checkpoint);
        self.writing = Some(Writing { partition, generation, next, told });
    }

    /// Ends the round, as no other checkpoint would be written either.
    fn failed(&mut self, why: String) {
        self.metrics.checkpoint(false);
        self.metrics.problem(why);
        self.unsaved.clear();
    }

    /// Notes the outcome of a checkpoint.
    fn was_written(&mut self, writing: &Writing, written: Result<(), CheckpointError>) {
        let Writing { partition, generation, next, .. } = *writing;
        let held = self.held.get_mut(&partition).filter(|held| held.generation == generation);
        let Some(held) = held else { return };
        match written {
            Ok(()) => {
                held.saved = Some(next);
                self.left_out.retain(|(of, offset)| *of != partition || *offset >= next);
                self.metrics.checkpoint(true);
                self.commit(partition, next);
                if self.unsaved.is_empty() {
                    self.metrics.well();
                }
            }
            Err(CheckpointError::Replaced) => {
                self.metrics.checkpoint(false);
                self.broken = Some(format!("partition {partition} has another owner"));
            }
            Err(error) => {
                tracing::error!(%error, partition, role = S::ROLE.name(), "no checkpoint");
                self.failed(error.to_string());
            }
        }
    }

    /// Commits the offset of a checkpoint, as a hint for people.
    fn commit(&self, partition: i32, next: i64) {
        let mut committed = TopicPartitionList::new();
        // Fails for invalid offsets only.
        let _ = committed.add_partition_offset(&self.topic, partition, Offset::Offset(next));
        if let Err(error) = self.consumer.commit(&committed, CommitMode::Async) {
            tracing::debug!(%error, "Kafka offsets were not committed");
        }
    }

    /// Saves partitions, as far as there is time, and drops them.
    pub(super) fn hand_over(&mut self, partitions: &[i32]) {
        let end = self.clock.now().after(HAND_OVER);
        self.unsaved.clear();
        self.finish_writing(end);
        self.unsaved.extend(partitions);
        while self.broken.is_none() && !self.unsaved.is_empty() {
            self.save_next();
            self.finish_writing(end);
            self.keep_lease();
        }
        self.unsaved.clear();
        self.forget(partitions);
    }

    /// Waits for the checkpoint that is being written.
    fn finish_writing(&mut self, end: Timestamp) {
        while let Some(writing) = self.writing.take() {
            match writing.told.recv_timeout(AGAIN) {
                Ok(written) => self.was_written(&writing, written),
                Err(RecvTimeoutError::Timeout) => {
                    self.writing = Some(writing);
                    if end <= self.clock.now() {
                        return self.failed(UNSAVED.to_owned());
                    }
                    self.keep_lease();
                }
                Err(RecvTimeoutError::Disconnected) => {}
            }
        }
    }
}
