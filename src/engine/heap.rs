//! Many small things as bytes, one after the other, each of an owner: no allocation and no rounding for each, and what is
//! freed is given back.
//!
//! What is let go of leaves a gap. Where gaps add up, a segment is emptied: what is held in it is written elsewhere.

use super::bytes::{Reader, Writer};

/// Bytes of a segment; more only for one thing that is larger.
const SEGMENT: usize = 1 << 18;

/// Gaps are at most this part of all, and one segment.
const GAPS: usize = 8;

/// Things of numbered owners.
#[derive(Clone, Debug, Default)]
pub(in crate::engine) struct Heap {
    segments: Vec<Segment>,
    // Segments that are empty.
    free: Vec<u32>,
    // The one that is written to.
    last: Option<u32>,
    written: usize,
    live: usize,
}

#[derive(Clone, Debug, Default)]
struct Segment {
    bytes: Vec<u8>,
    live: usize,
}

/// Where something is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::engine) struct Place {
    segment: u32,
    at: u32,
}

/// What is taken out of a segment, to be written again where it is still held.
#[derive(Debug)]
pub(in crate::engine) struct Emptied {
    segment: u32,
    bytes: Vec<u8>,
}

impl Heap {
    /// Keeps something.
    pub(in crate::engine) fn insert(&mut self, owner: u32, bytes: &[u8]) -> Place {
        let mut head = Writer(Vec::with_capacity(16));
        head.number(u64::from(owner));
        head.number(bytes.len() as u64);
        let length = head.0.len() + bytes.len();
        let number = self.room(length);
        let Some(segment) = self.segments.get_mut(index(number)) else {
            return Place { segment: number, at: 0 };
        };
        // Invariant: a segment is shorter than 4 GB: only one thing can make it longer than its size.
        let at = u32::try_from(segment.bytes.len()).unwrap_or(u32::MAX);
        segment.bytes.extend_from_slice(&head.0);
        segment.bytes.extend_from_slice(bytes);
        segment.live += length;
        self.live += length;
        self.written += length;
        Place { segment: number, at }
    }

    /// What is kept there; nothing if nothing is.
    pub(in crate::engine) fn get(&self, place: Place) -> &[u8] {
        let segment = self.segments.get(index(place.segment));
        let bytes = segment.and_then(|segment| segment.bytes.get(index(place.at)..));
        let mut from = Reader(bytes.unwrap_or_default());
        from.number();
        from.bytes()
    }

    /// Lets go of what is kept there.
    pub(in crate::engine) fn remove(&mut self, place: Place) {
        let Some(segment) = self.segments.get_mut(index(place.segment)) else { return };
        let bytes = segment.bytes.get(index(place.at)..).unwrap_or_default();
        let mut from = Reader(bytes);
        from.number();
        from.bytes();
        let length = bytes.len() - from.0.len();
        segment.live -= length;
        self.live -= length;
        if segment.live > 0 {
            return;
        }
        self.written -= segment.bytes.len();
        if self.last == Some(place.segment) && segment.bytes.capacity() <= 2 * SEGMENT {
            // It is written to again.
            segment.bytes.clear();
        } else {
            segment.bytes = Vec::new();
            self.free(place.segment);
        }
    }

    /// Empties a segment, if there are too many gaps: what it holds has to be kept again, as far as it was not let go of.
    pub(in crate::engine) fn empty_one(&mut self) -> Option<Emptied> {
        let gaps = self.written - self.live;
        if gaps < SEGMENT + self.written / GAPS {
            return None;
        }
        let numbered = (0_u32..).zip(&self.segments);
        let gap = |segment: &Segment| segment.bytes.len() - segment.live;
        let (number, _) = numbered.max_by_key(|(_, segment)| gap(segment))?;
        let segment = self.segments.get_mut(index(number))?;
        self.live -= std::mem::take(&mut segment.live);
        let bytes = std::mem::take(&mut segment.bytes);
        self.written -= bytes.len();
        self.free(number);
        Some(Emptied { segment: number, bytes })
    }

