//! The traces that are removed first for want of room: the quietest ones of a tenant.

use std::collections::BTreeMap;

use super::open_trace::OpenTrace;
use super::traces::Traces;
use super::{Timestamp, TraceKey};
use crate::tenants::TenantHash;

/// Some traces of each tenant, the quietest last. Input makes a trace less quiet, so these stay the quietest as long as they get
/// none.
#[derive(Debug, Default)]
pub(super) struct Quietest(BTreeMap<TenantHash, Vec<(Timestamp, TraceKey)>>);

/// One in this many of a tenant's traces is collected by each search.
const SHARE: usize = 64;

impl Quietest {
    /// The quietest of a tenant's traces that may be removed; searches `all` of them if none is left from the last search.
    pub(super) fn next(
        &mut self,
        tenant: TenantHash,
        traces: &Traces,
        all: impl Iterator<Item = TraceKey>,
        may_go: impl Fn(&OpenTrace) -> bool,
    ) -> Option<TraceKey> {
        let left = self.0.entry(tenant).or_default();
        while let Some((heard, id)) = left.pop() {
            if traces.get(id).is_some_and(|held| held.heard == heard && may_go(held)) {
                return Some(id);
            }
        }
        let held = all.filter_map(|id| traces.get(id)).filter(|held| may_go(held));
        *left = quietest(held.map(|held| (held.heard, held.id)).collect());
        let next = left.pop();
        self.0.retain(|_, left| !left.is_empty());
        next.map(|(_, id)| id)
    }
}

/// The quietest of these, one in `SHARE`, with the quietest last.
fn quietest(mut all: Vec<(Timestamp, TraceKey)>) -> Vec<(Timestamp, TraceKey)> {
    let some = all.len().div_ceil(SHARE);
    if some < all.len() {
        all.select_nth_unstable(some);
        all.truncate(some);
    }
    all.sort_unstable_by(|one, other| other.cmp(one));
    all
}
