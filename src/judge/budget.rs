//! The limit of calls: dollars in any hour.
//!
//! ```text
//! a call goes out only if  spent in the last hour + reserved + its estimate <= cap - kept for other tenants
//! kept for a tenant        cap * share / 2 - what it has spent and reserved
//! ```
//!
//! So half of each tenant's share is available at any time, whatever others spend, and the rest is for any tenant. The estimate is
//! the most that the call can cost, so the cap holds whatever the answer; when the answer is in, its cost replaces the estimate.
//! Time is an argument.

use std::collections::{BTreeMap, VecDeque};

use crate::engine::math::Quanta;
use crate::engine::span::Timestamp;
use crate::engine::tenants::{Shares, TenantHash};

/// Nanoseconds in a minute; spending expires by the minute.
const MINUTE: u64 = 60_000_000_000;

/// How many minutes count, besides the current one: an hour.
const MINUTES: u64 = 60;

/// The dollars of the last hour, and their cap.
#[derive(Clone, Debug)]
pub struct Budget {
    cap: i64,
    shares: Shares,
    // Accounts of tenants that have spent something in the last hour, or have calls in progress.
    accounts: BTreeMap<TenantHash, Account>,
    // Spending of earlier processes, for any tenant.
    earlier: Account,
}

/// Dollars that are spent and set aside.
#[derive(Clone, Debug, Default)]
struct Account {
    reserved: i64,
    // Dollars by minute, in order; none older than an hour.
    spent: VecDeque<(u64, i64)>,
}

impl Budget {
    /// A budget of at most `cap` dollars in any hour, for tenants with these shares.
    pub fn new(cap: Quanta, shares: Shares) -> Self {
        Self { cap: cap.0, shares, accounts: BTreeMap::new(), earlier: Account::default() }
    }

    /// Adds earlier spending, as (minute, dollars).
    pub fn spent_before(&mut self, paid: impl IntoIterator<Item = (u64, Quanta)>) {
        let mut spent: BTreeMap<u64, i64> = self.earlier.spent.drain(..).collect();
        for (minute, cost) in paid {
            let sum = spent.entry(minute).or_default();
            *sum = sum.saturating_add(cost.0);
        }
        self.earlier.spent = spent.into_iter().collect();
    }

    /// Sets aside the most that a tenant's call can cost, if that much is left for it; returns whether it is.
    pub fn reserve(&mut self, tenant: TenantHash, most: Quanta, now: Timestamp) -> bool {
        self.expire(now);
        let fits = self.left_for(tenant, Account::used) >= most.0;
        if fits {
            let account = self.accounts.entry(tenant).or_default();
            account.reserved = account.reserved.saturating_add(most.0);
        }
        fits
    }

    /// Replaces the amount that was set aside for a tenant's call by its cost.
    pub fn settle(&mut self, tenant: TenantHash, most: Quanta, cost: Quanta, now: Timestamp) {
        let account = self.accounts.entry(tenant).or_default();
        account.reserved = account.reserved.saturating_sub(most.0);
        let minute = now.0 / MINUTE;
        match account.spent.back_mut() {
            Some((last, sum)) if *last >= minute => *sum = sum.saturating_add(cost.0),
            Some(_) | None => account.spent.push_back((minute, cost.0)),
        }
    }

    /// Dollars that may still be spent, never below zero.
    pub fn left(&mut self, now: Timestamp) -> Quanta {
        self.expire(now);
        Quanta(self.free(Account::used).max(0))
    }

    /// Dollars that would be left for a tenant if nothing were set aside, never below zero.
    pub fn unspent(&mut self, tenant: TenantHash, now: Timestamp) -> Quanta {
        self.expire(now);
        Quanta(self.left_for(tenant, Account::spent))
    }

    fn expire(&mut self, now: Timestamp) {
        let minute = now.0 / MINUTE;
        self.earlier.expire(minute);
        self.accounts.retain(|_, account| {
            account.expire(minute);
            account.reserved > 0 || !account.spent.is_empty()
        });
    }

    /// What is left of the unused amount for a tenant.
    fn left_for(&self, tenant: TenantHash, used: fn(&Account) -> i64) -> i64 {
        let others = self.accounts.iter().filter(|(other, _)| **other != tenant);
        let taken = others.map(|(other, account)| used(account).min(self.half(*other)));
        let own = self.half(tenant);
        // Invariant: the halves of all tenants together are half of the cap, or more.
        let kept = taken.fold(self.cap / 2 - own, i64::saturating_sub).max(0);
        let of_own = own.saturating_sub(self.accounts.get(&tenant).map_or(0, used));
        let free = self.free(used);
        free.saturating_sub(kept).max(free.min(of_own)).max(0)
    }

