//! `exact_repeat`: the same tool with the same arguments and the same result, repeatedly.
//!
//! The same call with a changing result is polling, and a call that failed is a retry: both end the run. If the same call returns
//! something else after the run, the run was a wait for that, and is no loop. Arguments that were not sent count as equal; the
//! evidence shows how much was sent.

use super::call_group::CallGroup;
use super::{CallRun, Need, Outcomes, length};
use crate::facts::ToolCall;

/// Finds all runs of equal calls.
pub(super) fn find(steps: &[CallGroup<'_>], need: &Need<'_>) -> Vec<CallRun> {
    need.runs_of_one_tool(steps, |steps, first| run_from(steps, first, need))
}

/// The longest run that starts with this step; each of its steps may be the same call several times.
fn run_from(steps: &[CallGroup<'_>], first: usize, need: &Need<'_>) -> CallRun {
    let mut outcomes = Outcomes::default();
    let head = steps[first].calls().next();
    let same = |call: &ToolCall| {
        let asks_same =
            |head: &ToolCall| call.name == head.name && call.arguments_hash == head.arguments_hash;
        head.is_some_and(asks_same) && call.error != Some(true) && !call.name.is_empty()
    };
    let length =
        length(&steps[first..], |step| step.calls().all(|call| same(call) && outcomes.agree(call)));
    let evidence = need.evidence(&steps[first..first + length], 1);
    CallRun { first, steps: length, period: 1, evidence }
}
