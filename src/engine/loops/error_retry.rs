//! `error_retry`: the same tool failing, each time, again and again.
//!
//! One retry after an error is a retry; the threshold of a warning leaves room for it. Arguments may change: the
//! agent tries, and the tool keeps refusing.

use super::{Evidence, Run, overlap};
use crate::engine::update::ToolCall;

/// Finds all runs of two failed calls or more.
pub(super) fn find(calls: &[ToolCall]) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut first = 0;
    while first < calls.len() {
        let run = run_from(calls, first);
        first += run.calls;
        if run.calls > 1 {
            runs.push(run);
        }
    }
    runs
}

/// The longest run of failures that starts with this call.
fn run_from(calls: &[ToolCall], first: usize) -> Run {
    let head = &calls[first];
    let fails = |call: &ToolCall| call.error == Some(true) && !call.name.is_empty();
    let goes_on = |pair: &&[ToolCall]| {
        fails(&pair[1]) && pair[1].name == head.name && !overlap(&pair[0], &pair[1])
    };
    let more = if fails(head) { calls[first..].windows(2).take_while(goes_on).count() } else { 0 };
    let run = &calls[first..=first + more];
    let known = run.iter().all(|call| call.arguments_hash.is_some());
    let evidence = if known { Evidence::Arguments } else { Evidence::Names };
    Run { first, calls: run.len(), count: run.len() as u64, evidence }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(at: u64, error: bool) -> ToolCall {
        ToolCall {
            name: "order".to_owned(),
            arguments_hash: Some(at),
            error: Some(error),
            start_unix_nano: at * 10 + 1,
            end_unix_nano: at * 10 + 6,
            ..ToolCall::default()
        }
    }

    #[test]
    fn failures_in_a_row_are_a_run_and_a_success_ends_it() {
        let errors = [false, true, true, true, false, true];
        let calls: Vec<_> = (0..).zip(errors).map(|(at, error)| call(at, error)).collect();
        assert_eq!(
            find(&calls),
            [Run { first: 1, calls: 3, count: 3, evidence: Evidence::Arguments }]
        );
    }

    #[test]
    fn failures_side_by_side_are_no_run() {
        let mut calls: Vec<_> = (0..3).map(|at| call(at, true)).collect();
        calls.iter_mut().for_each(|call| call.end_unix_nano = 1_000);
        assert_eq!(find(&calls), []);
    }
}
