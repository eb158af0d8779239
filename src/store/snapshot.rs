//! Snapshots: the state after a record of the log, in named sections.
//!
//! A file has a head like the log's, with the sequence number; then frames of kind `Section`, a piece each (length of the name,
//! name, bytes), the pieces of one section in order; then a frame of kind `End`. A snapshot is written under another name, synced,
//! and only then given its own. So a snapshot with its own name is complete, unless the disk lost something; then the one before it
//! is used, and this one is removed.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::budget::Budget;
use super::disk::{Disk, DiskFile};
use super::error::StoreError;
use super::record::{FILE_HEAD, Head, Kind, Record, VERSION, frame, head, read_head};
use crate::engine::span::Timestamp;

/// A snapshot that was read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Snapshot {
    /// The record whose state this is; some later records may be included.
    pub seq: u64,
    /// The sections by name.
    pub sections: BTreeMap<String, Vec<u8>>,
}

/// A part of a snapshot.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Section {
    /// Its name, of at most 255 bytes.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// A snapshot that is being written. If it is dropped before it is finished, it is removed.
pub struct SnapshotWriter {
    disk: Arc<dyn Disk>,
    budget: Arc<Budget>,
    file: Box<dyn DiskFile>,
    seq: u64,
    frames: u64,
    bytes: u64,
    finished: bool,
}

impl SnapshotWriter {
    /// Begins a snapshot of the state after record `seq`.
    ///
    /// # Errors
    ///
    /// Fails if the system does.
    pub fn begin(disk: Arc<dyn Disk>, budget: Arc<Budget>, seq: u64) -> io::Result<Self> {
        let file = disk.create(&part_name(seq))?;
        let (frames, bytes) = (0, FILE_HEAD as u64);
        // It removes the file if the head cannot be written.
        let mut writer = Self { disk, budget, file, seq, frames, bytes, finished: false };
        writer.file.write_all(&head(SNAPSHOT_MAGIC, seq))?;
        Ok(writer)
    }

    /// Adds a section.
    ///
    /// # Errors
    ///
    /// Fails if the system does.
    pub fn section(&mut self, section: &Section) -> io::Result<()> {
        let name = section.name.as_bytes();
        let length = u8::try_from(name.len()).map_err(io::Error::other)?;
        let empty: [&[u8]; 1] = [&[]];
        let pieces = section.bytes.chunks(PIECE_BYTES);
        for piece in pieces.chain(empty.into_iter().filter(|_| section.bytes.is_empty())) {
            let mut payload = BytesMut::with_capacity(1 + name.len() + piece.len());
            payload.put_u8(length);
            payload.put_slice(name);
            payload.put_slice(piece);
            self.frame(Kind::Section, payload.freeze())?;
        }
        Ok(())
    }

    /// Finishes the snapshot, which is the newest from then on, and removes all but the newest `keep`. Returns the sequence number
    /// up to which the log is not needed.
    ///
    /// # Errors
    ///
    /// Fails if the system does; the snapshots before it then still exist.
    pub fn finish(mut self, keep: usize) -> io::Result<u64> {
        self.frame(Kind::End, Bytes::new())?;
        self.file.sync()?;
        self.disk.rename(&part_name(self.seq), &name(self.seq))?;
        self.finished = true;
        self.disk.sync_names()?;
        // The new snapshot is safe, so older ones can be removed.
        let mut seqs: Vec<u64> =
            list(self.disk.as_ref())?.into_iter().map(|(seq, _)| seq).collect();
        seqs.sort_unstable_by(|a, b| b.cmp(a));
        for old in seqs.iter().skip(keep.max(1)) {
            self.disk.remove(&name(*old))?;
        }
        self.disk.sync_names()?;
        seqs.truncate(keep.max(1));
        let sizes = list(self.disk.as_ref())?.into_iter().map(|(_, bytes)| bytes);
        self.budget.set_snapshots(sizes.rev());
        self.budget.add_finished();
        // While there are fewer snapshots than `keep`, the whole log is the second source.
        Ok(if seqs.len() < keep { 0 } else { seqs.last().copied().unwrap_or(0) })
    }

    fn frame(&mut self, kind: Kind, payload: Bytes) -> io::Result<()> {
        self.frames += 1;
        let mut bytes = Vec::new();
        let record = Record { arrival: Timestamp::default(), kind, payload };
        record.encode(0, self.frames, 0, &mut bytes);
        self.bytes += bytes.len() as u64;
        self.budget.set_unfinished(self.bytes);
        self.file.write_all(&bytes)
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        self.budget.set_unfinished(0);
        if !self.finished {
            // This makes room; if it fails, the next start removes the file.
            let _ = self.disk.remove(&part_name(self.seq));
        }
    }
}

