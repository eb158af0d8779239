//! Loops: unbroken runs of tool calls that get nowhere.
//!
//! One kind, one file, and one line in [`KINDS`]. One run gives one entry, of the first kind that fits. The calls
//! come in order of start; those that overlap in time are parallel, not a loop; unknown tools are never equal.

mod cycle;
mod error_retry;
mod exact_repeat;
mod near_repeat;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use super::math::Quanta;
use super::options::LoopOptions;
use super::span::{Timestamp, Tokens};
use super::update::{Loop, ToolCall};

/// The kind found in outputs rather than in calls, by the session stage.
pub const OUTPUT_REPEAT: &str = "output_repeat";

/// Worth a look.
pub const WARNING: &str = "warning";

/// Worth a page.
pub const CRITICAL: &str = "critical";

/// A kind of loop.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    find: fn(&[ToolCall], &Need<'_>) -> Vec<Run>,
}

/// All kinds found in calls; of two for one run the first holds.
const KINDS: &[Kind] = &[
    Kind { name: error_retry::NAME, find: error_retry::find },
    Kind { name: exact_repeat::NAME, find: exact_repeat::find },
    Kind { name: near_repeat::NAME, find: near_repeat::find },
    Kind { name: cycle::NAME, find: cycle::find },
];

/// How much of a loop is on the wire.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Evidence {
    /// Names alone.
    Names,
    /// Names and arguments.
    Arguments,
    /// Names, arguments and results.
    Full,
}

/// A run of calls: `first..first + calls` of the sequence.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Run {
    /// Index of its first call.
    first: usize,
    /// How many calls.
    calls: usize,
    /// How many different calls are repeated: 1, or the period of a cycle.
    period: usize,
    /// How much of it is on the wire.
    evidence: Evidence,
}

/// What a run must reach to be a loop of its kind.
struct Need<'a> {
    options: &'a LoopOptions,
    kind: &'static str,
}

/// A model call, for what a loop cost.
#[derive(Clone, Copy, Debug)]
pub struct Spend {
    /// Its start.
    pub start: Timestamp,
    /// Its end.
    pub end: Timestamp,
    /// Its tokens.
    pub tokens: Tokens,
    /// Its dollars.
    pub cost: Option<Quanta>,
}

/// A loop, and which of the calls it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The calls.
    pub calls: Range<usize>,
    /// The entry; its trace ids are the caller's to fill in.
    pub entry: Loop,
}

/// Names of all kinds, those found in outputs included, sorted.
pub fn kinds() -> [&'static str; 5] {
    let [a, b, c, d] = [0, 1, 2, 3].map(|at| KINDS[at].name);
    let mut kinds = [a, b, c, d, OUTPUT_REPEAT];
    kinds.sort_unstable();
    kinds
}

/// How often a tool has to be called before there can be a loop of any kind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Least {
    /// With arguments that are on the wire.
    pub known: usize,
    /// With or without.
    pub names: usize,
}

/// The least that makes a loop: a call of a run is there once for each that is counted.
pub fn least(options: &LoopOptions) -> Least {
    let kinds = KINDS.iter().map(|kind| options.of_kind(kind.name));
    let known = kinds.map(|needed| needed.warning.min(needed.critical)).min();
    let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    Least { known: count(known.unwrap_or(u64::MAX)), names: count(options.names_only) }
}

/// Finds the loops among calls in order of start.
///
/// Tokens and dollars of a loop are those of the model calls that start after its first call has started and end
/// before its last one has.
pub fn find(calls: &[ToolCall], spends: &[Spend], options: &LoopOptions) -> Vec<Found> {
    let mut found = Vec::new();
    if !may_be(calls, options) {
        return found;
    }
    let mut free = vec![Range { start: 0, end: calls.len() }];
    for kind in KINDS {
        let need = Need { options, kind: kind.name };
        let mut left = Vec::new();
        for stretch in free {
            let mut from = stretch.start;
            for run in (kind.find)(&calls[stretch.clone()], &need) {
                let first = stretch.start + run.first;
                let range = first..first + run.calls;
                let Some(severity) = need.severity(&run) else { continue };
                left.push(from..range.start);
                from = range.end;
                let entry = entry(kind.name, severity, &run, &calls[range.clone()], spends);
                found.push(Found { calls: range, entry });
            }
            left.push(from..stretch.end);
        }
        free = left;
    }
    found.sort_by_key(|found| found.calls.start);
    found
}

