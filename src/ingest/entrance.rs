//! Where requests wait for room before their bodies are read.
//!
//! A body that is read and refused then has cost the sender's time and ours for nothing. So whoever comes when much is
//! under way waits for a turn, in the order of coming and for a short time; what it has not sent yet stays with it, as the
//! windows of HTTP/2 and TCP hold it back. A turn is as large as the request is thought to become by its length, and all turns
//! together are an eighth of the budget, so that whoever has one finds room in it.
//!
//! Who waits holds nothing, no turn and none of the budget, and who has a turn waits for no other, so nothing can deadlock.
//! A turn whose body does not come in the time for which others would wait is lost; the body goes on without.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Compression;

/// The turns.
#[derive(Debug)]
pub(super) struct Entrance {
    // In units of `UNIT_BYTES`.
    turns: Arc<Semaphore>,
    all: u32,
    waiting: AtomicUsize,
    max_waiting: usize,
    max_wait: Duration,
    /// What bodies of each compression came to, in sixteenths of their bytes.
    plain: AtomicUsize,
    compressed: AtomicUsize,
}

/// A request's turn, given back when dropped.
pub(super) type Turn = OwnedSemaphorePermit;

/// How a request came in.
#[derive(Debug)]
pub(super) enum Entered {
    /// At once.
    AtOnce(Turn),
    /// It waited.
    Waited(Turn),
    /// Its time was over, or too many waited.
    TurnedAway,
}

/// What turns are counted in.
const UNIT_BYTES: usize = 1 << 10;

/// The share of the budget that requests with a turn are thought to take.
const SHARE: usize = 8;

/// The share of the budget for each that waits: more than what HTTP/2 takes in for it.
const WAITING_BYTES: usize = 1 << 20;

/// At least so many may wait.
const MIN_WAITING: usize = 16;

/// What is thought of bodies before any came, in sixteenths.
const PLAIN: usize = 4 * 16;
const COMPRESSED: usize = 40 * 16;

impl Entrance {
    /// The way to a budget of `max_bytes`, for which a request waits for `max_wait`.
    pub(super) fn new(max_bytes: usize, max_wait: Duration) -> Self {
        let units = max_bytes / SHARE / UNIT_BYTES;
        let all = u32::try_from(units.clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX >> 3);
        Self {
            turns: Arc::new(Semaphore::new(usize::try_from(all).unwrap_or(1))),
            all,
            waiting: AtomicUsize::new(0),
            max_waiting: (max_bytes / WAITING_BYTES).max(MIN_WAITING),
            max_wait,
            plain: AtomicUsize::new(PLAIN),
            compressed: AtomicUsize::new(COMPRESSED),
        }
    }

    /// How long a request waits, and a body may take to keep its turn.
    pub(super) fn max_wait(&self) -> Duration {
        self.max_wait
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// A turn for a body of so many bytes.
    pub(super) async fn enter(&self, compression: Compression, bytes: usize) -> Entered {
        let expected =
            bytes.saturating_mul(self.sixteenths(compression).load(Ordering::Relaxed)) / 16;
        let units = u32::try_from(expected / UNIT_BYTES).unwrap_or(u32::MAX).clamp(1, self.all);
        if let Ok(turn) = Arc::clone(&self.turns).try_acquire_many_owned(units) {
            return Entered::AtOnce(turn);
        }
        let _place = Place::new(&self.waiting);
        if self.waiting() > self.max_waiting {
            return Entered::TurnedAway;
        }
        let turn = Arc::clone(&self.turns).acquire_many_owned(units);
        match timeout(self.max_wait, turn).await {
            Ok(Ok(turn)) => Entered::Waited(turn),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Entered::TurnedAway,
        }
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

/// Counts one that waits until it is dropped.
struct Place<'w>(&'w AtomicUsize);

impl<'w> Place<'w> {
    fn new(waiting: &'w AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use std::pin::pin;

    use super::*;

    const PLAIN: Compression = Compression::None;

    fn entrance(max_wait: Duration) -> Entrance {
        let entrance = Entrance::new(SHARE * 100 * UNIT_BYTES, max_wait);
        // A body is all that it comes to.
        entrance.plain.store(16, Ordering::Relaxed);
        entrance
    }

    fn units(of: Entered) -> (Turn, bool) {
        match of {
            Entered::AtOnce(turn) => (turn, false),
            Entered::Waited(turn) => (turn, true),
            Entered::TurnedAway => panic!("turned away"),
        }
    }

    #[tokio::test]
    async fn turns_come_in_the_order_of_asking() {
        let entrance = entrance(Duration::from_secs(60));
        let (first, waited) = units(entrance.enter(PLAIN, 60 * UNIT_BYTES).await);
        assert!(!waited);
        let mut large = pin!(entrance.enter(PLAIN, 50 * UNIT_BYTES));
        assert!(poll!(&mut large).is_pending());
        // There would be room for this one, but it came later.
        let mut small = pin!(entrance.enter(PLAIN, 10 * UNIT_BYTES));
        assert!(poll!(&mut small).is_pending());
        assert_eq!(entrance.waiting.load(Ordering::Relaxed), 2);
        drop(first);
        let (large, small) = (units(large.await), units(small.await));
        assert!(large.1 && small.1);
        assert_eq!(entrance.waiting.load(Ordering::Relaxed), 0);
        assert_eq!(entrance.turns.available_permits(), 40);
    }

    #[tokio::test]
    async fn whoever_waits_too_long_or_with_too_many_is_turned_away_and_leaves_nothing() {
        let entrance = entrance(Duration::ZERO);
        let (turn, _) = units(entrance.enter(PLAIN, usize::MAX).await);
        assert_eq!(entrance.turns.available_permits(), 0);
        assert!(matches!(entrance.enter(PLAIN, 1).await, Entered::TurnedAway));
        drop(turn);
        assert_eq!(entrance.turns.available_permits(), 100);
        let full = Entrance { max_waiting: 0, max_wait: Duration::from_secs(60), ..entrance };
        let _turn = units(full.enter(PLAIN, usize::MAX).await);
        assert!(matches!(full.enter(PLAIN, 1).await, Entered::TurnedAway));
        assert_eq!(full.waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn what_bodies_came_to_is_what_is_thought_of_the_next() {
        let entrance = entrance(Duration::ZERO);
        for _ in 0..100 {
            entrance.came_to(PLAIN, 1_000, 5_000);
        }
        let _turn = units(entrance.enter(PLAIN, 10 * UNIT_BYTES).await);
        let left = entrance.turns.available_permits();
        assert!((50..60).contains(&left), "{left}");
    }
}
