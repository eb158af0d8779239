//! A record and its frame.
//!
//! ```text
//! bytes  0..4   magic "AGr" and the version of the frame, 1
//!        4..8   CRC-32C of bytes 8..44
//!        8..16  sequence number, from 1, without gaps
//!       16..24  acknowledged: all records up to this one were, when this one was written
//!       24..32  arrival, Unix nanoseconds
//!       32..36  length of the payload
//!       36..40  kind
//!       40..44  CRC-32C of the payload
//!       44..    payload
//! ```
//!
//! Numbers are little-endian. The CRCs of a frame start from the salt in the name of its file, so that the bytes of a frame in a
//! client's request are not taken for one. `acknowledged` distinguishes damage from a torn write: bytes that are no frame can be
//! the torn end of a write that was never acknowledged, or acknowledged records that were damaged later. They are the latter if a
//! complete frame after them has an `acknowledged` that reaches them.

use bytes::Bytes;
use crc32c::{crc32c, crc32c_append};

use crate::engine::span::Timestamp;

/// The kind of a payload.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A request as it was received.
    Request,
    /// A piece of a section of a snapshot.
    Section,
    /// The end of a snapshot.
    End,
    /// The answer of a judge.
    Judged,
    /// How far wall time is ahead of time from this record on: nanoseconds, 8 bytes, little-endian. Written when that changes, and
    /// when timers run at a time that no other record has.
    Clock,
    /// A kind that only a newer release knows.
    Unknown(u32),
}

/// One entry of the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// When it arrived, by the time that drives timers.
    pub arrival: Timestamp,
    /// The kind of its payload.
    pub kind: Kind,
    /// The payload.
    pub payload: Bytes,
}

/// A frame that was found complete.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Frame {
    pub(super) seq: u64,
    pub(super) acknowledged: u64,
    pub(super) record: Record,
}

/// The head of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Head {
    /// The head of a file of this kind and of the known version, with its number.
    Known(u64),
    /// The head of a file of another version.
    Other(u16),
    /// No head, or a damaged one.
    Bad,
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Self::Request => 1,
            Self::Section => 2,
            Self::End => 3,
            Self::Judged => 4,
            Self::Clock => 5,
            Self::Unknown(number) => number,
        }
    }

    fn of(number: u32) -> Self {
        match number {
            1 => Self::Request,
            2 => Self::Section,
            3 => Self::End,
            4 => Self::Judged,
            5 => Self::Clock,
            _ => Self::Unknown(number),
        }
    }
}

impl Record {
    /// The size of its frame in bytes; `None` if its payload is too long for one.
    pub(super) fn frame_bytes(&self) -> Option<u64> {
        let payload = u32::try_from(self.payload.len()).ok()?;
        Some(u64::from(payload) + FRAME_HEAD as u64)
    }

    /// Appends its frame to `out`. The payload must fit in a frame.
    pub(super) fn encode(&self, salt: u32, seq: u64, acknowledged: u64, out: &mut Vec<u8>) {
        let mut head = [0; FRAME_HEAD];
        head[..4].copy_from_slice(FRAME_MAGIC);
        head[8..16].copy_from_slice(&seq.to_le_bytes());
        head[16..24].copy_from_slice(&acknowledged.to_le_bytes());
        head[24..32].copy_from_slice(&self.arrival.0.to_le_bytes());
        let length = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        head[32..36].copy_from_slice(&length.to_le_bytes());
        head[36..40].copy_from_slice(&self.kind.number().to_le_bytes());
        head[40..44].copy_from_slice(&crc32c_append(salt, &self.payload).to_le_bytes());
        let sum = crc32c_append(salt, &head[8..]);
        head[4..8].copy_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(&self.payload);
    }
}

/// The frame at byte `at` and where it ends; `None` if there is no complete frame.
pub(super) fn frame(salt: u32, bytes: &Bytes, at: usize) -> Option<(Frame, usize)> {
    let head = bytes.get(at..at.checked_add(FRAME_HEAD)?)?;
    if &head[..4] != FRAME_MAGIC || crc32c_append(salt, &head[8..]) != u32_at(head, 4) {
        return None;
    }
    let begin = at + FRAME_HEAD;
    let end = begin.checked_add(usize::try_from(u32_at(head, 32)).ok()?)?;
    let payload = bytes.get(begin..end)?;
    if crc32c_append(salt, payload) != u32_at(head, 40) {
        return None;
    }
    let record = Record {
        arrival: Timestamp(u64_at(head, 24)),
        kind: Kind::of(u32_at(head, 36)),
        payload: bytes.slice(begin..end),
    };
    Some((Frame { seq: u64_at(head, 8), acknowledged: u64_at(head, 16), record }, end))
}

