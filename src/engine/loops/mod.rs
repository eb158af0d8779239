//! Loops: unbroken runs of tool calls that get nowhere.
//!
//! One kind, one file, and one line in [`KINDS`]. One run gives one entry, of the first kind that fits. The calls
//! come in order of start; those that overlap in time are parallel, not a loop; unknown tools are never equal.

mod error_retry;
mod exact_repeat;

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
    find: fn(&[ToolCall]) -> Vec<Run>,
}

/// All kinds found in calls; of two for one run the first holds.
const KINDS: &[Kind] = &[
    Kind { name: "error_retry", find: error_retry::find },
    Kind { name: "exact_repeat", find: exact_repeat::find },
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
pub struct Run {
    /// Index of its first call.
    pub first: usize,
    /// How many calls.
    pub calls: usize,
    /// What `count` says: calls, or full periods of a cycle.
    pub count: u64,
    /// How much of it is on the wire.
    pub evidence: Evidence,
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

/// Finds the loops among the calls of one trace.
///
/// Tokens and dollars of a loop are those of the model calls that start after its first call has started and end
/// before its last one has.
pub fn find(
    calls: &[ToolCall],
    spends: &[Spend],
    options: &LoopOptions,
    trace_id: &[u8],
) -> Vec<Loop> {
    let mut taken = vec![false; calls.len()];
    let mut loops = Vec::new();
    for kind in KINDS {
        for run in (kind.find)(calls) {
            let Some(severity) = severity(&run, options) else { continue };
            let span = run.first..run.first + run.calls;
            if taken[span.clone()].iter().any(|taken| *taken) {
                continue;
            }
            taken[span.clone()].fill(true);
            loops.push((
                run.first,
                entry(kind.name, severity, &run, &calls[span], spends, trace_id),
            ));
        }
    }
    loops.sort_by_key(|(first, _)| *first);
    loops.into_iter().map(|(_, found)| found).collect()
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

fn severity(run: &Run, options: &LoopOptions) -> Option<&'static str> {
    match run.evidence {
        Evidence::Names => (run.count >= options.names_only).then_some(WARNING),
        Evidence::Arguments | Evidence::Full if run.count >= options.critical => Some(CRITICAL),
        Evidence::Arguments | Evidence::Full => (run.count >= options.warning).then_some(WARNING),
    }
}

fn entry(
    kind: &str,
    severity: &str,
    run: &Run,
    calls: &[ToolCall],
    spends: &[Spend],
    trace_id: &[u8],
) -> Loop {
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
        count: run.count,
        evidence: run.evidence.name().to_owned(),
        trace_ids: vec![trace_id.to_vec()],
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
