//! Loops: runs of tool calls without progress, found by trying every beginning, every kind and every length.

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
    /// The indices from its first call to its last; nested calls may be among them.
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

/// The kinds of loops among calls, in the order in which they claim calls.
const KINDS: [LoopKind; 4] =
    [LoopKind::ErrorRetry, LoopKind::ExactRepeat, LoopKind::NearRepeat, LoopKind::Cycle];

/// The most spans that a loop names.
const MOST_SPANS: usize = 100;

/// The most calls in a period of a cycle.
const LONGEST: usize = 8;

/// Calls at the same time, each with its index, ordered by what they ask.
type Step = Vec<(usize, Call)>;

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

/// The loops among calls in order, by their first call. The calls made within the same call form a sequence of their own.
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

/// Gives each loop the cost of the model calls in it; the cost of a call in several loops that are known by more than names belongs
/// to the last.
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

/// The loops in a sequence of calls. A step that one kind has claimed is in no loop of a later kind, and no such loop spans it.
fn find(calls: &[Call], options: &LoopOptions) -> Vec<Found> {
    let steps = steps(calls);
    let mut found: Vec<Found> = Vec::new();
    // Runs that only waited: they are neither loops nor parts of loops.
    let mut waits: Vec<Range<usize>> = Vec::new();
    for kind in KINDS {
        let mut own: Vec<Found> = Vec::new();
        let mut own_waits: Vec<Range<usize>> = Vec::new();
        let mut first = 0;
        while first < steps.len() {
            let taken = |at: usize| {
                waits
                    .iter()
                    .chain(found.iter().map(|found| &found.calls))
                    .any(|all| all.contains(&at))
            };
            let end = (first..steps.len()).find(|at| taken(*at)).unwrap_or(steps.len());
            if kind == LoopKind::NearRepeat {
                let (near, next) = find_near(&steps[..end], first, options);
                own.extend(near);
                first = next;
                continue;
            }
            let run = longest(kind, &steps[first..end], options);
            let found = run.and_then(|(length, period)| {
                let run = of_run(kind, period, &steps[first..first + length], first, options)?;
                Some((
                    run,
                    waited(kind, &steps[..first + length], &steps[first + length..], period),
                ))
            });
            first = found.as_ref().map_or(first + 1, |(entry, _)| entry.calls.end);
            match found {
                Some((entry, true)) => own_waits.push(entry.calls),
                Some((entry, false)) => own.push(entry),
                None => {}
            }
        }
        found.append(&mut own);
        waits.append(&mut own_waits);
    }
    for found in &mut found {
        let mut own: Vec<(usize, Call)> = steps[found.calls.clone()].concat();
        own.sort_by_key(|(place, _)| *place);
        let ends = own.first().zip(own.last()).map(|((first, _), (last, _))| *first..*last + 1);
        found.calls = ends.unwrap_or_default();
        let calls: Vec<Call> = own.into_iter().map(|(_, call)| call).collect();
        place(found, &calls);
    }
    found
}

/// The steps of a sequence of calls: each step has calls that overlap, each with another one of them; a call during which two others
/// begin and end, one after the other, is a step by itself.
fn steps(calls: &[Call]) -> Vec<Step> {
    let lies_in = |inner: &Call, outer: &Call| outer.start <= inner.start && inner.end <= outer.end;
    let is_beside = |outer: &Call| {
        (0..calls.len()).any(|one| {
            let mut others = (0..calls.len()).filter(|next| *next != one);
            lies_in(&calls[one], outer)
                && others.any(|next| {
                    let next = &calls[next];
                    calls[one].end <= next.start && lies_in(next, outer) && next.start < outer.end
                })
        })
    };
    let overlap =
        !in_turn(&calls.iter().map(|call| vec![(0, call.clone())]).collect::<Vec<Step>>());
    let mut steps: Vec<Step> = Vec::new();
    let mut last: Option<usize> = None;
    for (place, call) in calls.iter().enumerate() {
        let alone = overlap && is_beside(call);
        let joined = last.filter(|at| {
            let before = steps[*at].last().map(|(_, before)| before);
            let begun = before.is_some_and(|before| before.start <= call.start);
            begun && steps[*at].iter().any(|(_, other)| together(other, call))
        });
        match joined.filter(|_| !alone) {
            Some(at) => steps[at].push((place, call.clone())),
            None => {
                last = if alone { last } else { Some(steps.len()) };
                steps.push(vec![(place, call.clone())]);
            }
        }
    }
    for step in &mut steps {
        step.sort_by_key(|(place, call)| {
            let asked = normal(call).map(str::to_owned);
            (call.name.clone(), asked, call.failed == Some(true), call.result, *place)
        });
    }
    steps
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
    place(&mut found, &calls[first..before]);
    spend(&mut found, spends.iter());
    found
}

