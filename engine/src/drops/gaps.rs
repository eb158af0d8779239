//! How long an agent is usually silent.
//!
//! ```text
//! usual gap = least 2^k seconds such that gaps of more than that make up 5 % of the time at most
//! ```
//!
//! Gaps count by how long they are, so that nights and weekends are usual where they come each day and each week, however many
//! traces there are between them, and one outage is not. The past counts half in `drop.memory`.
//!
//! An agent is silent when all its versions are. So it has gaps of its own: a canary of few traces makes no silence of the agent usual,
//! and a new version knows the gaps of those before it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::facts::AgentKey;
use crate::span::Timestamp;

/// The gaps between traces of each agent, whatever their versions; by the hash of what names the agent. There are as many as agents
/// under watch, at most.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub(super) struct AgentGaps(BTreeMap<u64, AgentGap>);

/// The gaps of one agent, and the usual one when [`AgentGaps::take_change`] was last asked.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
struct AgentGap {
    gaps: Gaps,
    told: Option<f64>,
}

/// The gaps between traces of one agent, or of one version of it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Gaps {
    first: Option<Timestamp>,
    last: Timestamp,
    count: u64,
    // Seconds in gaps of up to 1, 2, 4, .. seconds; older ones count less.
    seconds: Vec<f64>,
    decayed: Timestamp,
}

impl AgentGaps {
    /// Takes the time of the next trace of an agent.
    pub(super) fn observe(&mut self, agent: &AgentKey, at: Timestamp, memory: Duration) {
        self.0.entry(agent.hash_of_all_versions()).or_default().gaps.observe(at, memory);
    }

    /// The usual gap of an agent in seconds, as [`Gaps::usual`].
    pub(super) fn usual(&self, agent: &AgentKey) -> Option<f64> {
        self.0.get(&agent.hash_of_all_versions())?.gaps.usual()
    }

    /// Whether the usual gap of an agent is another one than when this was last asked.
    pub(super) fn take_change(&mut self, agent: &AgentKey) -> bool {
        let Some(AgentGap { gaps, told }) = self.0.get_mut(&agent.hash_of_all_versions()) else {
            return false;
        };
        let usual = gaps.usual();
        std::mem::replace(told, usual) != usual
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets an agent.
    pub(super) fn forget(&mut self, agent: &AgentKey) {
        self.0.remove(&agent.hash_of_all_versions());
    }

    /// Forgets all agents but these.
    pub(super) fn keep<'a>(&mut self, agents: impl Iterator<Item = &'a AgentKey>) {
        let kept: BTreeSet<u64> = agents.map(AgentKey::hash_of_all_versions).collect();
        self.0.retain(|agent, _| kept.contains(agent));
    }
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
