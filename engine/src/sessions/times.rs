//! How long the calls of a trace took, in little memory, as sessions hold many traces.

use serde::{Deserialize, Serialize};

use super::halves::{halves, whole};
use crate::span::Timestamp;

/// The total time of model calls, the time of the longest call, and the start and the end of each tool call, in order.
///
/// The first two entries are the halves of the former two. Then there is usually one entry for each tool call: by how many
/// nanoseconds it began after the previous one (the first: after the trace), and how many it took. If one of these is 2^32 or more,
/// or negative, each call has two entries: the halves of its start, and those of its end. Empty: no call took any time.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub(super) struct Times(Box<[(u32, u32)]>);

impl Times {
    /// The times of a trace that began at `start`: those of its tool calls, and for model calls the total nanoseconds and those of
    /// the longest.
    pub(super) fn new(
        start: Timestamp,
        tools: impl ExactSizeIterator<Item = ToolTimes> + Clone,
        (model_nanos, longest_nanos): (u64, u64),
    ) -> Self {
        let timed = tools.clone().filter(|tool| tool.timed);
        let took = timed.map(|tool| tool.end.0.saturating_sub(tool.start.0));
        let longest_nanos = longest_nanos.max(took.max().unwrap_or(0));
        if tools.len() == 0 && model_nanos == 0 && longest_nanos == 0 {
            return Self::default();
        }
        let mut all = Vec::with_capacity(HEAD + tools.len());
        all.extend([model_nanos, longest_nanos].map(halves));
        let mut before = start;
        for ToolTimes { start, end, .. } in tools.clone() {
            let (Some(after), Some(took)) = (short(before, start), short(start, end)) else {
                all.truncate(HEAD);
                all.reserve_exact(2 * tools.len());
                all.extend(tools.flat_map(|tool| [halves(tool.start.0), halves(tool.end.0)]));
                break;
            };
            all.push((after, took));
            before = start;
        }
        Self(all.into_boxed_slice())
    }

    /// Time in model calls, in nanoseconds.
    pub(super) fn model_nanos(&self) -> u64 {
        self.0.first().map_or(0, joined)
    }

    /// The longest call of a model or a tool, in nanoseconds.
    pub(super) fn longest_call_nanos(&self) -> u64 {
        self.0.get(1).map_or(0, joined)
    }

    /// The start and the end of each of the tool calls of a trace that began at `start`.
    pub(super) fn of_tools(
        &self,
        start: Timestamp,
        tools: usize,
    ) -> impl Iterator<Item = (Timestamp, Timestamp)> + '_ {
        let all = self.0.get(HEAD..).unwrap_or_default();
        let (near, far) = if all.len() > tools { (&[][..], all) } else { (all, &[][..]) };
        let near = near.iter().scan(start, |before, (after, took)| {
            *before = Timestamp(before.0.saturating_add((*after).into()));
            Some((*before, Timestamp(before.0.saturating_add((*took).into()))))
        });
        let far = far.as_chunks().0.iter();
        let far = far.map(|[start, end]| (Timestamp(joined(start)), Timestamp(joined(end))));
        near.chain(far)
    }

    /// The bytes of memory that they take.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// When a tool call began and ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToolTimes {
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
    /// Whether these are its own rather than those of the model call that requested it.
    pub(super) timed: bool,
}

/// Entries before those of tool calls.
const HEAD: usize = 2;

/// The nanoseconds between two times, if they are in this order and fit.
fn short(from: Timestamp, to: Timestamp) -> Option<u32> {
    u32::try_from(to.0.checked_sub(from.0)?).ok()
}

fn joined((high, low): &(u32, u32)) -> u64 {
    whole(*high, *low)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn times(start: Timestamp, tools: &[(Timestamp, Timestamp)], of_models: (u64, u64)) -> Times {
        let tools =
            tools.iter().map(|(start, end)| ToolTimes { start: *start, end: *end, timed: true });
        Times::new(start, tools, of_models)
    }

    proptest! {
        #[test]
        fn they_are_kept_to_the_nanosecond_however_far_apart(
            start in 1_u64 << 60..(1 << 60) + 5,
            tools in prop::collection::vec((-3_i64..9, -3_i64..9, 0_usize..9), 0..6),
            of_models in (0_u64..2, 0_u64..1 << 40),
        ) {
            // Of nine factors most are small.
            let scaled = |by: i64, scale: usize| by * [1 << 30, 1, 1, 1, 1, 1, 1_000, 1_000, 1_000][scale];
            let at = |by: i64, scale| Timestamp(start.wrapping_add_signed(scaled(by, scale)));
            let tools: Vec<_> =
                tools.iter().map(|(from, to, scale)| (at(*from, *scale), at(*to, *scale))).collect();
            let start = Timestamp(start);
            let kept = times(start, &tools, of_models);
            let written = rmp_serde::to_vec_named(&kept).unwrap();
            let read: Times = rmp_serde::from_slice(&written).unwrap();
            let longest = tools.iter().map(|(start, end)| end.0.saturating_sub(start.0)).max();
            for kept in [kept, read] {
                prop_assert!(kept.of_tools(start, tools.len()).eq(tools.iter().copied()));
                prop_assert_eq!(kept.model_nanos(), of_models.0);
                prop_assert_eq!(kept.longest_call_nanos(), of_models.1.max(longest.unwrap_or(0)));
            }
        }
    }

    #[test]
    fn those_of_short_calls_take_eight_bytes_each() {
        let second = |at: u64| Timestamp(at * 1_000_000_000);
        let tools = [(second(4), second(8)), (second(8), second(12)), (second(8), second(9))];
        assert_eq!(times(second(0), &tools, (0, 0)).bytes(), 16 + 24);
        // One that began before its trace, one that took long.
        assert_eq!(times(second(5), &tools, (0, 0)).bytes(), 16 + 48);
        let long = tools.map(|(start, _)| (start, second(15)));
        assert_eq!(times(second(0), &long, (0, 0)).bytes(), 16 + 48);
        assert_eq!(times(second(0), &[], (0, 0)).bytes(), 0);
    }

    #[test]
    fn a_call_without_times_of_its_own_is_not_the_longest() {
        let tool = ToolTimes { start: Timestamp(5), end: Timestamp(9), timed: false };
        let longest =
            |timed| Times::new(Timestamp(1), [ToolTimes { timed, ..tool }].into_iter(), (8, 3));
        assert_eq!([true, false].map(|timed| longest(timed).longest_call_nanos()), [4, 3]);
    }
}
