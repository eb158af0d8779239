//! How many bytes the store may have, and has.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of log and snapshots against their limit.
#[derive(Debug)]
pub struct Budget {
    max: u64,
    log: AtomicU64,
    snapshots: AtomicU64,
    written: AtomicU64,
}

impl Budget {
    /// A budget of `max` bytes.
    pub fn new(max: u64) -> Self {
        Self {
            max,
            log: AtomicU64::new(0),
            snapshots: AtomicU64::new(0),
            written: AtomicU64::new(0),
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

    /// Returns whether more than half of it is taken.
    pub fn is_tight(&self) -> bool {
        !self.has_room(self.max / 2)
    }

    /// Returns whether `more` bytes of log are within it.
    pub fn has_room(&self, more: u64) -> bool {
        self.log().saturating_add(self.snapshots()).saturating_add(more) <= self.max
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
