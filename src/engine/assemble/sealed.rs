//! Ids of traces that are final: bounded, the oldest forgotten first.

use std::collections::{HashSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::engine::span::TraceId;

/// A bounded set of sealed traces.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Sealed {
    #[serde(skip)]
    ids: HashSet<TraceId>,
    oldest_first: VecDeque<TraceId>,
}

impl Sealed {
    /// Takes over what an earlier process had sealed.
    pub(super) fn restore(&mut self, saved: Self) {
        self.ids = saved.oldest_first.iter().copied().collect();
        self.oldest_first = saved.oldest_first;
    }

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
