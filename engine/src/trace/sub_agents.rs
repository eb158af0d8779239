//! What each agent below the outermost one did.
//!
//! A model or tool call was made by the agent that its own span names, else by the one with its agent id, else by the nearest agent
//! above it that has a name of its own, or by the one that the nearest tool call above it started. Calls of the outermost agent
//! itself count for no agent below it; the usage on a span that covers several calls counts for the agent of that span.

use std::collections::BTreeMap;

use super::calls::ModelCall;
use super::shape::{Shape, Totals, agent_below};
use super::span_view::SpanView;
use crate::facts::{Loop, SubAgent, ToolCall};
use crate::loops::Spend;
use crate::span::{IdHash, Operation, SpanId};

/// The calls and loops of a trace, to be attributed to its agents.
pub(super) struct Work<'w> {
    /// The model calls.
    pub(super) models: &'w [ModelCall<'w>],
    /// The spans with the total usage of several model calls.
    pub(super) totals: &'w Totals<'w>,
    /// The usage of each model call, and then of each total.
    pub(super) spends: &'w [Spend],
    /// The tool calls.
    pub(super) calls: &'w [ToolCall],
    /// The loops in the tool calls.
    pub(super) loops: &'w [Loop],
}

/// The agents below the one of this name, in the order of their names.
pub(super) fn of(shape: &Shape<'_>, outermost: &str, work: &Work<'_>) -> Vec<SubAgent> {
    let named = shape.behaviour().filter_map(agent_below).filter(|name| *name != outermost);
    let mut named = named.peekable();
    // Most agents have no agent below them.
    if named.peek().is_none() {
        return Vec::new();
    }
    let part = |name: &str| SubAgent { name: name.to_owned(), ..SubAgent::default() };
    let mut parts: BTreeMap<&str, SubAgent> = named.map(|name| (name, part(name))).collect();
    let ids = shape.agent_ids();
    for (model, spend) in work.models.iter().zip(work.spends) {
        let doer = shape.doer(&ids, model, model.at);
        let Some(part) = doer.and_then(|name| parts.get_mut(name)) else { continue };
        part.model_calls += 1;
        part.errors += u64::from(model.failed);
        add(part, spend);
    }
    let totals = work.totals.iter().zip(work.spends.iter().skip(work.models.len()));
    for ((total, _), spend) in totals {
        let doer = shape.doer(&ids, total, total.at);
        doer.and_then(|name| parts.get_mut(name)).into_iter().for_each(|part| add(part, spend));
    }
    let tools = shape.behaviour().filter(|span| span.operation == Operation::ExecuteTool);
    let told = tools.filter_map(|span| Some((span.call_id()?, *ids.get(span.agent_id()?)?)));
    let by_call: BTreeMap<IdHash, &str> = told.collect();
    let spans: BTreeMap<SpanId, &SpanView<'_>> =
        shape.behaviour().map(|span| (span.span_id, span)).collect();
    // If a span and records describe a call, only the records may show who made it.
    let doer = |call: &ToolCall| {
        let by_record = || by_call.get(&call.call_id?).copied();
        let by_span = || spans.get(&call.span_id).and_then(|span| shape.doer(&ids, span, span.at));
        by_record().or_else(by_span)
    };
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

/// Adds usage to that of an agent.
fn add(part: &mut SubAgent, spend: &Spend) {
    let add = |sum: &mut u64, more: Option<u64>| *sum = sum.saturating_add(more.unwrap_or(0));
    add(&mut part.input_tokens, spend.tokens.input);
    add(&mut part.output_tokens, spend.tokens.output);
    add(&mut part.cost_quanta, spend.cost.and_then(|cost| u64::try_from(cost.0).ok()));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::span::{Span, Timestamp, ToolFacts};
    use crate::trace::Symbols;
    use crate::trace::rows::Spans;

    #[test]
    fn a_call_is_of_the_agent_whose_id_its_record_has() {
        let span = |id: u8, above: Option<u8>, operation| Span {
            span_id: SpanId([id; 8]),
            parent: above.map(|above| SpanId([above; 8])),
            start: Timestamp(u64::from(id)),
            end: Timestamp(100),
            operation,
            ..Span::default()
        };
        let call_id = Some(IdHash::from("c"));
        let tool = Some(ToolFacts { name: Some("f".into()), call_id, ..ToolFacts::default() });
        let agent_id = Some(Arc::from("a71aa0e"));
        let sent = [
            span(1, None, Operation::InvokeAgent),
            // The fields of a model call's record about the agent that made it.
            Span {
                agent_name: Some("weather".into()),
                agent_id: agent_id.clone(),
                ..span(2, Some(1), Operation::InvokeAgent)
            },
            // A tool call by its span, and by its record.
            Span { tool: tool.clone(), ..span(3, Some(1), Operation::ExecuteTool) },
            Span { tool, agent_id, ..span(4, Some(1), Operation::ExecuteTool) },
        ];
        let (mut rows, mut symbols) = (Spans::default(), Symbols::default());
        for span in &sent {
            rows.add(span, &Arc::default(), &mut symbols, true);
        }
        let call = ToolCall { call_id, span_id: SpanId([3; 8]), ..ToolCall::default() };
        let work =
            Work { models: &[], totals: &Vec::new(), spends: &[], calls: &[call], loops: &[] };
        let agents = of(&Shape::new(&rows), "boss", &work);
        let told: Vec<(&str, u64)> =
            agents.iter().map(|agent| (agent.name.as_str(), agent.tool_calls)).collect();
        assert_eq!(told, [("weather", 1)]);
    }
}
