//! Engine time, which drives timers, and wall time, which stamps are in.
//!
//! The engine's `now` never goes back and never jumps, so neither do timers. The wall clock can be set at any moment. Wall time,
//! with which the ends of traces are compared to make windows, is `now` plus the last known lead of the wall clock.

use serde::{Deserialize, Serialize};

use super::span::Timestamp;

/// How far wall time is ahead of engine time, in nanoseconds; negative if it is behind.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct WallShift(pub i64);

/// A time, and the wall time at that moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Moment {
    /// The time: for timers and arrivals.
    pub now: Timestamp,
    /// Wall time: for stamps.
    pub wall: Timestamp,
}

impl WallShift {
    /// How far `wall` is ahead of `now`.
    pub fn between(now: Timestamp, wall: Timestamp) -> Self {
        let ahead = i128::from(wall.0) - i128::from(now.0);
        Self(i64::try_from(ahead).unwrap_or(if ahead < 0 { i64::MIN } else { i64::MAX }))
    }

    /// The wall time at this time; never before 1970.
    #[must_use]
    pub fn wall(self, now: Timestamp) -> Timestamp {
        Timestamp(now.0.saturating_add_signed(self.0))
    }

    /// The time at this wall time; never before 1970.
    #[must_use]
    pub fn time(self, wall: Timestamp) -> Timestamp {
        Timestamp(wall.0.saturating_sub_signed(self.0))
    }

    /// The time with its wall time.
    #[must_use]
    pub fn moment(self, now: Timestamp) -> Moment {
        Moment { now, wall: self.wall(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shift_goes_there_and_back() {
        for (now, wall) in [(5, 9), (9, 5), (0, u64::MAX >> 1), (u64::MAX >> 1, 0)] {
            let (now, wall) = (Timestamp(now), Timestamp(wall));
            let shift = WallShift::between(now, wall);
            assert_eq!((shift.wall(now), shift.time(wall)), (wall, now));
        }
        assert_eq!(WallShift(-10).wall(Timestamp(3)), Timestamp(0));
        assert_eq!(WallShift::between(Timestamp(0), Timestamp(u64::MAX)), WallShift(i64::MAX));
    }
}
