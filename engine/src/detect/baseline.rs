//! What is usual: the level of an agent's own past, and how its failures follow each other, in a row and within a session.

use serde::{Deserialize, Serialize};

use super::budget::days;
use crate::span::Timestamp;

/// Values, summed up.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct ValueSum {
    pub(super) count: u64,
    pub(super) sum: f64,
}

/// The past of a stream; its older part counts less.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Baseline {
    count: f64,
    sum: f64,
    after: [After; CELLS],
    // How many values are of another session than the one before them.
    changes: After,
    decayed: Timestamp,
    // Values that were not inherited from the version before.
    own: u64,
    // Whether it once had enough values.
    established: bool,
}

/// Values that the baseline has not learned yet: it learns them while there is no evidence of a change.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Pending {
    pub(super) all: ValueSum,
    after: [ValueSum; CELLS],
    changes: ValueSum,
    // Those of hours that are usually bad: they are not learned.
    bad_hours: ValueSum,
    // Those that the version before left.
    handed_on: u64,
}

/// The position of a value among those before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SequencePosition {
    /// The cell; `None`: nothing failed lately.
    pub(super) cell: Option<usize>,
    /// Whether the value before was of another session.
    pub(super) is_change: bool,
}

impl SequencePosition {
    /// Whether its own session failed just before.
    pub(super) fn is_within(self) -> bool {
        self.cell.is_some_and(|cell| cell >= WITHIN)
    }
}

/// The sum of the values of one cell.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
struct After {
    count: f64,
    sum: f64,
}

/// The level of values after others like them.
struct Follow {
    mean: f64,
    count: f64,
}

/// The last eight values: whether each was bad, the last one in the lowest bit.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub(super) struct Recent(u8);

impl ValueSum {
    pub(super) fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self { count: self.count.saturating_sub(other.count), sum: (self.sum - other.sum).max(0.0) }
    }

    /// Their mean in `[0,1]`; 0 if there are none.
    pub(super) fn mean(self) -> f64 {
        (self.sum / self.count.max(1) as f64).clamp(0.0, 1.0)
    }
}

impl Baseline {
    /// The usual level, in `[0,1]`; with little past it is near the objective's level, unless the past is worse: such a past was
    /// accepted, and an objective that the agent does not meet says nothing about it.
    pub(super) fn level(&self, objective: f64) -> f64 {
        let own = if self.count > 0.0 { self.sum / self.count } else { objective };
        ((self.sum + PRIOR * own.max(objective)) / (self.count + PRIOR)).clamp(0.0, 1.0)
    }

    /// The standard error of the usual level.
    pub(super) fn error(&self, objective: f64) -> f64 {
        let level = self.level(objective);
        (level * (1.0 - level) / (self.count + PRIOR)).sqrt()
    }

    /// The level of values in the cell of the next one, less its standard error; without such values, the level that is expected of
    /// failures with one cause.
    pub(super) fn level_after(&self, cell: Option<usize>, level: f64, pending: &Pending) -> f64 {
        let Some(cell) = cell.map(|cell| cell.min(CELLS - 1)) else { return level };
        let (first, least) = match cell {
            ..RUNS => (0, FOLLOWS),
            RUNS..WITHIN => return self.after[cell].above(level).surely(),
            WITHIN.. => (WITHIN, between(FOLLOWS_WITHIN, self.alternation(pending))),
        };
        let least = level.max(least);
        let mut follow = Follow { mean: least, count: PRIOR_AFTER };
        for after in &self.after[first..=cell] {
            // By chance alone a session seldom fails often: sessions that do so differ from those that fail once.
            follow =
                after.above(if first == WITHIN { follow.mean.max(least) } else { follow.mean });
        }
        follow.surely()
    }

    /// The level of the next value of a session that has failed for long: the longer it has, the less another failure says about
    /// the agent. 0 for other sessions.
    pub(super) fn level_of_long(&self, failed: usize, pending: &Pending) -> f64 {
        if failed < LONG {
            return 0.0;
        }
        let failed = failed as f64;
        let own = (failed + PRIOR_AFTER * FOLLOWS_WITHIN) / (failed + PRIOR_AFTER);
        // It follows itself, which says nothing about the others.
        let changes = self.changes_with(pending);
        let others = (changes.count - failed).max(ENOUGH);
        between(own, (changes.sum / others).min(1.0))
    }

