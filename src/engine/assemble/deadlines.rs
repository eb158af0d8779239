//! When something has to be done about a trace, earliest first.
//!
//! A trace that something arrives for is due later than before; its entry stays where it is and is moved when it comes up,
//! so that what arrives costs no search.

use crate::engine::sorted::Sorted;
use crate::engine::span::{Timestamp, TraceId};

/// Traces by when they have to be looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    // Those that are final before the others: they go first where there is no room.
    done: Sorted<Entry>,
    open: Sorted<Entry>,
}

/// Not later than the trace is due.
type Entry = (Timestamp, TraceId);

impl Deadlines {
    /// The next moment to look at a trace.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.first().map(|(due, _)| due)
    }

    /// The trace to look at next, and when.
    pub(super) fn first(&self) -> Option<Entry> {
        let (open, done) = (self.open.first(), self.done.first());
        open.into_iter().chain(done).min()
    }

    /// The trace that has the least to lose: of those that are done, else of the others, the one that is looked at next.
    pub(super) fn least_lost(&self) -> Option<Entry> {
        self.done.first().or_else(|| self.open.first())
    }

    /// All traces held.
    pub(super) fn traces(&self) -> impl Iterator<Item = TraceId> + '_ {
        self.open.iter().chain(self.done.iter()).map(|(_, id)| id)
    }

    /// The traces that are not done.
    pub(super) fn open(&self) -> impl Iterator<Item = TraceId> + '_ {
        self.open.iter().map(|(_, id)| id)
    }

    /// Enters a trace.
    pub(super) fn insert(&mut self, (due, id): Entry, done: bool) {
        let list = if done { &mut self.done } else { &mut self.open };
        list.insert((due, id), |other| other.cmp(&(due, id)));
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, entry: &Entry) {
        if !self.open.remove(|other| other.cmp(entry)) {
            self.done.remove(|other| other.cmp(entry));
        }
    }
}
