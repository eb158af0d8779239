//! Remarks of a trace, apart from its calls: about its session, guardrails and people.

use super::TraceContents;
use super::calls::ModelCall;
use super::shape::Shape;
use super::span_view::SpanView;
use crate::facts::Remarks;

/// Most results of guardrails that are kept for a trace.
const MAX: usize = 100;

/// The remarks of a trace: the earlier session that the outermost span names; guardrails in the order of their spans; since when it
/// has been waiting for a person; edits that people accepted or rejected; when the conversation was cut down to a summary.
pub(super) fn of(
    shape: &Shape<'_>,
    parts: &TraceContents,
    models: &[ModelCall<'_>],
) -> Option<Remarks> {
    let compacted_unix_nano = compactions(models);
    // Most traces have no remarks.
    if compacted_unix_nano.is_empty() && parts.logs().next().is_none() && !parts.spans.say_remarks()
    {
        return None;
    }
    let said = || shape.behaviour().filter_map(SpanView::remarks);
    let edits = |accepted| said().filter(|said| said.accepted_edit == Some(accepted)).count();
    let remarks = Remarks {
        previous_session: shape
            .outermost_first()
            .find_map(|span| span.remarks()?.previous_session.as_ref())
            .map(ToString::to_string),
        guardrails: said().filter_map(|said| said.guardrail.as_ref()).take(MAX).cloned().collect(),
        waits_since_unix_nano: waits_since(parts),
        accepted_edits: edits(true) as u64,
        rejected_edits: edits(false) as u64,
        compacted_unix_nano,
    };
    (remarks != Remarks::default()).then_some(remarks)
}

/// Since when the agent has been waiting for a person; `None` if it does not, or its root has ended since.
fn waits_since(parts: &TraceContents) -> Option<u64> {
    let logged = parts.logs().filter_map(|log| log.pause);
    let last = logged.chain(parts.spans.pause()).max().filter(|last| last.waits)?;
    parts.spans.root_end().is_none_or(|end| end < last.at).then_some(last.at.0)
}

/// When the conversation was cut down to a summary, in order: a call that is repeated after that does not count as repeated.
pub(super) fn compactions(models: &[ModelCall<'_>]) -> Vec<u64> {
    let compacted = |model: &&ModelCall<'_>| model.details().is_some_and(|facts| facts.compacted);
    let mut starts: Vec<u64> = models.iter().filter(compacted).map(|model| model.start.0).collect();
    starts.sort_unstable();
    starts
}
