//! What a trace has counted: counters rise by the excess over it and never fall.
//!
//! Nothing counts before it is certain whose it is: once a root is in, or the trace is final without one. From then on loops
//! count in flight. Should a later span name another agent, they count towards that one as well; spend counts once, so that
//! dollars add up over agents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::key::Agent;
use super::summary::Summary;
use crate::engine::few::Few;
use crate::engine::loops::{CRITICAL, WARNING, kinds};
use crate::engine::runs::told_outcome;
use crate::engine::saved::{Name, by_name, by_names, few_by_name, severity};
use crate::engine::span::Timestamp;
use crate::engine::update::{Loop, Spent, TraceUpdate};

/// What one trace has counted.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Tally {
    /// Its verdicts are counted.
    pub(super) done: bool,
    /// An outcome of it was told to its agent.
    #[serde(default)]
    pub(super) outcome: bool,
    loops: BTreeMap<Agent, Loops>,
    spend: Spend,
}

/// What the loops of one trace have counted towards one agent.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Loops {
    #[serde(deserialize_with = "by_name")]
    entries: BTreeMap<Name, u64>,
    #[serde(deserialize_with = "by_names")]
    reached: BTreeMap<(Name, Name), u64>,
    wasted_input: u64,
    wasted_output: u64,
    wasted_cost: u64,
}

/// What a trace has spent. Cost is in 1e-12 USD.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
struct Spend {
    input: u64,
    output: u64,
    cost: u64,
    #[serde(deserialize_with = "few_by_name")]
    tools: Few<Name, u64>,
    model_calls: u64,
    adjacent_tool_repeats: u64,
}

/// How far the loops of one kind have grown in a trace that is open.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Growth {
    /// The worst severity.
    #[serde(deserialize_with = "severity")]
    pub(super) severity: Name,
    /// Calls in all runs of this kind.
    calls: u64,
    /// Arrival time of what made it grow.
    pub(super) at: Timestamp,
}

impl Tally {
    /// What other sessions have counted of a trace that came from them; `None` if nothing.
    pub(super) fn told(update: &TraceUpdate) -> Option<Self> {
        let mut tally = Self::default();
        for told in &update.told {
            // It was done there, so its verdicts are counted, and an outcome if one was known.
            tally.done |= told.spent.is_some();
            tally.outcome |= tally.done && outcome(update);
            tally.spend = told.spent.as_ref().map_or(tally.spend, Spend::from);
            if told.loops.is_empty() {
                continue;
            }
            let agent = Agent::from(told.agent.clone().unwrap_or_default());
            let counted = tally.loops.entry(agent).or_default();
            for (entry, (kind, severity)) in
                told.loops.iter().filter_map(|entry| Some((entry, known(entry)?)))
            {
                counted.add(entry, kind, severity);
            }
        }
        (!tally.is_nothing()).then_some(tally)
    }

    /// What a trace without loops has counted that counted all that it says.
    pub(super) fn all_of(update: &TraceUpdate, done: bool) -> Self {
        let outcome = done && outcome(update);
        Self { done, outcome, loops: BTreeMap::new(), spend: Spend::of(update) }
    }

    /// Returns whether nothing was counted.
    pub(super) fn is_nothing(&self) -> bool {
        !self.done && !self.outcome && self.loops.is_empty() && self.spend == Spend::default()
    }

    /// Returns whether it has counted just that.
    pub(super) fn is_all_of(&self, update: &TraceUpdate) -> bool {
        let outcome = self.done && outcome(update);
        self.loops.is_empty() && self.outcome == outcome && self.spend == Spend::of(update)
    }

    /// Counts what the loops have more than was counted.
    ///
    /// A critical loop has been a warning, seen or not, so it counts as both: what is
    /// counted does not depend on how the spans were batched.
    pub(super) fn count_loops<'a>(
        &mut self,
        found: impl Iterator<Item = &'a Loop>,
        agent: &Agent,
        summary: &mut Summary,
    ) {
        let mut fresh = Loops::default();
        for (entry, (kind, severity)) in found.filter_map(|entry| Some((entry, known(entry)?))) {
            fresh.add(entry, kind, severity);
        }
        if !fresh.entries.is_empty() {
            self.loops.entry(agent.clone()).or_default().raise(&fresh, summary);
        }
    }

    /// Counts what the trace has spent more than was counted.
    pub(super) fn count_spend(&mut self, update: &TraceUpdate, summary: &mut Summary) {
        let (spend, all) = (&mut self.spend, Spend::of(update));
        let mut count = |family, labels: &[&str], counted: &mut u64, value| {
            summary.count(family, labels, excess(counted, value));
        };
        count("tokens", &["input"], &mut spend.input, all.input);
        count("tokens", &["output"], &mut spend.output, all.output);
        count("cost_usd", &[], &mut spend.cost, all.cost);
        count("model_calls", &[], &mut spend.model_calls, all.model_calls);
        let repeats = &mut spend.adjacent_tool_repeats;
        count("adjacent_tool_repeats", &[], repeats, all.adjacent_tool_repeats);
        for (outcome, calls) in all.tools.iter() {
            count("tool_calls", &[outcome], spend.tools.or_default(outcome), *calls);
        }
    }
}

