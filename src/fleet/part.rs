//! What the owner of a partition holds, and what every stage can do with it.

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
    /// As far back as `fleet.lookback` says.
    Lookback,
    /// With all that there is, with a checkpoint too: the topic is compacted to what holds.
    Everything,
}

/// What moves the time of a partition that has come to the end of its records.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Pace {
    /// Records alone: a timer that is due is written down as one. So what a timer did is done again by whoever reads the
    /// records, before what came after it.
    Records,
    /// The clock: nothing is told to anybody who would have to be told otherwise.
    Clock,
}

/// A partition that was just taken over.
pub(super) struct Taken<'c> {
    pub(super) partition: u32,
    pub(super) generation: u64,
    pub(super) checkpoint: Option<&'c Checkpoint>,
}

/// A stage: makes what the owner of a partition holds.
pub(super) trait Stage: Send {
    type Part: Part + Send;

    /// Whose work it is.
    const ROLE: Role;

    /// What it reads.
    const HOP: Hop;

    /// Where it begins.
    const BEGIN: Begin;

    /// What its timers follow.
    const PACE: Pace;

    /// Takes a partition over.
    ///
    /// # Errors
    ///
    /// What cannot be read of its checkpoint.
    fn take_over(&self, taken: &Taken<'_>) -> Result<Self::Part, String>;
}

/// What the owner of a partition holds. Outputs go to the end of `out`.
pub(super) trait Part {
    /// Applies what came at this offset, and at this time.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    fn apply(
        &mut self,
        message: Message,
        offset: i64,
        now: Timestamp,
        out: &mut Vec<Record>,
    ) -> Result<(), &'static str>;

    /// When a timer is due.
    fn due(&self) -> Option<Timestamp>;

    /// Runs the timers that are due.
    fn timers(&mut self, now: Timestamp, out: &mut Vec<Record>);

    /// From here on wall time is ahead of its time by `shift`.
    fn shift_to(&mut self, _: WallShift) {}

    /// Tells what has changed since; never before it has caught up.
    fn tell(&mut self, now: Timestamp, out: &mut Vec<Record>);

    /// What the next owner needs; `None` if it cannot be written down.
    fn save(&self) -> Option<BTreeMap<String, Vec<u8>>>;

    /// It is no longer ours: takes back what it shows.
    fn give_up(&mut self);

    /// What it holds (`traces`, `sessions`, `agents`), and how many of them.
    fn holds(&self) -> (&'static str, usize);

    /// How many open traces it holds of each age, if it holds traces.
    fn open_traces(&self, _: Timestamp) -> Option<[usize; AGES.len()]> {
        None
    }

    /// The sessions of a shard; none if there are none here.
    fn sessions(&self, _: u32) -> Option<&Sessions> {
        None
    }

    /// What it could not use, and how often a bound bit, as (who, what, why, how often).
    fn counts(&self) -> Vec<(String, &'static str, &'static str, u64)>;
}

/// Reads a section of a checkpoint; none if it has none of that name.
pub(super) fn section<T: serde::de::DeserializeOwned>(
    checkpoint: Option<&Checkpoint>,
    name: &str,
) -> Result<Option<T>, String> {
    let Some(bytes) = checkpoint.and_then(|held| held.sections.get(name)) else { return Ok(None) };
    super::wire::unpack(bytes).map(Some).map_err(|error| format!("section {name}: {error}"))
}
