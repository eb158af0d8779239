//! Results of a query's expectations, layer by layer.
//!
//! Source: AgentCI v2, `engine/results.py`. A query fails hard if its correctness or its path failed, and the path
//! fails only by a forbidden tool; every other problem is a warning.
//!
//! AgentCI treats unknown values as zero or empty. Here a check that needs an unknown value is not made; the notes say so, and a
//! layer without any possible check is skipped.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// The status of a layer. The order is by severity.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LayerStatus {
    /// Nothing was requested, or nothing could be checked.
    Skip,
    /// All that could be checked holds.
    Pass,
    /// A limit was exceeded.
    Warn,
    /// Something required is missing, or something forbidden is there.
    Fail,
}

/// Numbers of a layer by the source's names; shares are rounded to three decimals, but checks compare the unrounded ones.
pub type Details = BTreeMap<&'static str, Value>;

/// The name of the detail with the verdicts of judges: a list with the check, the rule, the score, the label, the judge and the reason.
const JUDGED: &str = "judged";

/// The result of one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerResult {
    /// Its status.
    pub status: LayerStatus,
    /// What is wrong, one sentence each, in the order of the checks.
    pub problems: Vec<String>,
    /// What holds and what could not be checked, in the order of the checks.
    pub notes: Vec<String>,
    /// The numbers behind the status.
    pub details: Details,
}

/// The results of all layers of one query for one trace.
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
    /// The result of a layer without any request.
    pub fn skipped() -> Self {
        Findings::default().end(LayerStatus::Skip, LayerStatus::Skip)
    }

    /// Both results as one: the worse status, and all problems, notes and details.
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
    /// Adds a check that was made: with the note if it holds, with the problem if it does not.
    pub(super) fn check(&mut self, holds: bool, note: String, problem: String) {
        self.checked += 1;
        if holds { self.notes.push(note) } else { self.problems.push(problem) }
    }

    /// Checks a value against its greatest allowed value; `None`: it is not known.
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

    /// Checks an unrounded share against its least allowed value.
    pub(super) fn at_least(&mut self, what: &str, value: f64, least: f64) {
        self.check(
            value >= least,
            format!("{what}: {value:.3} >= {least}"),
            format!("{what}: {value:.3} < {least}"),
        );
    }

    /// Adds a judge's verdict.
    pub(super) fn judged(&mut self, verdict: Value) {
        let verdicts = self.details.entry(JUDGED).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(verdicts) = verdicts {
            verdicts.push(verdict);
        }
    }

    /// Adds a note that does not affect the status.
    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Adds a check that cannot be made, with the reason.
    pub(super) fn cannot(&mut self, why: &str) {
        self.unchecked += 1;
        self.notes.push(format!("not checked: {why}"));
    }

    pub(super) fn any_problem(&self) -> bool {
        !self.problems.is_empty()
    }

    /// The number of checks that could not be made.
    pub(super) fn unchecked(&self) -> usize {
        self.unchecked
    }

    /// The result of the layer; `on_problem` is its status if there is a problem.
    pub(super) fn result(self, on_problem: LayerStatus) -> LayerResult {
        let blind = self.checked == 0 && self.unchecked > 0;
        self.end(on_problem, if blind { LayerStatus::Skip } else { LayerStatus::Pass })
    }

    /// The result of a layer in which a problem is a failure, and which is a warning rather than passed if a check could not be made.
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

/// A number with this many decimals, correctly rounded from the float, as Python's `round` does.
pub(super) fn rounded(value: f64, decimals: usize) -> f64 {
    // Digits that were just printed can be parsed.
    format!("{value:.decimals$}").parse().unwrap_or(value)
}
