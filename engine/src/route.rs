//! Which shard a trace or a session belongs to, and which stages receive a report.
//!
//! The shell draws the seed at random, so that no sender can aim at one shard; no result depends on the seed or on the number of
//! shards.

use std::iter;
use std::mem;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::hash::FixedMap;
use super::runs::tells_outcome;
use super::span::{IdHash, Report, Span, Target, TraceId};

/// The stages and shards that receive a report.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Takers {
    /// The assemble shard.
    pub assemble: Option<usize>,
    /// Session shards.
    pub sessions: Range<usize>,
    /// Whether the agent stage receives it.
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

    /// The number of shards.
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// The assemble shard of a trace; turns of one session from log records share a shard.
    pub fn trace(&self, trace_id: TraceId) -> usize {
        self.shard(trace_id.routed_by(), self.seed)
    }

    /// The indices of spans by assemble shard, grouped by trace: traces in the order of their first spans, and the spans of each
    /// trace in the order in which they arrived. (Clients interleave the spans of several traces.) Each shard appears once, in no
    /// particular order.
    pub fn spans(&self, spans: &[Span]) -> Vec<(usize, Vec<usize>)> {
        let mut shards: Vec<(usize, Vec<usize>)> = Vec::new();
        let places = by_trace(spans);
        for trace in places.chunk_by(|one, next| spans[*one].trace_id == spans[*next].trace_id) {
            let shard = self.trace(spans[trace[0]].trace_id);
            // Few requests have spans of more than a few shards.
            match shards.iter_mut().find(|(of, _)| *of == shard) {
                Some((_, places)) => places.extend(trace),
                None => shards.push((shard, trace.to_vec())),
            }
        }
        shards
    }

    /// The session shard of a session.
    pub fn session(&self, tenant: &str, id: &str) -> usize {
        self.shard(id.as_bytes(), xxh3_64_with_seed(tenant.as_bytes(), self.seed))
    }

    /// The shard that knows the trace of a response.
    pub fn response(&self, id: IdHash) -> usize {
        self.shard(&id.number().to_le_bytes(), self.seed)
    }

    /// The stages and shards that receive a report; none while it waits for its response. The outcome of a run also applies to the
    /// traces of the run, and only the session shards know whether they have any, so all of them receive it.
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

/// The indices of spans, in the order that [`Route::spans`] documents.
fn by_trace(spans: &[Span]) -> Vec<usize> {
    if spans.iter().all(|span| span.trace_id == spans[0].trace_id) {
        return (0..spans.len()).collect();
    }
    let mut numbers: FixedMap<TraceId, usize> = FixedMap::default();
    // For each trace the number of its spans, then the index of its next one; for each span the number of its trace.
    let (mut nexts, mut traces) = (Vec::new(), Vec::with_capacity(spans.len()));
    for same in spans.chunk_by(|one, next| one.trace_id == next.trace_id) {
        let number = *numbers.entry(same[0].trace_id).or_insert(nexts.len());
        if number == nexts.len() {
            nexts.push(0);
        }
        nexts[number] += same.len();
        traces.extend(iter::repeat_n(number, same.len()));
    }
    let mut before = 0;
    for next in &mut nexts {
        before += mem::replace(next, before);
    }
    let mut places = vec![0; spans.len()];
    for (at, number) in traces.into_iter().enumerate() {
        places[nexts[number]] = at;
        nexts[number] += 1;
    }
    places
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn spans_of_a_trace_stand_together_in_the_order_in_which_they_came(
            traces in prop::collection::vec(0_u8..9, 0..40),
            shards in 1_u32..4,
        ) {
            let of = |trace: &u8| Span { trace_id: TraceId([*trace; 16]), ..Span::default() };
            let spans: Vec<Span> = traces.iter().map(of).collect();
            let route = Route::new(shards, 7);
            let mut expected: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            let first = |trace: &u8| traces.iter().position(|other| other == trace);
            let mut places: Vec<usize> = (0..traces.len()).collect();
            places.sort_by_key(|at| first(&traces[*at]));
            for at in places {
                expected.entry(route.trace(spans[at].trace_id)).or_default().push(at);
            }
            let shares = route.spans(&spans);
            prop_assert_eq!(shares.len(), expected.len());
            prop_assert_eq!(BTreeMap::from_iter(shares), expected);
        }
    }
}
