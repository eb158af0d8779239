//! How long open traces of an agent are silent, and how long is usual for it.
//!
//! ```text
//! edges:            stall_after * 1, 1.5, 2, 3, 4, 6, 8, 12, 16
//! level of silence: the greatest edge that it has reached
//! usual:            the least level at which at most one trace in a hundred was silent as long or longer and then continued
//! lost:             traces that were silent until they had been open for `assemble.trace_max_age`: their root did not arrive
//! mean:             total silence of lost traces / length of the weeks that count: the mean number that are silent at a time
//! usually lost:     ceil(mean + 3 * sqrt(mean) + 1); 0 before three traces were lost
//! stalled:          open traces that have been silent for the usual level or longer, if there are more than are usually lost
//! ```
//!
//! A trace that continues after a silence shows that such a silence is healthy: a tool that takes minutes, a person who is asked.
//! It counts when it is done and its agent is certain, with the longest of its silences; the last four weeks with traces count.
//! Until three hundred of an agent's traces are done, those of its other versions count with its own, as fewer traces say little
//! about what one in a hundred does. For a trace whose agent no span has named yet, a silence is usual if it is usual for any agent
//! of its service. With fewer than twenty traces in all, the first edge is the usual level. Beyond the last edge every trace is
//! stalled. All numbers are counts, so shards add up, and what is stalled does not depend on the number of shards. A trace whose
//! agent waits for a person (`gen_ai.agent.paused`) is not silent. Silence counts at the earliest from when the process took the
//! shard over: before, it could not have noticed a span.
//!
//! A trace that lost spans, or whose process was stopped, looks like one that hangs. If that happens regularly, one more means
//! nothing, but many at a time do. Lost traces count for all versions of an agent; those lost under the name of a service, as no
//! span named an agent, count for all of its agents.

use std::collections::BTreeMap;
use std::time::Duration;

use super::facts::{Silences, SilencesOfWeek};
use super::span::Timestamp;

/// The level of a silence: the number of the greatest edge that it has reached.
pub type Level = u8;

/// The edges, in halves of `stall_after`.
const HALVES: [u64; 9] = [2, 3, 4, 6, 8, 12, 16, 24, 32];

/// Number of done traces that suffices to know what is usual, and the number that suffices without other versions.
const ENOUGH: u64 = 20;
const ENOUGH_OF_ONE: u64 = 300;

/// Weeks that count: the latest ones in which traces were done.
const WEEKS: usize = 4;
const WEEK: u64 = 7 * 24 * 3_600_000_000_000;

/// One in this many traces may be silent for the usual level or longer.
const RARE: u64 = 100;

/// Number of lost traces that suffices to know how many are usual.
const ENOUGH_LOST: u64 = 3;

/// The level of a silence; `None`: it has not reached the first edge.
pub fn level(silence_nanos: u64, stall_after: Duration) -> Option<Level> {
    let reached = HALVES.iter().filter(|halves| edge(**halves, stall_after) <= silence_nanos);
    u8::try_from(reached.count()).ok()?.checked_sub(1)
}

/// The edge after a level, or the first one, in nanoseconds; `None`: there is none.
pub fn next_edge(level: Option<Level>, stall_after: Duration) -> Option<u64> {
    let next = level.map_or(0, |level| usize::from(level) + 1);
    HALVES.get(next).map(|halves| edge(*halves, stall_after))
}

fn edge(halves: u64, stall_after: Duration) -> u64 {
    let nanos = u64::try_from(stall_after.as_nanos()).unwrap_or(u64::MAX);
    (nanos / 2).saturating_mul(halves)
}

impl Silences {
    /// Adds the counts of another shard.
    pub fn add(&mut self, other: &Self) {
        self.learn_from(other);
        add(&mut self.open, &other.open);
    }

    /// Adds the done traces of another version of the agent, but not its open ones.
    pub fn learn_from(&mut self, other: &Self) {
        for (week, SilencesOfWeek { traces, ended, .. }) in &other.weeks {
            let held = self.weeks.entry(*week).or_default();
            held.traces = held.traces.saturating_add(*traces);
            add(&mut held.ended, ended);
        }
        self.add_losses_of(other);
    }

    /// Adds the lost traces of another version of the agent, or those of its service whose agent no span has named.
    pub fn add_losses_of(&mut self, other: &Self) {
        for (week, SilencesOfWeek { lost, lost_nanos, .. }) in &other.weeks {
            let held = self.weeks.entry(*week).or_default();
            held.lost = held.lost.saturating_add(*lost);
            held.lost_nanos = held.lost_nanos.saturating_add(*lost_nanos);
        }
        self.leave_old_weeks();
    }

