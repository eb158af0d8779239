//! The steps of a trace, as the page draws them; only where texts are kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::calls::ModelCall;
use super::loops::Spend;
use super::shape::Shape;
use super::span_view::SpanView;
use super::whose::agent_name;
use crate::facts::{Step, StepKind, ToolCall};
use crate::span::{Operation, SpanId, Timestamp};

/// Greatest number of steps of one trace.
const MAX_STEPS: usize = 1_000;

/// Greatest size of a tool's result, in bytes.
const MAX_RESULT_BYTES: usize = 4_096;

/// The steps of a trace: model calls with what they spent, tool calls, and agents below the outermost span, in order of start.
pub(super) fn of(
    shape: &Shape<'_>,
    models: &[ModelCall<'_>],
    spends: &[Spend],
    calls: &[ToolCall],
) -> Vec<Step> {
    let outermost = shape.outermost_first().next().map(|span| span.span_id);
    let is_inner = |span: &&SpanView<'_>| {
        span.operation == Operation::InvokeAgent && Some(span.span_id) != outermost
    };
    let agents = shape.behaviour().filter(is_inner).map(|span| Step {
        name: Arc::from(agent_name(span).unwrap_or_else(|| span.name())),
        ..step(StepKind::Agent, span, span.end, span.failed)
    });
    let models = models.iter().zip(spends).map(|(span, spend)| Step {
        name: span
            .model()
            .and_then(|model| model.name)
            .map(|name| Arc::clone(name.text))
            .unwrap_or_default(),
        tokens: Some(crate::facts::Tokens {
            input: spend.tokens.input,
            output: spend.tokens.output,
        }),
        cost_quanta: spend.cost.map(|cost| cost.0),
        error_type: span.error_type.cloned(),
        first_chunk_nanos: span.details().and_then(|model| model.first_chunk_nanos),
        ..step(StepKind::Model, span.span, span.end, span.failed)
    });
    let spans = shape.tool_spans();
    let said = spans.iter().filter_map(|span| Some((span.span_id, span.output()?.text?)));
    let results: BTreeMap<SpanId, _> = said.collect();
    let tools = calls.iter().map(|call| Step {
        kind: StepKind::Tool,
        name: call.name.clone(),
        span_id: call.span_id,
        start_unix_nano: call.start_unix_nano,
        end_unix_nano: call.end_unix_nano,
        error: call.error,
        error_type: call.error_type.clone(),
        tokens: None,
        cost_quanta: None,
        first_chunk_nanos: None,
        arguments: call.arguments.clone(),
        result: results.get(&call.span_id).copied().map(cut),
    });
    let mut steps: Vec<Step> = agents.chain(models).chain(tools).collect();
    // A step that encloses another one comes before it.
    steps.sort_by_key(|step| {
        (step.start_unix_nano, u64::MAX - step.end_unix_nano, step.kind, step.span_id)
    });
    steps.truncate(MAX_STEPS);
    steps
}

fn step(kind: StepKind, span: &SpanView<'_>, end: Timestamp, failed: bool) -> Step {
    Step {
        kind,
        span_id: span.span_id,
        start_unix_nano: span.start.0,
        end_unix_nano: end.0,
        error: Some(failed),
        error_type: span.error_type().cloned(),
        ..Step::default()
    }
}

/// The beginning of a text, in whole characters.
fn cut(text: &Arc<str>) -> Arc<str> {
    if text.len() <= MAX_RESULT_BYTES {
        return Arc::clone(text);
    }
    let end = (0..=MAX_RESULT_BYTES).rev().find(|at| text.is_char_boundary(*at));
    Arc::from(text.get(..end.unwrap_or_default()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_result_is_cut_between_characters() {
        assert_eq!(&*cut(&Arc::from("short")), "short");
        let long = "é".repeat(MAX_RESULT_BYTES);
        assert_eq!(cut(&Arc::from(format!("x{long}"))).len(), MAX_RESULT_BYTES - 1);
    }
}
