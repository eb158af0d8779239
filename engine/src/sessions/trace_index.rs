//! Which sessions hold a trace, by the trace alone: what asks for it need not look into every session.

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

use super::halves::{halves, whole};
use crate::span::TraceId;

/// For each trace of each session the hash of its id, in two halves so that an entry has no gaps, and the number of the session.
/// Whether a session holds the trace is for itself to say: two ids may have one hash.
#[derive(Clone, Debug, Default)]
pub(super) struct TraceIndex(HashTable<(u32, u32, u32)>);

impl TraceIndex {
    /// Notes whether a session holds a trace.
    pub(super) fn set(&mut self, trace: TraceId, number: u32, holds: bool) {
        let hash = xxh3_64(&trace.0);
        let (high, low) = halves(hash);
        let entry = (high, low, number);
        match self.0.find_entry(hash, |other| *other == entry) {
            Ok(found) if !holds => {
                found.remove();
                // Gives memory back after a burst.
                if self.0.capacity() > 4 * self.0.len().max(1_024) {
                    self.0.shrink_to(2 * self.0.len(), hash_of);
                }
            }
            Err(_) if holds => {
                self.0.insert_unique(hash, entry, hash_of);
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// The numbers of the sessions that may hold a trace, in no order.
    pub(super) fn sessions(&self, trace: TraceId) -> impl Iterator<Item = u32> {
        let hash = xxh3_64(&trace.0);
        let (high, low) = halves(hash);
        let same = self.0.iter_hash(hash).filter(move |(a, b, _)| (*a, *b) == (high, low));
        same.map(|(.., number)| *number)
    }
}

fn hash_of((high, low, _): &(u32, u32, u32)) -> u64 {
    whole(*high, *low)
}