    /// A segment with room for so many bytes.
    fn room(&mut self, length: usize) -> u32 {
        let fits = |number: &u32| {
            let segment = self.segments.get(index(*number));
            segment.is_some_and(|segment| segment.bytes.len() + length <= SEGMENT)
        };
        if let Some(last) = self.last.filter(fits) {
            return last;
        }
        if let Some(last) = self.last
            && let Some(segment) = self.segments.get_mut(index(last))
            && segment.bytes.is_empty()
        {
            segment.bytes = Vec::new();
            self.free(last);
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.segments.push(Segment::default());
            u32::try_from(self.segments.len() - 1).unwrap_or(u32::MAX)
        });
        // Where there is little, it grows as it needs to. What is not written to takes no memory.
        let size = if self.written == 0 { length } else { length.max(SEGMENT) };
        if let Some(segment) = self.segments.get_mut(index(number)) {
            segment.bytes = Vec::with_capacity(size);
        }
        self.last = Some(number);
        number
    }

    fn free(&mut self, number: u32) {
        self.free.push(number);
        self.last = self.last.filter(|last| *last != number);
    }
}

impl Emptied {
    /// What is still held of what was kept there, and by whom.
    pub(in crate::engine) fn held(&self, holds: impl Fn(u32, Place) -> bool) -> Vec<(u32, &[u8])> {
        let mut from = Reader(&self.bytes);
        let mut held = Vec::new();
        while !from.0.is_empty() {
            let at = u32::try_from(self.bytes.len() - from.0.len()).unwrap_or(u32::MAX);
            let owner = u32::try_from(from.number()).unwrap_or(u32::MAX);
            let bytes = from.bytes();
            if holds(owner, Place { segment: self.segment, at }) {
                held.push((owner, bytes));
            }
        }
        held
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_kept_is_found_and_gaps_are_bounded(
            steps in prop::collection::vec((0_u32..40, prop_oneof![0_usize..60_000, 0_usize..600_000]), 1..100),
        ) {
            let mut heap = Heap::default();
            let mut places: Vec<Option<(Place, Vec<u8>)>> = vec![None; 40];
            for (step, (owner, length)) in steps.into_iter().enumerate() {
                let at = index(owner);
                if let Some((place, bytes)) = places[at].take() {
                    prop_assert_eq!(heap.get(place), bytes.as_slice());
                    heap.remove(place);
                }
                if length % 3 > 0 {
                    let bytes = vec![u8::try_from(step % 256).unwrap(); length];
                    places[at] = Some((heap.insert(owner, &bytes), bytes));
                }
                while let Some(emptied) = heap.empty_one() {
                    let holds = |owner: u32, place| {
                        places[index(owner)].as_ref().is_some_and(|held| held.0 == place)
                    };
                    for (owner, bytes) in emptied.held(holds) {
                        places[index(owner)] = Some((heap.insert(owner, bytes), bytes.to_vec()));
                    }
                }
                for (place, bytes) in places.iter().flatten() {
                    prop_assert_eq!(heap.get(*place), bytes.as_slice());
                }
                prop_assert!(heap.written - heap.live <= SEGMENT + heap.written / GAPS);
                let unused = heap.segments.iter().filter(|segment| segment.bytes.is_empty()).count();
                prop_assert!(unused <= heap.free.len() + 1);
                let held: usize = heap.segments.iter().map(|segment| segment.bytes.len()).sum();
                prop_assert_eq!(held, heap.written);
            }
            places.into_iter().flatten().for_each(|(place, _)| heap.remove(place));
            prop_assert_eq!((heap.live, heap.written), (0, 0));
            let left: usize = heap.segments.iter().map(|segment| segment.bytes.capacity()).sum();
            prop_assert!(left <= 2 * SEGMENT);
        }
    }
}
