//! The records of a session, in the order of their starts.

use std::ops::{Index, IndexMut, Range};

use hashbrown::HashTable;
use serde::{Deserialize, Deserializer, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::halves::{halves, whole};
use super::record::TraceRecord;
use crate::signal::loop_detection::WINDOW;
use crate::span::{Timestamp, TraceId};

/// Up to this many records are searched linearly, which is fastest.
const FEW: usize = 32;

/// Records, each trace once; serialised as their list.
#[derive(Clone, Debug, Default)]
pub(super) struct Traces {
    // Invariant: by start, then id.
    records: Vec<TraceRecord>,
    // Present exactly while there are more than `FEW`.
    starts: Option<Box<Starts>>,
}

/// Starts of traces, found by their ids. An entry is the hash of an id and the two halves of a start, so that it has no padding. As
/// two ids may have one hash, only the list of records shows whether a trace is there.
#[derive(Clone, Debug, Default)]
struct Starts(HashTable<(u32, u32, u32)>);

impl Traces {
    /// The number of records.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// All records.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &TraceRecord> + Clone {
        self.records.iter()
    }

    /// All records, mutable except for start and id.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut TraceRecord> {
        self.records.iter_mut()
    }

    /// Some records, by their numbers.
    pub(super) fn some(&self, numbers: Range<usize>) -> &[TraceRecord] {
        self.records.get(numbers).unwrap_or_default()
    }

    /// The number of a trace.
    pub(super) fn number(&self, id: TraceId) -> Option<usize> {
        match &self.starts {
            Some(starts) => starts.of(id).find_map(|start| {
                self.records.binary_search_by_key(&(start, id), TraceRecord::position).ok()
            }),
            // Most updates are for the newest traces.
            None => self.records.iter().rposition(|record| record.id == id),
        }
    }

    /// The record of a trace.
    pub(super) fn get(&self, id: TraceId) -> Option<&TraceRecord> {
        self.records.get(self.number(id)?)
    }

    /// The record of a trace, mutable except for start and id.
    pub(super) fn get_mut(&mut self, id: TraceId) -> Option<&mut TraceRecord> {
        let number = self.number(id)?;
        self.records.get_mut(number)
    }

    /// How many come before this position.
    pub(super) fn before(&self, place: (Timestamp, TraceId)) -> usize {
        match self.records.last() {
            Some(last) if last.position() >= place => {
                self.records.partition_point(|record| record.position() < place)
            }
            Some(_) | None => self.records.len(),
        }
    }

    /// The position of the last one.
    pub(super) fn last_place(&self) -> Option<(Timestamp, TraceId)> {
        self.records.last().map(TraceRecord::position)
    }

    /// Adds the record of a new trace.
    pub(super) fn insert(&mut self, record: TraceRecord) {
        let at = self.before(record.position());
        if let Some(starts) = &mut self.starts {
            starts.insert(record.position());
        }
        // Most sessions have few traces, and there are many sessions.
        if self.records.len() == self.records.capacity() {
            self.records.reserve_exact(1 + self.records.len() / 16);
        }
        self.records.insert(at, record);
        if self.starts.is_none() && self.records.len() > FEW {
            let starts = self.starts.get_or_insert_default();
            self.records.iter().for_each(|record| starts.insert(record.position()));
        }
    }

    /// Removes the record of a trace.
    pub(super) fn remove(&mut self, id: TraceId) -> Option<TraceRecord> {
        let at = self.number(id)?;
        let record = self.records.remove(at);
        if let Some(starts) = &mut self.starts {
            starts.remove(record.position());
        }
        self.starts.take_if(|_| self.records.len() <= FEW);
        Some(record)
    }

    /// The last few records before the one of this number, oldest first.
    pub(super) fn earlier(&self, number: usize) -> &[TraceRecord] {
        self.some(number.saturating_sub(WINDOW)..number)
    }

    /// The first few traces after a position.
    pub(super) fn after(&self, place: (Timestamp, TraceId)) -> impl Iterator<Item = TraceId> {
        let later = self.records.iter().skip(self.before(place));
        let later = later.filter(move |record| record.position() != place);
        later.take(WINDOW).map(|record| record.id)
    }
}

