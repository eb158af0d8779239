//! `replay --expect`: the results of expectations over a whole document.

use std::collections::BTreeSet;

use comfy_table::Table;
use serde::Serialize;

use super::CliError;
use super::replay::table;
use crate::config::expect::Expectations;
use crate::engine::view::{Document, ExpectationView, TraceView};

/// The results of all expectations.
#[derive(Debug, Default, Serialize)]
pub(super) struct Outcome {
    /// How many pairs of a query and a trace were evaluated.
    evaluated: usize,
    /// How many of these failed hard.
    hard_failures: usize,
    /// Queries that no trace answers.
    unanswered: Vec<String>,
    /// What the files ask for and has no effect.
    remarks: Vec<String>,
}

impl Outcome {
    /// Sums up the results of the traces of a document.
    pub(super) fn new(expected: &Expectations, document: &Document) -> Self {
        let answered: BTreeSet<&str> = held(document).map(|(_, e)| e.query.as_str()).collect();
        let queries = expected.suites.iter().flat_map(|suite| &suite.spec().queries);
        let queries = queries.map(|query| &query.query);
        Self {
            evaluated: held(document).count(),
            hard_failures: held(document).filter(|(_, expectation)| expectation.hard_fail).count(),
            unanswered: queries
                .filter(|query| !answered.contains(query.as_str()))
                .cloned()
                .collect(),
            remarks: expected.remarks.clone(),
        }
    }

    /// The gate: something was evaluated, and nothing failed hard.
    pub(super) fn gate(&self) -> Result<(), CliError> {
        let Self { evaluated, hard_failures, .. } = *self;
        match hard_failures {
            _ if evaluated == 0 => Err(CliError::Unanswered),
            0 => Ok(()),
            failed => Err(CliError::Expectations { failed, evaluated }),
        }
    }

    /// One row for each query and trace, then all problems.
    pub(super) fn table(&self, document: &Document) -> String {
        let mut table =
            table(&["query", "trace", "correctness", "path", "retrieval", "cost", "build"]);
        held(document).for_each(|(trace, expectation)| row(&mut table, trace, expectation));
        for query in &self.unanswered {
            table.add_row([query.as_str(), "no trace"]);
        }
        let mut text = table.to_string();
        for (trace, expectation) in held(document) {
            for (name, layer) in &expectation.layers {
                for problem in &layer.problems {
                    text = format!("{text}\n{} {name}: {problem}", trace.trace_id);
                }
            }
        }
        text
    }
}

fn held(document: &Document) -> impl Iterator<Item = (&TraceView, &ExpectationView)> {
    let traces = document.sessions.iter().flat_map(|session| &session.traces);
    traces.flat_map(|trace| trace.expectations.iter().map(move |held| (trace, held)))
}

fn row(table: &mut Table, trace: &TraceView, expectation: &ExpectationView) {
    let status = |name: &str| {
        let status = expectation.layers.get(name).map(|layer| layer.status);
        status.filter(|status| *status != "skip").unwrap_or("-")
    };
    let build = if expectation.hard_fail { "stop" } else { "go" };
    table.add_row([
        expectation.query.as_str(),
        &trace.trace_id,
        status("correctness"),
        status("path"),
        status("retrieval"),
        status("cost"),
        build,
    ]);
}
