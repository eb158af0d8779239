//! Mends spans and records one by one, and rejects those that cannot be mended.

use std::time::Duration;

use super::RequestCounts;
use crate::engine::math::Quanta;
use crate::engine::span::{Span, SpanId, Timestamp, Tokens, TraceId};

/// The rules of repair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repair {
    /// When the request arrived; `None` for files, which have no arrival times.
    pub(super) arrival: Option<Timestamp>,
    // Times before and after these are replaced by the arrival.
    earliest: Timestamp,
    latest: Timestamp,
}

/// Counts of wrong values in the fields of spans and records, which were mended or left out. Both encodings count alike.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Odd {
    /// Strings that are not valid text.
    pub(super) strings: u64,
    /// Numbers that their field or their encoding cannot hold.
    pub(super) numbers: u64,
    /// Fields of another type than the schema's.
    pub(super) types: u64,
    /// Values that nest deeper than `ingest.max_nesting`.
    pub(super) deep: u64,
    /// Control characters that JSON does not allow.
    pub(super) controls: u64,
}

impl Odd {
    /// Adds the counts to the repairs of a tally.
    pub(super) fn add_to(self, tally: &mut RequestCounts) {
        let Self { strings, numbers, types, deep, controls } = self;
        for (why, count) in [
            ("invalid_utf8", strings),
            ("invalid_number", numbers),
            ("wrong_type", types),
            ("too_deep", deep),
            ("control_character", controls),
        ] {
            if count > 0 {
                repaired(tally, why, count);
            }
        }
    }
}

impl Repair {
    /// The rules for a request with this arrival: times too far in the future or in the past are replaced.
    pub(super) fn new(
        arrival: Option<Timestamp>,
        max_clock_skew: Duration,
        max_span_age: Duration,
    ) -> Self {
        let time = arrival.unwrap_or_default();
        let (earliest, latest) = (time.before(max_span_age), time.after(max_clock_skew));
        Self { arrival, earliest, latest }
    }

    /// The times of a span: present, plausible, and the end not before the start.
    #[inline]
    pub(super) fn times(
        &self,
        start: u64,
        end: u64,
        tally: &mut RequestCounts,
    ) -> (Timestamp, Timestamp) {
        let known = |time: u64| (time != 0).then_some(time);
        // The other time of the span is a better guess than the arrival.
        let start_known = known(start).or_else(|| known(end));
        let end_known = known(end).or_else(|| known(start));
        if start == 0 || end == 0 {
            repaired(tally, "time_missing", 1);
        }
        let start = self.plausible(start_known, tally);
        let end = self.plausible(end_known, tally);
        if end < start {
            repaired(tally, "end_before_start", 1);
        }
        (start, end.max(start))
    }

    /// A time of a record, else its other time, else the arrival.
    pub(super) fn time(&self, time: u64, otherwise: u64, tally: &mut RequestCounts) -> Timestamp {
        let known = [time, otherwise].into_iter().find(|time| *time != 0);
        self.plausible(known, tally)
    }

    /// The time of a report, which may lie far in the past, but not in the future.
    pub(super) fn reported(&self, time: Timestamp, tally: &mut RequestCounts) -> Timestamp {
        let Some(arrival) = self.arrival.filter(|_| time > self.latest) else { return time };
        repaired(tally, "time_in_future", 1);
        arrival
    }

    fn plausible(&self, time: Option<u64>, tally: &mut RequestCounts) -> Timestamp {
        let Some(arrival) = self.arrival else { return Timestamp(time.unwrap_or(0)) };
        let Some(time) = time.map(Timestamp) else { return arrival };
        if time > self.latest {
            repaired(tally, "time_in_future", 1);
            arrival
        } else if time < self.earliest {
            repaired(tally, "time_too_old", 1);
            arrival
        } else {
            time
        }
    }
}

/// The ids of a span, or the reason for rejecting it.
pub(super) fn ids(trace_id: &[u8], span_id: &[u8]) -> Result<(TraceId, SpanId), &'static str> {
    let trace_id = trace_id.try_into().map(TraceId).map_err(|_| "invalid_trace_id")?;
    let span_id = span_id.try_into().map(SpanId).map_err(|_| "invalid_span_id")?;
    if trace_id.is_zero() {
        return Err("invalid_trace_id");
    }
    if span_id.is_zero() { Err("invalid_span_id") } else { Ok((trace_id, span_id)) }
}

/// The id of a parent; an invalid one makes the span a root, and is counted unless it is empty or all zero.
pub(super) fn parent(id: &[u8], tally: &mut RequestCounts) -> Option<SpanId> {
    let parent = id.try_into().map(SpanId).ok().filter(|id| !id.is_zero());
    if parent.is_none() && id.iter().any(|byte| *byte != 0) {
        repaired(tally, "invalid_parent_id", 1);
    }
    parent
}