/// The length and the period of the longest run that begins with the first of these steps.
fn longest(kind: LoopKind, steps: &[Step], options: &LoopOptions) -> Option<(usize, usize)> {
    let goes = |holds: &dyn Fn(&[Call]) -> bool| {
        let all = |length: &usize| holds(&flat(&steps[..*length])) && in_turn(&steps[..*length]);
        (1..=steps.len()).take_while(all).last()
    };
    match kind {
        LoopKind::ErrorRetry => {
            let fails = |run: &[Call]| run.iter().all(|call| call.failed == Some(true));
            goes(&|run| fails(run) && is_of_one_tool(run)).map(|length| (length, 1))
        }
        LoopKind::ExactRepeat => {
            let same = |run: &[Call]| run.iter().all(|call| normal(call) == normal(&run[0]));
            goes(&|run| same(run) && gets_nowhere(run) && is_of_one_tool(run))
                .map(|length| (length, 1))
        }
        LoopKind::NearRepeat => {
            let most = goes(&|run| gets_nowhere(run) && is_of_one_tool(run))?;
            let near = |length: &usize| is_near(&steps[..*length], options);
            (1..=most).take_while(near).last().map(|length| (length, 1))
        }
        LoopKind::Cycle => {
            let runs = (1..=LONGEST).filter_map(|period| Some((cycle(steps, period)?, period)));
            let loops = runs
                .filter(|(length, period)| {
                    of_run(kind, *period, &steps[..*length], 0, options).is_some()
                })
                .collect::<Vec<_>>();
            let most = loops.iter().map(|(length, _)| *length).max()?;
            loops.into_iter().find(|(length, _)| *length == most)
        }
        LoopKind::Reported | LoopKind::OutputRepeat => None,
    }
}

/// Whether the calls after a run ask what those one period before them asked, and one call of their first period had another
/// result.
fn waited(kind: LoopKind, run: &[Step], after: &[Step], period: usize) -> bool {
    if kind != LoopKind::ExactRepeat && kind != LoopKind::Cycle {
        return false;
    }
    let all: Vec<&Step> = run.iter().rev().take(period).rev().chain(after).collect();
    let pairs = |at: usize| {
        all[at].iter().map(|(_, call)| call).zip(all[at + period].iter().map(|(_, call)| call))
    };
    let asks = |at: usize| {
        let same = |(one, next): (&Call, &Call)| {
            normal(one).is_some() && asked_by(one) == asked_by(next) && one.failed != Some(true)
        };
        all[at].len() == all[at + period].len() && pairs(at).all(same)
    };
    let differs = |at: usize| {
        pairs(at).any(|(one, next)| matches!((one.result, next.result), (Some(one), Some(next)) if one != next))
    };
    (0..period.min(after.len())).any(|last| (0..=last).all(asks) && differs(last))
}

/// The calls of these steps.
fn flat(steps: &[Step]) -> Vec<Call> {
    steps.iter().flatten().map(|(_, call)| call.clone()).collect()
}

/// The loops among the steps from `first` on that resemble each other, and where the search continues. A step with a value that no
/// step before it had begins a separate run.
fn find_near(steps: &[Step], first: usize, options: &LoopOptions) -> (Vec<Found>, usize) {
    let kind = LoopKind::NearRepeat;
    let Some((length, _)) = longest(kind, &steps[first..], options) else {
        return (Vec::new(), first + 1);
    };
    let end = first + length;
    let values = |steps: &[Step]| -> BTreeSet<(String, String)> {
        let calls = flat(steps).into_iter().filter_map(|call| call.arguments);
        calls.flat_map(|arguments| arguments.values).collect()
    };
    let moves_on = |at: &usize| {
        *at == first || !values(&steps[*at..=*at]).is_subset(&values(&steps[first..*at]))
    };
    let begins: Vec<usize> = (first..end).filter(moves_on).collect();
    let ends = begins.iter().skip(1).copied().chain([end]);
    let runs = begins.iter().zip(ends);
    let found: Vec<Found> = runs
        .filter_map(|(begin, end)| of_run(kind, 1, &steps[*begin..end], *begin, options))
        .collect();
    let next = if found.is_empty() && begins.len() < 2 { first + 1 } else { end };
    (found, next)
}

/// Whether the calls of each step resemble each other, and all calls of the step before it.
fn is_near(steps: &[Step], options: &LoopOptions) -> bool {
    let alike = |one: &Step, other: &Step| {
        let pairs = one.iter().flat_map(|(_, a)| other.iter().map(move |(_, b)| (a, b)));
        pairs.into_iter().all(|(a, b)| is_alike(a, b, options))
    };
    steps.iter().all(|step| step.len() == 1 || (step.len() <= LONGEST && alike(step, step)))
        && steps.windows(2).all(|pair| alike(&pair[0], &pair[1]))
}

