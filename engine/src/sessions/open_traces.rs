//! The open traces of a session by their last arrival: each update asks which are silent.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::span::{Timestamp, TraceId};

/// Open traces that may be silent.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct OpenTraces {
    // Invariant: both have the same traces and times.
    arrivals: BTreeMap<TraceId, Timestamp>,
    by_arrival: BTreeSet<(Timestamp, TraceId)>,
}

impl OpenTraces {
    /// Adds a trace, or moves it to the arrival of its newest span.
    pub(super) fn insert(&mut self, trace: TraceId, arrived: Timestamp) {
        self.remove(trace);
        self.arrivals.insert(trace, arrived);
        self.by_arrival.insert((arrived, trace));
    }

    /// Removes a trace.
    pub(super) fn remove(&mut self, trace: TraceId) {
        if let Some(arrived) = self.arrivals.remove(&trace) {
            self.by_arrival.remove(&(arrived, trace));
        }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// The traces, the quietest first.
    pub(super) fn quietest_first(&self) -> impl Iterator<Item = TraceId> {
        self.by_arrival.iter().map(|(_, trace)| *trace)
    }
}
