//! `exact_repeat`: the same tool with the same arguments and the same result, again and again.
//!
//! The same call with a changing result is polling, and a call that failed is a retry: both end the run.
//! Arguments that were not sent count as equal; the evidence tells how much was sent.

use super::{Need, Outcomes, Run, overlap};
use crate::facts::ToolCall;

/// Finds all runs of equal calls.
pub(super) fn find(calls: &[&ToolCall], need: &Need<'_>) -> Vec<Run> {
    need.runs_of_one_tool(calls, |calls, first| run_from(calls, first, need))
}

/// The longest run that starts with this call.
fn run_from(calls: &[&ToolCall], first: usize, need: &Need<'_>) -> Run {
    let head = &calls[first];
    let mut outcomes = Outcomes::default();
    outcomes.agree(head);
    let mut length = 1;
    if !head.name.is_empty() && head.error != Some(true) {
        for pair in calls[first..].windows(2) {
            let call = &pair[1];
            let same = call.name == head.name
                && call.arguments_hash == head.arguments_hash
                && call.error != Some(true)
                && !overlap(pair[0], call);
            if !same || !outcomes.agree(call) {
                break;
            }
            length += 1;
        }
    }
    let evidence = need.evidence(&calls[first..first + length], 1);
    Run { first, calls: length, period: 1, evidence }
}
