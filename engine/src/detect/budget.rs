//! Time as what evidence is seeded with.
//!
//! Each value may begin a change, and spends some of the time that has passed on that. Nothing spends time that has not
//! passed, so the mean time to a false alarm is at least its threshold at any rate of values, however unsteady. The time
//! between two values is spent over the values after them, so that those that come at once, or after a night, are not told
//! apart by that; a part of it is put by for the next version of the agent, whose first trace is where changes begin.

use serde::{Deserialize, Serialize};

use crate::span::Timestamp;

/// The time of one stream that is not spent, in days.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Budget {
    last: Option<Timestamp>,
    // Up to `SPREAD`.
    values: u32,
    pub(super) pool: f64,
    pub(super) saved: f64,
}

impl Budget {
    /// The days that a value of this time spends.
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

    /// Takes what is not spent: to the next version of the agent.
    pub(super) fn take(&mut self) -> Self {
        let unspent = Self { last: None, ..*self };
        (self.pool, self.saved) = (0.0, 0.0);
        unspent
    }
}

/// Nanoseconds as days.
pub(super) fn days(nanos: u64) -> f64 {
    nanos as f64 / 86_400e9
}

/// Values over which the time between two of them is spent.
const SPREAD: u32 = 64;

/// Part of the time that is put by.
const SAVED: f64 = 0.25;

/// Days between two values of which more is not counted.
const LONGEST_GAP: f64 = 1.0;
