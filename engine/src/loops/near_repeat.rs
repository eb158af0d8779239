//! `near_repeat`: the same tool with nearly the same arguments and the same result, again and again.
//!
//! Each call is compared with the one before it: by the Jaccard similarity of the sets of values in their arguments, wherever the
//! values stand.

use super::{Need, Run};
use crate::facts::ToolCall;

/// Finds all runs of similar calls.
pub(super) fn find(calls: &[&ToolCall], need: &Need<'_>) -> Vec<Run> {
    let threshold = need.options.near_repeat_similarity;
    need.runs_of_like_calls(calls, |before, _, call| alike(before, call, threshold))
}

/// Whether the arguments of two calls are on the wire and alike.
fn alike(a: &ToolCall, b: &ToolCall, threshold: f64) -> bool {
    let Some(hashes) = a.arguments_hash.zip(b.arguments_hash) else { return false };
    let (a, b) = (&a.argument_values, &b.argument_values);
    let common = a.iter().filter(|value| b.binary_search(value).is_ok()).count();
    let all = a.len() + b.len() - common;
    hashes.0 == hashes.1 || (all > 0 && common as f64 / all as f64 >= threshold)
}
