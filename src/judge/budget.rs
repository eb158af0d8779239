//! The limits of calls: dollars in any hour, and patience with an endpoint that fails.
//!
//! ```text
//! a call goes out only if  spent in the last hour + reserved + its estimate <= cap
//! ```
//!
//! The estimate is the most that the call can cost, so the cap holds whatever is answered; when the answer is in, its cost
//! replaces the estimate. Time is an argument.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::engine::math::Quanta;
use crate::engine::span::Timestamp;

/// Nanoseconds in a minute; spending expires by the minute.
const MINUTE: u64 = 60_000_000_000;

/// How many minutes count, besides the current one: an hour.
const MINUTES: u64 = 60;

/// The dollars of the last hour, and their cap.
#[derive(Clone, Debug)]
pub struct Budget {
    cap: i64,
    reserved: i64,
    // Dollars by minute, in order; none older than an hour.
    spent: VecDeque<(u64, i64)>,
}

/// A circuit breaker: it stops calls to an endpoint that keeps failing, and tries it with one call after a pause.
#[derive(Clone, Debug)]
pub struct Breaker {
    max_failures: u32,
    pause: Duration,
    failures: u32,
    open_until: Option<Timestamp>,
    // Whether a call is out that tries whether the endpoint is back.
    probing: bool,
}

impl Budget {
    /// A budget of at most `cap` dollars in any hour.
    pub fn new(cap: Quanta) -> Self {
        Self { cap: cap.0, reserved: 0, spent: VecDeque::new() }
    }

    /// Adds what was spent earlier, as (minute, dollars).
    pub fn spent_before(&mut self, paid: impl IntoIterator<Item = (u64, Quanta)>) {
        let mut spent: BTreeMap<u64, i64> = self.spent.drain(..).collect();
        for (minute, cost) in paid {
            let sum = spent.entry(minute).or_default();
            *sum = sum.saturating_add(cost.0);
        }
        self.spent = spent.into_iter().collect();
    }

    /// Sets aside the most that a call can cost, if that much is left; returns whether it is.
    pub fn reserve(&mut self, most: Quanta, now: Timestamp) -> bool {
        let fits = self.left(now).0 >= most.0;
        if fits {
            self.reserved = self.reserved.saturating_add(most.0);
        }
        fits
    }

    /// Replaces what was set aside for a call by what it cost.
    pub fn settle(&mut self, most: Quanta, cost: Quanta, now: Timestamp) {
        self.reserved = self.reserved.saturating_sub(most.0);
        let minute = now.0 / MINUTE;
        match self.spent.back_mut() {
            Some((last, sum)) if *last >= minute => *sum = sum.saturating_add(cost.0),
            Some(_) | None => self.spent.push_back((minute, cost.0)),
        }
    }

    /// Dollars that may still be spent, never below zero.
    pub fn left(&mut self, now: Timestamp) -> Quanta {
        Quanta(self.unspent(now).0.saturating_sub(self.reserved).max(0))
    }

    /// Dollars that would be left if nothing were set aside, never below zero.
    pub fn unspent(&mut self, now: Timestamp) -> Quanta {
        let minute = now.0 / MINUTE;
        while self.spent.front().is_some_and(|(at, _)| at + MINUTES < minute) {
            self.spent.pop_front();
        }
        let spent = self.spent.iter().fold(0_i64, |sum, (_, cost)| sum.saturating_add(*cost));
        Quanta(self.cap.saturating_sub(spent).max(0))
    }
}

impl Breaker {
    /// A breaker that opens after `max_failures` in a row, for `pause`.
    pub fn new(max_failures: u32, pause: Duration) -> Self {
        Self { max_failures, pause, failures: 0, open_until: None, probing: false }
    }

    /// Whether a call may go out; if it is the one that tries the endpoint, no other may until its outcome is recorded.
    pub fn admits(&mut self, now: Timestamp) -> bool {
        match self.open_until {
            None => true,
            Some(until) if now < until || self.probing => false,
            Some(_) => {
                self.probing = true;
                true
            }
        }
    }

    /// Whether a call might go out; unlike [`Self::admits`] this changes nothing.
    pub fn might_admit(&self, now: Timestamp) -> bool {
        self.open_until.is_none_or(|until| now >= until && !self.probing)
    }

    /// Records whether the endpoint was up at a call, whether or not its answer was of use.
    pub fn record(&mut self, well: bool, now: Timestamp) {
        self.probing = false;
        if well {
            (self.failures, self.open_until) = (0, None);
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.max_failures {
            self.open_until = Some(now.after(self.pause));
        }
    }

    /// Records that a call did not tell whether the endpoint is up.
    pub fn undecided(&mut self) {
        self.probing = false;
    }

    /// Whether it is open, so that calls are held back.
    pub fn is_open(&self) -> bool {
        self.open_until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: u64) -> Timestamp {
        Timestamp(1_000_000 * MINUTE + minute * MINUTE)
    }

    #[test]
    fn the_cap_holds_whatever_is_answered() {
        let mut budget = Budget::new(Quanta(10));
        assert!(budget.reserve(Quanta(6), at(0)));
        assert!(!budget.reserve(Quanta(5), at(0)));
        assert!(budget.reserve(Quanta(4), at(0)));
        budget.settle(Quanta(6), Quanta(1), at(0));
        assert_eq!((budget.left(at(0)), budget.unspent(at(0))), (Quanta(5), Quanta(9)));
        budget.settle(Quanta(4), Quanta(4), at(1));
        assert_eq!(budget.left(at(60)), Quanta(5));
        assert_eq!(budget.left(at(61)), Quanta(6));
        assert_eq!(budget.left(at(62)), Quanta(10));
    }

    #[test]
    fn what_an_earlier_process_has_spent_is_spent() {
        let mut budget = Budget::new(Quanta(10));
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
        let mut budget = Budget::new(Quanta(0));
        assert!(budget.reserve(Quanta(0), at(0)));
        assert!(!budget.reserve(Quanta(1), at(0)));
    }

    #[test]
    fn a_dead_endpoint_is_tried_by_one_call_at_a_time() {
        let mut breaker = Breaker::new(2, Duration::from_secs(60));
        breaker.record(false, at(0));
        assert!(breaker.admits(at(0)));
        breaker.record(false, at(0));
        assert!(breaker.is_open() && !breaker.might_admit(at(0)) && !breaker.admits(at(0)));
        assert!(breaker.might_admit(at(1)) && breaker.might_admit(at(1)));
        assert!(breaker.admits(at(1)));
        assert!(!breaker.might_admit(at(1)) && !breaker.admits(at(1)), "one is out already");
        breaker.record(false, at(1));
        assert!(!breaker.admits(at(1)));
        assert!(breaker.admits(at(2)));
        breaker.undecided();
        assert!(breaker.is_open() && breaker.admits(at(2)), "another one may tell");
        breaker.record(true, at(2));
        assert!(breaker.admits(at(2)) && breaker.admits(at(2)) && !breaker.is_open());
    }
}
