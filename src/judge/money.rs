//! Whether a call may be made, by the hourly budget and the circuit breaker together.
//!
//! ```text
//! refused   it would break the cap whatever becomes of those that are out, or the endpoint is left alone
//! waits     it fits when those that are out cost less than they might
//! goes      the most that it can cost is set aside
//! ```
//!
//! The most that a call can cost follows from its bytes and from its limit of output tokens. An endpoint may count more tokens. So
//! the first call of a model is made alone, and for later ones that maximum is multiplied by the greatest factor by which a call of
//! the model exceeded it in this hour or the one before. An endpoint that counts too much breaks the cap by one call, however many
//! are allowed at once; one that did so once, by whatever mistake, is called again two hours later.

use std::collections::BTreeMap;

use super::budget::Budget;
use crate::engine::math::Quanta;
use crate::engine::span::Timestamp;
use crate::engine::tenants::TenantHash;
use crate::outbound::breaker::Breaker;

/// The budget and the breaker of one endpoint.
#[derive(Debug)]
pub(super) struct CallBudget {
    budget: Budget,
    breaker: Breaker,
    /// The least amount that was refused as over the budget, by tenant.
    short_of: BTreeMap<TenantHash, Quanta>,
    // By model; the models are those in the configuration and in files of expectations.
    habits: BTreeMap<String, CostHistory>,
}

/// The costs of earlier calls of a model.
#[derive(Clone, Copy, Debug, Default)]
struct CostHistory {
    /// The greatest ratio of a call's cost to the maximum by its bytes, rounded up, at least 1, in `hour` and in the one before;
    /// `None` without a reply.
    times: [Option<i64>; 2],
    /// The hour of the last reply, since the epoch.
    hour: u64,
    /// The number of calls in progress.
    out: usize,
}

/// The most that a call may cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallCost<'m> {
    /// The model of the call.
    pub(super) model: &'m str,
    /// The tenant that it is for.
    pub(super) tenant: TenantHash,
    /// The most, by its bytes and its limit of output tokens.
    pub(super) most: Quanta,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// The amount that was set aside for it.
    pub(super) reserved: Quanta,
    /// Its cost.
    pub(super) cost: Quanta,
    /// Whether there was a reply, useful or not.
    pub(super) replied: bool,
    /// Whether the endpoint is up, if the call shows it.
    pub(super) well: Option<bool>,
}

/// The decision about a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Admission {
    /// It is made: this amount is set aside until the call is settled.
    Goes(Quanta),
    /// It waits, to be tried again when another call is settled.
    Waits,
    /// It is not made, for this reason.
    Refused(&'static str),
}

impl CallBudget {
    pub(super) fn new(budget: Budget, breaker: Breaker) -> Self {
        Self { budget, breaker, short_of: BTreeMap::new(), habits: BTreeMap::new() }
    }

    /// Decides about a call; if it may be made, sets aside the most that it can cost.
    pub(super) fn admit(&mut self, stake: CallCost<'_>, now: Timestamp) -> Admission {
        let habit = self.habits.get(stake.model).copied().unwrap_or_default();
        let most = self.expected(stake, now);
        if let Some(why) = self.away(stake, now) {
            Admission::Refused(why)
        } else if habit.times(now).is_none() && habit.out > 0 {
            Admission::Waits
        } else if self.budget.reserve(stake.tenant, most, now) && self.breaker.admits(now) {
            self.habits.entry(stake.model.to_owned()).or_default().out += 1;
            Admission::Goes(most)
        } else {
            Admission::Waits
        }
    }

    /// The most that a call can cost, given the costs of earlier calls of its model.
    fn expected(&self, CallCost { model, most, .. }: CallCost<'_>, now: Timestamp) -> Quanta {
        let times = self.habits.get(model).and_then(|habit| habit.times(now)).unwrap_or(1);
        Quanta(most.0.saturating_mul(times))
    }

    /// Why a call would be refused; `None` if it would not.
    pub(super) fn away(&mut self, stake: CallCost<'_>, now: Timestamp) -> Option<&'static str> {
        let most = self.expected(stake, now);
        if self.budget.unspent(stake.tenant, now) < most {
            let least = self.short_of.entry(stake.tenant).or_insert(most);
            *least = most.min(*least);
            return Some("over_budget");
        }
        (!self.breaker.might_admit(now)).then_some("endpoint_down")
    }

    /// Takes the outcome of a call; returns whether it cost more than was set aside.
    pub(super) fn settle(&mut self, stake: CallCost<'_>, outcome: Outcome, now: Timestamp) -> bool {
        let Outcome { reserved, cost, replied, well } = outcome;
        self.budget.settle(stake.tenant, reserved, cost, now);
        let habit = self.habits.entry(stake.model.to_owned()).or_default();
        habit.out = habit.out.saturating_sub(1);
        if replied {
            let most = stake.most.0.max(1);
            let times = cost.0 / most + i64::from(cost.0 % most > 0);
            habit.note(times.max(1), now);
        }
        match well {
            Some(well) => self.breaker.record(well, now),
            None => self.breaker.undecided(),
        }
        cost > reserved
    }

    /// The dollars that are left, and whether calls are refused: the budget is too small for one of some tenant, or the breaker is
    /// open.
    pub(super) fn stands(&mut self, now: Timestamp) -> (Quanta, bool) {
        let Self { budget, short_of, .. } = self;
        short_of.retain(|tenant, least| budget.unspent(*tenant, now) < *least);
        (self.budget.left(now), !self.short_of.is_empty() || self.breaker.is_open())
    }
}

impl CostHistory {
    /// The greatest ratio in this hour and the one before.
    fn times(&self, now: Timestamp) -> Option<i64> {
        match hour(now).saturating_sub(self.hour) {
            0 => self.times[0].max(self.times[1]),
            1 => self.times[0],
            _ => None,
        }
    }

