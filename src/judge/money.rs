//! Whether a call may go out: the dollars of the hour and the patience with the endpoint, together.
//!
//! ```text
//! refused   it would break the cap whatever becomes of those that are out, or the endpoint is left alone
//! waits     it fits when those that are out cost less than they might
//! goes      the most that it can cost is set aside
//! ```

use super::budget::{Breaker, Budget};
use crate::engine::math::Quanta;
use crate::engine::span::Timestamp;

/// The budget and the breaker of one endpoint.
#[derive(Debug)]
pub(super) struct Money {
    budget: Budget,
    breaker: Breaker,
    /// The least that there was not enough for.
    short_of: Option<Quanta>,
}

/// What is to be done with a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Admission {
    /// It goes out now, and is settled when it has come back.
    Goes,
    /// It is asked about again when another one has been settled.
    Waits,
    /// It does not go out, and why.
    Refused(&'static str),
}

impl Money {
    pub(super) fn new(budget: Budget, breaker: Breaker) -> Self {
        Self { budget, breaker, short_of: None }
    }

    /// Sets the most that a call can cost aside, if it may go out.
    pub(super) fn admit(&mut self, most: Quanta, now: Timestamp) -> Admission {
        if let Some(why) = self.away(most, now) {
            Admission::Refused(why)
        } else if self.budget.reserve(most, now) && self.breaker.admits(now) {
            Admission::Goes
        } else {
            Admission::Waits
        }
    }

    /// Why a call that costs so much would be refused; `None`: it would not.
    pub(super) fn away(&mut self, most: Quanta, now: Timestamp) -> Option<&'static str> {
        if self.budget.unspent(now) < most {
            self.short_of = Some(self.short_of.map_or(most, |least| least.min(most)));
            return Some("over_budget");
        }
        (!self.breaker.might_admit(now)).then_some("endpoint_down")
    }

    /// Takes what a call did cost, and whether the endpoint was there, if that could be told.
    pub(super) fn settle(
        &mut self,
        (most, cost): (Quanta, Quanta),
        well: Option<bool>,
        now: Timestamp,
    ) {
        self.budget.settle(most, cost, now);
        match well {
            Some(well) => self.breaker.record(well, now),
            None => self.breaker.undecided(),
        }
    }

    /// Dollars left, and whether what was refused would be refused again.
    pub(super) fn stands(&mut self, now: Timestamp) -> (Quanta, bool) {
        let unspent = self.budget.unspent(now);
        self.short_of = self.short_of.filter(|least| unspent < *least);
        (self.budget.left(now), self.short_of.is_some() || self.breaker.is_open())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(minute: u64) -> Timestamp {
        Timestamp((1_000_000 + minute) * 60_000_000_000)
    }

    fn money() -> Money {
        Money::new(Budget::new(Quanta(100)), Breaker::new(1, Duration::from_secs(60)))
    }

    const OVER: Admission = Admission::Refused("over_budget");

    #[test]
    fn what_is_set_aside_is_waited_for_and_what_is_spent_is_not() {
        let (mut money, now) = (money(), at(0));
        assert_eq!(money.admit(Quanta(101), now), OVER);
        assert_eq!(money.admit(Quanta(75), now), Admission::Goes);
        assert_eq!(money.admit(Quanta(75), now), Admission::Waits);
        money.settle((Quanta(75), Quanta(25)), Some(true), now);
        assert_eq!(money.admit(Quanta(75), now), Admission::Goes);
        money.settle((Quanta(75), Quanta(75)), Some(true), now);
        assert_eq!(money.admit(Quanta(1), now), OVER);
    }

    #[test]
    fn a_shortage_lasts_until_there_is_enough_again() {
        let (mut money, now) = (money(), at(0));
        assert_eq!(money.stands(now), (Quanta(100), false));
        assert_eq!(money.admit(Quanta(75), now), Admission::Goes);
        assert_eq!(money.admit(Quanta(75), now), Admission::Waits);
        assert_eq!(money.stands(now), (Quanta(25), false), "it may come back");
        money.settle((Quanta(75), Quanta(50)), Some(true), now);
        assert_eq!(money.admit(Quanta(75), now), OVER);
        assert_eq!(money.stands(now), (Quanta(50), true));
        // One that is smaller goes out; for the other there is not enough all the same.
        assert_eq!(money.admit(Quanta(25), now), Admission::Goes);
        money.settle((Quanta(25), Quanta(0)), Some(true), now);
        assert_eq!(money.stands(now), (Quanta(50), true));
        assert_eq!(money.stands(at(62)), (Quanta(100), false));
    }

    #[test]
    fn what_is_down_is_degraded_until_it_answers() {
        let mut money = money();
        let mut call = |minute, well| {
            let admitted = money.admit(Quanta(1), at(minute));
            if admitted == Admission::Goes {
                money.settle((Quanta(1), Quanta(0)), well, at(minute));
            }
            (admitted, money.stands(at(minute)).1)
        };
        assert_eq!(call(0, None), (Admission::Goes, false));
        assert_eq!(call(0, Some(false)), (Admission::Goes, true));
        assert_eq!(call(0, None), (Admission::Refused("endpoint_down"), true));
        assert_eq!(call(1, None), (Admission::Goes, true), "it was there, and that is all");
        assert_eq!(call(1, Some(true)), (Admission::Goes, false));
    }
}
