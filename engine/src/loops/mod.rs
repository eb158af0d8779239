//! Loops: unbroken runs of tool calls that make no progress.
//!
//! Calls that make progress are no loop: a call that returns something else than before or, if its result was not sent, takes much
//! longer or shorter ([`Outcomes`]). Nor is a run whose tools are all in `loops.allow`, or after which the same call finally
//! returns something else: it was a wait for that.
//!
//! A run with evidence of names alone is reported and counted separately, and affects no signal, no waste and no alert
//! ([`Evidence::weighs`]).
//!
//! Each kind has one file and one entry in the list of [`LoopKind`]. One run gives one loop, of the first kind that fits. The calls
//! are in order of start, and form series: those made within the same call, or by the same agent among agents that work in
//! parallel. Calls that overlap in time are one step ([`CallGroup`]), and no loop of each other; loops consist of steps. Unknown tools
//! are never equal.

mod call_group;
mod cycle;
mod error_retry;
mod exact_repeat;
mod near_repeat;
mod repeats;
mod reported;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::call_group::{CallGroup, steps};
pub use self::repeats::Repeats;
pub use self::reported::reported;

use super::facts::{Loop, ToolCall};
use super::math::Quanta;
use super::options::{LoopOptions, Thresholds};
use super::span::{Timestamp, Tokens};

/// Finds the runs of one kind among steps.
type Finder = fn(&[CallGroup<'_>], &Need<'_>) -> Vec<CallRun>;

/// The list of kinds: each has its documentation, its name, and the function that finds it among calls.
macro_rules! kinds {
    ($($(#[$about:meta])* $kind:ident, $name:literal, $find:expr;)*) => {
        /// A kind of loop. If a run fits two kinds, the first applies.
        #[derive(
            Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
        )]
        pub enum LoopKind {
            $($(#[$about])* #[serde(rename = $name)] $kind,)*
        }

        impl LoopKind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// Its name in results, labels and options.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// The function that finds it among calls; `None` if the session stage finds it by outputs, or the agent reports it.
            fn finder(self) -> Option<Finder> {
                match self {
                    $(Self::$kind => $find,)*
                }
            }
        }
    };
}

kinds! {
    /// The same tool failing repeatedly.
    ErrorRetry, "error_retry", Some(error_retry::find);
    /// The same tool with the same arguments and the same result.
    #[default]
    ExactRepeat, "exact_repeat", Some(exact_repeat::find);
    /// The same tool with nearly the same arguments and the same result.
    NearRepeat, "near_repeat", Some(near_repeat::find);
    /// A few different calls, repeated in the same order.
    Cycle, "cycle", Some(cycle::find);
    /// The agent itself reports that it is in a loop, and no calls show it.
    Reported, "reported", None;
    /// A trace gives the same answer as an earlier one of its session.
    OutputRepeat, "output_repeat", None;
}

/// The severity of a loop or of another problem.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    Deserialize,
    Eq,
    Hash,
    JsonSchema,
    Ord,
    PartialEq,
    PartialOrd,
    Serialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth a look.
    #[default]
    Warning,
    /// Worth a page.
    Critical,
}

/// How much of a loop was sent.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// Names alone: arguments and results that may differ were not sent.
    #[default]
    Names,
    /// Names and results.
    Results,
    /// Names and arguments.
    Arguments,
    /// Names, arguments and results.
    Full,
    /// A text: that of an output, or the agent's own report.
    Text,
}

/// The labels under which a loop is counted and shown.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct LoopLabels {
    /// Its kind.
    pub kind: LoopKind,
    /// How bad it is.
    pub severity: Severity,
    /// How much of it was sent.
    pub evidence: Evidence,
}

/// Most spans that a loop lists.
const MOST_SPANS: usize = 100;

/// Most different calls that a cycle repeats.
const MOST_CALLS: usize = 8;

