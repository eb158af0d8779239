//! What came out of a query's expectations, layer by layer.
//!
//! Source: AgentCI v2, `engine/results.py`. A query fails hard if its correctness failed or its path did, and the path
//! fails by a forbidden tool alone; all else that is exceeded is a warning.
//!
//! Where AgentCI takes what it does not know for zero or for empty, a check that cannot be made is not made here; the
//! notes say so, and a layer of which no check could be made is skipped.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// How a layer ended. The order is by severity.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LayerStatus {
    /// Nothing was asked, or nothing of it could be checked.
    Skip,
    /// All that could be checked holds.
    Pass,
    /// A limit was exceeded.
    Warn,
    /// What must be is not, or what must not be is.
    Fail,
}

/// Numbers of a layer by the document's names; shares are rounded to three decimals, what gates compare is not.
pub type Details = BTreeMap<&'static str, Value>;

/// The detail that has what judges said: a list with the check, the rule, the score, the label, who said so and why.
const JUDGED: &str = "judged";

/// One layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerResult {
    /// How it ended.
    pub status: LayerStatus,
    /// What is wrong, one sentence each, in the order of the checks.
    pub problems: Vec<String>,
    /// What holds and what could not be checked, in the order of the checks.
    pub notes: Vec<String>,
    /// The numbers behind it.
    pub details: Details,
}

/// All layers of one query over one trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueryResult {
    /// Layer 1: the answer, and assertions on spans.
    pub correctness: LayerResult,
    /// Layer 2: the tools.
    pub path: LayerResult,
    /// Layer 2.5: what was retrieved.
    pub retrieval: LayerResult,
    /// Layer 3: tokens, calls, time and dollars.
    pub cost: LayerResult,
}

/// What a layer has found so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    problems: Vec<String>,
    notes: Vec<String>,
    pub(super) details: Details,
    checked: usize,
    unchecked: usize,
}

impl LayerResult {
    /// A layer of which nothing was asked.
    pub fn skipped() -> Self {
        Findings::default().end(LayerStatus::Skip, LayerStatus::Skip)
    }

    /// Both as one layer: the worse status, and all that was said.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.status = self.status.max(other.status);
        self.problems.extend(other.problems);
        self.notes.extend(other.notes);
        for (name, detail) in other.details {
            match (self.details.get_mut(name), detail) {
                // Both may have asked judges.
                (Some(Value::Array(own)), Value::Array(more)) if name == JUDGED => own.extend(more),
                (_, detail) => drop(self.details.insert(name, detail)),
            }
        }
        self
    }
}

impl QueryResult {
    /// Whether the query must stop a build.
    pub fn hard_fail(&self) -> bool {
        self.correctness.status == LayerStatus::Fail || self.path.status == LayerStatus::Fail
    }
}

impl Findings {
    /// One check that was made, and what to say of it if it holds and if it does not.
    pub(super) fn check(&mut self, holds: bool, note: String, problem: String) {
        self.checked += 1;
        if holds { self.notes.push(note) } else { self.problems.push(problem) }
    }

    /// A value against the most that it may be; `None`: it is not known.
    pub(super) fn at_most<T: Copy + PartialOrd + std::fmt::Display>(
        &mut self,
        what: &str,
        value: Option<T>,
        most: T,
    ) {
        let Some(value) = value else { return self.cannot(&format!("{what} not known")) };
        self.check(
            value <= most,
            format!("{what}: {value} <= {most}"),
            format!("{what}: {value} > {most}"),
        );
    }

    /// A share against the least that it may be, which is not rounded.
    pub(super) fn at_least(&mut self, what: &str, value: f64, least: f64) {
        self.check(
            value >= least,
            format!("{what}: {value:.3} >= {least}"),
            format!("{what}: {value:.3} < {least}"),
        );
    }

    /// Adds what a judge said.
    pub(super) fn judged(&mut self, verdict: Value) {
        let verdicts = self.details.entry(JUDGED).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(verdicts) = verdicts {
            verdicts.push(verdict);
        }
    }

    /// Says something that decides nothing.
    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// A check that cannot be made, and why.
    pub(super) fn cannot(&mut self, why: &str) {
        self.unchecked += 1;
        self.notes.push(format!("not checked: {why}"));
    }

    pub(super) fn any_problem(&self) -> bool {
        !self.problems.is_empty()
    }

    /// How many checks could not be made.
    pub(super) fn unchecked(&self) -> usize {
        self.unchecked
    }

    /// The layer, with the status that a problem gives it.
    pub(super) fn result(self, on_problem: LayerStatus) -> LayerResult {
        let blind = self.checked == 0 && self.unchecked > 0;
        self.end(on_problem, if blind { LayerStatus::Skip } else { LayerStatus::Pass })
    }

    /// The layer where a problem is a failure: then what could not be checked is not right yet, and a warning.
    pub(super) fn hard_result(self) -> LayerResult {
        let unsure = self.unchecked > 0;
        let result = self.result(LayerStatus::Fail);
        let pass = result.status == LayerStatus::Pass;
        let status = if unsure && pass { LayerStatus::Warn } else { result.status };
        LayerResult { status, ..result }
    }

    fn end(self, on_problem: LayerStatus, otherwise: LayerStatus) -> LayerResult {
        let Self { problems, notes, details, .. } = self;
        let status = if problems.is_empty() { otherwise } else { on_problem };
        LayerResult { status, problems, notes, details }
    }
}

/// A number with so many decimals, correctly rounded from the float, as Python's `round` does.
pub(super) fn rounded(value: f64, decimals: usize) -> f64 {
    // Digits that were just printed parse back.
    format!("{value:.decimals$}").parse().unwrap_or(value)
}
