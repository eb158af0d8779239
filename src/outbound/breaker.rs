//! Patience with an endpoint that fails.

use std::time::Duration;

use crate::engine::span::Timestamp;

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
        Timestamp(minute * 60_000_000_000)
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