    /// Whether both have the same counts of done traces.
    pub fn has_counts_of(&self, other: &Self) -> bool {
        self.weeks == other.weeks
    }

    /// Whether there are enough traces to know what is usual without those of other versions.
    pub fn knows_enough(&self) -> bool {
        self.traces() >= ENOUGH_OF_ONE
    }

    /// Counts a trace that is done for the first time, with the longest silence after which it continued and, if it is lost, the
    /// nanoseconds of silence at its end.
    pub fn count(&mut self, silence: Option<Level>, lost: Option<u64>, now: Timestamp) {
        let week = self.weeks.entry(now.0 / WEEK).or_default();
        week.traces += 1;
        silence.into_iter().for_each(|level| *week.ended.entry(level).or_default() += 1);
        week.lost += u64::from(lost.is_some());
        week.lost_nanos = week.lost_nanos.saturating_add(lost.unwrap_or_default());
        self.leave_old_weeks();
    }

    fn leave_old_weeks(&mut self) {
        while self.weeks.len() > WEEKS {
            self.weeks.pop_first();
        }
    }

    fn traces(&self) -> u64 {
        self.weeks.values().fold(0, |sum, week| sum.saturating_add(week.traces))
    }

    /// Adds open traces that are silent.
    pub fn open(&mut self, level: Level, traces: u64) {
        *self.open.entry(level).or_default() += traces;
    }

    /// Removes open traces that were silent.
    pub fn remove_open(&mut self, level: Level, traces: u64) {
        if let Some(open) = self.open.get_mut(&level) {
            *open = open.saturating_sub(traces);
        }
        self.open.retain(|_, traces| *traces > 0);
    }

    /// Open traces that have been silent for the usual level or longer; 0 if no more than are usually lost.
    pub fn stalled(&self) -> u64 {
        let silent = self.open.range(self.usual()..).map(|(_, traces)| traces).sum();
        if silent > self.usually_lost() { silent } else { 0 }
    }

    /// How many lost traces are usually open at a time, at most.
    fn usually_lost(&self) -> u64 {
        let sum = |of: fn(&SilencesOfWeek) -> u64| self.weeks.values().map(of).sum::<u64>();
        if sum(|week| week.lost) < ENOUGH_LOST {
            return 0;
        }
        // The mean number that is open at a time, and the excess that chance explains in a Poisson distribution.
        let mean = sum(|week| week.lost_nanos) as f64 / (WEEK as f64 * self.weeks.len() as f64);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
        let usually = 3.0_f64.mul_add(mean.sqrt(), mean + 1.0).ceil() as u64;
        usually
    }

    /// The usual level: the first one at which silent traces are stalled.
    pub fn usual(&self) -> Level {
        let last = u8::try_from(HALVES.len() - 1).unwrap_or(Level::MAX);
        let traces = self.traces();
        let is_rare = |level: &Level| {
            let ended = self.weeks.values().flat_map(|week| week.ended.range(level..));
            let longer: u64 = ended.map(|(_, ended)| ended).sum();
            longer.saturating_mul(RARE) <= traces
        };
        if traces < ENOUGH { 0 } else { (0..last).find(is_rare).unwrap_or(last) }
    }
}

