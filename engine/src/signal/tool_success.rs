//! Tool success: the share of tool calls that did not fail.
//!
//! ```text
//! tool_success = 1 - failed tool calls / tool calls of which it is known whether they failed
//! ```
//!
//! agentgauge's own, for traces that did not end in error, which `error` covers. Absent if no call has a known outcome. It has no
//! weight unless one is set: agents recover from failed calls, so on public runs it hardly showed which of them failed
//! (docs/outcomes.md).

use super::Computation;
use crate::math::{Quanta, ratio};

/// The signal's name.
pub const NAME: &str = "tool_success";

/// The computation from the calls with a known outcome.
pub(super) const COMPUTATION: Computation = Computation {
    score: |facts| score(facts.error, facts.tool_calls.0, facts.tool_calls.1),
    evidence: |facts, _| {
        let (told, failed) = facts.tool_calls;
        vec![format!("{failed} of the {told} tool calls with a known outcome failed")]
    },
    in_documents: false,
};

/// Computes the signal; `None` for a trace that ended in error, and if no call has a known outcome.
pub fn score(error: bool, told: u64, failed: u64) -> Option<Quanta> {
    let well = i128::from(told) - i128::from(failed.min(told));
    Quanta::from_f64(ratio(well, i128::from(told))).filter(|_| !error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_share_of_calls_that_did_not_fail_unless_the_trace_did() {
        assert_eq!(score(false, 4, 1), Quanta::from_f64(0.75));
        assert_eq!(score(false, 0, 0), None);
        assert_eq!(score(true, 4, 1), None);
    }
}
