//! The errors of the store; each names the place and what to do.

use std::io;
use std::path::PathBuf;

/// Why the store cannot be opened or continued.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory cannot be used.
    #[error("cannot use {} (`store.directory`): {source}; it must be a directory that this user can write to", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The system has no thread for the log.
    #[error(
        "cannot start the thread that writes the log: {0}; raise the limit of processes and threads"
    )]
    Thread(#[source] io::Error),
    /// Another process uses the directory.
    #[error("{} (`store.directory`) is in use by another process; give each its own directory", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("cannot {what} {} (below `store.directory`): {source}", path.display())]
    File {
        /// The attempted operation: `read`, `write`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file was written by a release with another format.
    #[error(
        "{} is of format {found}, and this release reads {known}; start the release that wrote it, or set \
         `store.directory` to another directory",
        path.display()
    )]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u16,
        /// The version that can be read.
        known: u16,
    },
    /// Acknowledged records cannot be read.
    #[error(
        "{} is damaged at byte {offset}: records {first} to {last} were acknowledged and cannot be read; restore the \
         file, or set `store.damaged_records = \"skip\"` to start without them",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the damage begins.
        offset: u64,
        /// The first record that is missing.
        first: u64,
        /// The last one.
        last: u64,
    },
    /// The marks of where the log ended are missing.
    #[error(
        "{} is missing or damaged: it tells whether the log ends where it should; restore the file, or set \
         `store.damaged_records = \"skip\"` to start without it",
        path.display()
    )]
    Unmarked {
        /// The file.
        path: PathBuf,
    },
    /// A section of a snapshot is complete, but cannot be read by this release.
    #[error(
        "cannot restore `{section}` of the snapshot: {why}; set `store.directory` to another directory, or start the release that wrote it"
    )]
    Section {
        /// The name of the section.
        section: String,
        /// Why it cannot be read.
        why: String,
    },
}

/// Why a record was not appended.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The store would have more than `store.max_bytes`.
    #[error("the store is full; raise `store.max_bytes`")]
    Budget,
    /// The disk is full, or the user's quota of it.
    #[error("the disk of `store.directory` is full")]
    Disk,
    /// The system failed to write it; another attempt can succeed.
    #[error("the store cannot be written")]
    Write,
    /// The directory of the store is not at its path; it may come back.
    #[error(
        "the directory of `store.directory` was removed, renamed or replaced (put it back, or restart the daemon)"
    )]
    Directory,
    /// Too many records wait.
    #[error("too many records are waiting to be written")]
    Busy,
    /// A sync failed, or the log has stopped; it accepts no more records.
    #[error("the store has stopped")]
    Stopped,
}

impl StoreError {
    /// Whether the cause is that the disk is full.
    pub(super) fn is_full_disk(&self) -> bool {
        matches!(self, Self::File { source, .. } if Refused::of(source) == Refused::Disk)
    }

    /// Makes the error for a file that could not be read.
    pub(super) fn read(path: PathBuf) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { what: "read", path, source }
    }

    /// Makes the error for a file that could not be written.
    pub(super) fn write(path: PathBuf) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { what: "write", path, source }
    }
}

impl Refused {
    /// The refusal for a write that failed with this error.
    pub fn of(error: &io::Error) -> Self {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        if full.contains(&error.kind()) { Self::Disk } else { Self::Write }
    }

    /// Whether the cause is the disk: it is full, or it fails, or the directory is gone.
    pub fn is_of_disk(self) -> bool {
        matches!(self, Self::Disk | Self::Write | Self::Directory | Self::Stopped)
    }

    /// Its name as a label value.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Disk => "disk_full",
            Self::Write => "write",
            Self::Directory => "directory",
            Self::Busy => "busy",
            Self::Stopped => "stopped",
        }
    }
}
