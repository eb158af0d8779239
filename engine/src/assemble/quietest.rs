//! The traces that are removed first for want of room: of a tenant's traces those without an agent's work, then the quietest.

use std::collections::BTreeMap;

use super::open_trace::OpenTrace;
use super::traces::Traces;
use super::{Timestamp, TraceKey};
use crate::tenants::TenantHash;

/// Some traces of each tenant, the first to be removed last. Input makes a trace less quiet, so these stay the quietest as long as they get
/// none.
#[derive(Debug, Default)]
pub(super) struct Quietest(BTreeMap<TenantHash, Vec<Entry>>);

/// Whether an agent is at work in a trace, when its last input arrived, and its key.
type Entry = (bool, Timestamp, TraceKey);

/// One in this many of a tenant's traces is collected by each search.
const SHARE: usize = 64;

impl Quietest {
    /// The first of a tenant's traces that may be removed; searches `all` of them if none is left from the last search.
    pub(super) fn next(
        &mut self,
        tenant: TenantHash,
        traces: &Traces,
        all: impl Iterator<Item = TraceKey>,
        may_go: impl Fn(&OpenTrace) -> bool,
    ) -> Option<TraceKey> {
        let left = self.0.entry(tenant).or_default();
        while let Some(entry) = left.pop() {
            if traces.get(entry.2).is_some_and(|held| entry_of(held) == entry && may_go(held)) {
                return Some(entry.2);
            }
        }
        let held = all.filter_map(|id| traces.get(id)).filter(|held| may_go(held));
        *left = quietest(held.map(entry_of).collect());
        let next = left.pop();
        self.0.retain(|_, left| !left.is_empty());
        next.map(|(.., id)| id)
    }
}

fn entry_of(held: &OpenTrace) -> Entry {
    (held.is_agents(), held.heard, held.id)
}

/// The first of these, one in `SHARE`, the very first last.
fn quietest(mut all: Vec<Entry>) -> Vec<Entry> {
    let some = all.len().div_ceil(SHARE);
    if some < all.len() {
        all.select_nth_unstable(some);
        all.truncate(some);
    }
    all.sort_unstable_by(|one, other| other.cmp(one));
    all
}
