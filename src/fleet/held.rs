//! A partition that is held: what it was made of, and how far it has come.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::Message as _;

use super::part::Part;
use super::wire::Record;
use crate::engine::span::Timestamp;
use crate::engine::update::Envelope;
use crate::engine::update::envelope::Message;

/// Timers of a replay that are due within this time run together.
const STEP: Duration = Duration::from_millis(100);

/// A partition and how far it has come.
pub(super) struct Held<P> {
    pub(super) part: P,
    pub(super) generation: u64,
    /// The next record to be applied.
    pub(super) next: i64,
    /// The end as it was when it was taken over.
    pub(super) target: i64,
    /// It has caught up.
    pub(super) live: bool,
    /// There was no record after the last one.
    pub(super) at_end: bool,
    /// It began with a checkpoint, or with everything.
    pub(super) whole: bool,
    pub(super) now: Timestamp,
    /// The tick that was written and has not come yet.
    pub(super) ticked: Timestamp,
    pub(super) senders: BTreeMap<u32, u64>,
    /// What the last checkpoint goes on from.
    pub(super) saved: Option<i64>,
}

impl<P: Part> Held<P> {
    /// Applies a record; what cannot be used is skipped, and why is returned.
    pub(super) fn apply(
        &mut self,
        payload: &[u8],
        offset: i64,
        out: &mut Vec<Record>,
    ) -> Result<(), &'static str> {
        let envelope = Envelope::decode(payload).map_err(|_| "malformed")?;
        let message = envelope.message.ok_or("malformed")?;
        if envelope.generation > 0 {
            let known = self.senders.entry(envelope.shard).or_default();
            if envelope.generation < *known {
                return Err("replaced_sender");
            }
            *known = envelope.generation;
        }
        self.advance(Timestamp(envelope.time_unix_nano), out);
        if matches!(message, Message::Tick(_)) {
            return Ok(());
        }
        self.part.apply(message, (offset, self.now), out)
    }

    /// Whether a timer is due and no tick is under way that sees to it. A part of a step is waited for more of them.
    pub(super) fn wants_tick(&mut self, now: Timestamp) -> bool {
        let due = self.part.due().is_some_and(|due| due <= now);
        let wants = due && self.ticked <= self.now && self.now.after(STEP) <= now;
        if wants {
            self.ticked = now;
        }
        wants
    }

    /// Time goes on to `now`: timers run, each about when it is due.
    pub(super) fn advance(&mut self, now: Timestamp, out: &mut Vec<Record>) {
        self.now = self.now.max(now);
        while let Some(due) = self.part.due().filter(|due| *due <= self.now) {
            let at = due.after(STEP).min(self.now);
            self.part.timers(at, out);
            if at == self.now {
                return;
            }
        }
    }
}
