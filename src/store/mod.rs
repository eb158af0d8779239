//! The durable store: a write-ahead log of typed records, and snapshots that bound how much of it has to be replayed.
//!
//! ```text
//! log-00000000000000000001.wal   records 1..   frames with sequence number, arrival time and CRC
//! log-00000000000000004711.wal   records 4711..
//! snapshot-00000000000000004700  the state after record 4700, and maybe some that follow
//! away-3-000000000017            sessions of shard 3 for which there was no room in memory
//! end.marks                      how far the log has come
//! lock                           held by the process that uses the directory
//! ```
//!
//! A record is acknowledged when its group has been written and, with `fsync`, is on disk. Records that a crash cuts off were never
//! acknowledged; recovery returns a prefix of the log with every acknowledged record. The formats of the files are in [`record`]
//! and [`snapshot`], and the rules for damage in [`recover`].

mod budget;
mod check;
mod commit;
mod disk;
mod error;
mod lock;
mod log;
mod mark;
mod options;
mod record;
mod recover;
mod session_store;
mod snapshot;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

pub use budget::Budget;
pub use check::check;
pub use commit::{Committer, Ledger, Ticket, Watch};
pub use disk::{Disk, DiskFile, Folder};
pub use error::{Refused, StoreError};
pub use lock::Lock;
pub use options::{DamagedRecords, Durability, StoreOptions};
pub use record::{Kind, Record};
pub use recover::{Found, Recovery, Replay};
pub use session_store::FileSessionStore;
pub use snapshot::{KEPT, Section, Snapshot, SnapshotWriter, keep_newest};

use self::log::Log;

/// A recovered directory, and the log that continues from there.
pub struct Opened {
    /// What was recovered; it has to be replayed before anything is appended.
    pub recovery: Recovery,
    /// Whether the disk has no room for a single record, so that the log is not begun yet.
    pub is_full: bool,
    log: Log,
    budget: Arc<Budget>,
    disk: Arc<dyn Disk>,
}

impl Opened {
    /// Reads the directory, mends the end of its log, and begins a new segment, if the disk has room for it: the start of an existing store takes no byte.
    ///
    /// # Errors
    ///
    /// Fails if files cannot be read or written, are of another format, or miss acknowledged records.
    pub fn open(disk: Arc<dyn Disk>, options: &StoreOptions) -> Result<Self, StoreError> {
        let mut recovery = Recovery::run(disk.as_ref(), options)?;
        let budget = Arc::new(Budget::new(options.max_bytes));
        // This also removes the files of an unfinished snapshot.
        budget.set_snapshots(snapshot::sizes(disk.as_ref())?);
        let new =
            |recovery: &_| Log::new(Arc::clone(&disk), options, recovery, Arc::clone(&budget));
        let is_full =
            |begun: &Result<(), StoreError>| begun.as_ref().is_err_and(StoreError::is_full_disk);
        let mut log = new(&recovery);
        let mut begun = log.begin();
        // The disk may be full only because of the store's own unneeded files.
        if is_full(&begun) && recovery.make_room(disk.as_ref(), &budget)? {
            log = new(&recovery);
            begun = log.begin();
        }
        // Without marks the next start could not tell whether the log lost its end.
        let is_full = is_full(&begun) && mark::last(disk.as_ref()).is_some();
        if !is_full {
            begun?;
        }
        budget.add_written(budget.log());
        Ok(Self { recovery, is_full, log, budget, disk })
    }

    /// The disk of the store.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// The budget of the store's bytes.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The log, for appends.
    pub(crate) fn into_log(self) -> Log {
        self.log
    }
}
