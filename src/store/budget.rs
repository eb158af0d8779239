//! How many bytes the store may have, and has.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of log, of snapshots and of what left memory against their limit.
#[derive(Debug)]
pub struct Budget {
    max: u64,
    log: AtomicU64,
    snapshots: AtomicU64,
    away: AtomicU64,
    written: AtomicU64,
    finished: AtomicU64,
    // A snapshot would make room.
    pressed: AtomicBool,
}

impl Budget {
    /// A budget of `max` bytes.
    pub fn new(max: u64) -> Self {
        Self {
            max,
            log: AtomicU64::new(0),
            snapshots: AtomicU64::new(0),
            away: AtomicU64::new(0),
            written: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            pressed: AtomicBool::new(false),
        }
    }

    /// Bytes of the log.
    pub fn log(&self) -> u64 {
        self.log.load(Ordering::Relaxed)
    }

    /// Bytes of all snapshots.
    pub fn snapshots(&self) -> u64 {
        self.snapshots.load(Ordering::Relaxed)
    }

    /// Bytes of log that were replayed or written since the start.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Bytes of what left memory.
    pub fn away(&self) -> u64 {
        self.away.load(Ordering::Relaxed)
    }

    /// Returns whether log and snapshots take more than half of what is theirs.
    pub fn is_tight(&self) -> bool {
        let theirs = self.max.saturating_sub(self.away());
        self.log().saturating_add(self.snapshots()) > theirs / 2
    }

    /// Returns whether `more` bytes of log are within it.
    pub fn has_room(&self, more: u64) -> bool {
        let taken = self.log().saturating_add(self.snapshots()).saturating_add(self.away());
        taken.saturating_add(more) <= self.max
    }

    /// Returns whether `more` bytes may leave memory: these take half of it at most.
    pub(super) fn has_room_away(&self, more: u64) -> bool {
        self.away().saturating_add(more) <= self.max / 2 && self.has_room(more)
    }

    /// Returns whether what left memory takes so much that what is not needed of it should go.
    pub(super) fn is_full_away(&self) -> bool {
        self.away() > self.max / 4
    }

    /// A file of what left memory has so many bytes more.
    pub(super) fn add_away(&self, bytes: u64) {
        self.away.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A file of what left memory is gone.
    pub(super) fn remove_away(&self, bytes: u64) {
        self.away.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A snapshot would make room.
    pub(super) fn press(&self) {
        self.pressed.store(true, Ordering::Relaxed);
    }

    /// Returns whether a snapshot would make room, as somebody said since the last time.
    pub fn was_pressed(&self) -> bool {
        self.pressed.swap(false, Ordering::Relaxed)
    }

    /// Snapshots that were finished since the start.
    pub(super) fn finished(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }

    /// A snapshot was finished.
    pub(super) fn add_finished(&self) {
        self.finished.fetch_add(1, Ordering::Relaxed);
    }

    /// The log has this many bytes now.
    pub(super) fn set_log(&self, bytes: u64) {
        self.log.store(bytes, Ordering::Relaxed);
    }

    /// So many bytes were written.
    pub(super) fn add_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The snapshots have this many bytes now.
    pub(super) fn set_snapshots(&self, bytes: u64) {
        self.snapshots.store(bytes, Ordering::Relaxed);
    }
}