/// Mends the usage of a model call that a span reports: tokens and a cost that no call can have become unknown. Added to others,
/// they would hide them for good.
#[inline]
pub(super) fn usage(span: &mut Span, tally: &mut RequestCounts) {
    let Some(model) = &mut span.model else { return };
    if model.cost.is_some_and(|cost| !(Quanta(0)..=MAX_COST).contains(&cost)) {
        model.cost = None;
        repaired(tally, "cost_implausible", 1);
    }
    let Tokens { input, cached, cache_written, output } = &mut model.tokens;
    for count in [input, cached, cache_written, output] {
        if count.is_some_and(|count| count > MAX_TOKENS) {
            *count = None;
            repaired(tally, "tokens_implausible", 1);
        }
    }
}

/// Counts repairs.
pub(super) fn repaired(tally: &mut RequestCounts, why: &'static str, count: u64) {
    *tally.repaired.entry(why).or_default() += count;
}

/// Counts a span or record that is left out.
pub(super) fn rejected(tally: &mut RequestCounts, why: &'static str) {
    *tally.rejected.entry(why).or_default() += 1;
}

/// The most tokens that a model call can have read or written: far more than any model takes.
const MAX_TOKENS: u64 = u32::MAX as u64;

/// The most that a model call, or all calls of an agent's span, can cost: 10,000 dollars.
const MAX_COST: Quanta = Quanta(10_000 * Quanta::ONE);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::span::ModelFacts;

    const NOW: u64 = 1_790_000_000_000_000_000;
    const HOUR: u64 = 3_600_000_000_000;

    fn times(start: u64, end: u64) -> (u64, u64, Vec<&'static str>) {
        let (skew, age) = (Duration::from_secs(300), Duration::from_secs(86_400));
        let repair = Repair::new(Some(Timestamp(NOW)), skew, age);
        let mut tally = RequestCounts::default();
        let (start, end) = repair.times(start, end, &mut tally);
        (start.0, end.0, tally.repaired.into_keys().collect())
    }

    #[test]
    fn absurd_times_are_replaced_by_the_arrival() {
        assert_eq!(times(NOW - 5, NOW), (NOW - 5, NOW, vec![]));
        assert_eq!(times(0, NOW - 5), (NOW - 5, NOW - 5, vec!["time_missing"]));
        assert_eq!(times(0, 0), (NOW, NOW, vec!["time_missing"]));
        assert_eq!(times(NOW - 5, u64::MAX), (NOW - 5, NOW, vec!["time_in_future"]));
        assert_eq!(times(NOW - 25 * HOUR, NOW), (NOW, NOW, vec!["time_too_old"]));
        assert_eq!(times(NOW, NOW - 5), (NOW, NOW, vec!["end_before_start"]));
    }

    #[test]
    fn tokens_that_no_call_can_have_are_unknown() {
        let sent = |input| Tokens { input: Some(input), output: Some(7), ..Tokens::default() };
        let mended = |input| {
            let model = ModelFacts { tokens: sent(input), ..ModelFacts::default() };
            let mut span = Span { model: Some(model), ..Span::default() };
            let mut tally = RequestCounts::default();
            usage(&mut span, &mut tally);
            (span.model.unwrap().tokens, tally.repaired.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(mended(MAX_TOKENS), (sent(MAX_TOKENS), vec![]));
        for input in [MAX_TOKENS + 1, u64::MAX >> 1] {
            let expected = Tokens { input: None, ..sent(input) };
            assert_eq!(mended(input), (expected, vec![("tokens_implausible", 1)]));
        }
    }

    #[test]
    fn a_cost_that_no_call_can_have_is_unknown() {
        let more = Quanta(MAX_COST.0 + 1);
        for (cost, kept) in
            [(Quanta(0), true), (MAX_COST, true), (more, false), (Quanta(-1), false)]
        {
            let model = ModelFacts { cost: Some(cost), ..ModelFacts::default() };
            let mut span = Span { model: Some(model), ..Span::default() };
            let mut tally = RequestCounts::default();
            usage(&mut span, &mut tally);
            assert_eq!(span.model.unwrap().cost, Some(cost).filter(|_| kept));
            assert_eq!(tally.repaired.get("cost_implausible"), (!kept).then_some(&1));
        }
    }

    #[test]
    fn ids_have_their_length_and_are_not_zero() {
        assert!(ids(&[1; 16], &[1; 8]).is_ok());
        for length in [0, 3, 15, 17] {
            assert_eq!(ids(&vec![1; length], &[1; 8]), Err("invalid_trace_id"));
            assert_eq!(ids(&[1; 16], &vec![1; length]), Err("invalid_span_id"));
        }
        assert_eq!(ids(&[0; 16], &[1; 8]), Err("invalid_trace_id"));
        assert_eq!(ids(&[1; 16], &[0; 8]), Err("invalid_span_id"));
    }
}
