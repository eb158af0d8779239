//! Behavioural confidence: the share of steps that made progress.
//!
//! ```text
//! confidence = 1 - (failed or redundant steps) / steps
//! ```
//!
//! agentgauge's own, for traces whose confidence was neither reported nor judged. A step is a model or tool call; a redundant one
//! repeats an earlier tool call of its series with the same arguments and result, if its tool is not in `loops.allow`. Absent
//! without steps. Failed attempts are not steps of their own: one that failed within a model call that succeeded does not count,
//! and failed model calls that were retried at once, with success, are one step with the call that succeeded (all have one parent,
//! each began after the previous one had ended, and no tool was called between them). Never derived from wording, whose predictions
//! point the wrong way.

use super::Computation;
use crate::math::{Quanta, ratio};

/// The signal's name.
pub const NAME: &str = "confidence";

/// The computation from the trace's steps.
pub(super) const COMPUTATION: Computation = Computation {
    score: |facts| score(facts.steps, facts.wasted_steps),
    evidence: |facts, _| {
        let (wasted, steps) = (facts.wasted_steps, facts.steps);
        vec![format!(
            "{wasted} of {steps} steps (model and tool calls) failed or repeated an earlier call"
        )]
    },
    in_documents: false,
};

/// Computes the signal; `None` without steps.
pub fn score(steps: u64, wasted: u64) -> Option<Quanta> {
    let useful = i128::from(steps) - i128::from(wasted.min(steps));
    Quanta::from_f64(ratio(useful, i128::from(steps)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wasted_steps_cost_confidence() {
        assert_eq!(score(4, 1), Quanta::from_f64(0.75));
        assert_eq!(score(0, 0), None);
    }
}