    fn note(&mut self, times: i64, now: Timestamp) {
        let hour = hour(now).max(self.hour);
        if hour > self.hour {
            let before = self.times[0].filter(|_| hour == self.hour + 1);
            (self.hour, self.times) = (hour, [None, before]);
        }
        self.times[0] = self.times[0].max(Some(times));
    }
}

fn hour(now: Timestamp) -> u64 {
    now.0 / 3_600_000_000_000
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::tenants::Shares;

    fn at(minute: u64) -> Timestamp {
        Timestamp((1_000_000 + minute) * 60_000_000_000)
    }

    fn money() -> CallBudget {
        CallBudget::new(
            Budget::new(Quanta(100), Shares::default()),
            Breaker::new(1, Duration::from_secs(60)),
        )
    }

    fn stake(most: i64) -> CallCost<'static> {
        CallCost { model: "m", tenant: 0, most: Quanta(most) }
    }

    fn came(reserved: i64, cost: i64, well: Option<bool>) -> Outcome {
        Outcome { reserved: Quanta(reserved), cost: Quanta(cost), replied: true, well }
    }

    const GOES: Admission = Admission::Goes(Quanta(1));
    const OVER: Admission = Admission::Refused("over_budget");

    #[test]
    fn what_is_set_aside_is_waited_for_and_what_is_spent_is_not() {
        let (mut money, now) = (money(), at(0));
        assert_eq!(money.admit(stake(101), now), OVER);
        assert_eq!(money.admit(stake(75), now), Admission::Goes(Quanta(75)));
        assert_eq!(money.admit(stake(75), now), Admission::Waits);
        money.settle(stake(75), came(75, 25, Some(true)), now);
        assert_eq!(money.admit(stake(75), now), Admission::Goes(Quanta(75)));
        money.settle(stake(75), came(75, 75, Some(true)), now);
        assert_eq!(money.admit(stake(1), now), OVER);
    }

    #[test]
    fn a_shortage_lasts_until_there_is_enough_again() {
        let (mut money, now) = (money(), at(0));
        assert_eq!(money.stands(now), (Quanta(100), false));
        assert_eq!(money.admit(stake(75), now), Admission::Goes(Quanta(75)));
        assert_eq!(money.admit(stake(75), now), Admission::Waits);
        assert_eq!(money.stands(now), (Quanta(25), false), "it may come back");
        money.settle(stake(75), came(75, 50, Some(true)), now);
        assert_eq!(money.admit(stake(75), now), OVER);
        assert_eq!(money.stands(now), (Quanta(50), true));
        // A smaller one is admitted; for the other there is not enough all the same.
        assert_eq!(money.admit(stake(25), now), Admission::Goes(Quanta(25)));
        money.settle(stake(25), came(25, 0, Some(true)), now);
        assert_eq!(money.stands(now), (Quanta(50), true));
        assert_eq!(money.stands(at(62)), (Quanta(100), false));
    }

    #[test]
    fn what_is_down_is_degraded_until_it_answers() {
        let mut money = money();
        let mut call = |minute, well| {
            let admitted = money.admit(stake(1), at(minute));
            if admitted == GOES {
                money.settle(stake(1), came(1, 0, well), at(minute));
            }
            (admitted, money.stands(at(minute)).1)
        };
        assert_eq!(call(0, None), (GOES, false));
        assert_eq!(call(0, Some(false)), (GOES, true));
        assert_eq!(call(0, None), (Admission::Refused("endpoint_down"), true));
        assert_eq!(call(1, None), (GOES, true), "it was there, and that is all");
        assert_eq!(call(1, Some(true)), (GOES, false));
    }

    #[test]
    fn an_endpoint_that_counts_too_much_breaks_the_cap_by_one_call_at_most() {
        let (mut money, now) = (money(), at(0));
        assert_eq!(money.admit(stake(1), now), Admission::Goes(Quanta(1)));
        assert_eq!(money.admit(stake(1), now), Admission::Waits, "the first one tells");
        let lost = Outcome { replied: false, ..came(1, 1, Some(true)) };
        assert!(!money.settle(stake(1), lost, now), "one without a reply does not");
        assert_eq!(money.admit(stake(1), now), Admission::Goes(Quanta(1)));
        assert!(money.settle(stake(1), came(1, 40, Some(true)), now));
        // 59 are left, of which one takes 40.
        assert_eq!(money.admit(stake(1), now), Admission::Goes(Quanta(40)));
        assert_eq!(money.admit(stake(1), now), Admission::Waits);
        assert!(!money.settle(stake(1), came(40, 40, Some(true)), now));
        assert_eq!(money.admit(stake(1), now), OVER);
    }

    #[test]
    fn one_reply_that_claims_a_fortune_is_forgotten_after_two_hours() {
        let mut money = money();
        assert_eq!(money.admit(stake(1), at(0)), GOES);
        money.settle(stake(1), came(1, 1_000_000, Some(true)), at(0));
        assert_eq!(money.admit(stake(1), at(30)), OVER);
        // The hour's budget is available again, and not enough for another such reply.
        assert_eq!(money.admit(stake(1), at(62)), OVER);
        let later = at(180);
        assert_eq!(money.admit(stake(1), later), GOES);
        assert_eq!(money.admit(stake(1), later), Admission::Waits, "the first one tells anew");
        money.settle(stake(1), came(1, 3, Some(true)), later);
        assert_eq!(money.admit(stake(1), later), Admission::Goes(Quanta(3)));
        money.settle(stake(1), came(3, 1, Some(true)), at(240));
        assert_eq!(money.admit(stake(1), at(241)), Admission::Goes(Quanta(3)), "an hour ago");
    }
}
