//! Recurring drops: a drop that was over and soon recurred is the same one, until it has been over for longer than that.
//!
//! ```text
//! drop -> over -> drop again, within 6 hours -> over: critical for as long as 1.5 * the longest time that it was over and came back
//! ```
//!
//! So something that fails for an hour and works for an hour, all day long, is two pages and not one an hour. Detection is
//! unchanged: the first page and the one for the recurrence are as fast as ever, and values in between are learned as ever.

use serde::{Deserialize, Serialize};

use super::budget::days;
use crate::span::Timestamp;

/// A drop that is or seems over, or that recurred.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Recurrence<I> {
    /// When it was last over.
    at: Timestamp,
    /// Days that it has to be over before it counts as ended; 0: it did not recur.
    rest: f64,
    /// What it was.
    pub(super) incident: I,
}

impl<I> Recurrence<I> {
    /// A drop that is over; `before`: what is known about its earlier recurrences.
    pub(super) fn new(at: Timestamp, incident: I, before: Option<&Self>) -> Self {
        Self { at, rest: before.map_or(0.0, |before| before.rest), incident }
    }

    /// Notes that it recurred; returns whether that is soon enough to be the same drop.
    pub(super) fn comes_back(&mut self, at: Timestamp) -> bool {
        let over = self.days_at(at);
        self.rest = self.rest.max(over * RESTS);
        over <= SOON
    }

    /// Whether it counts as continuing although it is over.
    pub(super) fn goes_on(&self) -> bool {
        self.rest > 0.0
    }

    /// Whether it is forgotten while it is over: a later one is a new drop.
    pub(super) fn is_past(&self, at: Timestamp) -> bool {
        self.days_at(at) >= if self.goes_on() { self.rest } else { SOON }
    }

    fn days_at(&self, at: Timestamp) -> f64 {
        days(at.0.saturating_sub(self.at.0))
    }
}

/// Days within which a recurrence of a drop that is over is the same drop.
const SOON: f64 = 0.25;

/// How long a drop has to be over, as a multiple of the time after which it recurred.
const RESTS: f64 = 1.5;
