//! The sums over the runs at one task.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::confidence::Confidences;
use super::last_runs::{LastRun, LastRuns, Moment};
use super::names::PER_TASK;
use super::outcome::Outcomes;
use super::run::Facts;
use super::sides::Sides;
use super::{TaskOptions, resource};
use crate::math::Quanta;

/// A task: its runs that can still be revised, and their sums.
#[derive(Clone, Debug, Default)]
pub(super) struct Task {
    pub(super) runs: BTreeMap<Arc<str>, Facts>,
    pub(super) sides: Sides<Repeats>,
}

/// Sums over runs at a task, undisturbed or disturbed.
#[derive(Clone, Debug, Default)]
pub(super) struct Repeats {
    /// Number of runs, settled ones included.
    pub(super) runs: u64,
    pub(super) outcomes: Outcomes,
    confidences: Confidences,
    last: LastRuns,
    scores: TaskScores,
}

/// The scores of a task, in the order of [`PER_TASK`].
pub(super) type TaskScores = [Option<Quanta>; 5];

impl Task {
    /// Whether there was never a run, or all were subtracted.
    pub(super) fn is_empty(&self) -> bool {
        self.sides.undisturbed.runs + self.sides.disturbed.runs == 0
    }
}

impl Repeats {
    /// Adds a run.
    pub(super) fn observe(&mut self, facts: &Facts, last: LastRun, options: &TaskOptions) {
        self.runs += 1;
        facts.success.into_iter().for_each(|success| self.outcomes.observe(success));
        facts.confidence.into_iter().for_each(|confidence| self.confidences.observe(confidence));
        self.last.insert(last, options.last_runs, options.formula);
        self.rescore(options);
    }

    /// Subtracts a run; the scores stay unchanged until [`Repeats::rescore`].
    pub(super) fn forget(&mut self, facts: &Facts, at: &Moment) {
        self.runs -= 1;
        facts.success.into_iter().for_each(|success| self.outcomes.forget(success));
        facts.confidence.into_iter().for_each(|confidence| self.confidences.forget(confidence));
        self.last.remove(at);
    }

    /// Whether there is room for an earlier run among the compared ones.
    pub(super) fn lacks_earlier(&self, options: &TaskOptions) -> bool {
        self.last.lacks(options.last_runs)
    }

    /// Adds an earlier run to the compared ones; `None`: there is no earlier one.
    pub(super) fn refill(&mut self, run: Option<LastRun>, options: &TaskOptions) {
        match run {
            Some(run) => self.last.refill(run, options.formula),
            None => self.last.have_all(),
        }
        self.rescore(options);
    }

    /// The scores, each quantised once.
    pub(super) fn scores(&self) -> &TaskScores {
        &self.scores
    }

    /// The scores that exist, by name.
    pub(super) fn named_scores(&self) -> BTreeMap<&'static str, f64> {
        let named = PER_TASK.into_iter().zip(self.scores);
        named.filter_map(|(name, score)| Some((name.name(), score?.to_f64()))).collect()
    }

    /// Recomputes the scores.
    pub(super) fn rescore(&mut self, options: &TaskOptions) {
        let found = [
            self.outcomes.consistency(options.formula),
            self.last.pairs().distribution(),
            self.last.pairs().sequence(),
            self.confidences.consistency(),
            resource::consistency(&self.last.resources()),
        ];
        self.scores = found.map(|score| score.and_then(Quanta::from_f64));
    }
}
