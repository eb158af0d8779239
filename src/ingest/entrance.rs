//! Where requests wait for room.
//!
//! A small body is read as it arrives, and then waits for its turn, which is room to be decoded and applied. A turn is as large as
//! the request is expected to become, judged by the bytes of its body. All turns together are an eighth of the budget, so that a
//! request with a turn finds room in the budget. One request takes at most half of all turns, and a quarter is reserved for small
//! requests: a sender of very large bodies does not make all others wait for seconds.
//!
//! Reading a body only to refuse it wastes time on both sides. So the rest of a larger body is read only when turns are being
//! granted and a place is free, which bounds how many are read at a time; until then the rest stays with its sender, held back by
//! the windows of HTTP/2 and TCP. A body keeps its place until it has its turn, or loses it when its bytes arrive slowly.
//!
//! Room is shared fairly ([`crate::fair`]). A request with a turn waits for nothing, and one with a place waits only for a turn.
//! Each wait is short, so nothing can deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::Compression;
use crate::fair::{Entered, Fair, Grant, Requester};

/// The turns, and the places of larger bodies.
#[derive(Debug)]
pub(super) struct Entrance {
    // All in units of `UNIT_BYTES`.
    turns: Arc<Fair>,
    small_turns: Arc<Fair>,
    places: Arc<Fair>,
    max_wait: Duration,
    /// The decoded size of plain and of compressed bodies, in sixteenths of the bytes of the body.
    plain: AtomicUsize,
    compressed: AtomicUsize,
}

/// The bytes of one unit of turns and places.
const UNIT_BYTES: usize = 1 << 10;

/// The room of all turns is the budget divided by this.
const SHARE: usize = 8;

/// One request takes at most the room of all turns divided by this.
const LARGEST: u32 = 2;

/// The divisors that give the room of small requests, and the most that one of them takes.
const SMALL_ROOM: u32 = 4;
const SMALL: u32 = 16;

/// The part of the budget for each waiting request: more than the bytes that HTTP/2 buffers for it.
const WAITING_BYTES: usize = 1 << 20;

/// The number of requests that may always wait.
const MIN_WAITING: usize = 16;

/// The most bytes of places that a body takes, however long it may become.
const MAX_PLACE_BYTES: usize = 4 << 20;

/// The decoded size that is assumed before the first body, in sixteenths of its bytes.
const PLAIN: usize = 4 * 16;
const COMPRESSED: usize = 40 * 16;

impl Entrance {
    /// The entrance to a budget of `max_bytes`, for which a request waits for `max_wait` at most.
    pub(super) fn new(max_bytes: usize, max_wait: Duration) -> Self {
        let all = units(max_bytes / SHARE);
        let max_waiting = (max_bytes / WAITING_BYTES).max(MIN_WAITING);
        Self {
            turns: Fair::new(all, max_waiting),
            small_turns: Fair::new((all / SMALL_ROOM).max(1), max_waiting),
            places: Fair::new(all, max_waiting),
            max_wait,
            plain: AtomicUsize::new(PLAIN),
            compressed: AtomicUsize::new(COMPRESSED),
        }
    }

    /// The bytes of all turns together.
    pub(super) fn all_bytes(&self) -> usize {
        usize::try_from(self.turns.all()).unwrap_or(usize::MAX).saturating_mul(UNIT_BYTES)
    }

    /// The number of requests that wait for a turn or a place.
    pub(super) fn waiting(&self) -> usize {
        self.turns.waiting() + self.small_turns.waiting() + self.places.waiting()
    }

    /// The longest time that a request waits.
    pub(super) fn max_wait(&self) -> Duration {
        self.max_wait
    }

    /// Waits for a turn for a body of `bytes` bytes.
    pub(super) async fn turn(
        &self,
        requester: &Requester,
        compression: Compression,
        bytes: usize,
        max_wait: Duration,
    ) -> Entered {
        let known = self.sixteenths(compression).load(Ordering::Relaxed);
        let (units, all) = (units(bytes.saturating_mul(known) / 16), self.turns.all());
        if units <= all / SMALL {
            self.small_turns.enter(requester, units, max_wait).await
        } else {
            self.turns.enter(requester, units.min(all.div_ceil(LARGEST)), max_wait).await
        }
    }

