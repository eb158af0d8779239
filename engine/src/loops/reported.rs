//! `reported`: the agent itself reports that it is in a loop, and no other kind is found in the trace.
//!
//! The run is the last calls of one tool before the report.

use super::{
    CallGroup, CallRun, Evidence, LoopKind, Severity, Spend, add_spend, entry, in_order, is_inside,
    time,
};
use crate::facts::{Loop, ToolCall};
use crate::span::Timestamp;

/// The loop that was reported at this time.
pub fn reported(calls: &[ToolCall], at: Timestamp, spends: &[Spend]) -> Loop {
    let before = calls.partition_point(|call| call.start_unix_nano <= at.0);
    let before = &calls[..before];
    let same = |call: &&ToolCall| before.last().is_some_and(|last| last.name == call.name);
    let calls = before.iter().rev().take_while(same).count();
    let first = before.len() - calls;
    let run = CallRun { first, steps: calls, period: 1, evidence: Evidence::Text };
    let steps: Vec<CallGroup<'_>> =
        before[first..].iter().enumerate().map(|(at, call)| CallGroup::of(at, call)).collect();
    let mut entry = entry((LoopKind::Reported, Severity::Warning), &run, &steps);
    let time = time(&in_order(&steps));
    add_spend(&mut entry, spends.iter().filter(|spend| is_inside(spend, &time)));
    entry
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_calls_that_came_last_are_meant() {
        let call = |name: &str, start_unix_nano| ToolCall {
            name: Arc::from(name),
            start_unix_nano,
            end_unix_nano: start_unix_nano + 1,
            ..ToolCall::default()
        };
        let calls = [call("a", 1), call("b", 3), call("a", 5), call("a", 7), call("c", 20)];
        let found = reported(&calls, Timestamp(10), &[]);
        assert_eq!((found.kind, &*found.tool, found.count), (LoopKind::Reported, "a", 2));
        assert_eq!(reported(&[], Timestamp(10), &[]).count, 0);
    }
}