    fn free(&self, used: fn(&Account) -> i64) -> i64 {
        self.accounts.values().map(used).fold(self.cap - used(&self.earlier), i64::saturating_sub)
    }

    /// Half of a tenant's share.
    fn half(&self, tenant: TenantHash) -> i64 {
        let half = usize::try_from(self.cap / 2).unwrap_or(0);
        i64::try_from(self.shares.quota(tenant, half)).unwrap_or(i64::MAX)
    }
}

impl Account {
    fn expire(&mut self, minute: u64) {
        while self.spent.front().is_some_and(|(at, _)| at + MINUTES < minute) {
            self.spent.pop_front();
        }
    }

    fn spent(&self) -> i64 {
        self.spent.iter().fold(0, |sum, (_, cost)| sum.saturating_add(*cost))
    }

    fn used(&self) -> i64 {
        self.spent().saturating_add(self.reserved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tenants::TenantOptions;

    fn at(minute: u64) -> Timestamp {
        Timestamp(1_000_000 * MINUTE + minute * MINUTE)
    }

    #[test]
    fn the_cap_holds_whatever_is_answered() {
        let mut budget = Budget::new(Quanta(10), Shares::default());
        assert!(budget.reserve(0, Quanta(6), at(0)));
        assert!(!budget.reserve(0, Quanta(5), at(0)));
        assert!(budget.reserve(0, Quanta(4), at(0)));
        budget.settle(0, Quanta(6), Quanta(1), at(0));
        assert_eq!((budget.left(at(0)), budget.unspent(0, at(0))), (Quanta(5), Quanta(9)));
        budget.settle(0, Quanta(4), Quanta(4), at(1));
        assert_eq!(budget.left(at(60)), Quanta(5));
        assert_eq!(budget.left(at(61)), Quanta(6));
        assert_eq!(budget.left(at(62)), Quanta(10));
    }

    #[test]
    fn what_an_earlier_process_has_spent_is_spent() {
        let mut budget = Budget::new(Quanta(10), Shares::default());
        let minute = |minute| at(minute).0 / MINUTE;
        budget.spent_before([
            (minute(5), Quanta(3)),
            (minute(0), Quanta(2)),
            (minute(5), Quanta(1)),
        ]);
        assert_eq!(budget.left(at(5)), Quanta(4));
        assert_eq!(budget.left(at(61)), Quanta(6));
    }

    #[test]
    fn nothing_may_be_spent_of_nothing_but_what_is_free() {
        let mut budget = Budget::new(Quanta(0), Shares::default());
        assert!(budget.reserve(0, Quanta(0), at(0)));
        assert!(!budget.reserve(0, Quanta(1), at(0)));
    }

    #[test]
    fn half_of_each_share_is_there_whatever_other_tenants_spend() {
        let shares = TenantOptions { share: 0.25, ..TenantOptions::default() }.shares(4);
        let mut budget = Budget::new(Quanta(800), shares);
        let mut spends = |tenant, minute| {
            let mut spent = 0;
            while budget.reserve(tenant, Quanta(1), at(minute)) {
                budget.settle(tenant, Quanta(1), Quanta(1), at(minute));
                spent += 1;
            }
            spent
        };
        // Two that flood together leave half a share to each that has spent nothing.
        assert_eq!((spends(1, 0), spends(2, 1)), (500, 100));
        assert_eq!((spends(3, 2), spends(1, 2), spends(4, 2), spends(4, 3)), (100, 0, 100, 0));
        // What expires is for any tenant, except for the halves of those that have not spent theirs again.
        assert_eq!((spends(1, 61), spends(3, 62), spends(2, 62)), (500, 0, 100));
    }

    #[test]
    fn what_is_set_aside_by_one_tenant_is_not_kept_for_it_as_well() {
        let shares = TenantOptions { share: 0.5, ..TenantOptions::default() }.shares(2);
        let mut budget = Budget::new(Quanta(100), shares);
        assert!(budget.reserve(1, Quanta(25), at(0)));
        assert!(budget.reserve(2, Quanta(75), at(0)) && !budget.reserve(1, Quanta(1), at(0)));
        assert_eq!((budget.unspent(1, at(0)), budget.left(at(0))), (Quanta(75), Quanta(0)));
        // An earlier process may have spent nearly everything; the rest, less than a half, is for any tenant.
        budget.spent_before([(at(0).0 / MINUTE, Quanta(90))]);
        assert_eq!((budget.unspent(1, at(0)), budget.unspent(2, at(0))), (Quanta(10), Quanta(10)));
    }
}
