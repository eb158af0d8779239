//! How far the log has come, beside the log: what is missing at its end is known to be missing.
//!
//! A frame vouches for those before it, so damage in the middle of the log tells of itself; the end has nobody behind it. So after each
//! group the number of its last record is written here, 12 bytes that are not synced by themselves: after a crash of the process all of them
//! are there, after one of the machine some may not be. A mark that is there is true: what it names was acknowledged.

use std::io::{self, Read, Write};

use crc32c::crc32c;

use super::disk::{Disk, DiskFile};

/// The file of marks.
pub(super) const MARKS: &str = "end.marks";

/// Bytes of one mark: the record's number, and a sum.
const MARK_BYTES: usize = 12;

/// Bytes of marks after which the file begins anew.
const MAX_BYTES: u64 = 4096;

/// The marks, as they are written.
pub(super) struct Marks {
    // `None`: the last write failed.
    file: Option<Box<dyn DiskFile>>,
    bytes: u64,
}

impl Marks {
    /// Begins anew with the record that the log ends with now.
    ///
    /// # Errors
    ///
    /// Fails if the system does.
    pub(super) fn begin(disk: &dyn Disk, last: u64) -> io::Result<Self> {
        let mut file = disk.create(MARKS)?;
        file.write_all(&mark(last))?;
        file.sync()?;
        disk.sync_names()?;
        Ok(Self { file: Some(file), bytes: MARK_BYTES as u64 })
    }

    /// The record was acknowledged, and all before it. Where that cannot be written it is known of older ones.
    pub(super) fn set(&mut self, disk: &dyn Disk, last: u64) {
        let Some(file) = self.file.as_mut() else {
            if let Ok(anew) = Self::begin(disk, last) {
                *self = anew;
            }
            return;
        };
        let begins = self.bytes >= MAX_BYTES;
        let written = if begins { file.cut(0) } else { Ok(()) };
        if begins {
            self.bytes = 0;
        }
        if written.and_then(|()| file.write_all(&mark(last))).is_err() {
            // Half a mark would hide those behind it.
            self.file = None;
        }
        self.bytes += MARK_BYTES as u64;
    }
}

/// The last record that is known to have been acknowledged; 0: none is.
pub(super) fn last(disk: &dyn Disk) -> u64 {
    let mut bytes = Vec::new();
    let read = disk.open(MARKS).and_then(|mut file| file.read_to_end(&mut bytes));
    if read.is_err() {
        return 0;
    }
    bytes.chunks_exact(MARK_BYTES).filter_map(read_mark).max().unwrap_or(0)
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
