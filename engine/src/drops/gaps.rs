//! How long an agent is usually silent.
//!
//! ```text
//! usual gap         = least 2^k seconds such that gaps of more than that make up 5 % of the time at most,
//!                     the longest gap left out unless it takes a tenth of all the time
//! longest usual gap = min(3 * usual gap, 2.5 * longest gap of the last five weeks)
//! ```
//!
//! Gaps count by their length, so that nights and weekends are usual if they recur each day and each week, however many traces
//! there are between them, while one outage is not. The past has a half-life of `drop.memory`. The longest gap counts once two
//! weeks are known: a daily batch may be skipped once, as on a holiday. Before that, an agent with usual gaps of eight hours or
//! more, such as nights, may be silent for eighty hours, as its weekends are not known yet.
//!
//! An agent is silent when all its versions are. So gaps are kept per agent: a canary with few traces makes no silence of the agent
//! usual, and a new version knows the gaps of those before it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::facts::AgentKey;
use crate::span::Timestamp;

/// The gaps between traces of each agent, whatever their versions, by the hash of the agent's names. There are at most as many as
/// agents under watch.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub(super) struct AgentGaps(BTreeMap<u64, AgentGap>);

/// The gaps of one agent, and the longest usual one at the last call of [`AgentGaps::take_change`].
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
struct AgentGap {
    gaps: Gaps,
    longest: Longest,
    told: Option<f64>,
}

/// The longest gaps, in seconds, that ended in each of the last weeks, the latest first.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
struct Longest {
    week: u64,
    seconds: [f64; WEEKS],
}

/// The gaps between traces of one agent, or of one version of it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Gaps {
    first: Option<Timestamp>,
    last: Timestamp,
    count: u64,
    // Seconds in gaps of up to 1, 2, 4, .. seconds; older ones count less.
    seconds: Vec<f64>,
    longest: LongestGap,
    decayed: Timestamp,
}

/// The longest of the gaps, as far as it still counts.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
struct LongestGap {
    seconds: f64,
    counts: f64,
}

impl AgentGaps {
    /// Adds the time of the next trace of an agent.
    pub(super) fn observe(&mut self, agent: &AgentKey, at: Timestamp, memory: Duration) {
        self.0.entry(agent.hash_of_all_versions()).or_default().observe(at, memory);
    }

    /// The longest gap of an agent, in seconds, that is still usual.
    pub(super) fn longest_usual(&self, agent: &AgentKey) -> Option<f64> {
        self.0.get(&agent.hash_of_all_versions())?.longest_usual()
    }

    /// Whether the longest usual gap of an agent has changed since the last call.
    pub(super) fn take_change(&mut self, agent: &AgentKey) -> bool {
        let Some(of) = self.0.get_mut(&agent.hash_of_all_versions()) else { return false };
        let usual = of.longest_usual();
        std::mem::replace(&mut of.told, usual) != usual
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets an agent.
    pub(super) fn forget(&mut self, agent: &AgentKey) {
        self.0.remove(&agent.hash_of_all_versions());
    }

    /// Forgets all agents except these.
    pub(super) fn keep<'a>(&mut self, agents: impl Iterator<Item = &'a AgentKey>) {
        let kept: BTreeSet<u64> = agents.map(AgentKey::hash_of_all_versions).collect();
        self.0.retain(|agent, _| kept.contains(agent));
    }
}

impl AgentGap {
    fn observe(&mut self, at: Timestamp, memory: Duration) {
        if self.gaps.first.is_some() {
            self.longest.observe(at, seconds(self.gaps.last, at));
        }
        self.gaps.observe(at, memory);
    }

    fn longest_usual(&self) -> Option<f64> {
        let most = self.gaps.usual()? * TIMES_USUAL;
        let longest = self.longest.seconds.into_iter().fold(0.0, f64::max);
        let is_known = self.gaps.known() >= WEEKENDS;
        Some(match (is_known, most >= NIGHT * TIMES_USUAL) {
            (true, _) => most.min(longest * TIMES_LONGEST),
            (false, true) => most.max(WEEKEND),
            (false, false) => most,
        })
    }
}

impl Longest {
    /// Adds a gap that ends at this moment.
    fn observe(&mut self, at: Timestamp, gap: f64) {
        let week = at.0 / WEEK;
        let passed = usize::try_from(week.saturating_sub(self.week)).unwrap_or(WEEKS).min(WEEKS);
        self.seconds.rotate_right(passed);
        self.seconds[..passed].fill(0.0);
        self.week = self.week.max(week);
        self.seconds[0] = self.seconds[0].max(gap);
    }
}

impl Gaps {
    /// Adds the time of the next trace; a time before the last counts as the same time.
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
            self.longest.counts *= left;
            self.decayed = at;
        }
        if gap >= self.longest.counts {
            self.longest = LongestGap { seconds: gap, counts: gap };
        }
        let place = place(gap);
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
        if self.count < ENOUGH || self.known() < KNOWN {
            return None;
        }
        let mut seconds = self.seconds.clone();
        let LongestGap { seconds: longest, counts } = self.longest;
        if counts < seconds.iter().sum::<f64>() * OFTEN
            && let Some(alike) = seconds.get_mut(place(longest))
        {
            *alike = (*alike - counts).max(0.0);
        }
        let all: f64 = seconds.iter().sum();
        let mut longer = all;
        let place = seconds.iter().position(|seconds| {
            longer -= seconds;
            longer <= all * RARE
        });
        place.map(edge)
    }

    /// The seconds that the gaps span.
    fn known(&self) -> f64 {
        self.first.map_or(0.0, |first| seconds(first, self.last))
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.0.saturating_sub(from.0) as f64 / 1e9
}

