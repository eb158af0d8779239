//! Time, which timers go by, and wall time, which stamps are in.
//!
//! The engine's `now` never goes back and never jumps, so neither do timers. The wall clock can be set at any moment. Wall time,
//! which the ends of traces are compared with to make windows, is `now` plus how far the wall clock was last said to be ahead.

use serde::{Deserialize, Serialize};

use super::span::Timestamp;

/// How far wall time is ahead of the time, in nanoseconds; negative where it is behind.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct WallShift(pub i64);

/// A time, and the wall time at it.
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

    /// The wall time at this time; not before 1970.
    #[must_use]
    pub fn wall(self, now: Timestamp) -> Timestamp {
        Timestamp(now.0.saturating_add_signed(self.0))
    }

    /// The time at this wall time; not before 1970.
    #[must_use]
    pub fn time(self, wall: Timestamp) -> Timestamp {
        Timestamp(wall.0.saturating_sub_signed(self.0))
    }

    /// The time with the wall time at it.
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
