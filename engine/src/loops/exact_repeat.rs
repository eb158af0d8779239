//! `exact_repeat`: the same tool with the same arguments and the same result, again and again.
//!
//! The same call with a changing result is polling, and a call that failed is a retry: both end the run.
//! Arguments that were not sent count as equal; the evidence tells how much was sent.

use super::{Need, Run};
use crate::facts::ToolCall;

/// Finds all runs of equal calls.
pub(super) fn find(calls: &[&ToolCall], need: &Need<'_>) -> Vec<Run> {
    need.runs_of_like_calls(calls, |_, head, call| call.arguments_hash == head.arguments_hash)
}
