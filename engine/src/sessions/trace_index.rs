//! Which sessions hold a trace, by the trace alone: a look-up does not scan all sessions.

use hashbrown::HashTable;

use super::halves::whole;
use super::traces::hash;
use crate::span::TraceId;

/// For each trace of each session the [`hash`] of its id, and the session, by its number or its id. Only the session itself can
/// confirm that it holds the trace, as two ids may have one hash.
#[derive(Clone, Debug)]
pub(super) struct TraceIndex<S>(HashTable<(u32, S)>);

impl<S> Default for TraceIndex<S> {
    fn default() -> Self {
        Self(HashTable::default())
    }
}

impl<S: PartialEq> TraceIndex<S> {
    /// Notes whether a session holds a trace, by the hash of its id.
    pub(super) fn set(&mut self, trace: u32, session: S, holds: bool) {
        let entry = (trace, session);
        match self.0.find_entry(spread(&entry), |other| *other == entry) {
            Ok(found) if !holds => {
                found.remove();
                // Releases memory after a burst.
                if self.0.capacity() > 4 * self.0.len().max(1_024) {
                    self.0.shrink_to(2 * self.0.len(), spread);
                }
            }
            Err(_) if holds => {
                self.0.insert_unique(spread(&entry), entry, spread);
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// The sessions that may hold a trace, in no order.
    pub(super) fn sessions(&self, trace: TraceId) -> impl Iterator<Item = &S> {
        let hash = hash(trace);
        let same = self.0.iter_hash(spread(&(hash, ()))).filter(move |(other, _)| *other == hash);
        same.map(|(_, session)| session)
    }
}

/// The hash of an entry, spread over all bits as the table uses both ends of it.
fn spread<S>((hash, _): &(u32, S)) -> u64 {
    whole(*hash, *hash)
}
