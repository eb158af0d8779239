//! The steps of a trace, as the page draws them; only if texts are kept.

use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;

use super::calls::ModelCall;
use super::loops::Spend;
use super::owner::agent_name;
use super::shape::Shape;
use super::span_view::SpanView;
use crate::facts::{Step, StepKind, ToolCall};
use crate::span::{Operation, SpanId, Timestamp};

/// Most steps of one trace.
const MAX_STEPS: usize = 1_000;

/// Longest result of a tool, in bytes.
const MAX_RESULT_BYTES: usize = 4_096;

/// The steps of a trace: model calls with their usage, tool calls, and agents below the outermost span, in order of start.
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
    sort(shape, &mut steps);
    steps.truncate(MAX_STEPS);
    steps
}

/// Sorts steps by their starts. As some clients send starts in whole milliseconds: among steps that begin together, one that
/// encloses another comes before it, and otherwise the one that ended first comes first.
fn sort(shape: &Shape<'_>, steps: &mut [Step]) {
    steps.sort_by_key(|step| (step.start_unix_nano, step.end_unix_nano, step.kind, step.span_id));
    if steps.windows(2).all(|pair| pair[0].start_unix_nano != pair[1].start_unix_nano) {
        return;
    }
    let places: BTreeMap<SpanId, usize> =
        shape.behaviour().map(|span| (span.span_id, span.at)).collect();
    let place = |step: &Step| places.get(&step.span_id).copied();
    // By start and index, the earliest end of a step and of those inside it that begin with it.
    let mut ends: BTreeMap<(u64, usize), u64> = BTreeMap::new();
    for step in &*steps {
        let Some(at) = place(step) else { continue };
        for at in iter::once(at).chain(shape.ancestors(at).map(|above| above.at)) {
            let end = ends.entry((step.start_unix_nano, at)).or_insert(u64::MAX);
            *end = step.end_unix_nano.min(*end);
        }
    }
    steps.sort_by_cached_key(|step| {
        let start = step.start_unix_nano;
        let end = place(step).and_then(|at| ends.get(&(start, at)).copied());
        let depth = place(step).map(|at| shape.ancestors(at).count());
        let end = end.unwrap_or(step.end_unix_nano);
        (start, end, depth, step.kind, step.span_id)
    });
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
    use crate::span::Span;
    use crate::trace::{Spans, Symbols};

    #[test]
    fn steps_that_begin_together_are_in_the_order_of_their_ends_but_for_those_around_others() {
        let id = |at: u8| SpanId([at; 8]);
        // A tool and, in the same millisecond, the next call; an agent and its call.
        let sent =
            [(1, 0, 0, 9), (2, 1, 1, 2), (3, 1, 2, 5), (4, 1, 2, 3), (5, 1, 6, 8), (6, 5, 6, 7)];
        let (mut rows, mut symbols) = (Spans::default(), Symbols::default());
        for (own, parent, start, end) in sent {
            let parent = (parent > 0).then(|| id(parent));
            let (start, end) = (Timestamp(start), Timestamp(end));
            let span = Span { span_id: id(own), parent, start, end, ..Span::default() };
            rows.add(&span, &Arc::default(), &mut symbols, true);
        }
        let shape = Shape::new(&rows);
        let mut steps: Vec<Step> =
            shape.behaviour().map(|span| step(StepKind::Model, span, span.end, false)).collect();
        sort(&shape, &mut steps);
        let order: Vec<u8> = steps.iter().map(|step| step.span_id.0[0]).collect();
        assert_eq!(order, [1, 2, 4, 3, 5, 6]);
    }

    #[test]
    fn a_long_result_is_cut_between_characters() {
        assert_eq!(&*cut(&Arc::from("short")), "short");
        let long = "é".repeat(MAX_RESULT_BYTES);
        assert_eq!(cut(&Arc::from(format!("x{long}"))).len(), MAX_RESULT_BYTES - 1);
    }
}
