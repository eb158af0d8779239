//! Robustness: does an agent still succeed when it is disturbed?
//!
//! ```text
//! R_x = min(accuracy under x / accuracy undisturbed, 1)      x: fault, environment, prompt
//! ```
//!
//! Source: Princeton, agent reliability, "Robustness" (whose "structural" is our environment). Over all runs, not over
//! means of tasks; absent if either side is empty or nothing succeeds undisturbed.

use super::outcome::Outcomes;
use super::score::Score;
use super::{Condition, names};
use crate::engine::math::ratio;

/// Outcomes by condition.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Robustness {
    baseline: Outcomes,
    fault: Outcomes,
    environment: Outcomes,
    prompt: Outcomes,
}

impl Robustness {
    pub(super) fn observe(&mut self, condition: Condition, success: bool) {
        self.under(condition).observe(success);
    }

    pub(super) fn forget(&mut self, condition: Condition, success: bool) {
        self.under(condition).forget(success);
    }

    /// The scores that exist; their samples are the disturbed runs.
    pub(super) fn scores(&self) -> impl Iterator<Item = (&'static str, Score)> {
        let found = [
            (names::FAULT_ROBUSTNESS, self.against(self.fault)),
            (names::ENVIRONMENT_ROBUSTNESS, self.against(self.environment)),
            (names::PROMPT_ROBUSTNESS, self.against(self.prompt)),
        ];
        found.into_iter().filter_map(|(name, score)| Some((name, score?)))
    }

    fn against(&self, disturbed: Outcomes) -> Option<Score> {
        let of = |count: u64| i128::from(count);
        let undisturbed = of(self.baseline.successes) * of(disturbed.runs);
        (undisturbed > 0).then(|| Score {
            value: ratio(of(disturbed.successes) * of(self.baseline.runs), undisturbed).min(1.0),
            samples: disturbed.runs,
        })
    }

    fn under(&mut self, condition: Condition) -> &mut Outcomes {
        match condition {
            Condition::Baseline => &mut self.baseline,
            Condition::Fault => &mut self.fault,
            Condition::Environment => &mut self.environment,
            Condition::Prompt => &mut self.prompt,
        }
    }
}