impl Spend {
    /// All that a trace says it has spent.
    fn of(update: &TraceUpdate) -> Self {
        Self::from(&Spent::of(update))
    }
}

impl From<&Spent> for Spend {
    fn from(spent: &Spent) -> Self {
        let tools = [
            ("ok", spent.tools_ok),
            ("error", spent.tools_failed),
            ("unknown", spent.tools_unknown),
        ];
        Self {
            input: spent.input_tokens,
            output: spent.output_tokens,
            cost: spent.cost_quanta,
            tools: tools.into_iter().filter(|(_, calls)| *calls > 0).collect(),
            model_calls: spent.model_calls,
            adjacent_tool_repeats: spent.adjacent_tool_repeats,
        }
    }
}

impl Loops {
    fn add(&mut self, entry: &Loop, kind: &'static str, severity: &'static str) {
        let tokens = entry.tokens.unwrap_or_default();
        let cost = entry.cost_quanta.and_then(|cost| u64::try_from(cost).ok());
        *self.entries.entry(kind).or_default() += 1;
        *self.reached.entry((kind, WARNING)).or_default() += 1;
        if severity == CRITICAL {
            *self.reached.entry((kind, CRITICAL)).or_default() += 1;
        }
        self.wasted_input = self.wasted_input.saturating_add(tokens.input.unwrap_or(0));
        self.wasted_output = self.wasted_output.saturating_add(tokens.output.unwrap_or(0));
        self.wasted_cost = self.wasted_cost.saturating_add(cost.unwrap_or(0));
    }

    fn raise(&mut self, fresh: &Self, summary: &mut Summary) {
        for (kind, value) in &fresh.entries {
            let counted = self.entries.entry(kind).or_default();
            summary.count("loops", &[kind], excess(counted, *value));
        }
        for ((kind, severity), value) in &fresh.reached {
            let counted = self.reached.entry((kind, severity)).or_default();
            summary.count("loops_detected", &[kind, severity], excess(counted, *value));
        }
        let mut count = |family, labels: &[&str], counted: &mut u64, value| {
            summary.count(family, labels, excess(counted, value));
        };
        count("loop_wasted_tokens", &["input"], &mut self.wasted_input, fresh.wasted_input);
        count("loop_wasted_tokens", &["output"], &mut self.wasted_output, fresh.wasted_output);
        count("loop_wasted_cost_usd", &[], &mut self.wasted_cost, fresh.wasted_cost);
    }
}

/// How far the loops of each kind have grown by `at`, given how far they had before.
pub(super) fn growth(
    loops: &[Loop],
    before: &BTreeMap<&'static str, Growth>,
    at: Timestamp,
) -> BTreeMap<&'static str, Growth> {
    let mut grown: BTreeMap<&'static str, Growth> = BTreeMap::new();
    for (entry, (kind, severity)) in loops.iter().filter_map(|entry| Some((entry, known(entry)?))) {
        let growth = grown.entry(kind).or_insert(Growth { severity, calls: 0, at });
        growth.calls = growth.calls.saturating_add(entry.count);
        if severity == CRITICAL {
            growth.severity = CRITICAL;
        }
    }
    for (kind, growth) in &mut grown {
        if let Some(earlier) = before.get(kind).filter(|earlier| growth.calls <= earlier.calls) {
            growth.at = earlier.at;
            growth.calls = earlier.calls;
        }
    }
    grown
}

/// How many of the loops are of no known kind or severity.
pub(super) fn malformed(loops: &[Loop]) -> u64 {
    loops.iter().filter(|entry| known(entry).is_none()).count() as u64
}

fn outcome(update: &TraceUpdate) -> bool {
    told_outcome(&update.reported, update.attempt.as_deref()).is_some()
}

fn known(entry: &Loop) -> Option<(&'static str, &'static str)> {
    let one_of =
        |list: &[&'static str], name: &str| list.iter().find(|known| **known == name).copied();
    Some((one_of(&kinds(), &entry.kind)?, one_of(&[WARNING, CRITICAL], &entry.severity)?))
}

fn excess(counted: &mut u64, value: u64) -> u64 {
    let more = value.saturating_sub(*counted);
    *counted += more;
    more
}
