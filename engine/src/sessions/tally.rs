//! What a trace has counted: counters rise by what exceeds it and never fall.
//!
//! Nothing is counted before the agent of a trace is certain: when the trace is done with its root, or sealed without one; for a
//! turn from log records, when its prompt has arrived, so that its loops count in flight. Should a later span name another agent,
//! loops count under that one as well; usage counts once, so that dollars add up over agents.
//!
//! A loop over several traces counts in the one in which it begins. If that becomes another trace, because an earlier one has
//! arrived or one has left, the traces redistribute what their loops have counted, and only the excess is counted.

use std::mem;
use std::num::NonZeroU8;

use serde::{Deserialize, Serialize};

use super::summary::Summary;
use crate::counters::Counter;
use crate::facts::{AgentKey, CountedUsage, Loop, TraceFacts};
use crate::limits::LimitSet;
use crate::loops::{Evidence, LoopKind, LoopLabels, Severity};
use crate::runs::reported_outcome;
use crate::small_map::SmallMap;
use crate::span::Timestamp;

/// What one trace has counted.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Tally {
    /// Whether its verdicts are counted.
    pub(super) done: bool,
    /// Whether an outcome of it was sent to its agent.
    pub(super) outcome: bool,
    /// Whether the outcome of the session that the trace left was sent to an agent, and this outcome goes with the trace.
    pub(super) session_outcome: bool,
    pub(super) loops: SmallMap<AgentKey, Loops>,
    pub(super) spend: CountedUsage,
    /// Limits whose excess is counted.
    pub(super) limits: LimitSet,
    /// One more than the level of the longest silence after which the open trace continued; it counts with the verdicts.
    pub(super) silence: Option<NonZeroU8>,
}

/// What the loops of one trace have counted under one agent.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Loops {
    entries: SmallMap<LoopKind, u64>,
    reached: SmallMap<LoopLabels, u64>,
    // By evidence, over loops with more evidence than names.
    wasted_input: SmallMap<Evidence, u64>,
    wasted_output: SmallMap<Evidence, u64>,
    /// In 1e-12 USD.
    wasted_cost: SmallMap<Evidence, u64>,
}

/// What loops of several traces have counted, by agent, to be redistributed among these traces.
#[derive(Debug, Default)]
pub(super) struct CountedLoops(SmallMap<AgentKey, Loops>);

/// How far the loops of a trace have grown, by kind and evidence.
pub(super) type Growths = SmallMap<(LoopKind, Evidence), Growth>;

/// How far the loops of one kind have grown.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Growth {
    /// The worst severity.
    pub(super) severity: Severity,
    /// Calls in all runs of this kind.
    calls: u64,
    /// When the last growth arrived.
    pub(super) at: Timestamp,
}

impl Tally {
    /// What other sessions have counted for a trace that moved here; `None` if nothing.
    pub(super) fn of(update: &TraceFacts) -> Option<Self> {
        let mut tally = Self::default();
        for told in &update.told {
            // For a trace that was done there, the verdicts are counted, and the outcome if it was known.
            tally.done |= told.spent.is_some();
            // So are the limits that it exceeded.
            if tally.done {
                tally.limits = LimitSet::ALL;
            }
            tally.outcome |= tally.done && outcome(update);
            tally.spend = told.spent.unwrap_or(tally.spend);
            if told.loops.is_empty() {
                continue;
            }
            let agent = told.agent.clone().unwrap_or_default();
            let counted = tally.loops.or_default(agent);
            told.loops.iter().for_each(|entry| counted.add(entry));
        }
        (!tally.is_nothing()).then_some(tally)
    }

    /// Whether nothing was counted.
    pub(super) fn is_nothing(&self) -> bool {
        let Self { done, outcome, session_outcome, loops, spend, limits, silence } = self;
        let nothing = (CountedUsage::default(), LimitSet::default(), None);
        let flags = [done, outcome, session_outcome];
        !flags.contains(&&true) && loops.is_empty() && (*spend, *limits, *silence) == nothing
    }

