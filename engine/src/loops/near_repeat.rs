//! `near_repeat`: the same tool with nearly the same arguments and the same result, repeatedly.
//!
//! Each call is compared with the calls of the previous step, and with parallel ones: by the Jaccard similarity of the sets of
//! values in their arguments, each value with the keys under which it occurs. A step with a value that no earlier step had is
//! progress, such as the next page, row or item of a list: a new run begins with it. So it is no loop if each step progresses, but
//! it is one if the agent goes back and forth.

use std::collections::BTreeSet;

use super::call_group::CallGroup;
use super::{CallRun, MOST_CALLS, Need, Outcomes, length};
use crate::facts::ToolCall;

/// Finds all runs of similar calls.
pub(super) fn find(steps: &[CallGroup<'_>], need: &Need<'_>) -> Vec<CallRun> {
    let mut runs = Vec::new();
    let mut first = 0;
    while first < steps.len() {
        let begins = need.may_begin(&steps[first..]);
        let stretch = if begins { alike(&steps[first..], need) } else { 1 };
        let parts = parts(&steps[first..first + stretch]);
        let run = |part: &[usize]| {
            let (first, steps_of) = (first + part[0], part[1] - part[0]);
            let evidence = need.evidence(&steps[first..first + steps_of], 1);
            CallRun { first, steps: steps_of, period: 1, evidence }
        };
        let before = runs.len();
        runs.extend(parts.windows(2).map(run).filter(|run| need.is_met(run, steps)));
        // In a stretch without progress a run may begin later.
        let is_taken = parts.len() > 2 || runs.len() > before;
        first += if is_taken { stretch } else { 1 };
    }
    runs
}

/// The number of steps from the first one on that are each similar to the one before.
fn alike(steps: &[CallGroup<'_>], need: &Need<'_>) -> usize {
    let threshold = need.options.near_repeat_similarity;
    let mut outcomes = Outcomes::default();
    let mut before: Option<&CallGroup<'_>> = None;
    length(steps, |step| {
        let others = || before.into_iter().chain((step.len() > 1).then_some(step));
        let is_like = |call: &ToolCall, other: &ToolCall| {
            call.name == other.name && are_alike(other, call, threshold)
        };
        let mut calls = step.calls();
        let same = step.len() <= MOST_CALLS
            && calls.all(|call| {
                let mut others = others().flat_map(CallGroup::calls);
                call.error != Some(true)
                    && !call.name.is_empty()
                    && others.all(|other| is_like(call, other))
                    && outcomes.agree(call)
            });
        before = Some(step);
        same
    })
}

/// Where the parts of a stretch of similar steps begin, each with a step that makes progress, and where the last one ends.
fn parts(steps: &[CallGroup<'_>]) -> Vec<usize> {
    let mut parts = vec![0];
    let mut known: BTreeSet<u64> = BTreeSet::new();
    for (at, pair) in steps.windows(2).enumerate() {
        if at == 0 {
            known.extend(values(&pair[0]));
        }
        let count = known.len();
        // Usually the previous step has them.
        let had = |value: &u64| {
            pair[0].calls().any(|call| call.argument_values.binary_search(value).is_ok())
        };
        known.extend(values(&pair[1]).filter(|value| !had(value)));
        if known.len() > count {
            parts.push(at + 1);
        }
    }
    parts.push(steps.len());
    parts
}

/// The values in the arguments of a step.
fn values<'c>(step: &CallGroup<'c>) -> impl Iterator<Item = u64> {
    step.calls().flat_map(|call| call.argument_values.iter().copied())
}

/// Whether the arguments of two calls are known and similar.
fn are_alike(a: &ToolCall, b: &ToolCall, threshold: f64) -> bool {
    let Some(hashes) = a.arguments_hash.zip(b.arguments_hash) else { return false };
    let (a, b) = (&a.argument_values, &b.argument_values);
    let common = a.iter().filter(|value| b.binary_search(value).is_ok()).count();
    let all = a.len() + b.len() - common;
    hashes.0 == hashes.1 || (all > 0 && common as f64 / all as f64 >= threshold)
}