/// The number of steps in the full periods of this length that begin with the first of these steps.
fn cycle(steps: &[Step], period: usize) -> Option<usize> {
    let asked = |step: &Step| step.iter().map(|(_, call)| asked_by(call)).collect::<Vec<_>>();
    let holds = |length: &usize| {
        let run = &steps[..*length];
        let repeats = (period..*length).all(|at| asked(&run[at]) == asked(&run[at - period]));
        let known = flat(run).iter().all(|call| call.name.is_some());
        let gets_nowhere = |place: usize| {
            let again: Vec<&Step> = run.iter().skip(place).step_by(period).collect();
            let same = |number: usize| {
                again.iter().map(|step| step[number].1.clone()).collect::<Vec<Call>>()
            };
            again.first().is_none_or(|first| (0..first.len()).all(|at| is_no_progress(&same(at))))
        };
        repeats && known && in_turn(run) && (0..period).all(gets_nowhere)
    };
    let length = (1..=steps.len()).take_while(holds).last()?;
    let calls = flat(&steps[..period.min(steps.len())]);
    let differ = calls.iter().any(|call| asked_by(call) != asked_by(&calls[0]));
    let fits = differ && calls.len() <= LONGEST && steps.len() >= 2 * period;
    fits.then_some(length / period * period)
}

/// The tool and the arguments of a call, and whether it failed.
fn asked_by(call: &Call) -> (Option<String>, Option<String>, bool) {
    let name = call.name.as_deref().map(str::to_owned);
    (name, normal(call).map(str::to_owned), call.failed == Some(true))
}

/// The loop of a run whose steps begin at `first`, if it is long enough for its kind, and not only of tools that may repeat. Its
/// calls are counted in steps.
fn of_run(
    kind: LoopKind,
    period: usize,
    run: &[Step],
    first: usize,
    options: &LoopOptions,
) -> Option<Found> {
    let allowed = |call: &Call| options.allow.iter().any(|pattern| fits(pattern, &name(call)));
    if flat(run).iter().all(allowed) {
        return None;
    }
    let count = run.len() / period;
    let by_names = (count as u64 >= options.names_only).then_some(Severity::Warning);
    let evidence = evidence(kind, run, period, options);
    let (evidence, severity) = match evidence {
        // The failed calls whose arguments were sent may be a loop without the others.
        Evidence::Names | Evidence::Arguments if kind == LoopKind::ErrorRetry => {
            let known = |step: &&Step| step.iter().all(|(_, call)| call.arguments.is_some());
            let severity = severity(kind, run.iter().filter(known).count(), options);
            let evidence = severity.map_or(Evidence::Names, |_| Evidence::Arguments);
            (evidence, severity.or(by_names))
        }
        Evidence::Names | Evidence::Results => (evidence, by_names),
        Evidence::Arguments | Evidence::Full | Evidence::Text => {
            (evidence, severity(kind, count, options))
        }
    };
    let tools = if kind == LoopKind::Cycle { LONGEST } else { 1 };
    Some(Found {
        kind,
        severity: severity?,
        evidence,
        count,
        tools: flat(&run[..period]).iter().take(tools).map(name).collect(),
        calls: first..first + run.len(),
        time: 0..0,
        spans: Vec::new(),
        input_tokens: None,
        output_tokens: None,
        cost: None,
    })
}

/// The severity of this many calls with known arguments, or full periods of a cycle of such calls.
fn severity(kind: LoopKind, count: usize, options: &LoopOptions) -> Option<Severity> {
    let both = Thresholds { warning: options.warning, critical: options.critical };
    let own = options.by_kind.get(&kind).copied().unwrap_or(both);
    let is_least = |least: u64| count as u64 >= least;
    let critical = is_least(own.critical).then_some(Severity::Critical);
    critical.or_else(|| is_least(own.warning).then_some(Severity::Warning))
}

/// How much of a run is known from the wire. A failed call needs no result. Results alone are known if as many periods sent them as
/// a loop of names alone needs.
fn evidence(kind: LoopKind, run: &[Step], period: usize, options: &LoopOptions) -> Evidence {
    let arguments = run.iter().flatten().all(|(_, call)| call.arguments.is_some());
    let lacks = |step: &Step| {
        step.iter().any(|(_, call)| {
            call.result.is_none() && !(kind == LoopKind::Cycle && call.failed == Some(true))
        })
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

/// Whether each step began after the calls of the previous one had ended.
fn in_turn(steps: &[Step]) -> bool {
    steps.windows(2).all(|pair| {
        let first = pair[1].iter().min_by_key(|(place, _)| *place);
        first.is_none_or(|(_, next)| pair[0].iter().all(|(_, before)| !together(before, next)))
    })
}

/// Whether the later of two calls began before the other had ended; to a millisecond, if its start is in whole milliseconds.
fn together(before: &Call, after: &Call) -> bool {
    let early = if after.start.is_multiple_of(1_000_000) { 1_000_000 } else { 0 };
    let equal = (before.start, before.end) == (after.start, after.end);
    after.start + early < before.end || (equal && after.start < after.end)
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

/// The sum of the known values.
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
