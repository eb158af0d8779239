//! Hours of the day that are bad day after day: a batch at two in the morning that always fails in part is no drop each night.
//!
//! ```text
//! level of an hour = the third highest of its levels on the last seven days that had values, each less its standard error
//! usual = that, if it is more than is tolerated, of this hour, the one before or the one after
//! ```
//!
//! So what is bad at an hour is a drop three times, and then usual there and then; it changes nothing at other hours. Nothing is noted
//! before there was a drop, nor of one that has gone on for half a day or that came back.

use serde::{Deserialize, Serialize};

use super::baseline::Tally;
use crate::span::Timestamp;

/// What a stream was like at each hour of the last days.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Hours {
    /// The levels of each hour of the day, the latest first, in steps of 1/255.
    days: [[u8; DAYS]; HOURS],
    /// The hour that goes on, since the epoch, and its values.
    hour: u64,
    values: Tally,
    /// The level of the hour that goes on, by the days before.
    level: f64,
}

impl Hours {
    /// From this moment on.
    pub(super) fn since(at: Timestamp) -> Self {
        let days = [[0; DAYS]; HOURS];
        Self { days, hour: at.0 / HOUR, values: Tally::default(), level: 0.0 }
    }

    /// Begins the hour of this moment; `usual` is the usual level.
    pub(super) fn begin(&mut self, at: Timestamp, usual: f64) {
        let hour = at.0 / HOUR;
        if hour <= self.hour {
            return;
        }
        if self.values.count >= FEW {
            let days = &mut self.days[place(self.hour)];
            days.rotate_right(1);
            days[0] = step(level_of(self.values, usual));
        }
        (self.hour, self.values) = (hour, Tally::default());
        // The clock of what runs at an hour may change, and what runs may be early or late.
        let near = [hour + HOURS as u64 - 1, hour, hour + 1];
        let steps = near.map(|hour| bad_days(self.days[place(hour)]));
        self.level = f64::from(steps.into_iter().max().unwrap_or_default()) / STEPS;
    }

    /// Notes a value of the hour that goes on.
    pub(super) fn note(&mut self, value: f64) {
        self.values.add(value);
    }

    /// The level of the hour that goes on, by the days before.
    pub(super) fn level(&self) -> f64 {
        self.level
    }
}

/// The mean of an hour's values, with some at the usual level, less its standard error.
fn level_of(values: Tally, usual: f64) -> f64 {
    let count = values.count as f64 + PRIOR;
    let mean = ((values.sum + PRIOR * usual) / count).clamp(0.0, 1.0);
    mean - (mean * (1.0 - mean) / count).sqrt()
}

/// The level that an hour had on at least so many days.
fn bad_days(mut days: [u8; DAYS]) -> u8 {
    days.sort_unstable();
    days[DAYS - BAD_DAYS]
}

fn step(level: f64) -> u8 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 255")]
    let step = (level.clamp(0.0, 1.0) * STEPS) as u8;
    step
}

fn place(hour: u64) -> usize {
    usize::try_from(hour % HOURS as u64).unwrap_or_default()
}

const HOUR: u64 = 3_600_000_000_000;

/// Hours of a day.
const HOURS: usize = 24;

/// Days that each hour is remembered of.
const DAYS: usize = 7;

/// Days on which an hour was bad, after which that is usual.
const BAD_DAYS: usize = 3;

/// Values of an hour that say what it is like.
const FEW: u64 = 4;

/// Values at the usual level that are added to those of an hour.
const PRIOR: f64 = 10.0;

const STEPS: f64 = 255.0;
