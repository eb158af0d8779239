//! Recovery at the start: the newest complete snapshot, and the records after it.
//!
//! Every record of the log is checked before any is replayed. If bytes are no frame, or records are missing:
//!
//! - If a later frame, or a mark of where the log ended, shows that the missing records were acknowledged, they are damaged: this
//!   is an error that says where, or, with `damaged_records = "skip"`, a count.
//! - If neither does, a crash interrupted the write. The records were never acknowledged, and are cut off.
//!
//! If all marks are missing, the two cases cannot be distinguished at the end of the log: this is an error, or is counted,
//! likewise.
//!
//! Damage to records that the snapshot includes does not matter. Nothing is removed before its replacement is safe, and every step
//! can be repeated, so a crash during recovery is a crash like any other.

use std::io::Read;

use bytes::Bytes;

use super::budget::Budget;
use super::disk::Disk;
use super::error::StoreError;
use super::log::{LOG_MAGIC, Segment};
use super::mark::{self, MARKS};
use super::options::{DamagedRecords, Durability, StoreOptions};
use super::record::{FILE_HEAD, Frame, Head, Kind, Record, VERSION, frame, next_frame, read_head};
use super::snapshot::{self, Snapshot};

/// A recovered directory: its snapshot, its log, and what was mended.
pub struct Recovery {
    /// The newest complete snapshot.
    pub snapshot: Option<Snapshot>,
    /// The damage that was found.
    pub found: Found,
    segments: Vec<Segment>,
    base: u64,
    next: u64,
}

/// Counts of the damage that recovery found.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Found {
    /// Incomplete snapshots; an older one was used, or the whole log.
    pub bad_snapshots: u64,
    /// Bytes that were cut off at the end of the log; they were never acknowledged.
    pub cut_bytes: u64,
    /// Acknowledged records that could not be read and were left out.
    pub lost_records: u64,
    /// 1 if the marks of where the log ended were missing: then records may be missing at its end.
    pub lost_marks: u64,
}

/// The records after the snapshot, in order; each is checked again as it is read.
pub struct Replay<'a> {
    disk: &'a dyn Disk,
    segments: std::slice::Iter<'a, Segment>,
    after: u64,
    at: Option<(Bytes, u32, usize)>,
}

/// A gap of missing records.
struct Gap {
    segment: usize,
    offset: usize,
    first: u64,
    last: u64,
}

/// The result of reading through the log.
#[derive(Default)]
struct Survey {
    gaps: Vec<Gap>,
    next: u64,
    // The last acknowledged record, according to later frames, and according to these or the marks.
    vouched_by_frames: u64,
    vouched: u64,
}

impl Recovery {
    /// Surveys the directory and mends the end of the log.
    pub(super) fn run(disk: &dyn Disk, options: &StoreOptions) -> Result<Self, StoreError> {
        let mut bad = Vec::new();
        let snapshot = snapshot::newest(disk, &mut bad)?;
        let mut found = Found { bad_snapshots: bad.len() as u64, ..Found::default() };
        let base = snapshot.as_ref().map_or(0, |snapshot| snapshot.seq);
        let mut segments = segments(disk)?;
        // A segment has nothing to replay if the next one begins at the record after the snapshot or before.
        let first = segments.partition_point(|segment| segment.first <= base.saturating_add(1));
        let old = first.saturating_sub(1);
        let mut survey = survey(disk, &segments[old..], base)?;
        // Without syncs a crash of the machine may lose the end of the log, and nobody can restore it; this is counted, not
        // refused.
        let refuses = options.damaged_records == DamagedRecords::Refuse;
        let marked = mark::last(disk);
        if marked.is_none() && !(snapshot.is_none() && segments.is_empty()) {
            if refuses {
                return Err(StoreError::Unmarked { path: disk.path(MARKS) });
            }
            found.lost_marks = 1;
        }
        let is_synced = options.durability == Durability::Fsync;
        let ends_early =
            survey.end_at(marked.unwrap_or(0), segments.get(old..).unwrap_or_default());
        for gap in &survey.gaps {
            if gap.first > survey.vouched {
                let at = gap.segment + old;
                found.cut_bytes += cut(disk, &mut segments, at, gap.offset)?;
                break;
            }
            let last = gap.last.min(survey.vouched);
            if refuses && (is_synced || !ends_early || gap.first <= survey.vouched_by_frames) {
                let segment = segments.get(gap.segment + old);
                return Err(StoreError::Damaged {
                    path: disk.path(&segment.map_or_else(|| MARKS.to_owned(), Segment::name)),
                    offset: gap.offset as u64,
                    first: gap.first,
                    last,
                });
            }
            found.lost_records += last - gap.first + 1;
        }
        if let Some(last) = segments.last() {
            // Synced here, as its end may be only in the system's memory, and later frames will say that it was acknowledged.
            let name = last.name();
            disk.truncate(&name, last.bytes).map_err(StoreError::write(disk.path(&name)))?;
        }
        let cut_at = survey.gaps.iter().find(|gap| gap.first > survey.vouched);
        let next = cut_at.map_or(survey.next, |gap| gap.first).max(base + 1);
        while let Some(empty) = segments.pop_if(|last| last.first >= next) {
            let name = empty.name();
            disk.remove(&name).map_err(StoreError::write(disk.path(&name)))?;
        }
        // Their content is in the snapshot and the log that are used, or counted as lost.
        snapshot::remove(disk, &bad)?;
        Ok(Self { snapshot, found, segments, base, next })
    }