/// A run of steps: `first..first + steps` of the sequence.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct CallRun {
    /// Index of its first step.
    first: usize,
    /// Number of steps.
    steps: usize,
    /// Number of steps that are repeated: 1, or the period of a cycle.
    period: usize,
    /// How much of it was sent.
    evidence: Evidence,
}

/// The rules by which a run is a loop of its kind.
struct Need<'a> {
    options: &'a LoopOptions,
    kind: LoopKind,
}

/// The usage of a model call, from which the cost of a loop follows.
#[derive(Clone, Copy, Debug)]
pub struct Spend {
    /// Its start.
    pub start: Timestamp,
    /// Its end.
    pub end: Timestamp,
    /// Its tokens.
    pub tokens: Tokens,
    /// Its cost in dollars.
    pub cost: Option<Quanta>,
}

/// A loop, and its position among the calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// From its first call to its last one; calls made within these may come between.
    pub calls: Range<usize>,
    /// The loop; the caller fills in its trace ids.
    pub entry: Loop,
    // When its calls began and ended, in nanoseconds since the Unix epoch.
    time: Range<u64>,
}

/// How often a tool must be called before there can be a loop of any kind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Least {
    /// The number of calls with arguments.
    pub known: usize,
    /// The number of calls with or without arguments.
    pub names: usize,
}

/// The least numbers of calls of one tool that make a loop of any kind.
pub fn least(options: &LoopOptions) -> Least {
    let kinds = LoopKind::ALL.iter().filter(|kind| kind.has_thresholds());
    let kinds = kinds.map(|kind| options.of_kind(*kind));
    let known = kinds.map(|needed| needed.warning.min(needed.critical)).min();
    let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    Least { known: count(known.unwrap_or(u64::MAX)), names: count(options.names_only) }
}

/// Finds the loops among calls; a call after one of these moments does not repeat calls before it.
pub fn find_between(
    calls: &[ToolCall],
    moments: &[u64],
    spends: &[Spend],
    options: &LoopOptions,
) -> Vec<Found> {
    let starts = |moment: &u64| calls.iter().position(|call| call.start_unix_nano >= *moment);
    let ends = moments.iter().filter_map(starts).chain([calls.len()]);
    let (mut found, mut first) = (Vec::new(), 0);
    for end in ends {
        let part = find(&calls[first..end], spends, options).into_iter();
        found.extend(part.map(|found| Found {
            calls: first + found.calls.start..first + found.calls.end,
            ..found
        }));
        first = end;
    }
    found
}

/// Finds the loops among calls in order of start. Only calls of the same series follow one another, such as those of a sub-agent
/// within the call that started it, or those of an agent that works in parallel with others.
///
/// Tokens and dollars of a loop are those of the model calls that start after its first call has started and end
/// before its last one has.
pub fn find(calls: &[ToolCall], spends: &[Spend], options: &LoopOptions) -> Vec<Found> {
    if !may_be(calls, options) {
        return Vec::new();
    }
    let mut found = search(calls, options);
    count_spend(&mut found, spends);
    found
}

/// Finds the loops among calls, without checking first whether there can be any, and without their usage.
fn search(calls: &[ToolCall], options: &LoopOptions) -> Vec<Found> {
    let mut places: Vec<usize> = (0..calls.len()).collect();
    places.sort_by_key(|at| calls[*at].within);
    let mut found = Vec::new();
    for places in places.chunk_by(|one, next| calls[*one].within == calls[*next].within) {
        let calls: Vec<&ToolCall> = places.iter().map(|at| &calls[*at]).collect();
        found.extend(search_row(&calls, options).into_iter().map(|found| Found {
            calls: places[found.calls.start]..places[found.calls.end - 1] + 1,
            ..found
        }));
    }
    found.sort_by_key(|found| found.calls.start);
    found
}

