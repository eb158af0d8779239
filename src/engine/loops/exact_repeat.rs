//! `exact_repeat`: the same tool with the same arguments and the same result, again and again.
//!
//! The same call with a changing result is polling, and a call that failed is a retry: both end the run.
//! What is not on the wire cannot differ; the evidence says how much there was.

use super::{Evidence, Run, overlap};
use crate::engine::update::ToolCall;

/// Finds all runs of two calls or more.
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

/// The longest run that starts with this call.
fn run_from(calls: &[ToolCall], first: usize) -> Run {
    let head = &calls[first];
    let mut result = head.result_hash;
    let mut results_known = result.is_some();
    let mut length = 1;
    if !head.name.is_empty() && head.error != Some(true) {
        for pair in calls[first..].windows(2) {
            let call = &pair[1];
            let same_result =
                result.is_none() || call.result_hash.is_none() || result == call.result_hash;
            let same =
                call.name == head.name && call.arguments_hash == head.arguments_hash && same_result;
            if !same || call.error == Some(true) || overlap(&pair[0], call) {
                break;
            }
            result = result.or(call.result_hash);
            results_known &= call.result_hash.is_some();
            length += 1;
        }
    }
    let evidence = match (head.arguments_hash, results_known) {
        (None, _) => Evidence::Names,
        (Some(_), false) => Evidence::Arguments,
        (Some(_), true) => Evidence::Full,
    };
    Run { first, calls: length, count: length as u64, evidence }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(at: u64, arguments: Option<u64>, result: Option<u64>) -> ToolCall {
        ToolCall {
            name: "search".to_owned(),
            arguments_hash: arguments,
            result_hash: result,
            error: Some(false),
            start_unix_nano: at * 10 + 1,
            end_unix_nano: at * 10 + 6,
            ..ToolCall::default()
        }
    }

    #[test]
    fn equal_calls_in_a_row_are_a_run() {
        let calls: Vec<_> = (0..4).map(|at| call(at, Some(1), Some(2))).collect();
        assert_eq!(find(&calls), [Run { first: 0, calls: 4, count: 4, evidence: Evidence::Full }]);
    }

    #[test]
    fn a_changing_result_is_polling() {
        let calls: Vec<_> = (0..4).map(|at| call(at, Some(1), Some(at))).collect();
        assert_eq!(find(&calls), []);
    }

    #[test]
    fn a_failed_call_ends_a_run() {
        let mut calls: Vec<_> = (0..3).map(|at| call(at, Some(1), Some(2))).collect();
        calls[1].error = Some(true);
        assert_eq!(find(&calls), []);
    }

    #[test]
    fn parallel_calls_are_no_run() {
        let mut calls: Vec<_> = (0..3).map(|at| call(at, Some(1), Some(2))).collect();
        calls.iter_mut().for_each(|call| call.end_unix_nano = 1_000);
        assert_eq!(find(&calls), []);
    }

    #[test]
    fn unknown_tools_are_never_equal() {
        let mut calls: Vec<_> = (0..3).map(|at| call(at, Some(1), None)).collect();
        calls.iter_mut().for_each(|call| call.name.clear());
        assert_eq!(find(&calls), []);
    }

    #[test]
    fn what_is_not_on_the_wire_lowers_the_evidence() {
        let names: Vec<_> = (0..2).map(|at| call(at, None, Some(1))).collect();
        assert_eq!(find(&names)[0].evidence, Evidence::Names);
        let arguments =
            [call(0, Some(1), Some(1)), call(1, Some(1), None), call(2, Some(1), Some(2))];
        assert_eq!(
            find(&arguments),
            [Run { first: 0, calls: 2, count: 2, evidence: Evidence::Arguments }]
        );
    }
}
