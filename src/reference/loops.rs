//! Loops: runs of tool calls that get nowhere, found by trying every beginning, every kind and every length.

use std::collections::BTreeSet;
use std::ops::Range;

use super::text::jaccard;
use super::tools::Call;
use crate::engine::loops::{Evidence, LoopKind, Severity};
use crate::engine::options::{LoopOptions, Thresholds};
use crate::engine::span::SpanId;

/// A loop.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) kind: LoopKind,
    pub(super) severity: Severity,
    pub(super) evidence: Evidence,
    /// Calls, or full periods of a cycle.
    pub(super) count: usize,
    /// The tools of one period.
    pub(super) tools: Vec<String>,
    /// The places from its first call to its last; calls made within others may be among them.
    pub(super) calls: Range<usize>,
    /// When its first call began, and when the last of its calls ended.
    pub(super) time: Range<u64>,
    /// The spans of its first calls.
    pub(super) spans: Vec<SpanId>,
    pub(super) input_tokens: Option<u64>,
    pub(super) output_tokens: Option<u64>,
    pub(super) cost: Option<f64>,
}

/// The use of a model call, for the cost of loops.
#[derive(Clone, Debug)]
pub(super) struct Spend {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) input_tokens: Option<u64>,
    pub(super) output_tokens: Option<u64>,
    pub(super) cost: Option<f64>,
}

/// The kinds of loops among calls, in the order in which they take calls.
const KINDS: [LoopKind; 4] =
    [LoopKind::ErrorRetry, LoopKind::ExactRepeat, LoopKind::NearRepeat, LoopKind::Cycle];

/// How many spans a loop names, at most.
const MOST_SPANS: usize = 100;

/// The longest period of a cycle.
const LONGEST: usize = 8;

/// The loops among calls, none of which spans a compaction of the conversation.
pub(super) fn find_apart(
    calls: &[Call],
    compacted: &[u64],
    spends: &[Spend],
    options: &LoopOptions,
) -> Vec<Found> {
    let begins = |at: &usize| {
        let first_after = |moment: &u64| calls.iter().position(|call| call.start >= *moment);
        *at == 0 || compacted.iter().any(|moment| first_after(moment) == Some(*at))
    };
    let begins: Vec<usize> = (0..calls.len()).filter(begins).collect();
    let mut found = Vec::new();
    for (place, first) in begins.iter().enumerate() {
        let end = begins.get(place + 1).copied().unwrap_or(calls.len());
        for part in find_nested(&calls[*first..end], spends, options) {
            let calls = first + part.calls.start..first + part.calls.end;
            found.push(Found { calls, ..part });
        }
    }
    found
}

/// The loops among calls in order, by their first call. Calls are a sequence with those that were made within the same call, and with no
/// others.
fn find_nested(calls: &[Call], spends: &[Spend], options: &LoopOptions) -> Vec<Found> {
    let mut found = Vec::new();
    let around: BTreeSet<_> = calls.iter().map(|call| call.within).collect();
    for within in around {
        let own: Vec<usize> = (0..calls.len()).filter(|at| calls[*at].within == within).collect();
        let sequence: Vec<Call> = own.iter().map(|at| calls[*at].clone()).collect();
        for entry in find(&sequence, options) {
            let calls = own[entry.calls.start]..own[entry.calls.end - 1] + 1;
            found.push(Found { calls, ..entry });
        }
    }
    found.sort_by_key(|found| found.calls.start);
    share(&mut found, spends);
    found
}

/// Gives each loop what was spent in it; what was spent in several loops that are known by more than names is that of the last.
fn share(found: &mut [Found], spends: &[Spend]) {
    let mut left: Vec<&Spend> = spends.iter().collect();
    for entry in found.iter_mut().rev() {
        if entry.evidence == Evidence::Names {
            spend(entry, spends.iter());
        } else {
            spend(entry, left.iter().copied());
            left.retain(|spend| !is_inside(spend, &entry.time));
        }
    }
}

/// The loops in a sequence of calls. A call that one kind has taken is in no loop of a later kind, and no such loop spans it.
fn find(calls: &[Call], options: &LoopOptions) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for kind in KINDS {
        let mut own: Vec<Found> = Vec::new();
        let mut first = 0;
        while first < calls.len() {
            let taken = |at: usize| found.iter().any(|found| found.calls.contains(&at));
            let end = (first..calls.len()).find(|at| taken(*at)).unwrap_or(calls.len());
            let run = longest(kind, &calls[first..end], options);
            let found = run.and_then(|(length, period)| {
                of_run(kind, period, &calls[first..first + length], first, options)
            });
            match found {
                Some(entry) => {
                    first = entry.calls.end;
                    own.push(entry);
                }
                None => first += 1,
            }
        }
        found.append(&mut own);
    }
    found.iter_mut().for_each(|found| place(found, calls));
    found
}

