//! Steps of a series of calls: a single call, or several in parallel.
//!
//! Calls that overlap, each with another one of them, are one step, such as those that a model requests together. A call that
//! continues while others follow one another is a step by itself, so that it does not merge all of these into one step.

use smallvec::{SmallVec, smallvec};

use super::{begins_before, overlap};
use crate::facts::ToolCall;

/// Parallel calls.
#[derive(Clone, Debug)]
pub(super) struct CallGroup<'c> {
    // Each with its position in the series; sorted by tools and arguments, so that the order in which they began makes no
    // difference.
    calls: SmallVec<[(usize, &'c ToolCall); 1]>,
}

impl<'c> CallGroup<'c> {
    /// A single call.
    pub(super) fn of(place: usize, call: &'c ToolCall) -> Self {
        Self { calls: smallvec![(place, call)] }
    }

    /// The calls, sorted by tools and arguments.
    pub(super) fn calls(&self) -> impl ExactSizeIterator<Item = &'c ToolCall> + Clone + '_ {
        self.calls.iter().map(|(_, call)| *call)
    }

    /// The calls with their positions.
    pub(super) fn placed(&self) -> impl Iterator<Item = (usize, &'c ToolCall)> + '_ {
        self.calls.iter().copied()
    }

    /// The number of calls.
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether the arguments of all calls are known.
    pub(super) fn is_known(&self) -> bool {
        self.calls().all(|call| call.arguments_hash.is_some())
    }

    /// The call that began first.
    fn first(&self) -> Option<&'c ToolCall> {
        self.calls.iter().min_by_key(|(place, _)| *place).map(|(_, call)| *call)
    }

    /// Whether the calls of another step have equal tools and known arguments, and none of them failed.
    pub(super) fn asks_same(&self, other: &Self) -> bool {
        let asks_same = |(one, other): (&ToolCall, &ToolCall)| {
            one.name == other.name
                && one.arguments_hash.is_some()
                && one.arguments_hash == other.arguments_hash
                && ![one, other].iter().any(|call| call.error == Some(true))
        };
        self.len() == other.len() && self.calls().zip(other.calls()).all(asks_same)
    }

    /// Whether a result of these calls differs from that of the same call of another step; results that were not sent do not
    /// differ.
    pub(super) fn is_told_otherwise(&self, other: &Self) -> bool {
        let mut both = self.calls().zip(other.calls());
        both.any(|(one, other)| {
            one.result_hash.zip(other.result_hash).is_some_and(|(one, other)| one != other)
        })
    }

    /// Whether a later step began before this one had ended.
    pub(super) fn overlaps(&self, later: &Self) -> bool {
        later.first().is_some_and(|first| self.calls().any(|call| overlap(call, first)))
    }

    fn sort(&mut self) {
        self.calls.sort_by(|(at, a), (other, b)| {
            let failed = |call: &ToolCall| call.error == Some(true);
            a.name
                .cmp(&b.name)
                .then_with(|| a.arguments_hash.cmp(&b.arguments_hash))
                .then_with(|| failed(a).cmp(&failed(b)))
                .then_with(|| a.result_hash.cmp(&b.result_hash))
                .then_with(|| at.cmp(other))
        });
    }
}

/// The steps of a series of calls in order.
pub(super) fn steps<'c>(calls: &[&'c ToolCall]) -> Vec<CallGroup<'c>> {
    let single = |(place, call): (usize, &&'c ToolCall)| CallGroup::of(place, call);
    // Usually calls follow one another.
    if !calls.windows(2).any(|pair| overlap(pair[0], pair[1])) {
        return calls.iter().enumerate().map(single).collect();
    }
    let beside = beside_several(calls);
    let mut steps: Vec<CallGroup<'c>> = Vec::with_capacity(calls.len());
    // The number of the last step that others may join, the previous call, and the end of the step.
    let mut last: Option<(usize, &ToolCall, u64)> = None;
    for (place, call) in calls.iter().enumerate() {
        let joined = last.filter(|(_, before, end)| {
            let in_order = before.start_unix_nano <= call.start_unix_nano;
            in_order && (overlap(before, call) || begins_before(call.start_unix_nano, *end))
        });
        match joined.filter(|_| !beside[place]) {
            Some((step, _, end)) => {
                steps[step].calls.push((place, call));
                last = Some((step, call, end.max(call.end_unix_nano)));
            }
            None => {
                if !beside[place] {
                    last = Some((steps.len(), call, call.end_unix_nano));
                }
                steps.push(CallGroup::of(place, call));
            }
        }
    }
    steps.iter_mut().for_each(CallGroup::sort);
    steps
}

/// For each call, whether it continues while others begin and end, one after another.
fn beside_several(calls: &[&ToolCall]) -> Vec<bool> {
    let mut times: Vec<(u64, u64)> =
        calls.iter().map(|call| (call.start_unix_nano, call.end_unix_nano)).collect();
    times.sort_unstable();
    let from = |start: u64| times.partition_point(|(other, _)| *other < start);
    // For calls from an index on, the earliest end; a call that takes no time has to end within the searched time.
    let mut ends = vec![u64::MAX; times.len() + 1];
    for (at, (start, end)) in times.iter().enumerate().rev() {
        ends[at] = ends[at + 1].min(end.saturating_add(u64::from(start == end)));
    }
    // The same for the second of two calls that follow one another, where the first is from an index on.
    let mut seconds = vec![u64::MAX; times.len() + 1];
    for (at, (_, end)) in times.iter().enumerate().rev() {
        seconds[at] = seconds[at + 1].min(ends[from(*end).max(at + 1)]);
    }
    let is_beside = |call: &&ToolCall| seconds[from(call.start_unix_nano)] <= call.end_unix_nano;
    calls.iter().map(is_beside).collect()
}
