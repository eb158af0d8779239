//! Which shard a trace or a session belongs to, and which stages take a report.
//!
//! The seed is drawn by the shell, so that nobody outside can aim at one shard; no result
//! depends on it or on the number of shards.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::runs::tells_outcome;
use super::span::{IdHash, Report, Target, TraceId};

/// The stages and shards that take a report.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Takers {
    /// The assemble shard.
    pub assemble: Option<usize>,
    /// Session shards.
    pub sessions: Range<usize>,
    /// Whether the agent stage takes it.
    pub agents: bool,
}

/// The assignment of traces and sessions to shards.
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

    /// The assemble shard of a trace; turns of one session that log records tell of share one.
    pub fn trace(&self, trace_id: TraceId) -> usize {
        self.shard(trace_id.routed_by(), self.seed)
    }

    /// The session shard of a session.
    pub fn session(&self, tenant: &str, id: &str) -> usize {
        self.shard(id.as_bytes(), xxh3_64_with_seed(tenant.as_bytes(), self.seed))
    }

    /// The shard that knows the trace of a response.
    pub fn response(&self, id: IdHash) -> usize {
        self.shard(&id.number().to_le_bytes(), self.seed)
    }

    /// The stages and shards that take a report; none while it waits for its response. The outcome of a run is for the traces of the
    /// run too, and only the session shards know whether they have any: all of them take it.
    pub fn report(&self, report: &Report) -> Takers {
        match &report.target {
            Target::Trace(trace) => {
                Takers { assemble: Some(self.trace(*trace)), ..Takers::default() }
            }
            Target::Session { tenant, id, .. } => {
                let shard = self.session(tenant.as_deref().unwrap_or_default(), id);
                Takers { sessions: shard..shard + 1, ..Takers::default() }
            }
            Target::Run(_) => {
                let shards = if tells_outcome(report) { self.shards } else { 0 };
                let sessions = 0..usize::try_from(shards).unwrap_or(0);
                Takers { sessions, agents: true, ..Takers::default() }
            }
            Target::Agent(_) => Takers { agents: true, ..Takers::default() },
            Target::Response { .. } => Takers::default(),
        }
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