/// Where the next complete frame begins, at byte `at` or after it.
pub(super) fn next_frame(salt: u32, bytes: &Bytes, at: usize) -> Option<usize> {
    let rest = bytes.get(at..)?;
    let starts = rest.windows(FRAME_MAGIC.len()).enumerate();
    let starts = starts.filter(|(_, window)| *window == FRAME_MAGIC);
    starts.map(|(offset, _)| at + offset).find(|start| frame(salt, bytes, *start).is_some())
}

/// The head of a file: magic, version, a number, and their CRC. Every version keeps this form.
pub(super) fn head(magic: &[u8; 6], number: u64) -> [u8; FILE_HEAD] {
    let mut head = [0; FILE_HEAD];
    head[..6].copy_from_slice(magic);
    head[6..8].copy_from_slice(&VERSION.to_le_bytes());
    head[8..16].copy_from_slice(&number.to_le_bytes());
    let sum = crc32c(&head[..16]);
    head[16..20].copy_from_slice(&sum.to_le_bytes());
    head
}

/// Reads the head of a file.
pub(super) fn read_head(magic: &[u8; 6], bytes: &[u8]) -> Head {
    let Some(head) = bytes.get(..FILE_HEAD) else { return Head::Bad };
    if &head[..6] != magic || crc32c(&head[..16]) != u32_at(head, 16) {
        return Head::Bad;
    }
    match u16::from_le_bytes([head[6], head[7]]) {
        VERSION => Head::Known(u64_at(head, 8)),
        other => Head::Other(other),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// The version of the files, the same for log and snapshots; a new kind of record needs no new version.
pub(super) const VERSION: u16 = 30;

/// Bytes of the head of a file.
pub(super) const FILE_HEAD: usize = 20;

const FRAME_HEAD: usize = 44;
const FRAME_MAGIC: &[u8; 4] = b"AGr\x01";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(payload: &[u8]) -> Record {
        let payload = Bytes::copy_from_slice(payload);
        Record { arrival: Timestamp(7), kind: Kind::Request, payload }
    }

    #[test]
    fn a_frame_is_these_bytes_for_ever() {
        let mut bytes = Vec::new();
        record(b"abc").encode(0, 2, 1, &mut bytes);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "41477201d716cf490200000000000000010000000000000007000000000000000300000001000000b73f4b36616263"
        );
        assert_eq!(head(b"AGSLOG", 1).len(), FILE_HEAD);
    }

    #[test]
    fn a_head_of_another_version_is_told_from_a_damaged_one() {
        let known = head(b"AGSLOG", 9);
        assert_eq!(read_head(b"AGSLOG", &known), Head::Known(9));
        assert_eq!(read_head(b"AGSNAP", &known), Head::Bad);
        let mut other = known;
        other[6..8].copy_from_slice(&(VERSION + 1).to_le_bytes());
        assert_eq!(read_head(b"AGSLOG", &other), Head::Bad);
        let sum = crc32c(&other[..16]);
        other[16..20].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(read_head(b"AGSLOG", &other), Head::Other(VERSION + 1));
        assert_eq!(read_head(b"AGSLOG", &other[..19]), Head::Bad);
    }

    proptest! {
        #[test]
        fn a_frame_reads_back_and_no_flipped_bit_goes_unseen(
            payload in prop::collection::vec(any::<u8>(), 0..200),
            flip in any::<prop::sample::Index>(),
            bit in 0..8_u32,
        ) {
            let mut bytes = vec![9; 3];
            record(&payload).encode(6, 5, 4, &mut bytes);
            let whole = Bytes::from(bytes.clone());
            prop_assert_eq!(next_frame(6, &whole, 0), Some(3));
            let (found, end) = frame(6, &whole, 3).unwrap();
            prop_assert_eq!((found.seq, found.acknowledged, end), (5, 4, bytes.len()));
            prop_assert_eq!(found.record, record(&payload));
            prop_assert_eq!(frame(7, &whole, 3), None);
            let at = 3 + flip.index(bytes.len() - 3);
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(frame(6, &Bytes::from(bytes), 3), None);
        }
    }
}
