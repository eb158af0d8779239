//! Ids of traces that are final: bounded, the oldest forgotten first.

use std::collections::{HashSet, VecDeque};

use crate::engine::span::TraceId;

/// A bounded set of sealed traces.
#[derive(Clone, Debug, Default)]
pub(super) struct Sealed {
    ids: HashSet<TraceId>,
    oldest_first: VecDeque<TraceId>,
}

impl Sealed {
    pub(super) fn contains(&self, id: TraceId) -> bool {
        self.ids.contains(&id)
    }

    /// Adds an id; returns whether another one had to go for it.
    pub(super) fn insert(&mut self, id: TraceId, max: usize) -> bool {
        if self.ids.insert(id) {
            self.oldest_first.push_back(id);
        }
        if self.ids.len() <= max {
            return false;
        }
        if let Some(oldest) = self.oldest_first.pop_front() {
            self.ids.remove(&oldest);
        }
        true
    }
}