/// The power of two that a gap is counted under.
fn place(gap: f64) -> usize {
    (0..MOST).find(|power| gap <= edge(*power)).unwrap_or(MOST - 1)
}

fn edge(power: usize) -> f64 {
    (power as f64).exp2()
}

/// Powers of two that distinguish gaps: 2^31 s are 68 years.
const MOST: usize = 32;

/// Share of the time in gaps that are not usual.
const RARE: f64 = 0.05;

/// Share of the time from which on a single gap is usual, such as the first weekend.
const OFTEN: f64 = 0.1;

/// Number of gaps, and the seconds that they must span, before any is usual: a night has to be among them.
const ENOUGH: u64 = 20;
const KNOWN: f64 = 86_400.0;

/// Longest silence, as a multiple of the usual gap.
const TIMES_USUAL: f64 = 3.0;

/// Longest silence, as a multiple of the longest gap, and the seconds that must be known before: two weekends have to be among
/// them.
const TIMES_LONGEST: f64 = 2.5;
const WEEKENDS: f64 = 14.0 * 86_400.0;

/// Seconds of a usual gap that may be a night, and the longest silence of such an agent before its weekends are known.
const NIGHT: f64 = 8.0 * 3_600.0;
const WEEKEND: f64 = 80.0 * 3_600.0;

/// Weeks for which the longest gap is known.
const WEEKS: usize = 5;
const WEEK: u64 = 7 * 86_400_000_000_000;

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
        // Nor one in the first week, of more than a twentieth of it.
        let mut gaps = days(0..24, 7);
        let outage = |gaps: &mut Gaps| {
            gaps.observe(gaps.last().after(Duration::from_secs(9 * 3_600 + 60)), MEMORY);
            gaps.usual()
        };
        assert_eq!(outage(&mut gaps), Some(64.0));
        assert_eq!(outage(&mut gaps), Some(32_768.0));
    }

    #[test]
    fn an_agent_of_office_hours_is_not_missed_on_its_first_weekends() {
        let mut agent = AgentGap::default();
        let (mut silences, mut last) = (Vec::new(), None);
        for minute in 0..29 * 1_440 {
            let (day, hour) = (minute / 1_440, minute / 60 % 24);
            if day % 7 >= 5 || !(9..18).contains(&hour) {
                continue;
            }
            let at = Timestamp(minute * 60_000_000_000);
            let gap = last.map_or(0.0, |last| seconds(last, at));
            if gap > 48.0 * 3_600.0 {
                silences.push((gap / 3_600.0, agent.longest_usual().unwrap() / 3_600.0));
            }
            agent.observe(at, MEMORY);
            last = Some(at);
        }
        assert_eq!(silences.len(), 4);
        assert!(silences.iter().all(|(gap, usual)| gap < usual), "{silences:?}");
        // Nor a batch of each day or each week.
        assert!(batches(0..7, 2) > 48.0 && batches(0..1, 8) > 2.0 * 7.0 * 24.0);
    }

    /// The longest usual silence, in hours, of a batch of half an hour at two in the morning of these days of the week.
    fn batches(weekdays: std::ops::Range<u64>, days: u64) -> f64 {
        let mut agent = AgentGap::default();
        for day in (0..days).filter(|day| weekdays.contains(&(day % 7))) {
            for minute in 0..30 {
                let minutes = day * 1_440 + 120 + minute;
                agent.observe(Timestamp(minutes * 60_000_000_000), MEMORY);
            }
        }
        agent.longest_usual().unwrap() / 3_600.0
    }

    #[test]
    fn a_batch_may_be_left_out_once_and_not_for_days() {
        // Until two weeks are known, three times a power of two.
        assert!((batches(0..7, 14) - 109.2).abs() < 0.1);
        // Each day: two days pass if one is left out.
        assert!((batches(0..7, 60) - 58.8).abs() < 0.1);
        // On workdays: weekends, and those with a day more or two.
        assert!((batches(0..5, 60) - 178.8).abs() < 0.1);
    }

    #[test]
    fn a_long_silence_is_no_longest_one_after_five_weeks() {
        let mut agent = AgentGap::default();
        let hour = |hour: u64| Timestamp(hour * 3_600_000_000_000);
        (0..400).for_each(|at| agent.observe(hour(at), MEMORY));
        (500..700).for_each(|at| agent.observe(hour(at), MEMORY));
        let longest = agent.longest.seconds.into_iter().fold(0.0, f64::max);
        assert!((longest - 101.0 * 3_600.0).abs() < 1.0, "{longest}");
        (700..500 + 6 * 168).for_each(|at| agent.observe(hour(at), MEMORY));
        assert_eq!(agent.longest_usual(), Some(2.5 * 3_600.0));
    }

    #[test]
    fn before_a_day_nothing_is_known() {
        assert_eq!(days(0..12, 1).usual(), None);
        assert_eq!(Gaps::default().usual(), None);
    }
}
