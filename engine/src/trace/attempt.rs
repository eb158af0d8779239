//! The attempt at a task that a trace is part of.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::TraceContents;
use super::shape::Shape;
use super::span_view::SpanView;
use crate::facts::{self, Attempt};
use crate::span::{Attempt as Said, Violation};

/// The attempt of a trace: for each concept the first value from the outermost span inwards, evaluators included, then from the
/// resources; for documents and violations all.
pub(super) fn of(shape: &Shape<'_>, parts: &TraceContents) -> Option<Attempt> {
    let own = shape.all_outermost_first().filter_map(SpanView::attempt);
    let resources =
        shape.all_outermost_first().filter_map(|span| span.resource().attempt.as_deref());
    let mut logged = parts.logs().flat_map(|log| &log.violations).peekable();
    // Most traces are part of no attempt.
    if !parts.spans.say_attempt() && logged.peek().is_none() {
        return None;
    }
    let said: Vec<&Said> = own.chain(resources).collect();
    let violations: BTreeSet<&Violation> =
        said.iter().flat_map(|said| &said.violations).chain(logged).collect();
    let attempt = Attempt {
        task: first(&said, |said| said.task.as_ref()),
        run: first(&said, |said| said.run.as_ref()),
        trial: first(&said, |said| said.trial.as_ref()),
        success: said.iter().find_map(|said| said.success),
        abstained: said.iter().find_map(|said| said.abstained),
        perturbation: first(&said, |said| said.perturbation.as_ref()),
        perturbation_id: first(&said, |said| said.perturbation_id.as_ref()),
        baseline: said.iter().find_map(|said| said.baseline),
        expected_output: first(&said, |said| said.expected_output.as_ref()),
        expected_tools: said
            .iter()
            .map(|said| names(&said.expected_tools))
            .find(|names| !names.is_empty())
            .unwrap_or_default(),
        retrieved: distinct(shape, |said| &said.retrieved),
        cited: distinct(shape, |said| &said.cited),
        violations: violations
            .into_iter()
            .map(|violation| facts::Violation {
                constraint: violation.constraint.to_string(),
                severity: violation.severity.as_ref().map(ToString::to_string),
            })
            .collect(),
    };
    (attempt != Attempt::default()).then_some(attempt)
}

fn first(said: &[&Said], of: fn(&Said) -> Option<&Arc<str>>) -> Option<String> {
    said.iter().find_map(|said| of(said)).map(ToString::to_string)
}

fn names(names: &[Arc<str>]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

/// All names on the agent's own spans, each once, in order of the spans' start.
fn distinct(shape: &Shape<'_>, of: fn(&Said) -> &Vec<Arc<str>>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let all = shape.behaviour().filter_map(SpanView::attempt).flat_map(of);
    all.filter(|name| seen.insert((*name).clone())).map(ToString::to_string).collect()
}
