//! `error_retry`: the same tool failing repeatedly.
//!
//! A single retry after an error is no loop; the threshold of a warning leaves room for it. Arguments may change: the agent tries
//! again, and the tool keeps refusing. Enough calls with known arguments are a loop by themselves; calls without them do not weaken
//! it. Of parallel calls all have to fail.

use super::call_group::CallGroup;
use super::{CallRun, Evidence, Need, length};
use crate::facts::ToolCall;

/// Finds all runs of failed calls.
pub(super) fn find(steps: &[CallGroup<'_>], need: &Need<'_>) -> Vec<CallRun> {
    need.runs_of_one_tool(steps, |steps, first| run_from(steps, first, need.least_known()))
}

/// How many of these steps have known arguments.
pub(super) fn known(steps: &[CallGroup<'_>]) -> u64 {
    steps.iter().filter(|step| step.is_known()).count() as u64
}

/// The longest run of failures that starts with this step; `least` steps with known arguments are enough for a loop.
fn run_from(steps: &[CallGroup<'_>], first: usize, least: u64) -> CallRun {
    let head = steps[first].calls().next();
    let fails = |call: &ToolCall| {
        call.error == Some(true)
            && !call.name.is_empty()
            && head.is_some_and(|head| call.name == head.name)
    };
    let length = length(&steps[first..], |step| step.calls().all(fails));
    let is_known = known(&steps[first..first + length]) >= least;
    let evidence = if is_known { Evidence::Arguments } else { Evidence::Names };
    CallRun { first, steps: length, period: 1, evidence }
}