/// Finds the loops among calls that follow one another.
fn search_row(calls: &[&ToolCall], options: &LoopOptions) -> Vec<Found> {
    let Least { known, names } = least(options);
    let mut found = Vec::new();
    if calls.len() < known.min(names) {
        return found;
    }
    let steps = steps(calls);
    let mut free = vec![Range { start: 0, end: steps.len() }];
    for kind in LoopKind::ALL {
        let Some(find) = kind.finder() else { continue };
        let need = Need { options, kind: *kind };
        let mut left = Vec::new();
        for stretch in free {
            let mut from = stretch.start;
            for run in find(&steps[stretch.clone()], &need) {
                let first = stretch.start + run.first;
                let taken = first..first + run.steps;
                let own = &steps[taken.clone()];
                let Some(severity) = need.severity(&run, own) else { continue };
                left.push(from..taken.start);
                from = taken.end;
                if !need.waited(taken, run.period, &steps) {
                    found.extend(loop_of(&run, (*kind, severity), own));
                }
            }
            left.push(from..stretch.end);
        }
        free = left;
    }
    found
}

/// The loop that a run of these steps is.
fn loop_of(run: &CallRun, kind: (LoopKind, Severity), steps: &[CallGroup<'_>]) -> Option<Found> {
    let calls = in_order(steps);
    let (first, last) = (calls.first()?, calls.last()?);
    let entry = entry(kind, run, steps);
    Some(Found { calls: first.0..last.0 + 1, entry, time: time(&calls) })
}

/// Adds the usage to loops. Usage within several loops that weigh counts in the one that began last: what a loop within a call of
/// another loop has used is not counted for the other.
fn count_spend(found: &mut [Found], spends: &[Spend]) {
    let mut counted = vec![false; spends.len()];
    for Found { entry, time, .. } in found.iter_mut().rev() {
        let weighs = entry.evidence.weighs();
        let inside = |(_, spend): &(usize, &Spend)| is_inside(spend, time);
        let own = spends.iter().enumerate().filter(inside);
        let own: Vec<(usize, &Spend)> = own.filter(|(at, _)| !(weighs && counted[*at])).collect();
        own.iter().for_each(|(at, _)| counted[*at] |= weighs);
        add_spend(entry, own.iter().map(|(_, spend)| *spend));
    }
}

/// Whether enough calls have something in common, and some tool is called often enough, for a loop; usually not.
fn may_be(calls: &[ToolCall], options: &LoopOptions) -> bool {
    let least = least(options);
    let fewest = least.known.min(least.names);
    // A single call may be a run of any kind.
    if fewest < 2 {
        return true;
    }
    if calls.len() < fewest {
        return false;
    }
    let mut repeats = Repeats::new(options);
    for call in calls {
        repeats.add(call.arguments_hash.map(|_| &call.argument_values[..]));
        (call.error == Some(true)).then(|| repeats.fail());
    }
    repeats.reach(least) && is_often(calls, least, options)
}

/// Whether a tool that is not in `loops.allow` is called often enough, or there are too many tools to count.
fn is_often(calls: &[ToolCall], least: Least, options: &LoopOptions) -> bool {
    let mut tools = [None; MOST_TOOLS];
    for ToolCall { name, arguments_hash, .. } in calls {
        let is_own = |tool: &&mut Option<(&Arc<str>, Least)>| {
            tool.as_ref().is_none_or(|(other, _)| *other == name)
        };
        let Some(tool) = tools.iter_mut().find(is_own) else { return true };
        let (_, called) = tool.get_or_insert((name, Least { known: 0, names: 0 }));
        called.known += usize::from(arguments_hash.is_some());
        called.names += 1;
    }
    let often = |called: Least| called.known >= least.known || called.names >= least.names;
    tools.iter().flatten().any(|(tool, called)| often(*called) && !options.allows(tool))
}

/// Most tools whose calls are counted.
const MOST_TOOLS: usize = 8;

/// The worst severity among the loops that weigh.
pub fn worst<'l>(loops: impl IntoIterator<Item = &'l Loop>) -> Option<Severity> {
    let weighing = loops.into_iter().filter(|found| found.evidence.weighs());
    weighing.map(|found| found.severity).max()
}

