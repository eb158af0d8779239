//! The predicted probability of failure by which drops are found: the features and priors of `model.rs`, learned from traces as
//! they arrive.
//!
//! Predictions must keep their meaning for long, or a change of the model would look like one of the agent. So the model stays
//! fixed until as many new outcomes are known as before, at most 256 more, and is refitted only while nothing suggests a drop.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::model::{Alike, Row, fit, logistic, ranked, row};
use super::spread::Spread;
use crate::facts::Effort;

/// Outcomes of traces, and the model that was last fitted to them.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Learner {
    // The latest outcomes.
    rows: VecDeque<(Row, bool)>,
    // How many outcomes have ever arrived, and how many there must be before the model is refitted.
    outcomes: u64,
    next: u64,
    coefficients: Option<Row>,
}

impl Learner {
    /// The probability that a trace's run failed, in `[0,1]`; `None` before enough outcomes, or traces to compare it with, are
    /// known.
    pub(crate) fn chance(&self, effort: &Effort, usual: &Spread) -> Option<f64> {
        let coefficients = self.coefficients?;
        let row = row_among(usual, effort)?;
        Some(logistic(row.iter().zip(coefficients).map(|(value, held)| value * held).sum()))
    }

    /// Adds the outcome of a trace.
    pub(crate) fn learn(&mut self, effort: &Effort, usual: &Spread, failed: bool) {
        let Some(row) = row_among(usual, effort) else { return };
        self.rows.push_back((row, failed));
        if self.rows.len() > MOST_ROWS {
            self.rows.pop_front();
        }
        self.outcomes = self.outcomes.saturating_add(1);
    }

    /// Whether there is a model.
    pub(crate) fn is_made(&self) -> bool {
        self.coefficients.is_some()
    }

    /// Refits the model, if enough outcomes have arrived; returns whether it did.
    pub(crate) fn renew(&mut self) -> bool {
        let failed = self.rows.iter().filter(|(_, failed)| *failed).count();
        if self.outcomes < self.next.max(LEAST_OUTCOMES)
            || failed.min(self.rows.len() - failed) < LEAST_OF_EACH
        {
            return false;
        }
        let rows: Vec<(Row, f64)> =
            self.rows.iter().map(|(row, failed)| (*row, f64::from(u8::from(*failed)))).collect();
        self.coefficients = Some(fit(&rows).0);
        self.next = self.outcomes.saturating_add(self.outcomes.min(MOST_ROWS as u64));
        true
    }
}

/// The features of a trace, ranked among the usual traces.
fn row_among(usual: &Spread, effort: &Effort) -> Option<Row> {
    let ranked = ranked(effort, |measure, value| usual.rank(measure, value))?;
    Some(row(&ranked, effort, Alike::default()))
}

/// Most outcomes that a model is fitted to.
const MOST_ROWS: usize = 256;

/// Least number of outcomes for the first model.
const LEAST_OUTCOMES: u64 = 32;

/// Least number of outcomes of each kind, failed and not, for a model.
const LEAST_OF_EACH: usize = 5;

#[cfg(test)]
mod tests {
    use super::super::model::log_odds;
    use super::*;
    use crate::span::Timestamp;

    fn effort(model_calls: u64) -> Effort {
        Effort { model_calls, tool_calls: model_calls, nanos: model_calls, ..Effort::default() }
    }

    #[test]
    fn a_model_is_made_of_outcomes_and_stands_until_there_are_twice_as_many() {
        let mut usual = Spread::default();
        (0..100).for_each(|calls| usual.add(Timestamp(1), &effort(calls)));
        let mut learner = Learner::default();
        // Short runs fail.
        let outcomes: Vec<(u64, bool)> =
            (0..64).map(|run| (37 * run % 100, 37 * run % 100 < 40)).collect();
        for (calls, failed) in &outcomes[..31] {
            learner.learn(&effort(*calls), &usual, *failed);
        }
        assert!(!learner.renew() && learner.chance(&effort(5), &usual).is_none());
        learner.learn(&effort(outcomes[31].0), &usual, outcomes[31].1);
        assert!(learner.renew() && learner.is_made());
        let chance = |learner: &Learner, calls| learner.chance(&effort(calls), &usual).unwrap();
        assert!(chance(&learner, 5) > chance(&learner, 95));
        let before = learner.coefficients;
        for (calls, failed) in &outcomes[32..63] {
            learner.learn(&effort(*calls), &usual, *failed);
        }
        assert!(!learner.renew() && learner.coefficients == before);
        learner.learn(&effort(outcomes[63].0), &usual, outcomes[63].1);
        assert!(learner.renew() && learner.coefficients != before);
        (0..300).for_each(|_| learner.learn(&effort(1), &usual, true));
        assert_eq!(learner.rows.len(), MOST_ROWS);
        assert!(!learner.renew(), "all of what it knows failed");
    }

    #[test]
    fn the_base_is_learnt_as_any_other_coefficient() {
        let mut usual = Spread::default();
        (0..100).for_each(|calls| usual.add(Timestamp(1), &effort(calls)));
        let mut learner = Learner::default();
        (0..256).for_each(|run| learner.learn(&effort(run * 37 % 100), &usual, run % 4 == 0));
        assert!(learner.renew());
        let base = learner.coefficients.map(|held| held[0]).unwrap();
        assert!((base - log_odds(0.25)).abs() < 0.2, "{base}");
    }
}