    /// The records to replay.
    pub fn replay<'a>(&'a self, disk: &'a dyn Disk) -> Replay<'a> {
        let first = self.segments.partition_point(|segment| segment.first <= self.base + 1);
        let segments = self.segments[first.saturating_sub(1)..].iter();
        Replay { disk, segments, after: self.base, at: None }
    }

    /// Takes the snapshot out, so that it is not held while the log is replayed.
    pub fn take_snapshot(&mut self) -> Option<Snapshot> {
        self.snapshot.take()
    }

    /// The record after which the replay begins.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// To make room, removes all files except the snapshot that was read and the log after it; returns whether there was a
    /// snapshot.
    pub(super) fn make_room(
        &mut self,
        disk: &dyn Disk,
        budget: &Budget,
    ) -> Result<bool, StoreError> {
        let fail = || StoreError::write(disk.path(""));
        if self.base == 0 || !snapshot::keep_newest(disk, budget, self.base).map_err(fail())? {
            return Ok(false);
        }
        let needed = self.segments.partition_point(|segment| segment.first <= self.base + 1);
        for old in self.segments.drain(..needed.saturating_sub(1)) {
            disk.remove(&old.name()).map_err(fail())?;
        }
        disk.sync_names().map_err(fail())?;
        Ok(true)
    }

    /// The number of the next record.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The files of the log.
    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

impl Iterator for Replay<'_> {
    type Item = Result<(u64, Record), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some((bytes, salt, at)) = &mut self.at else {
                let segment = self.segments.next()?;
                match read(self.disk, &segment.name()) {
                    Ok(bytes) => self.at = Some((bytes, segment.salt, FILE_HEAD)),
                    Err(error) => return Some(Err(error)),
                }
                continue;
            };
            let Some((Frame { seq, record, .. }, end)) = frame_from(*salt, bytes, *at) else {
                self.at = None;
                continue;
            };
            *at = end;
            if seq > self.after {
                self.after = seq;
                return Some(Ok((seq, record)));
            }
        }
    }
}

/// The first complete frame at byte `at` or after it, and where it ends.
fn frame_from(salt: u32, bytes: &Bytes, at: usize) -> Option<(Frame, usize)> {
    frame(salt, bytes, at).or_else(|| frame(salt, bytes, next_frame(salt, bytes, at)?))
}

/// The files of the log, in order.
fn segments(disk: &dyn Disk) -> Result<Vec<Segment>, StoreError> {
    let files = disk.list().map_err(StoreError::read(disk.path("")))?;
    let mut segments: Vec<Segment> =
        files.iter().filter_map(|(name, bytes)| Segment::of(name, *bytes)).collect();
    segments.sort_by_key(|segment| segment.first);
    Ok(segments)
}

