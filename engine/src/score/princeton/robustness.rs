//! Robustness: does an agent still succeed when it is disturbed?
//!
//! ```text
//! R_x = min(accuracy under x / accuracy undisturbed, 1)      x: fault, environment, prompt
//! ```
//!
//! Source: Princeton, agent reliability, "Robustness" (whose "structural" is called environment here). Over all runs, not over
//! means of tasks; absent if either side is empty or no undisturbed run succeeds. If a run of several prompts is a list of scores,
//! the source counts any score above 0 as a success; here each is a run of its own, whose outcome is reported.

use super::Condition;
use super::names::{Name, Scores};
use super::outcome::Outcomes;
use super::score::Score;
use crate::math::ratio;

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

    /// Sets the scores that exist; their samples are the disturbed runs.
    pub(super) fn score(&self, scores: &mut Scores) {
        scores.set(Name::FaultRobustness, self.against(self.fault));
        scores.set(Name::EnvironmentRobustness, self.against(self.environment));
        scores.set(Name::PromptRobustness, self.against(self.prompt));
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