impl LoopKind {
    /// Whether the kind is about calls rather than outputs.
    pub fn is_of_calls(self) -> bool {
        self != Self::OutputRepeat
    }

    /// Whether the kind has thresholds for the number of calls.
    pub fn has_thresholds(self) -> bool {
        self.finder().is_some()
    }
}

impl Severity {
    /// Its name in results and labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

impl Evidence {
    /// Its name in results and labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Names => "names",
            Self::Results => "results",
            Self::Arguments => "arguments",
            Self::Full => "full",
            Self::Text => "text",
        }
    }

    /// Whether a loop with this evidence affects signals, counters of waste and alerts: all but names alone do.
    pub const fn weighs(self) -> bool {
        match self {
            Self::Names => false,
            Self::Results | Self::Arguments | Self::Full | Self::Text => true,
        }
    }
}

impl LoopLabels {
    /// Values of the labels `kind`, `severity` and `evidence`.
    pub fn values(self) -> [&'static str; 3] {
        [self.kind.name(), self.severity.name(), self.evidence.name()]
    }
}

impl From<&Loop> for LoopLabels {
    fn from(entry: &Loop) -> Self {
        Self { kind: entry.kind, severity: entry.severity, evidence: entry.evidence }
    }
}

impl fmt::Display for LoopKind {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.name())
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.name())
    }
}

impl CallRun {
    /// The number of steps, or of full periods of a cycle.
    fn count(&self) -> u64 {
        (self.steps / self.period.max(1)) as u64
    }
}