/// The loop that the agent itself reported at a time: the last calls of one tool before that.
pub(super) fn reported(calls: &[Call], at: u64, spends: &[Spend]) -> Found {
    let before = calls.iter().take_while(|call| call.start <= at).count();
    let mut first = before;
    while first > 0 && calls[first - 1].name == calls[before - 1].name {
        first -= 1;
    }
    let mut found = Found {
        kind: LoopKind::Reported,
        severity: Severity::Warning,
        evidence: Evidence::Text,
        count: before - first,
        tools: calls[first..before].iter().take(1).map(name).collect(),
        calls: first..before,
        time: 0..0,
        spans: Vec::new(),
        input_tokens: None,
        output_tokens: None,
        cost: None,
    };
    place(&mut found, calls);
    spend(&mut found, spends.iter());
    found
}

/// The length and the period of the longest run that begins with the first of these calls.
fn longest(kind: LoopKind, calls: &[Call], options: &LoopOptions) -> Option<(usize, usize)> {
    let goes = |holds: &dyn Fn(usize) -> bool| {
        let starts = (1..=calls.len()).take_while(|length| holds(*length));
        starts.last().map(|length| (length, 1))
    };
    match kind {
        LoopKind::ErrorRetry => goes(&|length| {
            let run = &calls[..length];
            run.iter().all(|call| call.failed == Some(true)) && is_of_one_tool(run) && in_turn(run)
        }),
        LoopKind::ExactRepeat => goes(&|length| {
            let run = &calls[..length];
            let same = run.iter().all(|call| normal(call) == normal(&run[0]));
            same && gets_nowhere(run) && is_of_one_tool(run) && in_turn(run)
        }),
        LoopKind::NearRepeat => goes(&|length| {
            let run = &calls[..length];
            let alike = run.windows(2).all(|pair| is_alike(&pair[0], &pair[1], options));
            alike && gets_nowhere(run) && is_of_one_tool(run) && in_turn(run)
        }),
        LoopKind::Cycle => {
            let runs = (2..=LONGEST).filter_map(|period| Some((cycle(calls, period)?, period)));
            let loops = runs
                .filter(|(length, period)| {
                    of_run(kind, *period, &calls[..*length], 0, options).is_some()
                })
                .collect::<Vec<_>>();
            let most = loops.iter().map(|(length, _)| *length).max()?;
            loops.into_iter().find(|(length, _)| *length == most)
        }
        LoopKind::Reported | LoopKind::OutputRepeat => None,
    }
}

/// The number of calls in the full periods of this length that begin with the first of these calls.
fn cycle(calls: &[Call], period: usize) -> Option<usize> {
    let holds = |length: &usize| {
        let run = &calls[..*length];
        let repeats = (period..*length).all(|at| asks(&run[at]) == asks(&run[at - period]));
        let places = (0..period).map(|place| run.iter().skip(place).step_by(period));
        let mut outcomes = places.map(|calls| calls.cloned().collect::<Vec<_>>());
        let known = run.iter().all(|call| call.name.is_some());
        repeats && known && in_turn(run) && outcomes.all(|calls| is_no_progress(&calls))
    };
    let length = (1..=calls.len()).take_while(holds).last()?;
    let full = length / period * period;
    let differ = calls.iter().take(period).any(|call| asks(call) != asks(&calls[0]));
    (differ && calls.len() >= 2 * period).then_some(full)
}

/// The tool and the arguments of a call, and whether it failed.
fn asks(call: &Call) -> (Option<&str>, Option<&str>, bool) {
    (call.name.as_deref(), normal(call), call.failed == Some(true))
}

/// The loop of a run whose calls are those from `first` on, if it is long enough for its kind, and not only of tools that are allowed to
/// repeat.
fn of_run(
    kind: LoopKind,
    period: usize,
    run: &[Call],
    first: usize,
    options: &LoopOptions,
) -> Option<Found> {
    let allowed = |call: &Call| options.allow.iter().any(|pattern| fits(pattern, &name(call)));
    if run.iter().all(allowed) {
        return None;
    }
    let count = run.len() / period;
    let by_names = (count as u64 >= options.names_only).then_some(Severity::Warning);
    let evidence = evidence(kind, run, period, options);
    let (evidence, severity) = match evidence {
        // The failed calls whose arguments were sent may be a loop without the others.
        Evidence::Names | Evidence::Arguments if kind == LoopKind::ErrorRetry => {
            let told = run.iter().filter(|call| call.arguments.is_some()).count();
            let severity = severity(kind, told, options);
            let evidence = severity.map_or(Evidence::Names, |_| Evidence::Arguments);
            (evidence, severity.or(by_names))
        }
        Evidence::Names | Evidence::Results => (evidence, by_names),
        Evidence::Arguments | Evidence::Full | Evidence::Text => {
            (evidence, severity(kind, count, options))
        }
    };
    Some(Found {
        kind,
        severity: severity?,
        evidence,
        count,
        tools: run.iter().take(period).map(name).collect(),
        calls: first..first + run.len(),
        time: 0..0,
        spans: Vec::new(),
        input_tokens: None,
        output_tokens: None,
        cost: None,
    })
}

