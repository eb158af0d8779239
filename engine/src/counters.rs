//! Counters by family and label values, in the same form wherever they are raised, summed and exported.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::math::Quanta;

/// The list of counters: what each counts, under which labels.
macro_rules! counters {
    ($($(#[$about:meta])* $counter:ident,)*) => {
        /// What is counted per agent: a family of counters.
        #[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Counter {
            $($(#[$about])* $counter,)*
        }

        impl Counter {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$counter,)*];

            /// How many of its units make one unit of the exported metric.
            pub const fn per_unit(self) -> i64 {
                if matches!(self, Self::LoopWastedCostUsd | Self::CostUsd | Self::SubAgentCostUsd) { Quanta::ONE } else { 1 }
            }
        }
    };
}

counters! {
    /// Traces, when they are first done.
    Traces,
    /// Traces, when they are first done, by signal and verdict (`pass`, `fail`, `skipped`); `trace_risk` is all signals together.
    TraceEvaluations,
    /// Traces that answer a query, when they are first done, by layer (`correctness`, `path`, `retrieval`, `cost`) and result
    /// (`skip`, `pass`, `warn`, `fail`); a trace counts once for each query.
    Expectations,
    /// Breaches that the trajectory gate finds in a signal of a session, by signal and breach (`stall`, `regression`).
    GateBreaches,
    /// Loops by kind, each once, when their trace is done; for a turn from log records while it runs; `output_repeat` when sealed.
    Loops,
    /// Loops that reached a severity, by kind, severity and evidence; counted when `Loops` are.
    LoopsDetected,
    /// Tokens spent in loops whose evidence is more than names, by type (`input`, `output`) and evidence; counted when `Loops` are.
    LoopWastedTokens,
    /// 1e-12 USD spent in loops whose evidence is more than names, by evidence; counted when `Loops` are.
    LoopWastedCostUsd,
    /// Limits that traces and sessions exceeded, each once, by kind (`run_limit`), limit and run (`trace`, `session`).
    RunLimits,
    /// Tokens of traces that are done, by type (`input`, `output`).
    Tokens,
    /// 1e-12 USD of traces that are done.
    CostUsd,
    /// Model calls of traces that are done.
    ModelCalls,
    /// Tool calls of traces that are done, by outcome (`ok`, `error`, `unknown`).
    ToolCalls,
    /// Tool calls of the same tool as the call before, of traces that are done.
    AdjacentToolRepeats,
    /// Calls of models without a price in any table, by model, when their trace is first done.
    UnpricedCalls,
    /// Changes to files that people decided about, by decision (`accepted`, `rejected`), when their trace is first done.
    Edits,
    /// Sessions, when they are first closed, by reason (`idle`, `evicted`, `finished`) and verdict.
    SessionsClosed,
    /// Model calls of an agent below the outermost one, by its name, when their trace is first done.
    SubAgentModelCalls,
    /// Tool calls of an agent below the outermost one, by its name.
    SubAgentToolCalls,
    /// Failed calls of an agent below the outermost one, by its name.
    SubAgentErrors,
    /// Loops of tool calls, within a trace, of an agent below the outermost one, by its name.
    SubAgentLoops,
    /// Tokens of an agent below the outermost one, by its name and type (`input`, `output`).
    SubAgentTokens,
    /// 1e-12 USD of an agent below the outermost one, by its name.
    SubAgentCostUsd,
}

/// Label values, in the order of the family's labels; copies of a counter share them.
pub type Labels = Arc<[String]>;

/// A counter: its family, its labels, its value.
pub type Counted = (Counter, Labels, u64);

/// Counters in the order of their families and labels, each once; serialised by family.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(from = "Families", into = "Families")]
pub struct Counters(Vec<Counted>);

/// Counters as they are serialised.
type Families = BTreeMap<Counter, Vec<(Labels, u64)>>;

impl Counters {
    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The counters of a family, in the order of their labels.
    pub fn family(&self, family: Counter) -> &[Counted] {
        let (begin, end) = self.range(family);
        self.0.get(begin..end).unwrap_or_default()
    }

    /// The value of one counter, if anything was counted under these labels.
    pub fn get<L: AsRef<str>>(&self, family: Counter, labels: &[L]) -> Option<u64> {
        let found = self.family(family).iter().find(|(_, held, _)| is(held, labels));
        found.map(|(.., value)| *value)
    }

    /// All counters, by family in the order of [`Counter::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = &Counted> {
        self.0.iter()
    }

    /// Leaves only these families.
    pub fn retain(&mut self, mut keeps: impl FnMut(Counter) -> bool) {
        self.0.retain(|(family, ..)| keeps(*family));
    }

    /// Raises one counter.
    pub fn raise(&mut self, family: Counter, labels: &[&str], more: u64) {
        let (begin, end) = self.range(family);
        // Counters are few, and the lengths of labels usually suffice to tell them apart.
        let mut held = self.0.get_mut(begin..end).unwrap_or_default().iter_mut();
        if let Some((.., value)) = held.find(|(_, held, _)| is(held, labels)) {
            *value = value.saturating_add(more);
            return;
        }
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        self.add_one(family, &labels, more);
    }

    /// A copy with room for more counters.
    pub(super) fn with_room(&self, more: usize) -> Self {
        let mut counters = Vec::with_capacity(self.0.len() + more);
        counters.extend_from_slice(&self.0);
        Self(counters)
    }

    /// Adds a family that is not there; its counters must be in the order of their labels.
    pub(super) fn insert(
        &mut self,
        family: Counter,
        counters: impl Iterator<Item = (Labels, u64)>,
    ) {
        let (at, before) = (self.range(family).0, self.0.len());
        self.0.extend(counters.map(|(labels, value)| (family, labels, value)));
        let added = self.0.len() - before;
        if let Some(moved) = self.0.get_mut(at..) {
            moved.rotate_right(added);
        }
        debug_assert!(self.0.is_sorted_by(|one, two| (one.0, &one.1) < (two.0, &two.1)));
    }

    /// Adds other counters, of the families for which `adds` holds.
    pub(super) fn add(&mut self, others: &Self, adds: impl Fn(Counter) -> bool) {
        if self.0.is_empty() && others.0.iter().all(|(family, ..)| adds(*family)) {
            self.clone_from(others);
            return;
        }
        for (family, labels, more) in others.0.iter().filter(|(family, ..)| adds(*family)) {
            self.add_one(*family, labels, *more);
        }
    }

    fn add_one(&mut self, family: Counter, labels: &Labels, more: u64) {
        let place = self.0.binary_search_by(|(of, held, _)| (of, held).cmp(&(&family, labels)));
        match place {
            Ok(at) => self.0[at].2 = self.0[at].2.saturating_add(more),
            Err(at) => self.0.insert(at, (family, Arc::clone(labels), more)),
        }
    }

    /// Where the counters of a family are, or would be.
    fn range(&self, family: Counter) -> (usize, usize) {
        let begin = self.0.partition_point(|(held, ..)| *held < family);
        let own = self.0.get(begin..).unwrap_or_default().iter();
        (begin, begin + own.take_while(|(held, ..)| *held == family).count())
    }
}

