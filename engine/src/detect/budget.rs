//! The time with which evidence is seeded.
//!
//! Each value may begin a change, and spends some of the time that has passed on that. Nothing spends time that has not
//! passed, so the mean time to a false alarm is at least its threshold at any rate of values, however unsteady. The time
//! between two values is spread over the values after them, so that it does not matter whether they come at once or after a
//! night. A part of it is saved for the next version of the agent, as changes begin with the first trace of a version.

use serde::{Deserialize, Serialize};

use crate::span::Timestamp;

/// The unspent time of one stream, in days.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Budget {
    last: Option<Timestamp>,
    // Values so far, up to `SPREAD`.
    values: u32,
    pub(super) pool: f64,
    pub(super) saved: f64,
}

impl Budget {
    /// The days that a value at this time spends.
    pub(super) fn spend(&mut self, at: Timestamp) -> f64 {
        let gap = self.last.map_or(0.0, |last| days(at.0.saturating_sub(last.0))).min(LONGEST_GAP);
        self.last = self.last.max(Some(at));
        self.saved += gap * SAVED;
        self.pool += gap * (1.0 - SAVED);
        let seed = self.pool / f64::from(self.values.max(1));
        self.values = (self.values + 1).min(SPREAD);
        self.pool -= seed;
        seed
    }

    /// Takes the unspent time, for the next version of the agent, and the time since the last value: that passes for one of them
    /// only, and a version of one trace has no other.
    pub(super) fn take(&mut self) -> Self {
        let unspent = *self;
        (self.pool, self.saved, self.last) = (0.0, 0.0, None);
        unspent
    }

    /// Has no time before this moment, which another version spends.
    pub(super) fn spend_from(&mut self, at: Timestamp) {
        self.last = self.last.max(Some(at));
    }
}

/// Nanoseconds as days.
pub(super) fn days(nanos: u64) -> f64 {
    nanos as f64 / 86_400e9
}

/// Values over which the time between two of them is spread.
const SPREAD: u32 = 64;

/// Part of the time that is saved for the next version.
const SAVED: f64 = 0.25;

/// Most days between two values that count.
const LONGEST_GAP: f64 = 1.0;
