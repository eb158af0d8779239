//! The tool calls of a trace: from tool spans, else from the model's output.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::Logs;
use super::shape::Shape;
use crate::engine::span::{Arguments, Span, ToolFacts, ToolResult};
use crate::engine::update::{CallResult, ToolCall};

/// Tool calls from tool spans; only if there are none, from the model's output. A tool span that does not say its
/// arguments has those that the model called it with.
pub(super) fn of(shape: &Shape<'_>, models: &[&Span], logs: &Logs<'_>) -> Vec<ToolCall> {
    let spans = shape.tool_spans();
    let called = models
        .iter()
        .flat_map(|model| called(model, logs).into_iter().map(move |call| (*model, call)));
    let results = results(models, logs);
    let result = |facts: &ToolFacts| results.get(facts.call_id.as_deref()?).copied();
    if spans.is_empty() {
        let mut functions = shape.functions();
        let tool = |(model, facts): (&Span, &ToolFacts)| {
            let ran = facts.name.as_deref().and_then(|name| functions.get_mut(name));
            let ran = ran.and_then(|ran| {
                let at = ran.iter().position(|span| span.start >= model.start)?;
                Some(ran.remove(at))
            });
            let result = result(facts);
            let failed =
                ran.is_some_and(|ran| ran.failed) || result.is_some_and(|result| result.failed);
            let mut facts = facts.clone();
            facts.result_hash = facts.result_hash.or_else(|| result?.hash);
            tool_call(&facts, ran.unwrap_or(model), failed)
        };
        return called.map(tool).collect();
    }
    let called: Vec<&ToolFacts> = called.map(|(_, facts)| facts).collect();
    let by_id: BTreeMap<&str, &ToolFacts> =
        called.iter().filter_map(|facts| Some((facts.call_id.as_deref()?, *facts))).collect();
    let tool = |span: &&Span| {
        let mut facts = span.tool.clone().unwrap_or_default();
        let asked = facts.call_id.as_deref().and_then(|id| by_id.get(id));
        if let Some(name) = meant_tool(&facts, &called).filter(|_| !shape.is_inside_tool(span)) {
            facts.name = Some(name.clone());
        }
        facts.arguments = facts.arguments.or_else(|| asked?.arguments.clone());
        facts.result_hash = facts.result_hash.or_else(|| result(&facts)?.hash);
        tool_call(&facts, span, span.failed)
    };
    spans.iter().map(tool).collect()
}

/// The tool that a span is of whose name no model called, but whose arguments one called another tool with: some
/// libraries name the span after the tool's class.
fn meant_tool<'a>(facts: &ToolFacts, called: &[&'a ToolFacts]) -> Option<&'a Arc<str>> {
    let by_name = called.iter().any(|call| call.name == facts.name);
    if by_name || facts.call_id.is_some() || facts.arguments.is_none() {
        return None;
    }
    called.iter().find(|call| call.arguments == facts.arguments)?.name.as_ref()
}

/// What models were told of calls, by the id of the call.
fn results<'a>(models: &[&'a Span], logs: &Logs<'a>) -> BTreeMap<&'a str, &'a ToolResult> {
    let own = models.iter().filter_map(|model| model.model.as_ref());
    let own = own.flat_map(|facts| &facts.tool_results);
    let logged = logs.all.iter().flat_map(|log| &log.tool_results);
    own.chain(logged).filter_map(|result| Some((result.call_id.as_deref()?, result))).collect()
}

/// The tool calls in a model's output, each once, on its span or in the log records of it.
pub(super) fn called<'a>(model: &'a Span, logs: &Logs<'a>) -> Vec<&'a ToolFacts> {
    let own = model.model.as_ref().map(|facts| facts.tool_calls.as_slice()).unwrap_or_default();
    let logged = || logs.of_span(model).flat_map(|log| &log.tool_calls);
    let calls: Vec<&ToolFacts> =
        if own.is_empty() { logged().collect() } else { own.iter().collect() };
    let mut seen = BTreeSet::new();
    let fresh = |facts: &&ToolFacts| facts.call_id.clone().is_none_or(|id| seen.insert(id));
    calls.into_iter().filter(|facts| !facts.phantom).filter(fresh).collect()
}

fn tool_call(facts: &ToolFacts, span: &Span, failed: bool) -> ToolCall {
    let arguments = facts.arguments.as_ref();
    ToolCall {
        name: facts.name.as_deref().unwrap_or_default().to_owned(),
        arguments: arguments.map(|arguments| arguments.as_str().to_owned()),
        result_hash: facts.result_hash,
        error: Some(failed),
        start_unix_nano: span.start.0,
        end_unix_nano: span.end.0,
        arguments_hash: arguments.map(|arguments| xxh3_64(arguments.as_str().as_bytes())),
        argument_values: arguments.map(Arguments::values).unwrap_or_default().to_vec(),
        call_id: facts.call_id.as_deref().map(|id| xxh3_64(id.as_bytes())),
    }
}

/// The calls as they are sent on: arguments only where content is kept, what runs are followed by only where one may
/// go on in another trace.
pub(super) fn published(calls: Vec<ToolCall>, keep_content: bool, goes_on: bool) -> Vec<ToolCall> {
    let published = |call: ToolCall| ToolCall {
        arguments: call.arguments.filter(|_| keep_content),
        argument_values: if goes_on { call.argument_values } else { Vec::new() },
        call_id: call.call_id.filter(|_| goes_on),
        ..call
    };
    calls.into_iter().map(published).collect()
}

/// What models were told of calls that may be those of an earlier trace.
pub(super) fn results_told(models: &[&Span], logs: &Logs<'_>) -> Vec<CallResult> {
    let results = results(models, logs).into_iter();
    results
        .map(|(id, result)| CallResult {
            call_id: xxh3_64(id.as_bytes()),
            failed: result.failed,
            hash: result.hash,
        })
        .collect()
}
