//! `replay --expect`: the traces of a document against files of expectations.

use std::path::PathBuf;

use comfy_table::Table;
use serde::Serialize;

use super::replay::table;
use super::{CliError, Process};
use crate::config::expect::{self, Expectations};
use crate::engine::expect::{Judgements, LayerResult, LayerStatus, Observed};
use crate::engine::view::{Document, ExpectationView, TraceView};

/// What came of all expectations.
#[derive(Debug, Default, Serialize)]
pub(super) struct Outcome {
    /// How many times a query was held against a trace.
    evaluated: usize,
    /// How many of these failed hard.
    hard_failures: usize,
    /// Queries that no trace answers.
    unanswered: Vec<String>,
    /// What the files ask for that is not done.
    remarks: Vec<String>,
}

/// Reads the files and says what of them has no effect.
pub(super) fn read(
    paths: &[PathBuf],
    process: &mut Process<'_>,
) -> Result<Vec<Expectations>, CliError> {
    let mut files = Vec::new();
    for path in paths {
        let file = expect::read(path)?;
        for remark in &file.remarks {
            // Only a remark: the result does not hang on it being read.
            let _ = writeln!(process.err, "{}: {remark}", path.display());
        }
        files.push(file);
    }
    Ok(files)
}

/// Holds every trace of the document against the queries that it answers.
pub(super) fn hold(files: &[Expectations], document: &mut Document) -> Outcome {
    let mut outcome = Outcome::default();
    for Expectations { suite, remarks } in files {
        outcome.remarks.extend(remarks.iter().cloned());
        let queries = &suite.spec().queries;
        let mut answers = vec![0_usize; queries.len()];
        for trace in document.sessions.iter_mut().flat_map(|session| &mut session.traces) {
            let task = trace.attempt.as_ref().and_then(|attempt| attempt.task.as_deref());
            let answered = suite.answered(task, trace.input.as_deref());
            let observed = Observed::from(&*trace);
            for (at, query) in queries.iter().enumerate().filter(|(at, _)| answered.contains(at)) {
                let result = suite.evaluate(query, &observed, &Judgements::new());
                let hard_fail = result.hard_fail();
                outcome.evaluated += 1;
                outcome.hard_failures += usize::from(hard_fail);
                answers[at] += 1;
                let query = query.query.clone();
                trace.expectations.push(ExpectationView { query, hard_fail, result });
            }
        }
        let unanswered = queries.iter().zip(answers).filter(|(_, count)| *count == 0);
        outcome.unanswered.extend(unanswered.map(|(query, _)| query.query.clone()));
    }
    outcome
}

impl Outcome {
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
        let traces = || document.sessions.iter().flat_map(|session| &session.traces);
        let held = || traces().flat_map(|trace| trace.expectations.iter().map(move |e| (trace, e)));
        let mut table =
            table(&["query", "trace", "correctness", "path", "retrieval", "cost", "build"]);
        held().for_each(|(trace, expectation)| row(&mut table, trace, expectation));
        for query in &self.unanswered {
            table.add_row([query.as_str(), "no trace"]);
        }
        let mut text = table.to_string();
        for (trace, expectation) in held() {
            for (name, layer) in layers(expectation) {
                for problem in &layer.problems {
                    text = format!("{text}\n{} {name}: {problem}", trace.trace_id);
                }
            }
        }
        text
    }
}

fn row(table: &mut Table, trace: &TraceView, expectation: &ExpectationView) {
    let [correctness, path, retrieval, cost] =
        layers(expectation).map(|(_, layer)| word(layer.status));
    let build = if expectation.hard_fail { "stop" } else { "go" };
    let query = expectation.query.as_str();
    table.add_row([query, &trace.trace_id, correctness, path, retrieval, cost, build]);
}

fn layers(expectation: &ExpectationView) -> [(&'static str, &LayerResult); 4] {
    expectation.result.layers()
}

fn word(status: LayerStatus) -> &'static str {
    if status == LayerStatus::Skip { "-" } else { status.name() }
}