impl Starts {
    /// The starts that this trace may have.
    fn of(&self, id: TraceId) -> impl Iterator<Item = Timestamp> {
        let hash = hash(id);
        let same = self.0.iter_hash(whole(hash, hash)).filter(move |entry| entry.0 == hash);
        same.map(|(_, high, low)| Timestamp(whole(*high, *low)))
    }

    fn insert(&mut self, place: (Timestamp, TraceId)) {
        let entry = entry(place);
        // The table uses both ends of a hash.
        let hash_of = |hash| whole(hash, hash);
        self.0.insert_unique(hash_of(entry.0), entry, |(hash, ..)| hash_of(*hash));
    }

    fn remove(&mut self, place: (Timestamp, TraceId)) {
        let entry = entry(place);
        if let Ok(found) = self.0.find_entry(whole(entry.0, entry.0), |other| *other == entry) {
            found.remove();
        }
    }
}

fn entry((Timestamp(start), id): (Timestamp, TraceId)) -> (u32, u32, u32) {
    let (high, low) = halves(start);
    (hash(id), high, low)
}

/// The hash of the id of a trace.
pub(super) fn hash(id: TraceId) -> u32 {
    halves(xxh3_64(&id.0)).1
}

impl Index<usize> for Traces {
    type Output = TraceRecord;

    fn index(&self, number: usize) -> &TraceRecord {
        &self.records[number]
    }
}

impl IndexMut<usize> for Traces {
    fn index_mut(&mut self, number: usize) -> &mut TraceRecord {
        &mut self.records[number]
    }
}

impl Serialize for Traces {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.records.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Traces {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut traces = Self::default();
        Vec::<TraceRecord>::deserialize(from)?.into_iter().for_each(|record| traces.insert(record));
        Ok(traces)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::common::Common;
    use super::*;
    use crate::facts::{AgentKey, TraceFacts};

    fn record(id: u8, start: u64) -> TraceRecord {
        let trace_id = TraceId([id; 16]);
        let update = TraceFacts { trace_id, start_unix_nano: start, ..TraceFacts::default() };
        TraceRecord::new(Box::new(update), AgentKey::overflow(), "".into(), &mut Common::default())
    }

    proptest! {
        #[test]
        fn they_are_in_order_and_found_however_many_there_are(
            steps in prop::collection::vec((0_u8..90, 0_u64..40, 0_u8..5), 0..200),
        ) {
            let (mut traces, mut expected) = (Traces::default(), BTreeMap::new());
            for (id, start, step) in steps {
                let known = expected.remove(&TraceId([id; 16]));
                let removed = traces.remove(TraceId([id; 16]));
                prop_assert_eq!(removed.map(|record| record.start), known);
                if step > 0 {
                    traces.insert(record(id, start));
                    expected.insert(TraceId([id; 16]), Timestamp(start));
                }
            }
            let mut places: Vec<_> = expected.iter().map(|(id, start)| (*start, *id)).collect();
            places.sort_unstable();
            prop_assert!(traces.iter().map(TraceRecord::position).eq(places.iter().copied()));
            prop_assert_eq!(traces.last_place(), places.last().copied());
            for (number, place) in places.iter().enumerate() {
                prop_assert_eq!((traces.number(place.1), traces.before(*place)), (Some(number), number));
                let next = places.iter().skip(number + 1).take(WINDOW).map(|(_, id)| *id);
                prop_assert!(traces.after(*place).eq(next));
                let earlier = traces.earlier(number);
                let before = &places[number.saturating_sub(WINDOW)..number];
                prop_assert!(earlier.iter().map(|one| one.id).eq(before.iter().map(|(_, id)| *id)));
            }
            let written = rmp_serde::to_vec_named(&traces).unwrap();
            let read: Traces = rmp_serde::from_slice(&written).unwrap();
            prop_assert!(read.iter().map(TraceRecord::position).eq(places));
            prop_assert_eq!(read.starts.is_some(), read.len() > FEW);
        }
    }
}
