//! Estimates of the memory that a trace takes in its session, from its last update; they do not change until the next update.
//!
//! Parts that several traces share count for each of them, except names.

use crate::facts::{
    Content, Expectation, ExpectedLayer, Loop, OutputDigest, Remarks, ReportedScore, Step,
};
use crate::span::{Guardrail, SpanId, TraceId};

/// The bytes of the digest of an answer, beside itself.
pub(super) fn of_output(output: &OutputDigest) -> usize {
    let by_model = output.by_model.as_deref();
    let by_model = by_model.map_or(0, |made| size_of_val(made) + made.embedding.bytes());
    output.tokens.len() * size_of::<u64>() + output.embedding.bytes() + by_model
}

/// The bytes of the texts of a trace.
pub(super) fn of_content(content: &Content) -> usize {
    let of_step = |step: &Step| {
        size_of::<Step>() + text(step.arguments.as_deref()) + text(step.result.as_deref())
    };
    let steps: usize = content.steps.iter().map(of_step).sum();
    text(content.input.as_deref()) + text(content.output.as_deref()) + steps
}

/// The bytes of remarks.
pub(super) fn of_remarks(remarks: &Remarks) -> usize {
    let of_guardrail = |guardrail: &Guardrail| {
        let Guardrail { name, result } = guardrail;
        size_of::<Guardrail>() + text(name.as_deref()) + text(result.as_deref())
    };
    let guardrails: usize = remarks.guardrails.iter().map(of_guardrail).sum();
    size_of::<Remarks>() + size_of_val(&*remarks.compacted_unix_nano) + guardrails
}

/// The bytes of a reported score.
pub(crate) fn of_reported(score: &ReportedScore) -> usize {
    let ReportedScore { name, identifier, label, explanation, judge, .. } = score;
    let said = [label, explanation, judge].into_iter().map(|said| text(said.as_deref()));
    size_of::<ReportedScore>() + name.len() + identifier.len() + said.sum::<usize>()
}

/// The bytes of an evaluated expectation.
pub(super) fn of_expectation(expectation: &Expectation) -> usize {
    let of_layer = |layer: &ExpectedLayer| {
        let said = layer.problems.iter().chain(&layer.notes);
        layer.details.len() + said.map(|said| size_of::<String>() + said.len()).sum::<usize>()
    };
    let layers = expectation.layers().into_iter().filter_map(|(_, layer)| layer);
    size_of::<Expectation>() + expectation.query.len() + layers.map(of_layer).sum::<usize>()
}

/// The bytes of a loop.
pub(super) fn of_loop(entry: &Loop) -> usize {
    let ids =
        size_of::<TraceId>() * entry.trace_ids.len() + size_of::<SpanId>() * entry.span_ids.len();
    size_of::<Loop>() + ids + size_of_val(&*entry.tools)
}

fn text(text: Option<&str>) -> usize {
    text.map_or(0, str::len)
}
