//! Where requests wait for room.
//!
//! A body that comes in small is read as it comes, and then waits for its turn: for room to be decoded and applied in. A turn is
//! as large as the request is thought to become by what came, and all turns together are an eighth of the budget, so that
//! whoever has one finds room in it.
//!
//! A body that is read and refused then has cost the sender's time and ours for nothing. So the rest of a larger one is read
//! when turns are given out again and bodies are not read at too many places; what it has not sent yet stays with it meanwhile, as
//! the windows of HTTP/2 and TCP hold it back. Who has such a place keeps it until it has its turn, or loses it when its bytes come
//! slowly. What was only announced counts for nothing.
//!
//! Room is shared fairly ([`super::fair`]). Who has a turn waits for nothing, who has a place waits for a turn alone, and whoever
//! waits does so for a short time, so nothing can deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::Compression;
use super::fair::{Entered, Fair, Turn, Whose};

/// The turns, and the places of larger bodies.
#[derive(Debug)]
pub(super) struct Entrance {
    // Both in units of `UNIT_BYTES`.
    turns: Arc<Fair>,
    places: Arc<Fair>,
    max_wait: Duration,
    /// What bodies of each compression came to, in sixteenths of their bytes.
    plain: AtomicUsize,
    compressed: AtomicUsize,
}

/// What turns are counted in.
const UNIT_BYTES: usize = 1 << 10;

/// The share of the budget that requests with a turn are thought to take.
const SHARE: usize = 8;

/// The share of the budget for each that waits: more than what HTTP/2 takes in for it.
const WAITING_BYTES: usize = 1 << 20;

/// At least so many may wait.
const MIN_WAITING: usize = 16;

/// A body takes no more than this of the places, however long it may become.
const MAX_PLACE_BYTES: usize = 4 << 20;

/// What is thought of bodies before any came, in sixteenths.
const PLAIN: usize = 4 * 16;
const COMPRESSED: usize = 40 * 16;

impl Entrance {
    /// The way to a budget of `max_bytes`, for which a request waits for `max_wait`.
    pub(super) fn new(max_bytes: usize, max_wait: Duration) -> Self {
        let all = units(max_bytes / SHARE);
        let max_waiting = (max_bytes / WAITING_BYTES).max(MIN_WAITING);
        Self {
            turns: Fair::new(all, max_waiting),
            places: Fair::new(all, max_waiting),
            max_wait,
            plain: AtomicUsize::new(PLAIN),
            compressed: AtomicUsize::new(COMPRESSED),
        }
    }

    /// What all turns come to.
    pub(super) fn all_bytes(&self) -> usize {
        usize::try_from(self.turns.all()).unwrap_or(usize::MAX).saturating_mul(UNIT_BYTES)
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.turns.waiting() + self.places.waiting()
    }

    /// How long a request waits.
    pub(super) fn max_wait(&self) -> Duration {
        self.max_wait
    }

    /// A turn for a body that came to so many bytes.
    pub(super) async fn turn(
        &self,
        whose: &Whose,
        compression: Compression,
        bytes: usize,
        max_wait: Duration,
    ) -> Entered {
        let known = self.sixteenths(compression).load(Ordering::Relaxed);
        self.turns.enter(whose, units(bytes.saturating_mul(known) / 16), max_wait).await
    }

    /// A place for a larger body, of which so many bytes are still to come; it waits in the line for turns first.
    pub(super) async fn place(&self, whose: &Whose, bytes: usize) -> Option<(Turn, bool)> {
        let place = async {
            let (turn, queued) = entered(self.turns.enter(whose, 1, self.max_wait).await)?;
            drop(turn);
            let units = units(bytes.min(MAX_PLACE_BYTES));
            let (place, waited) = entered(self.places.enter(whose, units, self.max_wait).await)?;
            Some((place, queued || waited))
        };
        timeout(self.max_wait, place).await.unwrap_or_default()
    }

    /// A body of so many bytes came to so many in all.
    pub(super) fn came_to(&self, compression: Compression, bytes: usize, all: usize) {
        let found = (all.saturating_mul(16) / bytes.max(1)).min(MAX_SIXTEENTHS);
        let known = self.sixteenths(compression);
        // One that is lost to another request at the same time is no loss.
        let old = known.load(Ordering::Relaxed);
        let new = (7 * old + found) / 8;
        if new != old {
            known.store(new, Ordering::Relaxed);
        }
    }

    fn sixteenths(&self, compression: Compression) -> &AtomicUsize {
        match compression {
            Compression::None => &self.plain,
            Compression::Gzip | Compression::Zstd => &self.compressed,
        }
    }
}

/// More than this no compression of telemetry comes to.
const MAX_SIXTEENTHS: usize = 1_000 * 16;

/// A turn and whether it was waited for; `None` where there was none.
pub(super) fn entered(entered: Entered) -> Option<(Turn, bool)> {
    match entered {
        Entered::AtOnce(turn) => Some((turn, false)),
        Entered::Waited(turn) => Some((turn, true)),
        Entered::TurnedAway => None,
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Compression = Compression::None;
    const LONG: Duration = Duration::from_secs(60);

    fn entrance(max_wait: Duration) -> Entrance {
        let entrance = Entrance::new(SHARE * 100 * UNIT_BYTES, max_wait);
        // A body is all that it comes to.
        entrance.plain.store(16, Ordering::Relaxed);
        entrance
    }

    #[tokio::test]
    async fn what_bodies_came_to_is_what_is_thought_of_the_next() {
        let entrance = entrance(Duration::ZERO);
        for _ in 0..100 {
            entrance.came_to(PLAIN, 1_000, 5_000);
        }
        let whose = Whose::default();
        let turn = async |bytes| entered(entrance.turn(&whose, PLAIN, bytes, Duration::ZERO).await);
        let first = turn(10 * UNIT_BYTES).await.unwrap();
        let second = turn(9 * UNIT_BYTES).await.unwrap();
        assert!(turn(10 * UNIT_BYTES).await.is_none());
        drop((first, second));
        assert!(turn(10 * UNIT_BYTES).await.is_some());
    }

    #[tokio::test]
    async fn a_larger_body_is_not_read_while_there_is_no_room_and_takes_no_turn_itself() {
        let entrance = entrance(Duration::ZERO);
        let whose = Whose::default();
        let all = entrance.turn(&whose, PLAIN, usize::MAX, LONG).await;
        assert!(entrance.place(&whose, 1).await.is_none());
        drop(all);
        let place = entrance.place(&whose, usize::MAX).await.unwrap();
        assert!(entrance.place(&whose, 1).await.is_none());
        assert!(entered(entrance.turn(&whose, PLAIN, usize::MAX, LONG).await).is_some());
        drop(place);
        assert!(entrance.place(&whose, 1).await.is_some());
        assert_eq!(entrance.waiting(), 0);
    }
}
