//! All runs of an agent on one side, undisturbed or disturbed: means over tasks, counts over runs.

use super::names::{Name, PER_TASK, Scores};
use super::outcome::Outcomes;
use super::pass_hat_k::PassHatK;
use super::predictability::Predictability;
use super::run::Facts;
use super::score::Mean;
use super::task::Repeats;

/// Means over tasks, counts over runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    /// Number of runs, with or without a task.
    pub(super) runs: u64,
    outcomes: Outcomes,
    pub(super) predictability: Predictability,
    pub(super) pass_hat_k: PassHatK,
    tasks: [Mean; 5],
}

impl Pool {
    pub(super) fn observe(&mut self, facts: &Facts) {
        self.runs += 1;
        facts.success.into_iter().for_each(|success| self.outcomes.observe(success));
        if let (Some(confidence), Some(success)) = (facts.confidence, facts.success) {
            self.predictability.observe(confidence, success);
        }
    }

    pub(super) fn forget(&mut self, facts: &Facts) {
        self.runs -= 1;
        facts.success.into_iter().for_each(|success| self.outcomes.forget(success));
        if let (Some(confidence), Some(success)) = (facts.confidence, facts.success) {
            self.predictability.forget(confidence, success);
        }
    }

    /// Adds a task with its current scores.
    pub(super) fn observe_task(&mut self, task: &Repeats) {
        self.pass_hat_k.observe(task.outcomes);
        for (mean, score) in self.tasks.iter_mut().zip(task.scores()) {
            score.iter().for_each(|score| mean.observe(*score));
        }
    }

    /// Subtracts a task, before it changes.
    pub(super) fn forget_task(&mut self, task: &Repeats) {
        self.pass_hat_k.forget(task.outcomes);
        for (mean, score) in self.tasks.iter_mut().zip(task.scores()) {
            score.iter().for_each(|score| mean.forget(*score));
        }
    }

    /// Sets the scores that exist.
    pub(super) fn score(&self, scores: &mut Scores) {
        scores.set(Name::Accuracy, self.outcomes.accuracy());
        for (name, mean) in PER_TASK.into_iter().zip(&self.tasks) {
            scores.set(name, mean.result());
        }
        self.predictability.score(scores);
    }
}
