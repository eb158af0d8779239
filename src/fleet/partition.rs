//! The state of a partition, and what every stage can do with it.

use std::collections::BTreeMap;

use super::checkpoint::Checkpoint;
use super::options::Role;
use super::wire::{Hop, Message, Record};
use crate::engine::assemble::AGES;
use crate::engine::sessions::Sessions;
use crate::engine::span::Timestamp;
use crate::engine::time::WallShift;

/// Where a partition without a checkpoint begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Begin {
    /// At the records of `fleet.lookback` ago.
    Lookback,
    /// At the first record, even with a checkpoint, as the topic is compacted to what is valid.
    Everything,
}

/// What moves the time of a partition that has come to the end of its records.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TimeSource {
    /// Records alone: a timer that is due is written as a record. So the next owner, who reads the records, does what the timer
    /// did before it does what came after.
    Records,
    /// The clock: for a stage that sends no records, so that nothing it sent would have to be sent again in the same order.
    Clock,
}

/// A partition that was just taken over.
pub(super) struct TakenOver<'c> {
    pub(super) partition: u32,
    pub(super) generation: u64,
    pub(super) checkpoint: Option<&'c Checkpoint>,
}

/// A stage, which makes the state of each partition.
pub(super) trait Stage: Send {
    type State: PartitionState + Send;

    /// The role that runs the stage.
    const ROLE: Role;

    /// The topic that the stage reads.
    const HOP: Hop;

    /// Where a partition begins.
    const BEGIN: Begin;

    /// What its time follows at the end of the records.
    const PACE: TimeSource;

    /// Takes a partition over.
    ///
    /// # Errors
    ///
    /// Fails, and says why, if the checkpoint cannot be read.
    fn take_over(&self, taken: &TakenOver<'_>) -> Result<Self::State, String>;
}

/// The state of a partition. Its outputs are appended to `out`.
pub(super) trait PartitionState {
    /// Applies the message at this offset, at this time.
    ///
    /// # Errors
    ///
    /// Fails with the reason if the message cannot be used.
    fn apply(
        &mut self,
        message: Message,
        offset: i64,
        now: Timestamp,
        out: &mut Vec<Record>,
    ) -> Result<(), &'static str>;

    /// Notes that offsets begin anew, as the topic was made anew or lost its end: they say nothing about earlier ones.
    fn restart_offsets(&mut self) {}

    /// When the next timer is due.
    fn due(&self) -> Option<Timestamp>;

    /// Runs the timers that are due.
    fn timers(&mut self, now: Timestamp, out: &mut Vec<Record>);

    /// Sets by how much wall time is ahead of the partition's time.
    fn shift_to(&mut self, _: WallShift) {}

    /// Takes note that the partition has caught up at this time, from which on its owner notices what comes.
    fn listen(&mut self, _: Timestamp) {}

    /// Tells what has changed since the last call; only called once the partition has caught up.
    fn publish(&mut self, now: Timestamp, out: &mut Vec<Record>);

    /// The state for a checkpoint, by section; `None` if it cannot be encoded.
    fn save(&self) -> Option<BTreeMap<String, Vec<u8>>>;

    /// Takes back what it shows, as the partition is given up.
    fn give_up(&mut self);

    /// The name of what it holds (`traces`, `sessions`, `agents`), and how many of them.
    fn holds(&self) -> (&'static str, usize);

    /// The name of what takes memory that is counted, and its bytes.
    fn holds_bytes(&self) -> Option<(&'static str, usize)> {
        None
    }

    /// The number of open traces by age, if it holds traces.
    fn open_traces(&self, _: Timestamp) -> Option<[usize; AGES.len()]> {
        None
    }

    /// The sessions of a shard; `None` if they are not here.
    fn sessions(&self, _: u32) -> Option<&Sessions> {
        None
    }

    /// Counts of what it could not use and of bounds that were hit, as (who, what, why, how often).
    fn counts(&self) -> Vec<(String, &'static str, &'static str, u64)>;
}

/// The room that the shards of a partition share, so that one of them can hold a trace or session as large as any.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    all: usize,
    /// What a shard has in any case.
    share: usize,
}

impl Room {
    /// Room for so many shards.
    pub(super) fn new(all: usize, shards: usize) -> Self {
        Self { all, share: all.div_ceil(shards.max(1)) }
    }

    /// The room of a shard that holds `own` where all hold `held`: what the others leave, and its share at least. So all of them hold less
    /// than twice the room, and no more than it as long as no shard holds more than its share.
    pub(super) fn beside(self, held: usize, own: usize) -> usize {
        self.all.saturating_sub(held.saturating_sub(own)).max(self.share)
    }
}

/// Reads a section of a checkpoint; `None` if there is no section of that name.
pub(super) fn section<T: serde::de::DeserializeOwned>(
    checkpoint: Option<&Checkpoint>,
    name: &str,
) -> Result<Option<T>, String> {
    let Some(bytes) = checkpoint.and_then(|held| held.sections.get(name)) else { return Ok(None) };
    super::wire::unpack(bytes).map(Some).map_err(|error| format!("section {name}: {error}"))
}
