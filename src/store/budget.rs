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
    // Bytes of the snapshots, the newest one, and the one that is being written.
    newest: AtomicU64,
    unfinished: AtomicU64,
    evicted: AtomicU64,
    written: AtomicU64,
    finished: AtomicU64,
    // Whether the session store requested a snapshot to make room.
    pressed: AtomicBool,
    // Whether a snapshot is being written to make room on a full disk.
    rescuing: AtomicBool,
    // The names of the files of evicted sessions that should exist.
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

    /// Bytes of all finished snapshots.
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

    /// Whether `more` bytes of log are within the limit, beside the next snapshot, which is assumed to be as large as the newest
    /// one.
    pub fn has_room(&self, more: u64) -> bool {
        // If snapshots alone would take everything, some log is allowed all the same: the store would be of no use without any.
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

    /// Whether another snapshot fits beside everything else.
    pub fn has_room_for_snapshot(&self) -> bool {
        self.taken().saturating_add(self.newest_or_guess()) <= self.max
    }

    /// The bytes of the newest snapshot. The first one is assumed to be half as large as the log that it replaces.
    fn newest_or_guess(&self) -> u64 {
        let newest = self.newest.load(Ordering::Relaxed);
        if newest > 0 { newest } else { self.log() / 2 }
    }

    /// Whether `more` bytes of sessions may be evicted: those on disk take half of the limit at most.
    pub(super) fn has_room_for_evicted(&self, more: u64) -> bool {
        self.evicted().saturating_add(more) <= self.max / 2 && self.fits(more)
    }

    /// Whether evicted sessions take so much that unneeded files should be removed.
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

    /// Notes that a file of evicted sessions should exist.
    pub(super) fn use_evicted(&self, name: String) {
        self.in_use().insert(name);
    }

    /// Notes that a file of evicted sessions was removed because it was not needed.
    pub(super) fn unuse_evicted(&self, name: &str) {
        self.in_use().remove(name);
    }

    /// The missing files of evicted sessions, each once.
    pub(super) fn missing_evicted(&self, is_there: impl Fn(&str) -> bool) -> Vec<String> {
        self.in_use().extract_if(.., |name| !is_there(name)).collect()
    }

    fn in_use(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a snapshot to make room.
    pub(super) fn press(&self) {
        self.pressed.store(true, Ordering::Relaxed);
    }

    /// Whether a snapshot was requested since the last call, to make room.
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

    /// Sets the bytes of the finished snapshots, the newest one first.
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

    /// Sets whether a snapshot is being written to make room on a full disk: until it is written the log accepts nothing, as that
    /// would take the room that the snapshot needs.
    pub fn set_rescuing(&self, rescuing: bool) {
        self.rescuing.store(rescuing, Ordering::Relaxed);
    }

    /// Whether a snapshot is being written to make room on a full disk.
    pub(super) fn is_rescuing(&self) -> bool {
        self.rescuing.load(Ordering::Relaxed)
    }
}

/// The limit divided by this is the size of a log that is allowed even if the next snapshot may then exceed the limit.
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
