//! Tool loop: 1 without a loop of tool calls, 0.4 at a warning, 0 at a critical one.
//!
//! Ours. A loop of which nothing but names is on the wire does not count: what differs may not have been sent. A repeated output is `loop_detection`'s business and does not count here.

use super::Computation;
use crate::loops::Severity;
use crate::math::Quanta;

/// The signal's name.
pub const NAME: &str = "tool_loop";

/// Over the loops that the trace has a call in.
pub(super) const COMPUTATION: Computation = Computation {
    score: |facts| Some(score(facts.loops)),
    evidence: |_, grounds| match grounds.loops.as_slice() {
        [] => vec!["no call of this trace is in a loop".to_owned()],
        loops => loops.to_vec(),
    },
    in_documents: false,
};

/// Computes the signal from the worst severity of the loops that a trace has a call in.
pub fn score(severity: Option<Severity>) -> Quanta {
    Quanta(match severity {
        None => Quanta::ONE,
        Some(Severity::Warning) => Quanta::ONE / 10 * 4,
        Some(Severity::Critical) => 0,
    })
}
