//! `error_retry`: the same tool failing, each time, again and again.
//!
//! A single retry after an error is no loop; the threshold of a warning leaves room for it. Arguments may change: the
//! agent tries again, and the tool keeps refusing. Calls whose arguments are on the wire are a loop by themselves if they are enough;
//! others among them take nothing from it.

use super::{Evidence, Need, Run, overlap};
use crate::facts::ToolCall;

/// Finds all runs of failed calls.
pub(super) fn find(calls: &[&ToolCall], need: &Need<'_>) -> Vec<Run> {
    need.runs_of_one_tool(calls, |calls, first| run_from(calls, first, need.least_known()))
}

/// How many of these calls have their arguments on the wire.
pub(super) fn known(calls: &[&ToolCall]) -> u64 {
    calls.iter().filter(|call| call.arguments_hash.is_some()).count() as u64
}

/// The longest run of failures that starts with this call; `least` calls with arguments are enough for a loop.
fn run_from(calls: &[&ToolCall], first: usize, least: u64) -> Run {
    let head = &calls[first];
    let fails = |call: &ToolCall| call.error == Some(true) && !call.name.is_empty();
    let goes_on = |pair: &&[&ToolCall]| {
        fails(pair[1]) && pair[1].name == head.name && !overlap(pair[0], pair[1])
    };
    let more = if fails(head) { calls[first..].windows(2).take_while(goes_on).count() } else { 0 };
    let run = &calls[first..=first + more];
    let is_known = known(run) >= least;
    let evidence = if is_known { Evidence::Arguments } else { Evidence::Names };
    Run { first, calls: run.len(), period: 1, evidence }
}
