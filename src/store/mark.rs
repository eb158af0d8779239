//! Marks of the log's progress, in a file beside it, which reveal records that are missing at its end.
//!
//! A frame says which records before it were acknowledged, so damage in the middle of the log is found; no frame follows the last
//! one. So after each group the number of its last record is written here, 12 bytes that are not synced: after a crash of the
//! process all marks exist, after a crash of the machine some may be missing. An existing mark is true: the record that it names
//! was acknowledged. The first one is synced before the file gets its name, and stays. So if a log has no mark, the file was lost,
//! and whether the log lost its end as well is unknown.

use std::io::{self, Read, Write};

use crc32c::crc32c;

use super::disk::{Disk, DiskFile};

/// The name of the file of marks, and its name while it is created.
pub(super) const MARKS: &str = "end.marks";
const PART: &str = "end.marks.part";

/// Bytes of one mark: the number of a record, and its checksum.
const MARK_BYTES: usize = 12;

/// Bytes of marks after which the file continues after its first mark.
const MAX_BYTES: u64 = 4096;

/// The file of marks, open for writing.
pub(super) struct Marks {
    // `None` after a write that failed.
    file: Option<Box<dyn DiskFile>>,
    bytes: u64,
}

impl Marks {
    /// Begins a new file with a mark of `last`, the last record of the log.
    ///
    /// # Errors
    ///
    /// Fails if the system does.
    pub(super) fn begin(disk: &dyn Disk, last: u64) -> io::Result<Self> {
        let mut file = disk.create(PART)?;
        file.write_all(&mark(last))?;
        file.sync()?;
        // The new file is safe before it replaces the old one, and is not one that an earlier crash left under its name.
        disk.sync_names()?;
        disk.rename(PART, MARKS)?;
        disk.sync_names()?;
        Ok(Self { file: Some(file), bytes: MARK_BYTES as u64 })
    }

    /// Marks the records up to `last` as acknowledged. If that cannot be written, fewer records are known to be acknowledged.
    pub(super) fn set(&mut self, disk: &dyn Disk, last: u64) {
        let Some(file) = self.file.as_mut() else {
            if let Ok(anew) = Self::begin(disk, last) {
                *self = anew;
            }
            return;
        };
        let is_full = self.bytes >= MAX_BYTES;
        let written = if is_full { file.cut(MARK_BYTES as u64) } else { Ok(()) };
        if is_full {
            self.bytes = MARK_BYTES as u64;
        }
        if written.and_then(|()| file.write_all(&mark(last))).is_err() {
            // Later marks would not be found after half a mark, so the next one begins a new file.
            self.file = None;
        }
        self.bytes += MARK_BYTES as u64;
    }
}

/// The last record that was acknowledged according to a mark; `None` if there is no mark.
pub(super) fn last(disk: &dyn Disk) -> Option<u64> {
    let mut bytes = Vec::new();
    disk.open(MARKS).and_then(|mut file| file.read_to_end(&mut bytes)).ok()?;
    bytes.chunks_exact(MARK_BYTES).filter_map(read_mark).max()
}

fn mark(last: u64) -> [u8; MARK_BYTES] {
    let (mut mark, number) = ([0; MARK_BYTES], last.to_le_bytes());
    mark[..8].copy_from_slice(&number);
    mark[8..].copy_from_slice(&crc32c(&number).to_le_bytes());
    mark
}

fn read_mark(bytes: &[u8]) -> Option<u64> {
    let (number, sum) = bytes.split_first_chunk::<8>()?;
    (crc32c(number).to_le_bytes() == *sum).then(|| u64::from_le_bytes(*number))
}
