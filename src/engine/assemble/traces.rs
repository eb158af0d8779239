//! The traces that can still change, found by id.

use crate::engine::hash::FixedMap;
use crate::engine::span::TraceId;

use super::held::Held;

/// All traces.
#[derive(Debug, Default)]
pub(super) struct Traces(FixedMap<TraceId, Box<Held>>);

impl Traces {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is one of this id.
    pub(super) fn contains(&self, id: TraceId) -> bool {
        self.0.contains_key(&id)
    }

    /// The trace of this id.
    pub(super) fn get(&self, id: TraceId) -> Option<&Held> {
        self.0.get(&id).map(Box::as_ref)
    }

    /// The trace of this id, to be changed.
    pub(super) fn get_mut(&mut self, id: TraceId) -> Option<&mut Held> {
        self.0.get_mut(&id).map(Box::as_mut)
    }

    /// Keeps a trace; there is none of its id.
    pub(super) fn insert(&mut self, id: TraceId, held: Box<Held>) {
        self.0.insert(id, held);
    }

    /// Takes a trace out.
    pub(super) fn remove(&mut self, id: TraceId) -> Option<Box<Held>> {
        let held = self.0.remove(&id);
        // Gives memory back after a burst.
        if self.0.capacity() > 4 * self.0.len().max(1_024) {
            self.0.shrink_to(2 * self.0.len());
        }
        held
    }
}