    /// Counts the loops that are not counted yet.
    ///
    /// A critical loop has been a warning, whether or not it was noticed, so it counts as both: what is counted does not depend on
    /// how the spans were batched.
    pub(super) fn count_loops<'a>(
        &mut self,
        found: impl Iterator<Item = &'a Loop>,
        agent: &AgentKey,
        summary: &mut Summary,
    ) {
        let fresh = Loops::of(found);
        if !fresh.entries.is_empty() {
            self.loops.or_default(agent.clone()).raise(&fresh, summary);
        }
    }

    /// Counts the usage that is not counted yet.
    pub(super) fn count_spend(&mut self, all: CountedUsage, summary: &mut Summary) {
        let spend = &mut self.spend;
        let mut count = |family, labels: &[&str], counted: &mut u64, value| {
            summary.count(family, labels, excess(counted, value));
        };
        count(Counter::Tokens, &["input"], &mut spend.input_tokens, all.input_tokens);
        count(Counter::Tokens, &["output"], &mut spend.output_tokens, all.output_tokens);
        count(Counter::CostUsd, &[], &mut spend.cost_quanta, all.cost_quanta);
        count(Counter::ModelCalls, &[], &mut spend.model_calls, all.model_calls);
        let repeats = &mut spend.adjacent_tool_repeats;
        count(Counter::AdjacentToolRepeats, &[], repeats, all.adjacent_tool_repeats);
        count(Counter::ToolCalls, &["ok"], &mut spend.tools_ok, all.tools_ok);
        count(Counter::ToolCalls, &["error"], &mut spend.tools_failed, all.tools_failed);
        count(Counter::ToolCalls, &["unknown"], &mut spend.tools_unknown, all.tools_unknown);
    }
}

impl CountedLoops {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes what the loops of a trace have counted.
    pub(super) fn add(&mut self, tally: &mut Tally) {
        for (agent, loops) in mem::take(&mut tally.loops) {
            self.0.or_default(agent).join(loops);
        }
    }

    /// Moves to a trace what these loops of it count, as far as that is counted.
    pub(super) fn share<'a>(&mut self, found: impl Iterator<Item = &'a Loop>, tally: &mut Tally) {
        let wanted = Loops::of(found);
        for (agent, loops) in self.0.iter_mut() {
            let taken = loops.take(&wanted);
            if !taken.is_nothing() {
                tally.loops.or_default(agent.clone()).join(taken);
            }
        }
        self.0.retain(|_, loops| !loops.is_nothing());
    }

    /// Moves the rest to a trace.
    pub(super) fn leave(self, tally: &mut Tally) {
        for (agent, loops) in self.0 {
            tally.loops.or_default(agent).join(loops);
        }
    }
}

impl Loops {
    fn of<'a>(found: impl Iterator<Item = &'a Loop>) -> Self {
        let mut loops = Self::default();
        found.for_each(|entry| loops.add(entry));
        loops
    }

    fn is_nothing(&self) -> bool {
        let Self { entries, reached, wasted_input, wasted_output, wasted_cost } = self;
        let wasted = [wasted_input, wasted_output, wasted_cost];
        entries.is_empty() && reached.is_empty() && wasted.iter().all(|sums| sums.is_empty())
    }

    fn join(&mut self, other: Self) {
        join(&mut self.entries, other.entries);
        join(&mut self.reached, other.reached);
        join(&mut self.wasted_input, other.wasted_input);
        join(&mut self.wasted_output, other.wasted_output);
        join(&mut self.wasted_cost, other.wasted_cost);
    }

    /// Takes the part that `wanted` counts.
    fn take(&mut self, wanted: &Self) -> Self {
        let any = |_| ();
        Self {
            entries: take(&mut self.entries, &wanted.entries, |kind| kind),
            reached: take(&mut self.reached, &wanted.reached, alike),
            wasted_input: take(&mut self.wasted_input, &wanted.wasted_input, any),
            wasted_output: take(&mut self.wasted_output, &wanted.wasted_output, any),
            wasted_cost: take(&mut self.wasted_cost, &wanted.wasted_cost, any),
        }
    }

    fn add(&mut self, entry: &Loop) {
        let tokens = entry.tokens.unwrap_or_default();
        let cost = entry.cost_quanta.and_then(|cost| u64::try_from(cost).ok());
        let labels = LoopLabels::from(entry);
        *self.entries.or_default(labels.kind) += 1;
        for severity in [Severity::Warning, Severity::Critical] {
            if severity <= labels.severity {
                *self.reached.or_default(LoopLabels { severity, ..labels }) += 1;
            }
        }
        if labels.evidence.weighs() {
            let add = |sums: &mut SmallMap<Evidence, u64>, more: Option<u64>| {
                let sum = sums.or_default(labels.evidence);
                *sum = sum.saturating_add(more.unwrap_or(0));
            };
            add(&mut self.wasted_input, tokens.input);
            add(&mut self.wasted_output, tokens.output);
            add(&mut self.wasted_cost, cost);
        }
    }

    fn raise(&mut self, fresh: &Self, summary: &mut Summary) {
        for (kind, value) in &fresh.entries {
            let counted = self.entries.or_default(*kind);
            summary.count(Counter::Loops, &[kind.name()], excess(counted, *value));
        }
        raise(&mut self.reached, &fresh.reached, alike, |labels, more| {
            summary.count(Counter::LoopsDetected, &labels.values(), more);
        });
        for (kind, counted, fresh) in [
            ("input", &mut self.wasted_input, &fresh.wasted_input),
            ("output", &mut self.wasted_output, &fresh.wasted_output),
        ] {
            raise(
                counted,
                fresh,
                |_| (),
                |evidence, more| {
                    summary.count(Counter::LoopWastedTokens, &[kind, evidence.name()], more);
                },
            );
        }
        raise(
            &mut self.wasted_cost,
            &fresh.wasted_cost,
            |_| (),
            |evidence, more| {
                summary.count(Counter::LoopWastedCostUsd, &[evidence.name()], more);
            },
        );
    }
}

