//! When something has to be done about a trace, earliest first.
//!
//! A trace that something arrives for is due later than before; its entry stays where it is and is moved when it comes up,
//! so that what arrives costs no search.

use std::mem;

use super::open_trace::{OpenTrace, Pending, State};
use crate::sorted::Sorted;
use crate::span::{Timestamp, TraceId};

/// Traces by when they have to be looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    // Those that are final before the others: they go first where there is no room.
    done: Sorted<Entry>,
    open: Sorted<Entry>,
    // Traces to look at with the next drain; each once, as the trace says.
    marked: Vec<TraceId>,
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

    /// Of the traces that are done the one that is final first.
    pub(super) fn first_done(&self) -> Option<TraceId> {
        self.done.first().map(|(_, id)| id)
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

    /// Moves the entry of a trace to where it is due.
    pub(super) fn reschedule(&mut self, id: TraceId, held: &mut OpenTrace) {
        self.remove(&(held.queued, id));
        held.queued = held.due();
        self.insert((held.queued, id), held.state != State::Open);
    }

    /// Something new has come: a trace that is re-opened is told of, and its timer may be earlier than it was.
    pub(super) fn touched(&mut self, id: TraceId, held: &mut OpenTrace, reopened: bool) {
        self.mark(id, held, if reopened { Pending::Tell } else { Pending::News });
        if reopened || held.due() < held.queued {
            self.reschedule(id, held);
        }
    }

    /// Has the trace looked at with the next drain.
    pub(super) fn mark(&mut self, id: TraceId, held: &mut OpenTrace, look: Pending) {
        if held.look == Pending::No && look != Pending::No {
            self.marked.push(id);
        }
        held.look = held.look.max(look);
    }

    /// Takes the traces to look at, in order.
    pub(super) fn take_marked(&mut self) -> Vec<TraceId> {
        let mut marked = mem::take(&mut self.marked);
        marked.sort_unstable();
        marked
    }
}
