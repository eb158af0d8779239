//! `near_repeat`: the same tool with nearly the same arguments and the same result, again and again.
//!
//! Each call is compared with the one before it: by the Jaccard similarity of the sets of values in their arguments, wherever the
//! values stand.

use super::{Need, Outcomes, Run, overlap};
use crate::facts::ToolCall;

/// Finds all runs of similar calls.
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
            let similar = call.name == head.name
                && call.error != Some(true)
                && alike(pair[0], call, need.options.near_repeat_similarity)
                && !overlap(pair[0], call);
            if !similar || !outcomes.agree(call) {
                break;
            }
            length += 1;
        }
    }
    let evidence = need.evidence(&calls[first..first + length], 1);
    Run { first, calls: length, period: 1, evidence }
}

/// Whether the arguments of two calls are on the wire and alike.
fn alike(a: &ToolCall, b: &ToolCall, threshold: f64) -> bool {
    let Some(hashes) = a.arguments_hash.zip(b.arguments_hash) else { return false };
    let (a, b) = (&a.argument_values, &b.argument_values);
    let common = a.iter().filter(|value| b.binary_search(value).is_ok()).count();
    let all = a.len() + b.len() - common;
    hashes.0 == hashes.1 || (all > 0 && common as f64 / all as f64 >= threshold)
}
