//! What each agent below the outermost one did.
//!
//! A model or tool call was made by the agent that its own span names, else by the nearest agent above it that has a name of its own. Calls
//! of the outermost agent itself count for no agent below it; what a span tells of several calls together is of the agent that the span is of.

use std::collections::BTreeMap;

use super::calls::ModelCall;
use super::shape::{Shape, Totals};
use super::span_view::SpanView;
use super::whose::agent_name;
use crate::facts::{Loop, SubAgent, ToolCall};
use crate::loops::Spend;
use crate::span::{Operation, SpanId};

/// The calls and loops of a trace, to be divided among its agents.
pub(super) struct Work<'w> {
    /// The model calls.
    pub(super) models: &'w [ModelCall<'w>],
    /// The spans that tell what several model calls used.
    pub(super) totals: &'w Totals<'w>,
    /// The spend of each model call, and then of each total.
    pub(super) spends: &'w [Spend],
    /// The tool calls.
    pub(super) calls: &'w [ToolCall],
    /// The loops in the tool calls.
    pub(super) loops: &'w [Loop],
}

/// The agents below the one of this name, in the order of their names.
pub(super) fn of(shape: &Shape<'_>, outermost: &str, work: &Work<'_>) -> Vec<SubAgent> {
    let agents = shape.behaviour().filter(|span| span.operation == Operation::InvokeAgent);
    let named = agents.filter_map(agent_name).filter(|name| *name != outermost);
    let mut named = named.peekable();
    // Most agents have no agent below them.
    if named.peek().is_none() {
        return Vec::new();
    }
    let part = |name: &str| SubAgent { name: name.to_owned(), ..SubAgent::default() };
    let mut parts: BTreeMap<&str, SubAgent> = named.map(|name| (name, part(name))).collect();
    for (model, spend) in work.models.iter().zip(work.spends) {
        let doer = shape.doer(model, model.at);
        let Some(part) = doer.and_then(|name| parts.get_mut(name)) else { continue };
        part.model_calls += 1;
        part.errors += u64::from(model.failed);
        add(part, spend);
    }
    let totals = work.totals.iter().zip(work.spends.iter().skip(work.models.len()));
    for ((total, _), spend) in totals {
        let doer = shape.doer(total, total.at);
        doer.and_then(|name| parts.get_mut(name)).into_iter().for_each(|part| add(part, spend));
    }
    let spans: BTreeMap<SpanId, &SpanView<'_>> =
        shape.behaviour().map(|span| (span.span_id, span)).collect();
    let doer =
        |call: &ToolCall| spans.get(&call.span_id).and_then(|span| shape.doer(span, span.at));
    for call in work.calls {
        let Some(part) = doer(call).and_then(|name| parts.get_mut(name)) else { continue };
        part.tool_calls += 1;
        part.errors += u64::from(call.error == Some(true));
    }
    let first = |found: &Loop| work.calls.get(usize::try_from(found.calls?.0).ok()?);
    for call in work.loops.iter().filter_map(first) {
        let Some(part) = doer(call).and_then(|name| parts.get_mut(name)) else { continue };
        part.loops += 1;
    }
    parts.into_values().collect()
}

/// Adds what was spent to what an agent spent.
fn add(part: &mut SubAgent, spend: &Spend) {
    let add = |sum: &mut u64, more: Option<u64>| *sum = sum.saturating_add(more.unwrap_or(0));
    add(&mut part.input_tokens, spend.tokens.input);
    add(&mut part.output_tokens, spend.tokens.output);
    add(&mut part.cost_quanta, spend.cost.and_then(|cost| u64::try_from(cost.0).ok()));
}