/// The severity of so many calls whose arguments are known, or full periods of a cycle of such calls.
fn severity(kind: LoopKind, count: usize, options: &LoopOptions) -> Option<Severity> {
    let both = Thresholds { warning: options.warning, critical: options.critical };
    let own = options.by_kind.get(&kind).copied().unwrap_or(both);
    let is_least = |least: u64| count as u64 >= least;
    let critical = is_least(own.critical).then_some(Severity::Critical);
    critical.or_else(|| is_least(own.warning).then_some(Severity::Warning))
}

/// How much of a run is known from the wire. A failed call needs no result. Results alone are known if those of as many periods were
/// sent as a loop of names alone needs.
fn evidence(kind: LoopKind, run: &[Call], period: usize, options: &LoopOptions) -> Evidence {
    let arguments = run.iter().all(|call| call.arguments.is_some());
    let lacks = |call: &Call| {
        call.result.is_none() && !(kind == LoopKind::Cycle && call.failed == Some(true))
    };
    let incomplete: BTreeSet<usize> =
        (0..run.len()).filter(|at| lacks(&run[*at])).map(|at| at / period).collect();
    let complete = run.len() / period - incomplete.len();
    match (arguments, kind) {
        (true, LoopKind::ErrorRetry) => Evidence::Arguments,
        (false, LoopKind::ErrorRetry) => Evidence::Names,
        (true, _) if incomplete.is_empty() => Evidence::Full,
        (true, _) => Evidence::Arguments,
        (false, _) if complete as u64 >= options.names_only => Evidence::Results,
        (false, _) => Evidence::Names,
    }
}

/// Whether no call failed, and none had a new result.
fn gets_nowhere(run: &[Call]) -> bool {
    run.iter().all(|call| call.failed != Some(true)) && is_no_progress(run)
}

/// Whether all known results are equal, and the calls without a result took about the same time: none took both a second or
/// more and twice as long as another.
fn is_no_progress(run: &[Call]) -> bool {
    let results: BTreeSet<u64> = run.iter().filter_map(|call| call.result).collect();
    let timed = run.iter().filter(|call| call.result.is_none() && call.is_timed);
    let took: Vec<u64> = timed.map(|call| call.end.saturating_sub(call.start)).collect();
    let least = took.iter().min().copied().unwrap_or(0);
    let waited = took.iter().any(|took| *took >= 1_000_000_000 && *took / 2 >= least);
    results.len() < 2 && !waited
}

fn is_of_one_tool(run: &[Call]) -> bool {
    run.iter().all(|call| call.name.is_some() && call.name == run[0].name)
}

/// Whether each call began after the one before had ended; to a millisecond, if its start is in whole milliseconds.
fn in_turn(run: &[Call]) -> bool {
    run.windows(2).all(|pair| {
        let (before, after) = (&pair[0], &pair[1]);
        let early = if after.start % 1_000_000 == 0 { 1_000_000 } else { 0 };
        let together = (before.start, before.end) == (after.start, after.end);
        after.start + early >= before.end && !(together && after.start < after.end)
    })
}

fn normal(call: &Call) -> Option<&str> {
    call.arguments.as_ref().map(|arguments| arguments.text.as_str())
}

/// Whether the arguments of both calls are known and nearly the same.
fn is_alike(one: &Call, other: &Call, options: &LoopOptions) -> bool {
    let (Some(one), Some(other)) = (&one.arguments, &other.arguments) else { return false };
    let similar = jaccard(&one.values, &other.values) >= options.near_repeat_similarity;
    let any = !one.values.is_empty() || !other.values.is_empty();
    one.text == other.text || (any && similar)
}

/// Names the spans of a loop, and its time.
fn place(found: &mut Found, calls: &[Call]) {
    let calls = &calls[found.calls.clone()];
    found.spans = calls.iter().map(|call| call.span_id).take(MOST_SPANS).collect();
    let from = calls.first().map_or(0, |call| call.start);
    found.time = from..calls.iter().map(|call| call.end).max().unwrap_or(0);
}

/// Whether a model call began after a loop's first call began, and ended before its last one ended.
fn is_inside(spend: &Spend, time: &Range<u64>) -> bool {
    spend.start > time.start && spend.end <= time.end
}

/// Adds up the model calls inside a loop.
fn spend<'s>(found: &mut Found, spends: impl Iterator<Item = &'s Spend>) {
    let time = found.time.clone();
    for spend in spends.filter(|spend| is_inside(spend, &time)) {
        found.input_tokens = plus(found.input_tokens, spend.input_tokens);
        found.output_tokens = plus(found.output_tokens, spend.output_tokens);
        found.cost = plus(found.cost, spend.cost);
    }
}

/// The sum of the values that are known.
pub(super) fn plus<T: std::ops::Add<Output = T>>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        (one, other) => one.or(other),
    }
}

fn name(call: &Call) -> String {
    call.name.as_deref().unwrap_or_default().to_owned()
}

/// Whether a name fits a pattern in which `*` stands for any text.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices()
                .map(|(at, _)| at)
                .chain([rest.len()])
                .any(|at| fits(after, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_that_is_found_among_calls_is_looked_for_in_the_same_order() {
        let kinds = LoopKind::ALL.iter().copied().filter(|kind| kind.has_thresholds());
        assert_eq!(kinds.collect::<Vec<_>>(), KINDS);
    }
}
