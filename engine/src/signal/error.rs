//! Error: 0 when the trace ended in error, else 1.
//!
//! agentgauge's own (the source documents ignore a trace's status): a trace ended in error if its root failed or, unless the status
//! of the root is OK, its last model call. That is the last one of the outermost agent that makes any; a parallel one that
//! succeeded replaces it. A failed tool that the agent survived does not count, nor do failures within a tool or within a model
//! call that succeeded.

use super::Computation;
use crate::math::Quanta;

/// The signal's name.
pub const NAME: &str = "error";

/// The computation from how the trace ended.
pub(super) const COMPUTATION: Computation = Computation {
    score: |facts| Some(score(facts.error)),
    evidence: |facts, _| {
        let said = if facts.error {
            "the root or the last model call failed"
        } else {
            "neither the root nor the last model call failed"
        };
        vec![said.to_owned()]
    },
    in_documents: false,
};

/// Computes the signal.
pub fn score(error: bool) -> Quanta {
    Quanta(if error { 0 } else { Quanta::ONE })
}
