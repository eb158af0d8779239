//! The bytes of the store, and their limit.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The bytes of the log, of snapshots and of evicted sessions, with their common limit.
#[derive(Debug)]
pub struct Budget {
    max: u64,
    log: AtomicU64,
    snapshots: AtomicU64,
    // Of the snapshots, the newest one, and the one that is being written.
    newest: AtomicU64,
    unfinished: AtomicU64,
    evicted: AtomicU64,
    written: AtomicU64,
    finished: AtomicU64,
    // Whether the session store asked for a snapshot, as one would make room.
    pressed: AtomicBool,
    // Whether a snapshot is being written that makes room on a full disk.
    rescuing: AtomicBool,
    // The names of the files of evicted sessions that should be there.
    in_use: Mutex<BTreeSet<String>>,
}

impl Budget {
    /// A budget of `max` bytes.
    pub fn new(max: u64) -> Self {
        Self {
            max,
            log: AtomicU64::new(0),
            snapshots: AtomicU64::new(0),
            newest: AtomicU64::new(0),
            unfinished: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            written: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            pressed: AtomicBool::new(false),
            rescuing: AtomicBool::new(false),
            in_use: Mutex::default(),
        }
    }

    /// Bytes of the log.
    pub fn log(&self) -> u64 {
        self.log.load(Ordering::Relaxed)
    }

    /// Bytes of all snapshots that are finished.
    pub fn snapshots(&self) -> u64 {
        self.snapshots.load(Ordering::Relaxed)
    }

    /// Bytes of the snapshot that is being written.
    fn unfinished(&self) -> u64 {
        self.unfinished.load(Ordering::Relaxed)
    }

    /// Bytes of log that were replayed or written since the start.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Bytes of the files of evicted sessions.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Whether log and snapshots take more than half of what evicted sessions leave them.
    pub fn is_tight(&self) -> bool {
        let theirs = self.max.saturating_sub(self.evicted());
        self.log().saturating_add(self.snapshots()) > theirs / 2
    }

    /// Whether `more` bytes of log are within the limit, beside the next snapshot, which is taken to be as large as the newest one.
    pub fn has_room(&self, more: u64) -> bool {
        // Where snapshots alone would take all, some log is allowed all the same: without any the store would be of no use.
        let is_little = self.log().saturating_add(more) <= self.max / LEAST_LOG;
        self.fits(more) || (is_little && self.taken().saturating_add(more) <= self.max)
    }

    /// Whether `more` bytes are within the limit, beside the next snapshot.
    fn fits(&self, more: u64) -> bool {
        let next = self.newest_or_guess().max(self.unfinished());
        self.taken().saturating_add(next).saturating_add(more) <= self.max
    }

    /// The bytes of the log, of finished snapshots and of evicted sessions.
    fn taken(&self) -> u64 {
        self.log().saturating_add(self.snapshots()).saturating_add(self.evicted())
    }

    /// Whether another snapshot fits beside all that is there.
    pub fn has_room_for_snapshot(&self) -> bool {
        self.taken().saturating_add(self.newest_or_guess()) <= self.max
    }

    /// The bytes of the newest snapshot. Before there is one, the first is taken to be half as large as the log that it sums up.
    fn newest_or_guess(&self) -> u64 {
        let newest = self.newest.load(Ordering::Relaxed);
        if newest > 0 { newest } else { self.log() / 2 }
    }

    /// Whether `more` bytes of sessions may be evicted: those on disk take half of the limit at most.
    pub(super) fn has_room_for_evicted(&self, more: u64) -> bool {
        self.evicted().saturating_add(more) <= self.max / 2 && self.fits(more)
    }

    /// Whether evicted sessions take so much that files which are not needed should be removed.
    pub(super) fn is_full_of_evicted(&self) -> bool {
        self.evicted() > self.max / 4
    }

    /// Adds the bytes that a file of evicted sessions grew by.
    pub(super) fn add_evicted(&self, bytes: u64) {
        self.evicted.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts the bytes of a removed file of evicted sessions.
    pub(super) fn remove_evicted(&self, bytes: u64) {
        self.evicted.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Notes that a file of evicted sessions should be there.
    pub(super) fn use_evicted(&self, name: String) {
        self.in_use().insert(name);
    }

    /// Notes that a file of evicted sessions was removed, as it was not needed.
    pub(super) fn unuse_evicted(&self, name: &str) {
        self.in_use().remove(name);
    }

    /// The files of evicted sessions that should be there and are not, each once.
    pub(super) fn missing_evicted(&self, is_there: impl Fn(&str) -> bool) -> Vec<String> {
        self.in_use().extract_if(.., |name| !is_there(name)).collect()
    }

    fn in_use(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a snapshot, as one would make room.
    pub(super) fn press(&self) {
        self.pressed.store(true, Ordering::Relaxed);
    }

    /// Whether a snapshot was asked for since the last call, to make room.
    pub fn was_pressed(&self) -> bool {
        self.pressed.swap(false, Ordering::Relaxed)
    }

    /// Snapshots that were finished since the start.
    pub(super) fn finished(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }

    /// Counts a finished snapshot.
    pub(super) fn add_finished(&self) {
        self.finished.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the bytes of the log.
    pub(super) fn set_log(&self, bytes: u64) {
        self.log.store(bytes, Ordering::Relaxed);
    }

    /// Adds bytes of log that were replayed or written.
    pub(super) fn add_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sets the bytes of the finished snapshots, from those of the newest one on.
    pub(super) fn set_snapshots(&self, newest_first: impl IntoIterator<Item = u64>) {
        let mut sizes = newest_first.into_iter();
        let newest = sizes.next().unwrap_or(0);
        self.newest.store(newest, Ordering::Relaxed);
        self.snapshots.store(newest.saturating_add(sizes.sum()), Ordering::Relaxed);
    }

    /// Sets the bytes of the snapshot that is being written.
    pub(super) fn set_unfinished(&self, bytes: u64) {
        self.unfinished.store(bytes, Ordering::Relaxed);
    }

    /// Sets whether a snapshot is being written that makes room on a full disk: until then the log takes nothing, as it would take the room
    /// that the snapshot needs.
    pub fn set_rescuing(&self, rescuing: bool) {
        self.rescuing.store(rescuing, Ordering::Relaxed);
    }

    /// Whether a snapshot is being written that makes room on a full disk.
    pub(super) fn is_rescuing(&self) -> bool {
        self.rescuing.load(Ordering::Relaxed)
    }
}

/// The divisor of the limit that gives the log that is allowed even where the next snapshot may then be over the limit.
const LEAST_LOG: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_leaves_room_for_the_first_snapshot() {
        let budget = Budget::new(900);
        budget.set_log(600);
        assert!(!budget.has_room(1));
        budget.set_log(500);
        assert!(budget.has_room(100) && !budget.has_room(200));
        budget.set_snapshots([10]);
        assert!(budget.has_room(300), "once there is one, the next is as large");
    }
}