/// Reads the newest complete snapshot; adds the numbers of newer, incomplete ones to `bad`.
pub(super) fn newest(disk: &dyn Disk, bad: &mut Vec<u64>) -> Result<Option<Snapshot>, StoreError> {
    let listed = list(disk).map_err(StoreError::read(disk.path("")))?;
    for (seq, _) in listed.into_iter().rev() {
        let name = name(seq);
        let mut bytes = Vec::new();
        disk.open(&name)
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .map_err(StoreError::read(disk.path(&name)))?;
        if let Head::Other(found) = read_head(SNAPSHOT_MAGIC, &bytes) {
            return Err(StoreError::OtherFormat { path: disk.path(&name), found, known: VERSION });
        }
        match decode(seq, bytes) {
            Some(snapshot) => return Ok(Some(snapshot)),
            None => bad.push(seq),
        }
    }
    Ok(None)
}

/// Removes incomplete snapshots, so that none of them counts as kept.
pub(super) fn remove(disk: &dyn Disk, bad: &[u64]) -> Result<(), StoreError> {
    for seq in bad {
        let name = name(*seq);
        tracing::error!(file = name, "a snapshot is damaged, and is removed");
        disk.remove(&name).map_err(StoreError::write(disk.path(&name)))?;
    }
    Ok(())
}

/// The bytes of all snapshots, the newest first. Removes the files of unfinished snapshots.
pub(super) fn sizes(disk: &dyn Disk) -> Result<Vec<u64>, StoreError> {
    let files = disk.list().map_err(StoreError::read(disk.path("")))?;
    for (file, _) in files {
        if file.starts_with(PREFIX) && file.ends_with(PART) {
            disk.remove(&file).map_err(StoreError::write(disk.path(&file)))?;
        }
    }
    let listed = list(disk).map_err(StoreError::read(disk.path("")))?;
    Ok(listed.into_iter().rev().map(|(_, bytes)| bytes).collect())
}

/// To make room, removes the snapshots before the complete one after record `newest`; returns whether that one exists, so that the
/// log up to it is not needed.
///
/// # Errors
///
/// Fails if the system does.
pub fn keep_newest(disk: &dyn Disk, budget: &Budget, newest: u64) -> io::Result<bool> {
    let listed = list(disk)?;
    if listed.last().is_none_or(|(seq, _)| *seq != newest) {
        return Ok(false);
    }
    for (older, _) in &listed[..listed.len() - 1] {
        disk.remove(&name(*older))?;
    }
    disk.sync_names()?;
    budget.set_snapshots(listed.last().map(|(_, bytes)| *bytes));
    Ok(true)
}

/// Snapshots and their sizes, oldest first.
fn list(disk: &dyn Disk) -> io::Result<Vec<(u64, u64)>> {
    let files = disk.list()?.into_iter();
    let mut found: Vec<_> =
        files.filter_map(|(name, bytes)| Some((seq_of(&name)?, bytes))).collect();
    found.sort_unstable();
    Ok(found)
}

fn decode(seq: u64, bytes: Vec<u8>) -> Option<Snapshot> {
    if read_head(SNAPSHOT_MAGIC, &bytes) != Head::Known(seq) {
        return None;
    }
    let bytes = Bytes::from(bytes);
    let mut snapshot = Snapshot { seq, ..Snapshot::default() };
    let (mut at, mut number) = (FILE_HEAD, 1);
    loop {
        let (found, end) = frame(0, &bytes, at)?;
        if found.seq != number {
            return None;
        }
        match found.record.kind {
            Kind::End => return Some(snapshot),
            Kind::Section => {
                let (length, rest) = found.record.payload.split_first()?;
                let (name, piece) = rest.split_at_checked(usize::from(*length))?;
                let name = String::from_utf8(name.to_vec()).ok()?;
                snapshot.sections.entry(name).or_default().extend_from_slice(piece);
            }
            Kind::Request | Kind::Judged | Kind::Clock | Kind::Unknown(_) => return None,
        }
        (at, number) = (end, number + 1);
    }
}

/// Whether this is the name of a snapshot.
pub(super) fn is_one(name: &str) -> bool {
    seq_of(name).is_some()
}

/// The name of the snapshot after record `seq`.
pub(super) fn name(seq: u64) -> String {
    format!("{PREFIX}{seq:020}")
}

fn part_name(seq: u64) -> String {
    format!("{PREFIX}{seq:020}{PART}")
}

fn seq_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// How many snapshots are kept: if the newest cannot be read, the other one is used.
pub const KEPT: usize = 2;

/// The first bytes of a snapshot's head.
pub(super) const SNAPSHOT_MAGIC: &[u8; 6] = b"AGSNAP";

const PREFIX: &str = "snapshot-";
const PART: &str = ".part";

/// The most bytes of a section in one frame.
const PIECE_BYTES: usize = 1 << 20;
