//! The traces that can still change, found by id.

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

use super::open_trace::OpenTrace;
use crate::span::TraceId;

/// All traces.
#[derive(Debug, Default)]
pub(super) struct Traces(HashTable<Box<OpenTrace>>);

impl Traces {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is one of this id.
    pub(super) fn contains(&self, id: TraceId) -> bool {
        self.get(id).is_some()
    }

    /// The trace of this id.
    pub(super) fn get(&self, id: TraceId) -> Option<&OpenTrace> {
        self.0.find(hash(id), |held| held.id == id).map(Box::as_ref)
    }

    /// The trace of this id, to be changed.
    pub(super) fn get_mut(&mut self, id: TraceId) -> Option<&mut OpenTrace> {
        self.0.find_mut(hash(id), |held| held.id == id).map(Box::as_mut)
    }

    /// Keeps a trace; there is none of its id.
    pub(super) fn insert(&mut self, held: Box<OpenTrace>) {
        self.0.insert_unique(hash(held.id), held, |held| hash(held.id));
    }

    /// Takes a trace out.
    pub(super) fn remove(&mut self, id: TraceId) -> Option<Box<OpenTrace>> {
        let (held, _) = self.0.find_entry(hash(id), |held| held.id == id).ok()?.remove();
        // Gives memory back after a burst.
        if self.0.capacity() > 4 * self.0.len().max(1_024) {
            self.0.shrink_to(2 * self.0.len(), |held| hash(held.id));
        }
        Some(held)
    }
}

fn hash(id: TraceId) -> u64 {
    xxh3_64(&id.0)
}
