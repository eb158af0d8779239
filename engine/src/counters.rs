//! Counters by family and label values, in one form wherever they are raised, summed and exported.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::few::Few;

/// The list of counters: what each counts, under which labels.
macro_rules! counters {
    ($($(#[$about:meta])* $counter:ident,)*) => {
        /// What is counted of an agent: a family of counters.
        #[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Counter {
            $($(#[$about])* $counter,)*
        }

        impl Counter {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$counter,)*];
        }
    };
}

counters! {
    /// Traces, when they are first done.
    Traces,
    /// Traces, when they are first done, by signal and verdict (`pass`, `fail`, `skipped`); `trace_risk` is all signals together.
    TraceEvaluations,
    /// Traces for each query that they answer, when they are first done, by layer (`correctness`, `path`, `retrieval`, `cost`) and
    /// result (`skip`, `pass`, `warn`, `fail`).
    Expectations,
    /// Breaches that the trajectory gate finds in a signal of a session, by signal and breach (`stall`, `regression`).
    GateBreaches,
    /// Loops by kind, each once, when their trace is done; in flight for a turn that log records tell of; `output_repeat` when sealed.
    Loops,
    /// Loops that reached a severity, by kind, severity and evidence; counted when `Loops` are.
    LoopsDetected,
    /// Tokens spent in loops whose evidence is more than names, by type (`input`, `output`) and evidence; counted when `Loops` are.
    LoopWastedTokens,
    /// 1e-12 USD spent in loops whose evidence is more than names, by evidence; counted when `Loops` are.
    LoopWastedCostUsd,
    /// Limits that traces and sessions went over, each once, by kind (`run_limit`), limit and run (`trace`, `session`).
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
    /// Calls of models that no table has a price for, by model, when their trace is first done.
    UnpricedCalls,
    /// Changes to files that people decided on, by decision (`accepted`, `rejected`), when their trace is first done.
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

/// Counters by family; a family is present from its first counter on.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Counters(
    // Invariant: the counters of each family are in the order of their labels, each once.
    Few<Counter, Vec<(Labels, u64)>>,
);

impl Counters {
    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The counters of a family, in the order of their labels.
    pub fn family(&self, family: Counter) -> &[(Labels, u64)] {
        self.0.get(&family).map_or(&[], Vec::as_slice)
    }

    /// The value of one counter, if anything was counted under these labels.
    pub fn get<L: AsRef<str>>(&self, family: Counter, labels: &[L]) -> Option<u64> {
        let found = self.family(family).iter().find(|(held, _)| is(held, labels));
        found.map(|(_, value)| *value)
    }

    /// All families, in the order of [`Counter::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Counter, &[(Labels, u64)])> {
        self.0.iter().map(|(family, counters)| (*family, counters.as_slice()))
    }

    /// Leaves only these families.
    pub fn retain(&mut self, mut keeps: impl FnMut(Counter) -> bool) {
        self.0.retain(|family, _| keeps(*family));
    }

    /// Raises one counter.
    pub fn raise(&mut self, family: Counter, labels: &[&str], more: u64) {
        let counters = self.0.or_default(family);
        // Counters are few, and mostly the lengths of labels tell whether they are equal.
        if let Some((_, value)) = counters.iter_mut().find(|(held, _)| is(held, labels)) {
            *value = value.saturating_add(more);
            return;
        }
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        add(counters, &labels, more);
    }

    /// Adds a family, whose counters must be in the order of their labels.
    pub(super) fn insert(&mut self, family: Counter, counters: Vec<(Labels, u64)>) {
        debug_assert!(counters.is_sorted_by(|(one, _), (two, _)| one < two), "{counters:?}");
        if !counters.is_empty() {
            self.0.insert(family, counters);
        }
    }

    /// Adds other counters, of the families for which `adds` holds.
    pub(super) fn add(&mut self, others: &Self, adds: impl Fn(Counter) -> bool) {
        if self.0.is_empty() && others.0.iter().all(|(family, _)| adds(*family)) {
            self.clone_from(others);
            return;
        }
        for (family, more) in others.0.iter().filter(|(family, _)| adds(**family)) {
            let counters = self.0.or_default(*family);
            if counters.is_empty() {
                counters.clone_from(more);
                continue;
            }
            more.iter().for_each(|(labels, value)| add(counters, labels, *value));
        }
    }
}

/// Whether the labels of a counter are these.
fn is<L: AsRef<str>>(held: &[String], labels: &[L]) -> bool {
    held.len() == labels.len()
        && labels.iter().zip(held).all(|(label, held)| label.as_ref() == held)
}

fn add(counters: &mut Vec<(Labels, u64)>, labels: &Labels, more: u64) {
    match counters.binary_search_by(|(held, _)| held.cmp(labels)) {
        Ok(at) => counters[at].1 = counters[at].1.saturating_add(more),
        Err(at) => counters.insert(at, (Arc::clone(labels), more)),
    }
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
        let values: Vec<u64> = one.family(Counter::Loops).iter().map(|(_, value)| *value).collect();
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
