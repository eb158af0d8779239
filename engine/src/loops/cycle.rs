//! `cycle`: a few different calls, one after the other or in parallel, repeated: A-B-A-B.
//!
//! Each step has the same calls as the one a period before it: name, arguments, result, and whether they failed. Only full periods
//! count, and the shortest period that explains the run.

use std::ops::RangeInclusive;

use super::call_group::CallGroup;
use super::{CallRun, Evidence, MOST_CALLS, Need, Outcomes, length};
use crate::facts::ToolCall;

/// Lengths that a period may have, in steps; a period has several calls, at most [`MOST_CALLS`].
const PERIODS: RangeInclusive<usize> = 1..=MOST_CALLS;

/// Finds all runs of repeated sequences.
pub(super) fn find(steps: &[CallGroup<'_>], need: &Need<'_>) -> Vec<CallRun> {
    // A step that does not recur begins no run, unless one period is enough.
    let once = need.least() < 2;
    let recurs = |first: usize, period: usize| {
        steps.get(first + period).is_some_and(|step| same(step, &steps[first]))
    };
    // All calls of a run use the tools of its first period.
    let allowed = |first: usize, period: usize| {
        steps.get(first..first + period).is_some_and(|steps| need.allows_all(steps))
    };
    need.runs(steps, |steps, first| {
        let periods = PERIODS.filter(|period| once || recurs(first, *period));
        let periods = periods.filter(|period| !allowed(first, *period));
        let runs = periods.map(|period| run_from(steps, first, period, need));
        let runs = runs.filter(|run| need.is_met(run, steps));
        // Among runs with equally many steps, the first has the shortest period.
        runs.reduce(|best, run| if run.steps > best.steps { run } else { best })
    })
}

/// The full periods of this length that start with this step.
fn run_from(steps: &[CallGroup<'_>], first: usize, period: usize, need: &Need<'_>) -> CallRun {
    let none = CallRun { first, steps: 0, period, evidence: Evidence::Names };
    let rest = &steps[first..];
    if rest.len() < 2 * period || !is_period(&rest[..period]) {
        return none;
    }
    let mut outcomes = [Outcomes::default(); MOST_CALLS];
    let mut at = 0;
    let steps = length(rest, |step| {
        // The positions of its calls in the period begin after those of the earlier steps.
        let place: usize = rest[..at % period].iter().map(CallGroup::len).sum();
        let fits = at.checked_sub(period).is_none_or(|before| same(step, &rest[before]));
        at += 1;
        let known = |call: &ToolCall| !call.name.is_empty();
        fits && step
            .calls()
            .zip(&mut outcomes[place..])
            .all(|(call, outcomes)| known(call) && outcomes.agree(call))
    });
    let steps = steps / period * period;
    CallRun { first, steps, period, evidence: need.evidence(&rest[..steps], period) }
}

/// Whether these steps can be a period: they have several calls, which are not all equal.
fn is_period(steps: &[CallGroup<'_>]) -> bool {
    let calls = || steps.iter().flat_map(CallGroup::calls);
    let differ = calls().zip(calls().skip(1)).any(|(one, next)| !asks_same(one, next));
    differ && calls().nth(MOST_CALLS).is_none()
}

/// Whether the calls of two steps have equal tools and arguments; [`Outcomes`] compares their results.
fn same(a: &CallGroup<'_>, b: &CallGroup<'_>) -> bool {
    a.len() == b.len() && a.calls().zip(b.calls()).all(|(a, b)| asks_same(a, b))
}

fn asks_same(a: &ToolCall, b: &ToolCall) -> bool {
    a.name == b.name
        && a.arguments_hash == b.arguments_hash
        && (a.error == Some(true)) == (b.error == Some(true))
}
