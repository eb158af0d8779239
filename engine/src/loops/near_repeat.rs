//! `near_repeat`: the same tool with nearly the same arguments and the same result, again and again.
//!
//! Each call is compared with those of the step before it, and with those at the same time: by the Jaccard similarity of the sets of
//! values in their arguments, wherever the values stand.

use super::step::Step;
use super::{MOST_CALLS, Need, Outcomes, Run, length};
use crate::facts::ToolCall;

/// Finds all runs of similar calls.
pub(super) fn find(steps: &[Step<'_>], need: &Need<'_>) -> Vec<Run> {
    need.runs_of_one_tool(steps, |steps, first| run_from(steps, first, need))
}

/// The longest run that starts with this step.
fn run_from(steps: &[Step<'_>], first: usize, need: &Need<'_>) -> Run {
    let threshold = need.options.near_repeat_similarity;
    let mut outcomes = Outcomes::default();
    let mut before: Option<&Step<'_>> = None;
    let length = length(&steps[first..], |step| {
        let others = || before.into_iter().chain((step.len() > 1).then_some(step));
        let is_like = |call: &ToolCall, other: &ToolCall| {
            call.name == other.name && alike(other, call, threshold)
        };
        let mut calls = step.calls();
        let same = step.len() <= MOST_CALLS
            && calls.all(|call| {
                let mut others = others().flat_map(Step::calls);
                call.error != Some(true)
                    && !call.name.is_empty()
                    && others.all(|other| is_like(call, other))
                    && outcomes.agree(call)
            });
        before = Some(step);
        same
    });
    let evidence = need.evidence(&steps[first..first + length], 1);
    Run { first, steps: length, period: 1, evidence }
}

/// Whether the arguments of two calls are on the wire and alike.
fn alike(a: &ToolCall, b: &ToolCall, threshold: f64) -> bool {
    let Some(hashes) = a.arguments_hash.zip(b.arguments_hash) else { return false };
    let (a, b) = (&a.argument_values, &b.argument_values);
    let common = a.iter().filter(|value| b.binary_search(value).is_ok()).count();
    let all = a.len() + b.len() - common;
    hashes.0 == hashes.1 || (all > 0 && common as f64 / all as f64 >= threshold)
}
