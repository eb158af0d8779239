//! How long an agent is usually silent.
//!
//! ```text
//! usual gap = least 2^k seconds such that gaps of more than that make up 5 % of the time at most
//! ```
//!
//! Gaps count by how long they are, so that nights and weekends are usual where they come each day and each week, however many
//! traces there are between them, and one outage is not. The past counts half in `drop.memory`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::span::Timestamp;

/// The gaps between traces of one agent.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Gaps {
    first: Option<Timestamp>,
    last: Timestamp,
    count: u64,
    // Seconds in gaps of up to 1, 2, 4, .. seconds; older ones count less.
    seconds: Vec<f64>,
    decayed: Timestamp,
}

impl Gaps {
    /// Takes the time of the next trace; a time before the last counts as the same time.
    pub(super) fn observe(&mut self, at: Timestamp, memory: Duration) {
        if self.first.is_none() {
            (self.first, self.last, self.decayed) = (Some(at), at, at);
            return;
        }
        let gap = seconds(self.last, at);
        self.last = self.last.max(at);
        let passed = seconds(self.decayed, at);
        if passed >= DECAY_STEP {
            let left = (-passed / memory.as_secs_f64().max(DECAY_STEP)).exp2();
            self.seconds.iter_mut().for_each(|seconds| *seconds *= left);
            self.decayed = at;
        }
        let place = (0..MOST).find(|power| gap <= edge(*power)).unwrap_or(MOST - 1);
        if self.seconds.len() <= place {
            self.seconds.resize(place + 1, 0.0);
        }
        self.seconds[place] += gap;
        self.count = self.count.saturating_add(1);
    }

    /// The time of the last trace.
    pub(super) fn last(&self) -> Timestamp {
        self.last
    }

    /// The usual gap in seconds; `None` before there were twenty gaps, over at least a day.
    pub(super) fn usual(&self) -> Option<f64> {
        let known = self.first.is_some_and(|first| seconds(first, self.last) >= KNOWN);
        if self.count < ENOUGH || !known {
            return None;
        }
        let all: f64 = self.seconds.iter().sum();
        let mut longer = all;
        let place = self.seconds.iter().position(|seconds| {
            longer -= seconds;
            longer <= all * RARE
        });
        place.map(edge)
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.0.saturating_sub(from.0) as f64 / 1e9
}

fn edge(power: usize) -> f64 {
    (power as f64).exp2()
}

/// Powers of two that gaps are told apart by: 2^31 s are 68 years.
const MOST: usize = 32;

/// Part of the time that is in gaps which are not usual.
const RARE: f64 = 0.05;

/// Gaps, and seconds that they span, before any is usual: a night has to be among them.
const ENOUGH: u64 = 20;
const KNOWN: f64 = 86_400.0;

/// Seconds after which the past counts less.
const DECAY_STEP: f64 = 3_600.0;

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Duration = Duration::from_secs(14 * 86_400);

    /// Traces each minute of these hours of each day, for so many days.
    fn days(hours: std::ops::Range<u64>, days: u64) -> Gaps {
        let mut gaps = Gaps::default();
        for minute in 0..days * 1_440 {
            if hours.contains(&(minute / 60 % 24)) {
                gaps.observe(Timestamp(minute * 60_000_000_000), MEMORY);
            }
        }
        gaps
    }

    #[test]
    fn a_steady_agent_is_seldom_silent_for_longer_than_twice_its_gap() {
        assert_eq!(days(0..24, 3).usual(), Some(64.0));
    }

    #[test]
    fn nights_are_usual_and_one_outage_is_not() {
        // 15 hours and a minute.
        assert_eq!(days(9..18, 14).usual(), Some(65_536.0));
        let mut gaps = days(0..24, 14);
        gaps.observe(gaps.last().after(Duration::from_secs(10 * 3_600)), MEMORY);
        assert_eq!(gaps.usual(), Some(64.0));
    }

    #[test]
    fn before_a_day_nothing_is_known() {
        assert_eq!(days(0..12, 1).usual(), None);
        assert_eq!(Gaps::default().usual(), None);
    }
}
