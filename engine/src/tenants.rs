//! Tenants: who owns a trace, and how much of the shared bounds each tenant may use.
//!
//! ```text
//! quota(tenant, bound) = max(1, floor(bound * share(tenant)))
//! ```
//!
//! Where nothing is ever evicted (agents with series of their own), a tenant gets at most its quota. Where older entries make room
//! for newer ones (open traces, sessions, turns), a tenant may use the whole bound as long as no other needs it; at the bound, the
//! tenant that holds the most relative to its share loses an entry.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::span::{Log, Span, TraceId};

/// The hash of a tenant's name, as in the keys of tables; 0: no tenant.
pub type TenantHash = u64;

/// The hash of a tenant's name; 0 for none or an empty one.
pub fn tenant_hash(tenant: Option<&str>) -> TenantHash {
    tenant.filter(|name| !name.is_empty()).map_or(0, |name| xxh3_64(name.as_bytes()).max(1))
}

/// The key of a trace among those of all tenants: the same id in another tenant is another trace.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct TraceKey {
    /// The id, as it was sent.
    pub id: TraceId,
    /// Its tenant.
    pub tenant: TenantHash,
}

impl TraceKey {
    /// The key of a tenant's trace with this id.
    pub fn new(id: TraceId, tenant: Option<&str>) -> Self {
        Self { id, tenant: tenant_hash(tenant) }
    }
}

/// The trace that a span belongs to.
impl From<&Span> for TraceKey {
    fn from(span: &Span) -> Self {
        Self::new(span.trace_id, span.resource.tenant.as_deref())
    }
}

/// The trace that a log record belongs to.
impl From<&Log> for TraceKey {
    fn from(log: &Log) -> Self {
        Self::new(log.trace_id, log.tenant.as_deref())
    }
}

/// A trace without a tenant.
impl From<TraceId> for TraceKey {
    fn from(id: TraceId) -> Self {
        Self { id, tenant: 0 }
    }
}

/// How much of each shared bound one tenant gets.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantOptions {
    /// The share of a tenant that is not in `shares`, in `[0,1]`; 0: the whole, divided by the number of tenants known at the start.
    pub share: f64,
    /// Shares of single tenants, by name, above 0 and at most 1.
    pub shares: BTreeMap<String, f64>,
}

impl TenantOptions {
    /// The shares, for the number of tenants that are known at the start.
    pub fn shares(&self, known: usize) -> Shares {
        let equal = 1.0 / f64::from(u32::try_from(known.max(1)).unwrap_or(u32::MAX));
        let others = if self.share > 0.0 { self.share } else { equal };
        let single = self.shares.iter();
        let single = single.map(|(name, share)| (tenant_hash(Some(name)), *share)).collect();
        Shares { others, single }
    }
}

/// The share of each tenant, above 0 and at most 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares {
    others: f64,
    single: BTreeMap<TenantHash, f64>,
}

impl Default for Shares {
    fn default() -> Self {
        Self { others: 1.0, single: BTreeMap::new() }
    }
}

impl Shares {
    /// The quota of a tenant: how much of a bound it gets, at least one.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a share of a bound is between nothing and the bound"
    )]
    pub fn quota(&self, tenant: TenantHash, bound: usize) -> usize {
        let share = self.of(tenant);
        if share >= 1.0 { bound } else { ((bound as f64 * share) as usize).clamp(1, bound.max(1)) }
    }

    /// The tenant that holds the most relative to its share; among equal ones, the one with the greatest hash.
    #[expect(clippy::cast_precision_loss, reason = "counts of things in memory")]
    pub fn most_over_share(
        &self,
        held: impl Iterator<Item = (TenantHash, usize)>,
    ) -> Option<TenantHash> {
        let parts = held.map(|(tenant, count)| (count as f64 / self.of(tenant), tenant));
        let most = parts.max_by(|(one, a), (other, b)| one.total_cmp(other).then(a.cmp(b)));
        most.map(|(_, tenant)| tenant)
    }

    /// A tenant's share.
    pub fn of(&self, tenant: TenantHash) -> f64 {
        self.single.get(&tenant).copied().unwrap_or(self.others)
    }
}

/// The number of entries of each tenant in a table.
#[derive(Clone, Debug, Default)]
pub struct TenantCounts {
    by_tenant: BTreeMap<TenantHash, usize>,
    all: usize,
}

impl TenantCounts {
    /// Counts one more entry of a tenant.
    pub fn add(&mut self, tenant: TenantHash) {
        *self.by_tenant.entry(tenant).or_default() += 1;
        self.all += 1;
    }

    /// Counts one entry less of a tenant.
    pub fn remove(&mut self, tenant: TenantHash) {
        if let Some(count) = self.by_tenant.get_mut(&tenant) {
            *count -= 1;
            self.all -= 1;
            if *count == 0 {
                self.by_tenant.remove(&tenant);
            }
        }
    }

    /// The number of entries of all tenants.
    pub fn all(&self) -> usize {
        self.all
    }

    /// Whether a tenant holds its quota of `bound`.
    pub fn is_at_quota(&self, tenant: TenantHash, shares: &Shares, bound: usize) -> bool {
        self.by_tenant.get(&tenant).is_some_and(|count| *count >= shares.quota(tenant, bound))
    }

    /// Whether any tenant holds its quota of `bound`.
    pub fn is_any_at_quota(&self, shares: &Shares, bound: usize) -> bool {
        self.by_tenant.iter().any(|(tenant, count)| *count >= shares.quota(*tenant, bound))
    }

    /// The tenant that would hold the most relative to its share if `newcomer` had one more entry, and has to make room for it.
    pub fn greediest_with(&self, shares: &Shares, newcomer: TenantHash) -> Option<TenantHash> {
        let count = |tenant| self.by_tenant.get(&tenant).copied().unwrap_or(0);
        let others = self.by_tenant.iter().filter(|(tenant, _)| **tenant != newcomer);
        let others = others.map(|(tenant, count)| (*tenant, *count));
        shares.most_over_share(others.chain([(newcomer, count(newcomer) + 1)]))
    }

    /// The tenant that holds the most relative to its share, and has to make room at the bound.
    pub fn most_over_share(&self, shares: &Shares) -> Option<TenantHash> {
        shares.most_over_share(self.by_tenant.iter().map(|(tenant, count)| (*tenant, *count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_gets_its_share_and_one_at_least() {
        let options = TenantOptions { share: 0.0, shares: [("bank".to_owned(), 0.5)].into() };
        let shares = options.shares(4);
        let [bank, shop] = [Some("bank"), Some("shop")].map(tenant_hash);
        assert_eq!(
            (shares.quota(bank, 10), shares.quota(shop, 10), shares.quota(0, 10)),
            (5, 2, 2)
        );
        assert_eq!((shares.quota(shop, 1), shares.quota(shop, 3)), (1, 1));
        assert_eq!(TenantOptions::default().shares(0).quota(0, 7), 7);
        assert_eq!(TenantOptions { share: 0.3, ..options }.shares(4).quota(shop, 10), 3);
    }

    #[test]
    fn who_has_the_most_of_its_share_makes_room() {
        let options = TenantOptions { share: 0.25, shares: [("bank".to_owned(), 0.5)].into() };
        let (shares, bank) = (options.shares(1), tenant_hash(Some("bank")));
        assert_eq!(shares.most_over_share([(bank, 11), (7, 6)].into_iter()), Some(7));
        assert_eq!(shares.most_over_share([(bank, 13), (7, 6)].into_iter()), Some(bank));
        assert_eq!(shares.most_over_share([].into_iter()), None);
    }
}
