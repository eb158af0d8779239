//! Tool loop: 1 without a loop of tool calls, 0.4 at a warning, 0 at a critical one.
//!
//! agentgauge's own. A loop with evidence of names alone does not count, as arguments and results that were not sent may differ. A
//! repeated output does not count either: `loop_detection` covers that.

use super::Computation;
use crate::loops::Severity;
use crate::math::Quanta;

/// The signal's name.
pub const NAME: &str = "tool_loop";

/// The computation from the loops that have a call in the trace.
pub(super) const COMPUTATION: Computation = Computation {
    score: |facts| Some(score(facts.loops)),
    evidence: |_, grounds| match grounds.loops.as_slice() {
        [] => vec!["no call of this trace is in a loop".to_owned()],
        loops => loops.to_vec(),
    },
    in_documents: false,
};

/// Computes the signal from the worst severity of the loops that have a call in the trace.
pub fn score(severity: Option<Severity>) -> Quanta {
    Quanta(match severity {
        None => Quanta::ONE,
        Some(Severity::Warning) => Quanta::ONE / 10 * 4,
        Some(Severity::Critical) => 0,
    })
}