/// Raises counts to those of `fresh`, and returns the increases. The counts of one kind rise together by no more than their sum has
/// risen: a loop for which a result arrives later stays counted once, as it was first known.
fn raise<K: Copy + Ord, G: PartialEq>(
    counted: &mut SmallMap<K, u64>,
    fresh: &SmallMap<K, u64>,
    kind: impl Fn(K) -> G,
    mut tell: impl FnMut(K, u64),
) {
    for (key, value) in fresh {
        let room = sum(fresh, *key, &kind).saturating_sub(sum(counted, *key, &kind));
        let held = counted.or_default(*key);
        let more = value.saturating_sub(*held).min(room);
        *held += more;
        tell(*key, more);
    }
}

/// Takes up to the wanted counts of each kind: first those with the same keys, then others, under which a loop was counted before
/// more was known about it.
fn take<K: Copy + Ord, G: PartialEq>(
    counted: &mut SmallMap<K, u64>,
    wanted: &SmallMap<K, u64>,
    kind: impl Fn(K) -> G,
) -> SmallMap<K, u64> {
    let mut taken = SmallMap::default();
    for is_same in [true, false] {
        for (key, count) in counted.iter_mut() {
            let room = if is_same {
                wanted.get(key).copied().unwrap_or(0)
            } else {
                sum(wanted, *key, &kind).saturating_sub(sum(&taken, *key, &kind))
            };
            let part = room.min(*count);
            if part > 0 {
                *count -= part;
                *taken.or_default(*key) += part;
            }
        }
    }
    counted.retain(|_, count| *count > 0);
    taken
}

/// The sum of the counts of the same kind as that of a key.
fn sum<K: Copy + Ord, G: PartialEq>(
    counts: &SmallMap<K, u64>,
    key: K,
    kind: impl Fn(K) -> G,
) -> u64 {
    let alike = counts.iter().filter(|(other, _)| kind(**other) == kind(key));
    alike.map(|(_, count)| *count).fold(0, u64::saturating_add)
}

fn join<K: Ord>(counts: &mut SmallMap<K, u64>, more: SmallMap<K, u64>) {
    for (key, more) in more {
        let count = counts.or_default(key);
        *count = count.saturating_add(more);
    }
}

/// What loops that count as one have in common, however much more becomes known about them.
fn alike(labels: LoopLabels) -> (LoopKind, Severity, bool) {
    (labels.kind, labels.severity, labels.evidence.weighs())
}

/// How far the loops of each kind have grown at `at`, given their earlier growth.
pub(super) fn growth(loops: &[Loop], before: &Growths, at: Timestamp) -> Growths {
    let mut grown = Growths::new();
    for Loop { kind, severity, evidence, count, .. } in loops {
        match grown.get_mut(&(*kind, *evidence)) {
            Some(growth) => {
                growth.calls = growth.calls.saturating_add(*count);
                growth.severity = growth.severity.max(*severity);
            }
            None => {
                let growth = Growth { severity: *severity, calls: *count, at };
                grown.insert((*kind, *evidence), growth);
            }
        }
    }
    for (kind, growth) in grown.iter_mut() {
        if let Some(earlier) = before.get(kind).filter(|earlier| growth.calls <= earlier.calls) {
            growth.at = earlier.at;
            growth.calls = earlier.calls;
        }
    }
    grown
}

fn outcome(update: &TraceFacts) -> bool {
    reported_outcome(&update.reported, update.attempt.as_deref()).is_some()
}

fn excess(counted: &mut u64, value: u64) -> u64 {
    let more = value.saturating_sub(*counted);
    *counted += more;
    more
}