fn add(held: &mut BTreeMap<Level, u64>, more: &BTreeMap<Level, u64>) {
    more.iter().for_each(|(level, count)| *held.entry(*level).or_default() += count);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const STALL_AFTER: Duration = Duration::from_secs(900);

    fn minutes(minutes: u64) -> Option<Level> {
        level(minutes * 60_000_000_000, STALL_AFTER)
    }

    #[test]
    fn a_silence_has_the_level_of_the_last_edge_that_it_has_reached() {
        let levels = [0, 14, 15, 22, 23, 30, 59, 60, 10_000].map(minutes);
        let expected = [None, None, Some(0), Some(0), Some(1), Some(2), Some(3), Some(4), Some(8)];
        assert_eq!(levels, expected);
        assert_eq!(next_edge(None, STALL_AFTER), Some(900_000_000_000));
        assert_eq!(next_edge(Some(0), STALL_AFTER), Some(1_350_000_000_000));
        assert_eq!(next_edge(Some(8), STALL_AFTER), None);
    }

    /// The silences of one week with this many done traces, and how many of them were silent at each level and continued.
    pub(crate) fn done(week: u64, traces: u64, ended: &[(Level, u64)]) -> Silences {
        let ended = ended.iter().copied().collect();
        let of_week = SilencesOfWeek { traces, ended, ..SilencesOfWeek::default() };
        Silences { weeks: [(week, of_week)].into(), ..Silences::default() }
    }

    #[test]
    fn silences_that_end_are_healthy_once_enough_traces_are_known() {
        let with_open = |traces, ended: &[(Level, u64)]| {
            let mut silences = done(0, traces, ended);
            silences.open(0, 2);
            silences.open(2, 1);
            silences
        };
        assert_eq!(with_open(0, &[]).stalled(), 3);
        assert_eq!(with_open(19, &[(0, 1)]).stalled(), 3);
        // One in twenty: a silence of the first level is usual, a longer one is not.
        assert_eq!(with_open(20, &[(0, 1)]).stalled(), 1);
        // One in a hundred is not.
        let mut silences = with_open(100, &[(0, 1)]);
        assert_eq!(silences.stalled(), 3);
        silences.remove_open(0, 2);
        assert_eq!(silences.stalled(), 1);
    }

    #[test]
    fn no_silence_is_usual_beyond_the_last_edge() {
        let mut silences = done(0, 30, &[(8, 30)]);
        silences.open(7, 1);
        assert_eq!(silences.stalled(), 0);
        silences.open(8, 1);
        assert_eq!(silences.stalled(), 1);
    }

    #[test]
    fn a_new_version_knows_what_the_others_have_shown() {
        let mut old = done(0, 3_000, &[(2, 90)]);
        old.open(5, 1);
        // Twenty short traces say nothing about three in a hundred.
        let mut new = done(0, 20, &[]);
        new.open(2, 1);
        assert_eq!((new.knows_enough(), new.stalled()), (false, 1));
        new.learn_from(&old);
        assert_eq!((new.knows_enough(), new.stalled()), (true, 0));
        assert!(!done(0, 299, &[]).knows_enough() && done(0, 300, &[]).knows_enough());
    }

    #[test]
    fn where_roots_are_lost_again_and_again_one_silent_trace_says_nothing_and_many_do() {
        let silence = 45 * 60_000_000_000;
        let mut silences = done(0, 300, &[]);
        silences.open(0, 1);
        for stalled in [1, 1, 0] {
            silences.count(None, Some(silence), Timestamp(1));
            assert_eq!(silences.stalled(), stalled);
        }
        // One in a hundred of 500 traces a day: 0.16 are open at a time, hardly ever more than three.
        (1..4).for_each(|week| {
            (0..35).for_each(|_| silences.count(None, Some(silence), Timestamp(week * WEEK)));
        });
        let stalled = [2, 3, 4]
            .map(|open| Silences { open: [(0, open)].into(), ..silences.clone() }.stalled());
        assert_eq!(stalled, [0, 0, 4]);
        // An old version has lost them, and the new one has lost none.
        let mut new = done(3, 400, &[]);
        new.open(0, 3);
        assert_eq!(new.stalled(), 3);
        new.add_losses_of(&silences);
        assert_eq!((new.stalled(), new.traces()), (0, 400));
    }

    #[test]
    fn shards_add_up() {
        let (mut one, mut other) = (done(0, 15, &[]), done(0, 15, &[(3, 1)]));
        one.open(3, 1);
        assert_eq!((one.stalled(), other.stalled()), (1, 0));
        other.add(&one);
        one.add(&done(0, 15, &[(3, 1)]));
        assert_eq!((one.stalled(), &one), (0, &other));
    }

    #[test]
    fn what_was_usual_more_than_four_weeks_ago_is_forgotten() {
        let at = |week: u64| Timestamp(week * WEEK + 1);
        let mut silences = Silences::default();
        (0..1_000).for_each(|_| silences.count(Some(2), None, at(0)));
        silences.open(2, 1);
        // A week without traces does not age the others.
        for (week, stalled) in [(1, 0), (3, 0), (4, 0), (5, 1)] {
            (0..1_000).for_each(|_| silences.count(None, None, at(week)));
            assert_eq!(silences.stalled(), stalled, "week {week}");
        }
        // New silences count as usual before they outweigh the old ones.
        (0..70).for_each(|_| silences.count(Some(2), None, at(6)));
        assert_eq!(silences.stalled(), 0);
        // Shards count different weeks.
        let mut sum = done(0, 1_000, &[(2, 1_000)]);
        sum.open(2, 1);
        (1..6).for_each(|week| sum.add(&done(week, 1, &[])));
        assert_eq!(sum.stalled(), 1);
    }
}