    /// The share of values that are of another session than the one before; 0 if there are none.
    pub(super) fn alternation(&self, pending: &Pending) -> f64 {
        let changes = self.changes_with(pending);
        if changes.count > 0.0 { changes.sum / changes.count } else { 0.0 }
    }

    fn changes_with(&self, pending: &Pending) -> After {
        let mut changes = self.changes;
        changes.add(pending.changes);
        changes
    }

    /// Whether there is, or once was, enough of a past to compare with.
    pub(super) fn is_established(&self) -> bool {
        self.established
    }

    /// Whether its own values, without those handed on, are enough to compare with.
    pub(super) fn is_own(&self) -> bool {
        self.own >= OWN_ENOUGH
    }

    /// The first of the bets on a rise: with few values in the past, the level is not known well enough for the smallest bet.
    pub(super) fn first_bet(&self) -> usize {
        usize::from(self.count < WELL_KNOWN)
    }

    /// The baseline for the stream of the next version, which has no values of its own.
    pub(super) fn handed_on(self) -> Self {
        Self { own: 0, ..self }
    }

    /// Learns how the pending values follow each other, after ageing what it knows to this moment.
    pub(super) fn take_order(&mut self, pending: &mut Pending, at: Timestamp, memory: f64) {
        self.age(at, memory);
        for (after, tally) in self.after.iter_mut().zip(std::mem::take(&mut pending.after)) {
            after.add(tally);
        }
        self.changes.add(std::mem::take(&mut pending.changes));
    }

    /// Learns the pending values.
    pub(super) fn take_values(&mut self, pending: &mut Pending) {
        let all = std::mem::take(&mut pending.all).minus(std::mem::take(&mut pending.bad_hours));
        let handed_on = std::mem::take(&mut pending.handed_on);
        self.count += all.count as f64;
        self.sum += all.sum;
        self.own += all.count.saturating_sub(handed_on);
        self.established |= self.count >= ENOUGH;
    }

    /// A baseline of these values alone, which are enough, however few.
    pub(super) fn accepted(tally: ValueSum, at: Timestamp) -> Self {
        Self {
            count: tally.count as f64,
            sum: tally.sum,
            decayed: at,
            own: OWN_ENOUGH,
            established: true,
            ..Self::default()
        }
    }

    /// Makes the past count less: half in `memory` days, but no less than `ENOUGH` values.
    fn age(&mut self, at: Timestamp, memory: f64) {
        let passed = days(at.0.saturating_sub(self.decayed.0));
        if passed < AGE_STEP {
            return;
        }
        self.decayed = at;
        let least = (ENOUGH / self.count.max(ENOUGH)).min(1.0);
        let left = (-passed / memory).exp2().max(least);
        self.count *= left;
        self.sum *= left;
        self.changes.age(left);
        self.after.iter_mut().for_each(|after| after.age(left.powf(ORDER_AGES)));
    }
}

/// How often a failure is followed by another of its session, if that was measured where sessions alternate: there, a session that
/// fails alone says little about the agent; if there is only one session, it says everything.
fn between(alternating: f64, alternation: f64) -> f64 {
    FOLLOWS + (alternating - FOLLOWS) * alternation
}

impl After {
    fn add(&mut self, tally: ValueSum) {
        self.count += tally.count as f64;
        self.sum += tally.sum;
    }

    fn age(&mut self, left: f64) {
        self.count *= left;
        self.sum *= left;
    }

    /// The level with values at the expected one added.
    fn above(&self, expected: f64) -> Follow {
        let count = self.count + PRIOR_AFTER;
        Follow { mean: ((self.sum + PRIOR_AFTER * expected) / count).clamp(0.0, 1.0), count }
    }
}

impl Follow {
    /// The mean less its standard error.
    fn surely(&self) -> f64 {
        self.mean - (self.mean * (1.0 - self.mean) / self.count).sqrt()
    }
}

impl Pending {
    /// The same values, for the next version to learn.
    pub(super) fn handed_on(self) -> Self {
        Self { handed_on: self.all.count, ..self }
    }

    /// The number of values whose order is not learned yet.
    pub(super) fn new_order(&self) -> u64 {
        self.changes.count
    }

    /// The number of values, among those whose order is not learned yet, that come after another failure of their session.
    pub(super) fn within(&self) -> u64 {
        self.after[WITHIN..].iter().map(|tally| tally.count).sum()
    }