/// Reads every frame after record `base`.
fn survey(disk: &dyn Disk, segments: &[Segment], base: u64) -> Result<Survey, StoreError> {
    let mut survey = Survey { next: base + 1, ..Survey::default() };
    for (number, segment) in segments.iter().enumerate() {
        let name = segment.name();
        let bytes = read(disk, &name)?;
        match read_head(LOG_MAGIC, &bytes) {
            Head::Other(found) => {
                return Err(StoreError::OtherFormat {
                    path: disk.path(&name),
                    found,
                    known: VERSION,
                });
            }
            // A segment is begun when all records before it are acknowledged.
            Head::Known(first) => {
                survey.expect(number, FILE_HEAD, first, first.saturating_sub(1));
            }
            Head::Bad => {}
        }
        let mut at = FILE_HEAD.min(bytes.len());
        loop {
            let found = frame_from(segment.salt, &bytes, at);
            let Some((Frame { seq, acknowledged, record }, end)) = found else { break };
            if let Kind::Unknown(_) | Kind::Section | Kind::End = record.kind {
                let path = disk.path(&name);
                return Err(StoreError::OtherFormat { path, found: VERSION + 1, known: VERSION });
            }
            survey.expect(number, at, seq, acknowledged);
            survey.next = survey.next.max(seq + 1);
            at = end;
        }
        if at < bytes.len() && survey.gaps.last().is_none_or(|gap| gap.last != u64::MAX) {
            survey.gaps.push(Gap {
                segment: number,
                offset: at,
                first: survey.next,
                last: u64::MAX,
            });
        }
    }
    Ok(survey)
}

impl Survey {
    /// Notes the last record of the log according to its marks; returns whether the log ends before it.
    fn end_at(&mut self, marked: u64, segments: &[Segment]) -> bool {
        self.vouched = self.vouched_by_frames.max(marked);
        let ends_early = marked >= self.next;
        if ends_early && self.gaps.last().is_none_or(|gap| gap.last != u64::MAX) {
            // Whole files are missing.
            let last = segments.last().map_or(0, |segment| segment.bytes);
            self.gaps.push(Gap {
                segment: segments.len().saturating_sub(1),
                offset: usize::try_from(last).unwrap_or(usize::MAX),
                first: self.next,
                last: marked,
            });
        }
        ends_early
    }

    /// Notes a gap if records before `seq`, which is at byte `offset` of `segment`, were not found; also notes what was
    /// acknowledged.
    fn expect(&mut self, segment: usize, offset: usize, seq: u64, acknowledged: u64) {
        self.vouched_by_frames = self.vouched_by_frames.max(acknowledged);
        if seq > self.next {
            // The gap begins with bytes without a frame at the end of the previous segment.
            let open = self.gaps.pop_if(|gap| gap.last == u64::MAX);
            let (segment, offset) = open.map_or((segment, offset), |gap| (gap.segment, gap.offset));
            self.gaps.push(Gap { segment, offset, first: self.next, last: seq - 1 });
            self.next = seq;
        } else if seq == self.next {
            // Bytes after the last frame of a segment are no gap, as no record is missing.
            self.gaps.pop_if(|gap| gap.last == u64::MAX);
        }
    }
}

/// Cuts off the log from a byte of a segment on; returns how many bytes were removed.
fn cut(
    disk: &dyn Disk,
    segments: &mut Vec<Segment>,
    at: usize,
    offset: usize,
) -> Result<u64, StoreError> {
    let mut gone = 0;
    // The last segment first, so that the rest is a log at any time.
    while segments.len() > at + 1 {
        let Some(segment) = segments.pop() else { break };
        let name = segment.name();
        disk.remove(&name).map_err(StoreError::write(disk.path(&name)))?;
        disk.sync_names().map_err(StoreError::write(disk.path(&name)))?;
        gone += segment.bytes;
    }
    let Some(segment) = segments.last_mut() else { return Ok(gone) };
    let name = segment.name();
    let offset = offset as u64;
    gone += segment.bytes.saturating_sub(offset);
    disk.truncate(&name, offset).map_err(StoreError::write(disk.path(&name)))?;
    segment.bytes = offset;
    Ok(gone)
}

/// Reads a whole file.
fn read(disk: &dyn Disk, name: &str) -> Result<Bytes, StoreError> {
    let mut bytes = Vec::new();
    disk.open(name)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(StoreError::read(disk.path(name)))?;
    Ok(bytes.into())
}
