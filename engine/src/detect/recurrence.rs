//! Drops that come back: a drop that was over and came back soon is the same one, until it has been over for longer than that.
//!
//! ```text
//! drop -> over -> drop again, within 6 hours -> over: critical for as long as 1.5 * the longest time that it was over and came back
//! ```
//!
//! So what fails for an hour and works for an hour, all day long, is two pages and not one an hour. It changes nothing of what is found:
//! the first page and the one for what comes back are as soon as ever, and values in between are learnt as ever.

use serde::{Deserialize, Serialize};

use super::budget::days;
use crate::span::Timestamp;

/// A drop that is over, or seems so, or that came back.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Recurrence<I> {
    /// When it was last over.
    at: Timestamp,
    /// Days that it has to be over until it is one no longer; 0: it did not come back.
    rest: f64,
    /// What it was.
    pub(super) incident: I,
}

impl<I> Recurrence<I> {
    /// A drop that is over; `before`: what is known of it from before.
    pub(super) fn new(at: Timestamp, incident: I, before: Option<&Self>) -> Self {
        Self { at, rest: before.map_or(0.0, |before| before.rest), incident }
    }

    /// It is there again; returns whether that is soon enough to be the same.
    pub(super) fn comes_back(&mut self, at: Timestamp) -> bool {
        let over = self.days_at(at);
        self.rest = self.rest.max(over * RESTS);
        over <= SOON
    }

    /// Whether it counts as going on although it is over.
    pub(super) fn goes_on(&self) -> bool {
        self.rest > 0.0
    }

    /// Whether it is forgotten while it is over: if it comes back, that is another.
    pub(super) fn is_past(&self, at: Timestamp) -> bool {
        self.days_at(at) >= if self.goes_on() { self.rest } else { SOON }
    }

    fn days_at(&self, at: Timestamp) -> f64 {
        days(at.0.saturating_sub(self.at.0))
    }
}

/// Days within which a drop that is over is the same if it comes back.
const SOON: f64 = 0.25;

/// How long a drop has to be over, as a multiple of the time after which it came back.
const RESTS: f64 = 1.5;