    /// Adds a value to its cell alone.
    pub(super) fn follow(&mut self, value: f64, place: SequencePosition) {
        if let Some(after) = place.cell.and_then(|cell| self.after.get_mut(cell)) {
            after.add(value);
        }
    }

    /// Forgets the values, but for how they followed each other.
    pub(super) fn forget_values(&mut self) {
        *self = Self { after: self.after, ..Self::default() };
    }

    /// Forgets how values follow each other.
    pub(super) fn forget_order(&mut self) {
        self.after = Default::default();
    }

    /// Adds a value that is not learned.
    pub(super) fn add_apart(&mut self, value: f64) {
        self.all.add(value);
        self.bad_hours.add(value);
    }

    pub(super) fn add(&mut self, value: f64, place: SequencePosition) {
        self.all.add(value);
        self.changes.add(f64::from(u8::from(place.is_change)));
        self.follow(value, place);
    }
}

impl Recent {
    pub(super) fn push(&mut self, bad: bool) {
        self.0 = (self.0 << 1) | u8::from(bad);
    }

    /// The cell of the next value: by the length of the run of bad values before it, else by how many of the last eight were
    /// bad; `None` if none was.
    pub(super) fn cell(self) -> Option<usize> {
        let (run, bad) = (self.0.trailing_ones() as usize, self.0.count_ones() as usize);
        match (run, bad) {
            (0, 0) => None,
            (0, bad) => Some(RUNS + bad.min(WITHIN - RUNS) - 1),
            (run, _) => Some(run.min(RUNS) - 1),
        }
    }
}

/// The cell of a value whose session has failed so many times in a row, at least once.
pub(super) fn cell_within(failed: usize) -> usize {
    WITHIN + failed.clamp(1, CELLS - WITHIN) - 1
}

/// Lengths of runs of bad values that have cells of their own.
const RUNS: usize = 6;

/// The first of the cells of values whose own session failed just before; before it are three by how many of the last eight were bad.
const WITHIN: usize = RUNS + 3;

/// Cells: kinds of values before another.
const CELLS: usize = WITHIN + 6;

/// Values of a past that is enough to compare with.
const ENOUGH: f64 = 100.0;

/// Values of a past that is known well enough to see the smallest rises.
const WELL_KNOWN: f64 = 1_000.0;

/// Values of its own, not handed on, of a past that is enough to compare with.
const OWN_ENOUGH: u64 = 100;

/// Number of values at the objective's level, or that of the past if that is worse, that are added to a past.
const PRIOR: f64 = 10.0;

/// How fast cells age, relative to the level; they have fewer values.
const ORDER_AGES: f64 = 0.125;

/// Values that are added to each cell: at the usual level, or after a run, of all sessions or of one, at the level of the cell before.
const PRIOR_AFTER: f64 = 10.0;

/// Prior share of first failures that are followed by another.
const FOLLOWS: f64 = 0.3;

/// Prior share of failures that are followed by another of their session, if sessions alternate.
const FOLLOWS_WITHIN: f64 = 0.9;

/// Number of failures of a session in a row after which it says more about itself than other sessions do.
const LONG: usize = 8;

/// Days that pass before the past ages.
const AGE_STEP: f64 = 1.0 / 24.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_that_fail_a_few_times_by_chance_say_nothing_of_those_that_fail_for_long() {
        let (mut baseline, mut pending) = (Baseline::default(), Pending::default());
        let place = |failed| SequencePosition { cell: Some(cell_within(failed)), is_change: true };
        for number in 0..1_000 {
            pending.add(f64::from(u8::from(number % 11 == 0)), place(1 + number % 4));
        }
        baseline.take_order(&mut pending, Timestamp(1), 14.0);
        let after = |failed| baseline.level_after(place(failed).cell, 0.1, &pending);
        assert!(after(1) < 0.2 && after(4) < 0.2, "{} {}", after(1), after(4));
        assert!(after(6) > 0.75 && after(20) > 0.75, "{} {}", after(6), after(20));
        // What fails for long does so more and more surely.
        (0..30).for_each(|_| pending.add(1.0, place(6)));
        baseline.take_order(&mut pending, Timestamp(2), 14.0);
        let after = |failed| baseline.level_after(place(failed).cell, 0.1, &pending);
        assert!(after(6) > 0.9 && after(4) < 0.2, "{} {}", after(6), after(4));
    }
}
