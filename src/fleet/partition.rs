//! The state of a partition, and the operations of every stage on it.

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
    /// At the records `fleet.lookback` ago.
    Lookback,
    /// At the first record, even with a checkpoint, as the topic is compacted to the valid records.
    Everything,
}

/// What moves the time of a partition that has reached the end of its records.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TimeSource {
    /// Only records: a due timer is written as a record. So the next owner, which reads the records, runs the timer before it
    /// applies the later ones.
    Records,
    /// The clock: for a stage that sends no records, so that none would have to be sent again in the same order.
    Clock,
}

/// A partition that was just taken over.
pub(super) struct TakenOver<'c> {
    pub(super) partition: u32,
    pub(super) generation: u64,
    pub(super) checkpoint: Option<&'c Checkpoint>,
}

/// A stage, which creates the state of each partition.
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
    /// Fails with the reason if the checkpoint cannot be read.
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

    /// Notes that offsets restart, because the topic was recreated or lost its end: they are unrelated to earlier ones.
    fn restart_offsets(&mut self) {}

    /// When the next timer is due.
    fn due(&self) -> Option<Timestamp>;

    /// Runs the timers that are due.
    fn timers(&mut self, now: Timestamp, out: &mut Vec<Record>);

    /// Sets by how much wall time is ahead of the partition's time.
    fn shift_to(&mut self, _: WallShift) {}

    /// Notes that the partition has caught up at this time; from then on its owner observes arrivals.
    fn listen(&mut self, _: Timestamp) {}

    /// Sends what has changed since the last call; only called once the partition has caught up.
    fn publish(&mut self, now: Timestamp, out: &mut Vec<Record>);

    /// The state for a checkpoint, by section; `None` if it cannot be encoded.
    fn save(&self) -> Option<BTreeMap<String, Vec<u8>>>;

    /// Withdraws what it shows, as the partition is given up.
    fn give_up(&mut self);

    /// The kind of its objects (`traces`, `sessions`, `agents`), and their number.
    fn holds(&self) -> (&'static str, usize);

    /// The kind of object whose memory is counted, and its bytes.
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

    /// Counts of inputs that it could not use and of bounds that were reached, as (stage, kind, reason, count).
    fn counts(&self) -> Vec<(String, &'static str, &'static str, u64)>;
}

/// The room that the shards of a partition share, so that one of them can hold a trace or session of any permitted size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    all: usize,
    /// The room that a shard has in any case.
    share: usize,
}

impl Room {
    /// Room for this many shards.
    pub(super) fn new(all: usize, shards: usize) -> Self {
        Self { all, share: all.div_ceil(shards.max(1)) }
    }

    /// The room of a shard that holds `own` while all hold `held`: what the others leave, and at least its share. So all of them
    /// hold less than twice the room, and no more than the room as long as no shard holds more than its share.
    pub(super) fn beside(self, held: usize, own: usize) -> usize {
        self.all.saturating_sub(held.saturating_sub(own)).max(self.share)
    }
}

/// Reads a section of a checkpoint; `None` if there is no section with that name.
pub(super) fn section<T: serde::de::DeserializeOwned>(
    checkpoint: Option<&Checkpoint>,
    name: &str,
) -> Result<Option<T>, String> {
    let Some(bytes) = checkpoint.and_then(|held| held.sections.get(name)) else { return Ok(None) };
    super::wire::unpack(bytes).map(Some).map_err(|error| format!("section {name}: {error}"))
}
