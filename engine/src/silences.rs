//! How long open traces of an agent are silent, and how long is usual for it.
//!
//! ```text
//! edges:            stall_after * 1, 1.5, 2, 3, 4, 6, 8, 12, 16
//! level of silence: the greatest edge that it has reached
//! usual:            the least level that at most one in a hundred traces was silent for, or for longer, and then went on
//! stalled:          open traces that have been silent for the usual level or longer
//! ```
//!
//! A trace that goes on after a silence shows that such a one is healthy: a tool that takes minutes, a person who is asked. Before
//! twenty traces are done, those of the agent's other versions count with its own; are there too few of these, the first edge holds.
//! Beyond the last one every trace is stalled. All are counts, so shards add up, and what is stalled does not depend on how many there
//! are. A trace whose agent waits for somebody (`gen_ai.agent.paused`) is not silent.

use std::collections::BTreeMap;
use std::time::Duration;

use super::facts::Silences;

/// The level of a silence: the number of the greatest edge that it has reached.
pub type Level = u8;

/// The edges, in halves of `stall_after`.
const HALVES: [u64; 9] = [2, 3, 4, 6, 8, 12, 16, 24, 32];

/// Done traces that are enough to know what is usual.
const ENOUGH: u64 = 20;

/// One in this many traces may be silent for the usual level or longer.
const RARE: u64 = 100;

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
        self.traces = self.traces.saturating_add(other.traces);
        let sums = [(&mut self.ended, &other.ended), (&mut self.open, &other.open)];
        for (held, more) in sums {
            more.iter().for_each(|(level, count)| *held.entry(*level).or_default() += count);
        }
    }

    /// Adds the done traces and ended silences of another version of the agent, but not its open traces.
    pub fn learn_from(&mut self, other: &Self) {
        self.add(&Self { open: BTreeMap::new(), ..other.clone() });
    }

    /// Whether both have the same done traces and ended silences.
    pub fn show_as(&self, other: &Self) -> bool {
        (self.traces, &self.ended) == (other.traces, &other.ended)
    }

    /// Whether there are enough traces to know what is usual.
    pub fn knows_enough(&self) -> bool {
        self.traces >= ENOUGH
    }

    /// Counts a silence that something ended.
    pub fn end(&mut self, level: Level) {
        *self.ended.entry(level).or_default() += 1;
    }

    /// Adds open traces that are silent.
    pub fn open(&mut self, level: Level, traces: u64) {
        *self.open.entry(level).or_default() += traces;
    }

    /// Takes open traces that were silent back.
    pub fn unopen(&mut self, level: Level, traces: u64) {
        if let Some(open) = self.open.get_mut(&level) {
            *open = open.saturating_sub(traces);
        }
        self.open.retain(|_, traces| *traces > 0);
    }

    /// Open traces that have been silent for the usual level or longer.
    pub fn stalled(&self) -> u64 {
        self.open.range(self.usual()..).map(|(_, traces)| traces).sum()
    }

    fn usual(&self) -> Level {
        let last = u8::try_from(HALVES.len() - 1).unwrap_or(Level::MAX);
        let is_rare = |level: &Level| {
            let longer: u64 = self.ended.range(level..).map(|(_, ended)| ended).sum();
            longer.saturating_mul(RARE) <= self.traces
        };
        if !self.knows_enough() { 0 } else { (0..last).find(is_rare).unwrap_or(last) }
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn silences_that_end_are_healthy_once_enough_traces_are_known() {
        let mut silences = Silences::default();
        silences.open(0, 2);
        silences.open(2, 1);
        assert_eq!(silences.stalled(), 3);
        silences.end(0);
        silences.traces = 19;
        assert_eq!(silences.stalled(), 3);
        // One in twenty: a silence of the first level is usual, a longer one is not.
        silences.traces = 20;
        assert_eq!(silences.stalled(), 1);
        // One in a hundred is not.
        silences.traces = 100;
        assert_eq!(silences.stalled(), 3);
        silences.unopen(0, 2);
        assert_eq!(silences.stalled(), 1);
    }

    #[test]
    fn no_silence_is_usual_beyond_the_last_edge() {
        let mut silences = Silences { traces: 30, ..Silences::default() };
        (0..30).for_each(|_| silences.end(8));
        silences.open(7, 1);
        assert_eq!(silences.stalled(), 0);
        silences.open(8, 1);
        assert_eq!(silences.stalled(), 1);
    }

    #[test]
    fn a_new_version_knows_what_the_others_have_shown() {
        let mut old = Silences { traces: 30, ..Silences::default() };
        old.end(2);
        old.open(5, 1);
        let mut new = Silences { traces: 1, ..Silences::default() };
        new.open(2, 1);
        assert_eq!((new.knows_enough(), new.stalled()), (false, 1));
        new.learn_from(&old);
        assert_eq!((new.knows_enough(), new.stalled()), (true, 0));
    }

    #[test]
    fn shards_add_up() {
        let (mut one, mut other) = (Silences::default(), Silences::default());
        (one.traces, other.traces) = (15, 15);
        other.end(3);
        one.open(3, 1);
        assert_eq!((one.stalled(), other.stalled()), (1, 0));
        one.add(&other);
        assert_eq!(one.stalled(), 0);
    }
}