/// Whether some tool is called often enough for a loop: mostly none is.
fn may_be(calls: &[ToolCall], options: &LoopOptions) -> bool {
    let least = least(options);
    // A single call may be a run of any kind.
    if least.known.min(least.names) < 2 {
        return true;
    }
    let mut tools: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    if calls.len() >= least.known.min(least.names) {
        for call in calls {
            let (known, all) = tools.entry(&call.name).or_default();
            *known += usize::from(call.arguments_hash.is_some());
            *all += 1;
        }
    }
    tools.values().any(|(known, all)| *known >= least.known || *all >= least.names)
}

/// The worst severity among loops.
pub fn worst(loops: &[Loop]) -> Option<&'static str> {
    let critical = loops.iter().any(|found| found.severity == CRITICAL);
    loops.first().map(|_| if critical { CRITICAL } else { WARNING })
}

impl Evidence {
    /// The name that results carry.
    pub fn name(self) -> &'static str {
        match self {
            Self::Names => "names",
            Self::Arguments => "arguments",
            Self::Full => "full",
        }
    }
}

impl Run {
    /// Calls, or full periods of a cycle.
    fn count(&self) -> u64 {
        (self.calls / self.period.max(1)) as u64
    }
}

impl Need<'_> {
    /// How bad a run is; `None`: it is no loop.
    fn severity(&self, run: &Run) -> Option<&'static str> {
        let thresholds = self.options.of_kind(self.kind);
        match run.evidence {
            Evidence::Names => (run.count() >= self.options.names_only).then_some(WARNING),
            Evidence::Arguments | Evidence::Full if run.count() >= thresholds.critical => {
                Some(CRITICAL)
            }
            Evidence::Arguments | Evidence::Full => {
                (run.count() >= thresholds.warning).then_some(WARNING)
            }
        }
    }

    fn is_met(&self, run: &Run) -> bool {
        self.severity(run).is_some()
    }

    /// Collects the runs that `from` finds, from left to right, each beginning where the one before it ended.
    fn runs(&self, calls: &[ToolCall], from: impl Fn(&[ToolCall], usize) -> Run) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut first = 0;
        while first < calls.len() {
            let run = from(calls, first);
            if self.is_met(&run) {
                first += run.calls;
                runs.push(run);
            } else {
                first += 1;
            }
        }
        runs
    }
}

/// What calls that are taken for the same have returned so far: what is not on the wire cannot differ.
#[derive(Clone, Copy, Default)]
struct Results {
    known: Option<u64>,
    missing: bool,
}

impl Results {
    /// Adds a result; returns whether it is the same as those before it.
    fn agree(&mut self, result: Option<u64>) -> bool {
        let same = self.known.is_none() || result.is_none() || self.known == result;
        if same {
            self.known = self.known.or(result);
            self.missing |= result.is_none();
        }
        same
    }
}

/// Returns whether the later call began before the earlier one had ended.
///
/// Some SDKs cut starts to whole milliseconds, so such a start may be up to one millisecond early.
fn overlap(earlier: &ToolCall, later: &ToolCall) -> bool {
    const MILLISECOND: u64 = 1_000_000;
    let start = later.start_unix_nano;
    let early = if start.is_multiple_of(MILLISECOND) { MILLISECOND } else { 0 };
    start.saturating_add(early) < earlier.end_unix_nano
        || (start == earlier.start_unix_nano
            && later.end_unix_nano == earlier.end_unix_nano
            && start < earlier.end_unix_nano)
}

fn entry(kind: &str, severity: &str, run: &Run, calls: &[ToolCall], spends: &[Spend]) -> Loop {
    let from = calls.first().map_or(0, |call| call.start_unix_nano);
    let to = calls.iter().map(|call| call.end_unix_nano).max().unwrap_or(0);
    let inside = || spends.iter().filter(|spend| spend.start.0 > from && spend.end.0 <= to);
    let tokens = super::update::Tokens {
        input: sum(inside().map(|spend| spend.tokens.input)),
        output: sum(inside().map(|spend| spend.tokens.output)),
    };
    Loop {
        kind: kind.to_owned(),
        severity: severity.to_owned(),
        tool: calls.first().map(|call| call.name.clone()).unwrap_or_default(),
        tools: calls.iter().take(run.period).map(|call| call.name.clone()).collect(),
        count: run.count(),
        evidence: run.evidence.name().to_owned(),
        trace_ids: Vec::new(),
        tokens: Some(tokens),
        cost_quanta: inside()
            .filter_map(|spend| spend.cost)
            .map(|cost| cost.0)
            .reduce(i64::saturating_add),
    }
}

fn sum(counts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    counts.flatten().reduce(u64::saturating_add)
}
