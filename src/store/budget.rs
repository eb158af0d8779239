//! The bytes of the store, and their limit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The bytes of the log, of snapshots and of evicted sessions, with their common limit.
#[derive(Debug)]
pub struct Budget {
    max: u64,
    log: AtomicU64,
    snapshots: AtomicU64,
    away: AtomicU64,
    written: AtomicU64,
    finished: AtomicU64,
    // Whether the session store asked for a snapshot, as one would make room.
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

    /// Bytes of the files of evicted sessions.
    pub fn away(&self) -> u64 {
        self.away.load(Ordering::Relaxed)
    }

    /// Whether log and snapshots take more than half of what evicted sessions leave them.
    pub fn is_tight(&self) -> bool {
        let theirs = self.max.saturating_sub(self.away());
        self.log().saturating_add(self.snapshots()) > theirs / 2
    }

    /// Whether `more` bytes are within the limit.
    pub fn has_room(&self, more: u64) -> bool {
        let taken = self.log().saturating_add(self.snapshots()).saturating_add(self.away());
        taken.saturating_add(more) <= self.max
    }

    /// Whether `more` bytes of sessions may be evicted: those on disk take half of the limit at most.
    pub(super) fn has_room_away(&self, more: u64) -> bool {
        self.away().saturating_add(more) <= self.max / 2 && self.has_room(more)
    }

    /// Whether evicted sessions take so much that files which are not needed should be removed.
    pub(super) fn is_full_away(&self) -> bool {
        self.away() > self.max / 4
    }

    /// Adds the bytes that a file of evicted sessions grew by.
    pub(super) fn add_away(&self, bytes: u64) {
        self.away.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts the bytes of a removed file of evicted sessions.
    pub(super) fn remove_away(&self, bytes: u64) {
        self.away.fetch_sub(bytes, Ordering::Relaxed);
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

    /// Sets the bytes of all snapshots.
    pub(super) fn set_snapshots(&self, bytes: u64) {
        self.snapshots.store(bytes, Ordering::Relaxed);
    }
}
