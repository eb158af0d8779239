//! Runs of tool calls that continue over several traces of a session.
//!
//! If a library makes a trace of each model call, or of each step of an agent, a loop is spread over several traces. Traces form a
//! chain as long as no new user input comes between them, and none begins while the previous one is running. A chain is searched as
//! one sequence of calls; a loop is attributed to the trace in which its run ends.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::record::TraceRecord;
use crate::facts::{self, Loop, ToolCall, TurnStart};
use crate::loops::{self, Severity, Spend};
use crate::math::Quanta;
use crate::options::LoopOptions;
use crate::span::{IdHash, Tokens};

/// The loops of a chain as seen from one of its traces.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Link {
    /// Loops whose runs end in it.
    pub(super) ended: Vec<Loop>,
    /// Loops whose runs begin in it: it counts them, so that a run that grows counts once.
    pub(super) begun: Vec<Loop>,
    /// The worst severity of a loop with more evidence than names that has a call in it.
    pub(super) severity: Option<Severity>,
}

/// Whether a trace continues where the previous one in the session ended.
pub(super) fn goes_on(before: &TraceRecord, after: &TraceRecord) -> bool {
    let continues = match after.course.turn_start {
        TurnStart::Continued => true,
        TurnStart::Unknown => before.course.unfinished,
        TurnStart::Asked => false,
    };
    continues && follows(before, after)
}

/// Whether a trace began after the previous one had ended. As clocks of two hosts may differ, an overlap of up to a second, and of
/// up to half of the shorter trace, does not count.
fn follows(before: &TraceRecord, after: &TraceRecord) -> bool {
    const SKEW_NANOS: u64 = 1_000_000_000;
    let lasted = |trace: &TraceRecord| trace.end().0 - trace.start.0;
    let overlap = before.end().0.saturating_sub(after.start.0);
    let may_be_skew = overlap <= SKEW_NANOS.min(lasted(before).min(lasted(after)) / 2);
    may_be_skew || !loops::begins_before(after.start.0, before.end().0)
}

/// Finds the loops of a chain of traces in order; one link for each of them.
pub(super) fn links(chain: &[&TraceRecord], options: &LoopOptions) -> Vec<Link> {
    let (calls, owners) = calls(chain);
    let spends: Vec<Spend> = chain.iter().map(|trace| spend(trace)).collect();
    let mut links = vec![Link::default(); chain.len()];
    let compacted = compactions(chain);
    for found in loops::find_between(&calls, &compacted, &spends, options) {
        let Some(&[begins, .., ends]) = owners.get(found.calls.clone()) else { continue };
        let ids = chain[begins..=ends].iter().map(|trace| trace.id);
        let place = |at: usize| (at - owners.partition_point(|owner| *owner < begins)) as u64;
        let places = (place(found.calls.start), place(found.calls.end - 1));
        let entry = Loop {
            trace_ids: ids.collect(),
            calls: (begins == ends).then_some(places),
            ..found.entry
        };
        let severity = loops::worst([&entry]);
        for link in &mut links[begins..=ends] {
            link.severity = link.severity.max(severity);
        }
        links[begins].begun.push(entry.clone());
        links[ends].ended.push(entry);
    }
    links
}

/// All calls, and the index of each call's trace in the chain. A later trace may have the result of a call.
pub(super) fn calls(chain: &[&TraceRecord]) -> (Vec<ToolCall>, Vec<usize>) {
    let mut calls: Vec<ToolCall> = Vec::new();
    let mut owners = Vec::new();
    // The last call of each id.
    let mut asked: BTreeMap<IdHash, usize> = BTreeMap::new();
    // Greater than any `within` of the calls so far: calls in different traces never share a series.
    let mut further = 0;
    for (at, trace) in chain.iter().enumerate() {
        for result in &trace.said().results {
            let call = result.call_id.and_then(|id| asked.get(&id));
            if let Some(call) = call.and_then(|at| calls.get_mut(*at)) {
                call.result_hash = call.result_hash.or(result.hash);
                call.error = call.error.map(|error| error || result.failed);
            }
        }
        let own = calls.len();
        for mut call in trace.calls() {
            asked.extend(call.call_id.map(|id| (id, calls.len())));
            call.within = call.within.map(|at| at.saturating_add(further));
            calls.push(call);
        }
        let within = calls[own..].iter().filter_map(|call| call.within).max();
        further = within.map_or(further, |at| at.saturating_add(1));
        owners.resize(calls.len(), at);
    }
    (calls, owners)
}

/// When the conversation was cut down to a summary, in order.
pub(super) fn compactions(chain: &[&TraceRecord]) -> Vec<u64> {
    let mut all: Vec<u64> = chain.iter().flat_map(|trace| trace.compactions()).copied().collect();
    all.sort_unstable();
    all
}

/// What a trace of a chain cost, as if it were one model call: such traces mostly have one.
fn spend(trace: &TraceRecord) -> Spend {
    let facts::Tokens { input, output } = trace.tokens();
    Spend {
        start: trace.start,
        end: trace.sent_end,
        tokens: Tokens { input, output, ..Tokens::default() },
        cost: trace.cost().map(Quanta),
    }
}
