//! The attempt at a task that a trace is part of.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::TraceContents;
use super::shape::Shape;
use super::span_view::SpanView;
use crate::span::{Attempt, Violation};

/// The attempt of a trace: for each concept the first value from the outermost span inwards, evaluators included, then from the
/// resources; for documents and violations all values.
pub(super) fn of(shape: &Shape<'_>, parts: &TraceContents) -> Option<Attempt> {
    let own = shape.all_outermost_first().filter_map(SpanView::attempt);
    let resources =
        shape.all_outermost_first().filter_map(|span| span.resource().attempt.as_deref());
    let mut logged = parts.logs().flat_map(|log| &log.violations).peekable();
    // Most traces are not part of an attempt.
    if !parts.spans.say_attempt() && logged.peek().is_none() {
        return None;
    }
    let said: Vec<&Attempt> = own.chain(resources).collect();
    let violations: BTreeSet<&Violation> =
        said.iter().flat_map(|said| &said.violations).chain(logged).collect();
    let attempt = Attempt {
        task: first(&said, |said| &said.task),
        run: first(&said, |said| &said.run),
        trial: first(&said, |said| &said.trial),
        success: said.iter().find_map(|said| said.success),
        abstained: said.iter().find_map(|said| said.abstained),
        perturbation: first(&said, |said| &said.perturbation),
        perturbation_id: first(&said, |said| &said.perturbation_id),
        baseline: said.iter().find_map(|said| said.baseline),
        expected_output: first(&said, |said| &said.expected_output),
        expected_tools: said
            .iter()
            .map(|said| &said.expected_tools)
            .find(|names| !names.is_empty())
            .cloned()
            .unwrap_or_default(),
        retrieved: distinct(shape, |said| &said.retrieved),
        cited: distinct(shape, |said| &said.cited),
        violations: violations.into_iter().cloned().collect(),
    };
    (attempt != Attempt::default()).then_some(attempt)
}

fn first(said: &[&Attempt], of: fn(&Attempt) -> &Option<Arc<str>>) -> Option<Arc<str>> {
    said.iter().find_map(|said| of(said).clone())
}

/// All names on the agent's own spans, each once, in order of the spans' start.
fn distinct(shape: &Shape<'_>, of: fn(&Attempt) -> &Vec<Arc<str>>) -> Vec<Arc<str>> {
    let mut seen = BTreeSet::new();
    let all = shape.behaviour().filter_map(SpanView::attempt).flat_map(of);
    all.filter(|name| seen.insert(*name)).cloned().collect()
}
