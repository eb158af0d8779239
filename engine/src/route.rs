//! Which shard a thing belongs to.
//!
//! The seed is drawn by the shell, so that nobody outside can aim at one shard; no result
//! depends on it or on the number of shards.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::span::TraceId;

/// Sends keys to shards.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Route {
    shards: u32,
    seed: u64,
}

impl Route {
    /// A route to `shards` shards, at least one.
    pub fn new(shards: u32, seed: u64) -> Self {
        Self { shards: shards.max(1), seed }
    }

    /// How many shards there are.
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// The assemble shard of a trace; turns of one session that log records tell of have one in common.
    pub fn trace(&self, trace_id: TraceId) -> usize {
        self.shard(trace_id.routed_by(), self.seed)
    }

    /// The session shard of a session.
    pub fn session(&self, tenant: &str, id: &str) -> usize {
        self.shard(id.as_bytes(), xxh3_64_with_seed(tenant.as_bytes(), self.seed))
    }

    fn shard(&self, key: &[u8], seed: u64) -> usize {
        let shard = xxh3_64_with_seed(key, seed) % u64::from(self.shards);
        usize::try_from(shard).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_of_one_session_have_one_shard() {
        let route = Route::new(256, 7);
        let shard = |session, turn| route.trace(TraceId::of_turn(session, turn));
        for session in 0..100 {
            let some = route.trace(TraceId::of_session(session));
            assert!((0..20).all(|turn| shard(session, turn) == some));
        }
        assert!((1..100).any(|session| shard(session, 0) != shard(0, 0)));
    }
}
