//! Which sessions hold a trace, by the trace alone: what asks for it need not look into every session.

use hashbrown::HashTable;

use super::halves::whole;
use super::traces::hash;
use crate::span::TraceId;

/// For each trace of each session half of the hash of its id, and the number of the session. Whether a session holds the trace is for itself
/// to say: two ids may have one hash.
#[derive(Clone, Debug, Default)]
pub(super) struct TraceIndex(HashTable<(u32, u32)>);

impl TraceIndex {
    /// Notes whether a session holds a trace.
    pub(super) fn set(&mut self, trace: TraceId, number: u32, holds: bool) {
        let entry = (hash(trace), number);
        match self.0.find_entry(spread(&entry), |other| *other == entry) {
            Ok(found) if !holds => {
                found.remove();
                // Gives memory back after a burst.
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

    /// The numbers of the sessions that may hold a trace, in no order.
    pub(super) fn sessions(&self, trace: TraceId) -> impl Iterator<Item = u32> {
        let hash = hash(trace);
        let same = self.0.iter_hash(spread(&(hash, 0))).filter(move |(other, _)| *other == hash);
        same.map(|(_, number)| *number)
    }
}

/// The hash of an entry: a table looks at both ends of it.
fn spread((hash, _): &(u32, u32)) -> u64 {
    whole(*hash, *hash)
}