impl Need<'_> {
    /// The severity of a run; `None`: it is no loop.
    fn severity(&self, run: &CallRun, steps: &[CallGroup<'_>]) -> Option<Severity> {
        let severity = match run.evidence {
            // Arguments that were not sent may have differed each time.
            Evidence::Names | Evidence::Results => {
                (run.count() >= self.options.names_only).then_some(Severity::Warning)?
            }
            Evidence::Arguments | Evidence::Full | Evidence::Text => {
                let retries = self.kind == LoopKind::ErrorRetry;
                let count = if retries { error_retry::known(steps) } else { run.count() };
                let Thresholds { warning, critical } = self.options.of_kind(self.kind);
                if count >= critical {
                    Severity::Critical
                } else {
                    (count >= warning).then_some(Severity::Warning)?
                }
            }
        };
        (!self.allows_all(steps)).then_some(severity)
    }

    /// The least count that can make a loop.
    fn least(&self) -> u64 {
        self.least_known().min(self.options.names_only)
    }

    /// The least count that can make a loop of calls with arguments.
    fn least_known(&self) -> u64 {
        let Thresholds { warning, critical } = self.options.of_kind(self.kind);
        warning.min(critical)
    }

    /// Whether a run of these steps is a loop.
    fn is_met(&self, run: &CallRun, steps: &[CallGroup<'_>]) -> bool {
        self.severity(run, &steps[run.first..run.first + run.steps]).is_some()
    }

    /// Whether a run of these steps was a wait: the calls after it equal those a period before them, and one of them has another
    /// result. For a run at the end of the steps this is not known.
    fn waited(&self, run: Range<usize>, period: usize, steps: &[CallGroup<'_>]) -> bool {
        let Some(before) = run.end.checked_sub(period) else { return false };
        let again = steps[before..].iter().zip(&steps[run.end..]).take(period);
        let mut again = again.take_while(|(before, after)| before.asks_same(after));
        matches!(self.kind, LoopKind::ExactRepeat | LoopKind::Cycle)
            && again.any(|(before, after)| before.is_told_otherwise(after))
    }

    /// The evidence of a run: whether the arguments of all its calls were sent, and whether their results were. Without arguments,
    /// enough periods with results are evidence, and others among them do not weaken it, as the result of the last call is often
    /// still to come. A call that failed needs no result.
    fn evidence(&self, run: &[CallGroup<'_>], period: usize) -> Evidence {
        let is_told = |call: &ToolCall| call.result_hash.is_some() || call.error == Some(true);
        let all_told =
            |steps: &&[CallGroup<'_>]| steps.iter().flat_map(CallGroup::calls).all(is_told);
        let told = run.chunks(period).filter(all_told).count();
        if run.iter().all(CallGroup::is_known) {
            if told * period == run.len() { Evidence::Full } else { Evidence::Arguments }
        } else if told as u64 >= self.options.names_only {
            Evidence::Results
        } else {
            Evidence::Names
        }
    }

    /// Collects the runs that `from` finds, from left to right; none begins before the previous one has ended.
    fn runs(
        &self,
        steps: &[CallGroup<'_>],
        from: impl Fn(&[CallGroup<'_>], usize) -> Option<CallRun>,
    ) -> Vec<CallRun> {
        let mut runs = Vec::new();
        let mut first = 0;
        while first < steps.len() {
            if let Some(run) = from(steps, first).filter(|run| self.is_met(run, steps)) {
                first += run.steps.max(1);
                runs.push(run);
            } else {
                first += 1;
            }
        }
        runs
    }

    /// The same for runs whose calls all use one tool.
    fn runs_of_one_tool(
        &self,
        steps: &[CallGroup<'_>],
        from: impl Fn(&[CallGroup<'_>], usize) -> CallRun,
    ) -> Vec<CallRun> {
        self.runs(steps, |steps, first| self.may_begin(&steps[first..]).then(|| from(steps, first)))
    }

    /// Whether a loop of one tool may begin with the first of these steps. This avoids following a long run from each of its steps
    /// to its end only to find that its tool is allowed, or that it is too short.
    fn may_begin(&self, steps: &[CallGroup<'_>]) -> bool {
        let Some(head) = steps.first() else { return false };
        let by_arguments = matches!(self.kind, LoopKind::ExactRepeat | LoopKind::NearRepeat);
        let least = if by_arguments && head.is_known() { self.least_known() } else { self.least() };
        steps.len() as u64 >= least && !self.allows_all(&steps[..1])
    }

    /// Whether the tools of all calls of these steps are allowed to repeat.
    fn allows_all(&self, steps: &[CallGroup<'_>]) -> bool {
        steps.iter().flat_map(CallGroup::calls).all(|call| self.options.allows(&call.name))
    }
}

/// The number of steps from the first one on that fit and do not begin before the previous one has ended.
fn length<'s, 'c>(
    steps: &'s [CallGroup<'c>],
    mut fits: impl FnMut(&'s CallGroup<'c>) -> bool,
) -> usize {
    let mut before: Option<&CallGroup<'_>> = None;
    let goes_on = |step: &&'s CallGroup<'c>| {
        let follows = before.replace(step).is_none_or(|before| !before.overlaps(step));
        follows && fits(step)
    };
    steps.iter().take_while(goes_on).count()
}

/// The calls of these steps with their positions, sorted by these.
fn in_order<'c>(steps: &[CallGroup<'c>]) -> Vec<(usize, &'c ToolCall)> {
    let mut calls: Vec<(usize, &ToolCall)> = steps.iter().flat_map(CallGroup::placed).collect();
    calls.sort_unstable_by_key(|(place, _)| *place);
    calls
}

/// The outcomes of calls that have counted as equal so far.
///
/// A result that differs is progress. For calls whose result was not sent, the duration stands in for it, but only if the
/// difference cannot be jitter: one call took a second or more, and twice as long as another. Smaller differences, such as those of
/// a network, never count as progress, nor does the duration of a call that is only known from a model's output.
#[derive(Clone, Copy, Default)]
struct Outcomes {
    result: Option<u64>,
    /// Least and greatest duration of the calls without a result, in nanoseconds.
    took: Option<(u64, u64)>,
}

impl Outcomes {
    /// Adds a call; returns whether its outcome agrees with those before it.
    fn agree(&mut self, call: &ToolCall) -> bool {
        let same = match (self.result, call.result_hash) {
            (Some(before), Some(result)) => before == result,
            (None, _) | (_, None) => true,
        };
        let took = call.took_nanos().filter(|_| call.result_hash.is_none());
        let range = took.map(|took| match self.took {
            Some((least, most)) => (least.min(took), most.max(took)),
            None => (took, took),
        });
        let waited =
            |(least, most): (u64, u64)| most >= WAIT_NANOS && most >= least.saturating_mul(2);
        if !same || range.is_some_and(waited) {
            return false;
        }
        self.result = self.result.or(call.result_hash);
        self.took = range.or(self.took);
        true
    }
}

/// Duration from which on a call may have been waiting for something, in nanoseconds.
const WAIT_NANOS: u64 = 1_000_000_000;

/// Whether the later call began before the earlier one had ended.
fn overlap(earlier: &ToolCall, later: &ToolCall) -> bool {
    let start = later.start_unix_nano;
    begins_before(start, earlier.end_unix_nano)
        || (start == earlier.start_unix_nano
            && later.end_unix_nano == earlier.end_unix_nano
            && start < earlier.end_unix_nano)
}

/// Whether what starts at this time began before the end of something that began before it.
pub fn begins_before(start: u64, end: u64) -> bool {
    latest_start(start) < end
}

/// The latest time at which something may have begun: some SDKs truncate starts to whole milliseconds, so such a start may be up to
/// one millisecond early.
pub fn latest_start(start: u64) -> u64 {
    const MILLISECOND: u64 = 1_000_000;
    start.saturating_add(if start.is_multiple_of(MILLISECOND) { MILLISECOND } else { 0 })
}

/// The loop of a run, without its usage.
fn entry((kind, severity): (LoopKind, Severity), run: &CallRun, steps: &[CallGroup<'_>]) -> Loop {
    let calls = || steps.iter().take(run.period).flat_map(CallGroup::calls);
    let tools = calls().take(if kind == LoopKind::Cycle { MOST_CALLS } else { 1 });
    Loop {
        kind,
        severity,
        tool: calls().next().map(|call| call.name.clone()).unwrap_or_default(),
        tools: tools.map(|call| call.name.clone()).collect(),
        count: run.count(),
        evidence: run.evidence,
        span_ids: in_order(steps)
            .into_iter()
            .map(|(_, call)| call.span_id)
            .filter(|id| !id.is_zero())
            .take(MOST_SPANS)
            .collect(),
        ..Loop::default()
    }
}

/// When calls in order began and ended.
fn time(calls: &[(usize, &ToolCall)]) -> Range<u64> {
    let from = calls.first().map_or(0, |(_, call)| call.start_unix_nano);
    from..calls.iter().map(|(_, call)| call.end_unix_nano).max().unwrap_or(0)
}

fn is_inside(spend: &Spend, time: &Range<u64>) -> bool {
    spend.start.0 > time.start && spend.end.0 <= time.end
}

/// Fills in the usage of a loop.
fn add_spend<'s>(entry: &mut Loop, inside: impl Iterator<Item = &'s Spend> + Clone) {
    let sum =
        |of: fn(&Spend) -> Option<u64>| inside.clone().filter_map(of).reduce(u64::saturating_add);
    let (input, output) = (sum(|spend| spend.tokens.input), sum(|spend| spend.tokens.output));
    entry.tokens = Some(super::facts::Tokens { input, output });
    let costs = inside.filter_map(|spend| spend.cost).map(|cost| cost.0);
    entry.cost_quanta = costs.reduce(i64::saturating_add);
}
