//! The traces that can still change, found by tenant and id.

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

use super::open_trace::OpenTrace;
use crate::span::TraceId;
use crate::tenants::TraceKey;

/// All traces.
#[derive(Debug, Default)]
pub(super) struct Traces(HashTable<Box<OpenTrace>>);

impl Traces {
    /// The number of traces.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is a trace with this key.
    pub(super) fn contains(&self, id: TraceKey) -> bool {
        self.get(id).is_some()
    }

    /// The trace with this key.
    pub(super) fn get(&self, id: TraceKey) -> Option<&OpenTrace> {
        self.0.find(hash(id), |held| held.id == id).map(Box::as_ref)
    }

    /// The trace with this key, mutable.
    pub(super) fn get_mut(&mut self, id: TraceKey) -> Option<&mut OpenTrace> {
        self.0.find_mut(hash(id), |held| held.id == id).map(Box::as_mut)
    }

    /// The one trace with this id, of any tenant; `None` if there is none, or several tenants have one.
    pub(super) fn only(&self, id: TraceId) -> Option<TraceKey> {
        let mut found = self.0.iter_hash(hash(id.into())).filter(|held| held.id.id == id);
        found.next().filter(|_| found.next().is_none()).map(|held| held.id)
    }

    /// Adds a trace; there must be none with its key.
    pub(super) fn insert(&mut self, held: Box<OpenTrace>) {
        self.0.insert_unique(hash(held.id), held, |held| hash(held.id));
    }

    /// Removes a trace.
    pub(super) fn remove(&mut self, id: TraceKey) -> Option<Box<OpenTrace>> {
        let (held, _) = self.0.find_entry(hash(id), |held| held.id == id).ok()?.remove();
        // Releases memory after a burst.
        if self.0.capacity() > 4 * self.0.len().max(1_024) {
            self.0.shrink_to(2 * self.0.len(), |held| hash(held.id));
        }
        Some(held)
    }
}

/// The hash of the id alone, so that the traces of all tenants can be found by it.
fn hash(id: TraceKey) -> u64 {
    xxh3_64(&id.id.0)
}
