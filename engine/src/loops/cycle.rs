//! `cycle`: a few different calls, one after the other, again and again: A-B-A-B.
//!
//! Each call equals the one a period before it: name, arguments, result, and whether it failed. Only full periods
//! count, and the shortest period that explains the run.

use super::{Evidence, Need, Outcomes, Run, overlap};
use crate::facts::ToolCall;

/// Lengths that a period may have, in calls.
const PERIODS: std::ops::RangeInclusive<usize> = 2..=8;

/// Finds all runs of repeated sequences.
pub(super) fn find(calls: &[&ToolCall], need: &Need<'_>) -> Vec<Run> {
    // A call that does not come again begins no run, unless one period is enough.
    let once = need.least() < 2;
    let recurs = |first: usize, period: usize| {
        calls.get(first + period).is_some_and(|call| same(call, calls[first]))
    };
    // All calls of a run are of the tools of its first period.
    let allowed = |first: usize, period: usize| {
        calls.get(first..first + period).is_some_and(|calls| need.allows_all(calls))
    };
    need.runs(calls, |calls, first| {
        let periods = PERIODS.filter(|period| once || recurs(first, *period));
        let periods = periods.filter(|period| !allowed(first, *period));
        let runs = periods.map(|period| run_from(calls, first, period, need));
        let runs = runs.filter(|run| need.is_met(run, calls));
        // Of runs with equally many calls the first has the shortest period.
        runs.reduce(|best, run| if run.calls > best.calls { run } else { best })
    })
}

/// The full periods of this length that start with this call.
fn run_from(calls: &[&ToolCall], first: usize, period: usize, need: &Need<'_>) -> Run {
    let none = Run { first, calls: 0, period, evidence: Evidence::Names };
    let rest = &calls[first..];
    if rest.len() < 2 * period || rest[..period].iter().all(|call| same(call, rest[0])) {
        return none;
    }
    let mut outcomes = [Outcomes::default(); 8];
    let mut length = 0;
    for (at, call) in rest.iter().enumerate() {
        let fits = !call.name.is_empty()
            && at.checked_sub(period).is_none_or(|before| same(call, rest[before]))
            && at.checked_sub(1).is_none_or(|before| !overlap(rest[before], call));
        if !fits || !outcomes[at % period].agree(call) {
            break;
        }
        length += 1;
    }
    let calls = length / period * period;
    Run { first, calls, period, evidence: need.evidence(&rest[..calls], period) }
}

/// Whether two calls ask the same; [`Outcomes`] compares their results.
fn same(a: &ToolCall, b: &ToolCall) -> bool {
    a.name == b.name
        && a.arguments_hash == b.arguments_hash
        && (a.error == Some(true)) == (b.error == Some(true))
}
