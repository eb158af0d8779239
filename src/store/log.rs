//! The log: segments that groups of records are appended to.
//!
//! A group is one write and, with `fsync`, one sync. A failed write is cut off again; after a failed sync it is unknown what is on
//! disk, so the log stops for good.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::iter::successors;
use std::sync::Arc;

use super::budget::Budget;
use super::disk::{Disk, DiskFile};
use super::error::{Refused, StoreError};
use super::mark::{MARKS, Marks};
use super::options::{Durability, StoreOptions};
use super::record::{FILE_HEAD, Record, head};
use super::recover::Recovery;
use super::snapshot;

/// The log, open at its end.
pub(crate) struct Log {
    disk: Arc<dyn Disk>,
    budget: Arc<Budget>,
    fsync: bool,
    segment_bytes: u64,
    // Invariant: all segments, in order, of which the last one is written to.
    segments: VecDeque<Segment>,
    file: Option<Box<dyn DiskFile>>,
    next: u64,
    acknowledged: u64,
    // `None` until there was room to begin them; the marks of the previous process are true until then.
    marks: Option<Marks>,
    group: Vec<u8>,
    stopped: bool,
}

/// One file of the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Segment {
    /// The number of its first record.
    pub(super) first: u64,
    pub(super) salt: u32,
    pub(super) bytes: u64,
}

impl Segment {
    /// The segment in a file with this name.
    pub(super) fn of(name: &str, bytes: u64) -> Option<Self> {
        let (first, salt) = name.strip_prefix("log-")?.strip_suffix(".wal")?.split_once('-')?;
        let salt = u32::from_str_radix(salt, 16).ok()?;
        Some(Self { first: first.parse().ok()?, salt, bytes })
    }

    /// The name of its file.
    pub(super) fn name(&self) -> String {
        format!("log-{:020}-{:08x}.wal", self.first, self.salt)
    }
}