    /// Waits for a place for a larger body with `bytes` bytes still to arrive: first until turns are granted, then for the place
    /// itself. Also returns whether it waited.
    pub(super) async fn place(&self, requester: &Requester, bytes: usize) -> Option<(Grant, bool)> {
        let place = async {
            let (turn, queued) = entered(self.turns.enter(requester, 1, self.max_wait).await)?;
            drop(turn);
            let units = units(bytes.min(MAX_PLACE_BYTES));
            let (place, waited) =
                entered(self.places.enter(requester, units, self.max_wait).await)?;
            Some((place, queued || waited))
        };
        timeout(self.max_wait, place).await.unwrap_or_default()
    }

    /// Notes that a body of `bytes` bytes took `all` bytes when decoded.
    pub(super) fn came_to(&self, compression: Compression, bytes: usize, all: usize) {
        let found = (all.saturating_mul(16) / bytes.max(1)).min(MAX_SIXTEENTHS);
        let known = self.sixteenths(compression);
        // An update that is lost to a concurrent one does no harm.
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

/// The greatest ratio that is believed: no compression of telemetry exceeds it.
const MAX_SIXTEENTHS: usize = 1_000 * 16;

/// The turn and whether it was waited for; `None` if the request was turned away.
pub(super) fn entered(entered: Entered) -> Option<(Grant, bool)> {
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
        // The body is all that is counted.
        entrance.plain.store(16, Ordering::Relaxed);
        entrance
    }

    #[tokio::test]
    async fn what_bodies_came_to_is_what_is_thought_of_the_next() {
        let entrance = entrance(Duration::ZERO);
        for _ in 0..100 {
            entrance.came_to(PLAIN, 1_000, 5_000);
        }
        let requester = Requester::default();
        let turn =
            async |bytes| entered(entrance.turn(&requester, PLAIN, bytes, Duration::ZERO).await);
        let first = turn(10 * UNIT_BYTES).await.unwrap();
        let second = turn(9 * UNIT_BYTES).await.unwrap();
        assert!(turn(10 * UNIT_BYTES).await.is_none());
        drop((first, second));
        assert!(turn(10 * UNIT_BYTES).await.is_some());
    }

    #[tokio::test]
    async fn a_larger_body_is_not_read_while_there_is_no_room_and_takes_no_turn_itself() {
        let entrance = entrance(Duration::ZERO);
        let requester = Requester::default();
        let all = [
            entrance.turn(&requester, PLAIN, usize::MAX, LONG).await,
            entrance.turn(&requester, PLAIN, usize::MAX, LONG).await,
        ];
        assert!(entrance.place(&requester, 1).await.is_none());
        drop(all);
        let place = entrance.place(&requester, usize::MAX).await.unwrap();
        assert!(entrance.place(&requester, 1).await.is_none());
        assert!(entered(entrance.turn(&requester, PLAIN, usize::MAX, LONG).await).is_some());
        drop(place);
        assert!(entrance.place(&requester, 1).await.is_some());
        assert_eq!(entrance.waiting(), 0);
    }

    #[tokio::test]
    async fn the_largest_request_leaves_room_for_others() {
        let entrance = entrance(Duration::ZERO);
        let (attacker, other) =
            [1, 2].map(|connection| Requester { connection, ..Requester::default() }).into();
        let turn = async |requester, bytes| {
            entered(entrance.turn(requester, PLAIN, bytes, Duration::ZERO).await)
        };
        let largest = turn(&attacker, usize::MAX).await.unwrap();
        let medium = turn(&other, 40 * UNIT_BYTES).await.unwrap();
        assert!(entrance.place(&other, 1).await.is_some());
        drop(medium);
        // Even beside a second one there is room for this many small ones at a time.
        let second = turn(&attacker, usize::MAX).await.unwrap();
        assert!(turn(&other, 10 * UNIT_BYTES).await.is_none());
        let small = [turn(&other, 5 * UNIT_BYTES).await, turn(&other, 1).await];
        assert!(small.iter().all(Option::is_some));
        let mut more = Vec::new();
        while let Some(turn) = turn(&other, 5 * UNIT_BYTES).await {
            more.push(turn);
            assert!(more.len() < 10);
        }
        drop((largest, second));
    }
}