impl From<Families> for Counters {
    fn from(families: Families) -> Self {
        let mut counters = Self::default();
        for (family, held) in families {
            held.iter().for_each(|(labels, value)| counters.add_one(family, labels, *value));
        }
        counters
    }
}

impl From<Counters> for Families {
    fn from(counters: Counters) -> Self {
        let mut families = Self::new();
        for (family, labels, value) in counters.0 {
            families.entry(family).or_default().push((labels, value));
        }
        families
    }
}

/// Whether the labels of a counter are these.
fn is<L: AsRef<str>>(held: &[String], labels: &[L]) -> bool {
    held.len() == labels.len()
        && labels.iter().zip(held).all(|(label, held)| label.as_ref() == held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up_and_stay_in_order() {
        let (mut one, mut two) = (Counters::default(), Counters::default());
        for (label, more) in [("b", 1), ("a", 2), ("b", 4)] {
            one.raise(Counter::Loops, &[label], more);
        }
        one.raise(Counter::Traces, &[], 1);
        for (family, label, more) in
            [(Counter::Loops, "c", 1), (Counter::Loops, "b", 1), (Counter::Tokens, "input", 7)]
        {
            two.raise(family, &[label], more);
        }
        one.add(&two, |family| family != Counter::Tokens);
        let values: Vec<u64> =
            one.family(Counter::Loops).iter().map(|(.., value)| *value).collect();
        assert_eq!(values, [2, 6, 1]);
        assert_eq!(
            (one.get(Counter::Loops, &["b"]), one.get::<&str>(Counter::Traces, &[])),
            (Some(6), Some(1))
        );
        assert_eq!(
            (one.get(Counter::Tokens, &["input"]), one.get(Counter::Loops, &["b", "a"])),
            (None, None)
        );
    }
}