impl Log {
    /// The log after the recovered segments; nothing is written until it begins.
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        options: &StoreOptions,
        recovery: &Recovery,
        budget: Arc<Budget>,
    ) -> Self {
        let log = Self {
            disk,
            budget,
            fsync: options.durability == Durability::Fsync,
            segment_bytes: options.segment_bytes,
            segments: recovery.segments().iter().cloned().collect(),
            file: None,
            next: recovery.next(),
            acknowledged: recovery.next() - 1,
            marks: None,
            group: Vec::new(),
            stopped: false,
        };
        log.measure();
        log
    }

    /// Begins a file of marks and a segment, if this was not done yet. The first append does so, too.
    ///
    /// # Errors
    ///
    /// Fails if the system does.
    pub(super) fn begin(&mut self) -> Result<(), StoreError> {
        self.begin_marks().map_err(StoreError::write(self.disk.path(MARKS)))?;
        if self.file.is_none() {
            self.roll().map_err(|source| {
                let segment = Segment { first: self.next, salt: 0, bytes: 0 };
                StoreError::write(self.disk.path(&segment.name()))(source)
            })?;
        }
        self.measure();
        Ok(())
    }

    /// Begins a file of marks, if there was no room for it yet.
    fn begin_marks(&mut self) -> io::Result<()> {
        if self.marks.is_none() {
            self.marks = Some(Marks::begin(self.disk.as_ref(), self.acknowledged)?);
        }
        Ok(())
    }

    /// Appends a group; returns the sequence number of its first record. If it fails, nothing of the group is in the log, or the
    /// log has stopped.
    pub(crate) fn commit(&mut self, group: &[Record]) -> Result<u64, Refused> {
        if self.stopped {
            return Err(Refused::Stopped);
        }
        let sizes: Option<u64> = group.iter().map(Record::frame_bytes).sum();
        let bytes = sizes.ok_or(Refused::Write)?;
        if !self.budget.has_room(bytes) {
            return Err(Refused::Budget);
        }
        if self.budget.is_rescuing() {
            return Err(Refused::Disk);
        }
        self.make_ready()?;
        self.write(group)?;
        let first = self.next;
        self.next += group.len() as u64;
        if let Some(segment) = self.segments.back_mut() {
            segment.bytes += bytes;
        }
        if self.fsync {
            self.sync()?;
        }
        self.acknowledged = self.next - 1;
        if let Some(marks) = &mut self.marks {
            marks.set(self.disk.as_ref(), self.acknowledged);
        }
        self.budget.add_written(bytes);
        self.measure();
        Ok(first)
    }

    /// Tests whether the disk accepts this many bytes, `MAX_PROBE_BYTES` at most. They are no record, and are cut off again; after
    /// a crash before that, the next start cuts them off as the torn end of a write.
    pub(crate) fn probe(&mut self, bytes: u64) -> Result<(), Refused> {
        if self.stopped {
            return Err(Refused::Stopped);
        }
        self.make_ready()?;
        self.group.clear();
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(MAX_PROBE_BYTES);
        self.group.extend(noise().take(bytes));
        self.put()?;
        self.take_back();
        if self.stopped { Err(Refused::Stopped) } else { Ok(()) }
    }

    /// Checks that the directory is still the one that was opened: what is written to the open file of another one is lost.
    pub(crate) fn find_directory(&self) -> Result<(), Refused> {
        match self.disk.is_there() {
            Ok(true) => Ok(()),
            Ok(false) => Err(Refused::Directory),
            Err(error) => Err(self.refusal(&error)),
        }
    }

    /// Finds files that were removed by others, among them the snapshot after record `last`, and continues without them; returns
    /// their names. A lost part of the log is missing until there is a new snapshot; sessions in a lost file of evicted ones are
    /// lost for good.
    pub(crate) fn missing(&mut self, last: u64) -> io::Result<Vec<String>> {
        let files: BTreeSet<String> = self.disk.list()?.into_iter().map(|(name, _)| name).collect();
        let is_there = |name: &str| files.contains(name);
        if self.segments.back().is_some_and(|segment| !is_there(&segment.name())) {
            self.file = None;
        }
        let snapshot = (last > 0).then(|| snapshot::name(last));
        let needed = self.segments.iter().map(Segment::name).chain(snapshot);
        let evicted = self.budget.missing_evicted(is_there);
        let needed = needed.chain([MARKS.to_owned()]).filter(|name| !is_there(name));
        let missing = needed.chain(evicted).collect();
        self.segments.retain(|segment| is_there(&segment.name()));
        self.measure();
        if !is_there(MARKS)
            && let Ok(anew) = Marks::begin(self.disk.as_ref(), self.acknowledged)
        {
            self.marks = Some(anew);
        }
        Ok(missing)
    }

    /// The sequence number of the next record.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Whether the log has stopped; then it accepts no more records.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stopped
    }

    /// Removes the segments without a record after `seq`; the one that is written to stays.
    pub(crate) fn release(&mut self, seq: u64) -> io::Result<()> {
        while let Some(first) = self.segments.front() {
            let end = match self.segments.get(1) {
                Some(second) => second.first,
                None if self.file.is_none() => self.next,
                None => break,
            };
            if end > seq.saturating_add(1) {
                break;
            }
            self.disk.remove(&first.name())?;
            self.segments.pop_front();
            self.measure();
        }
        self.disk.sync_names()
    }

    /// Makes sure that the directory is there, the marks are begun, and a segment is open for the next write.
    fn make_ready(&mut self) -> Result<(), Refused> {
        self.find_directory()?;
        let begun = self.begin_marks();
        begun.map_err(|error| self.refusal(&error))?;
        let full = self.segments.back().is_none_or(|segment| {
            segment.bytes > FILE_HEAD as u64 && segment.bytes >= self.segment_bytes
        });
        if full || self.file.is_none() {
            let rolled = self.roll();
            rolled.map_err(|error| self.refusal(&error))?;
        }
        Ok(())
    }

    /// Writes a group after the last one, completely or not at all.
    fn write(&mut self, group: &[Record]) -> Result<(), Refused> {
        let salt = self.segments.back().ok_or(Refused::Write)?.salt;
        self.group.clear();
        for (seq, record) in (self.next..).zip(group) {
            record.encode(salt, seq, self.acknowledged, &mut self.group);
        }
        self.put()
    }

    /// Writes the bytes of `group` to the end of the segment, all or none.
    fn put(&mut self) -> Result<(), Refused> {
        let file = self.file.as_mut().ok_or(Refused::Write)?;
        let written = file.write_all(&self.group).and_then(|()| file.flush());
        if self.group.capacity() > MAX_KEPT_BYTES {
            self.group = Vec::new();
        }
        written.map_err(|error| {
            self.take_back();
            self.refusal(&error)
        })
    }

    /// Cuts off what was written after the last record: it must neither stay before the next one nor reappear after a crash.
    fn take_back(&mut self) {
        if let Some((segment, file)) = self.segments.back().zip(self.file.as_mut()) {
            let taken_back = file.cut(segment.bytes).and_then(|()| file.sync());
            self.stopped = taken_back.is_err();
        }
    }

    fn refusal(&self, error: &io::Error) -> Refused {
        if self.stopped { Refused::Stopped } else { Refused::of(error) }
    }

    fn sync(&mut self) -> Result<(), Refused> {
        let synced = self.file.as_mut().map_or(Ok(()), |file| file.sync());
        synced.map_err(|_| {
            self.stopped = true;
            Refused::Stopped
        })
    }

    /// Begins a new segment, after the previous one was synced.
    fn roll(&mut self) -> io::Result<()> {
        if self.sync().is_err() {
            return Err(io::Error::other("a sync failed"));
        }
        let salt = u32::try_from(RandomState::new().hash_one(self.next) >> 32).unwrap_or(0);
        let segment = Segment { first: self.next, salt, bytes: FILE_HEAD as u64 };
        let name = segment.name();
        let begun = self.disk.create(&name).and_then(|mut file| {
            file.write_all(&head(LOG_MAGIC, self.next))?;
            file.sync()?;
            self.disk.sync_names()?;
            Ok(file)
        });
        match begun {
            Ok(file) => {
                self.file = Some(file);
                self.segments.push_back(segment);
                Ok(())
            }
            Err(error) => {
                // The file has no record; if it cannot be removed, the next start removes it.
                let _ = self.disk.remove(&name);
                Err(error)
            }
        }
    }

    fn measure(&self) {
        self.budget.set_log(self.segments.iter().map(|segment| segment.bytes).sum());
    }
}

/// The first bytes of a segment's head.
pub(super) const LOG_MAGIC: &[u8; 6] = b"AGSLOG";

/// Bytes that a file system cannot compress.
fn noise() -> impl Iterator<Item = u8> {
    let next = |word: &u64| Some(word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
    successors(Some(1), next).flat_map(u64::to_be_bytes)
}

/// The largest buffer, in bytes, that is kept for the next group.
const MAX_KEPT_BYTES: usize = 4 << 20;

/// The most bytes of a probe.
const MAX_PROBE_BYTES: usize = 16 << 20;
