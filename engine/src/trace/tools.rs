//! The tool calls of a trace: from tool spans, else from the model's output.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::vec;

use super::calls::{ModelCall, ToolSpan};
use super::series::Series;
use super::shape::Shape;
use super::span_view::{Model, SpanView, Tool};
use super::{Logs, TraceContents};
use crate::facts::ToolCall;
use crate::loops::{self, Repeats};
use crate::options::LoopOptions;
use crate::span::{IdHash, Operation, Timestamp, ToolResult, Values};

/// Tool calls from tool spans; only if there are none, from the model's output. A tool span without arguments gets those with which
/// the model called it. A call that a log record only reports as started is left out while its trace is open, so that it counts
/// once, with its outcome.
pub(super) fn of(
    shape: &Shape<'_>,
    models: &[ModelCall<'_>],
    logs: &Logs<'_>,
    done: bool,
) -> Vec<ToolCall> {
    let mut spans = shape.tool_spans();
    if !done {
        spans.retain(|call| !call.is_begun());
    }
    if spans.is_empty() {
        return named_by_models(shape, models, logs);
    }
    let results = LazyCell::new(|| results(models, logs));
    let result = |tool: &Tool<'_>| results.get(&tool.call_id?);
    let mut called: Vec<Tool<'_>> = Vec::new();
    models.iter().for_each(|model| add_called(&mut called, model, model.details(), logs));
    let by_id: LazyCell<BTreeMap<IdHash, &Tool<'_>>, _> =
        LazyCell::new(|| called.iter().filter_map(|tool| Some((tool.call_id?, tool))).collect());
    let names: LazyCell<BTreeSet<_>, _> =
        LazyCell::new(|| called.iter().map(|tool| tool.name).collect());
    // The first call with these arguments.
    let by_arguments: LazyCell<BTreeMap<u64, _>, _> = LazyCell::new(|| {
        let called = called.iter().rev();
        called.filter_map(|tool| Some((tool.arguments?.hash, tool.name))).collect()
    });
    // The tool of a span if no model called its name, but a model called another tool with its arguments: some libraries name the
    // span after the tool's class.
    let meant = |tool: &Tool<'_>| {
        let arguments = tool.arguments.filter(|_| tool.call_id.is_none())?;
        if names.contains(&tool.name) { None } else { *by_arguments.get(&arguments.hash)? }
    };
    let call = |span: &ToolSpan<'_>| {
        let mut tool = span.tool().unwrap_or_default();
        if let Some(name) = meant(&tool).filter(|_| !shape.is_inside_tool(span.at)) {
            tool.name = Some(name);
        }
        tool.arguments = tool.arguments.or_else(|| by_id.get(&tool.call_id?)?.arguments);
        tool.result = tool.result.or_else(|| result(&tool)?.hash);
        let error = (!span.is_begun()).then_some(span.failed);
        ToolCall {
            error_type: span.error_type.cloned(),
            within: span.within.and_then(|at| u32::try_from(at).ok()),
            ..tool_call(&tool, span.span, span.end, error)
        }
    };
    spans.iter().map(call).collect()
}

/// The tool calls in the models' output; the next span that ran under that name has the times and the outcome of a call. If the
/// agent waits for a person, calls without a sign that they ran have not run yet. If nothing follows the calls, it is not known
/// whether they ran, unless the model call is a trace of its own, which the next one continues.
fn named_by_models(shape: &Shape<'_>, models: &[ModelCall<'_>], logs: &Logs<'_>) -> Vec<ToolCall> {
    let called = models
        .iter()
        .flat_map(|model| model.called(logs).into_iter().map(move |call| (model, call)));
    let waits = shape.is_interrupted();
    let last = models.iter().map(ModelCall::order).max();
    let is_open = LazyCell::new(|| {
        let last = models.iter().find(|model| Some(model.order()) == last);
        last.is_some_and(|last| last.parent().is_some() && !shape.goes_on_after(last))
    });
    let results = LazyCell::new(|| results(models, logs));
    let mut in_order = results_in_order(shape, models, logs);
    let mut functions = shape.functions();
    // The indices of the functions that ran, and those of the models that called them.
    let (mut told, mut callers) = (Vec::new(), Vec::new());
    let tool = |(model, mut tool): (&ModelCall<'_>, Tool<'_>)| {
        let ran = tool.name.and_then(|name| functions.get_mut(&**name));
        let ran = ran.and_then(|ran| {
            // They are in the order of their starts.
            let at = ran.partition_point(|span| span.start < model.start);
            (at < ran.len()).then(|| ran.remove(at))
        });
        let ran = ran.filter(|ran| !ran.is_interrupted());
        let mut unnamed = || in_order.get_mut(&model.at)?.next();
        let result = match tool.call_id {
            Some(id) => results.get(&id).copied(),
            None => unnamed(),
        };
        if waits && ran.is_none() && result.is_none() {
            return None;
        }
        let failed =
            ran.is_some_and(|ran| ran.failed) || result.is_some_and(|result| result.failed);
        tool.result = tool.result.or_else(|| result?.hash);
        told.extend(ran.map(|ran| (ran.at, ran.at)));
        callers.push(model.at);
        Some(match ran {
            Some(ran) => ToolCall {
                error_type: ran.error_type().cloned(),
                ..tool_call(&tool, ran, ran.end, (failed || !ran.is_begun()).then_some(failed))
            },
            None => {
                let begun = model.span.is_begun() && !model.failed;
                let unanswered = result.is_none() && Some(model.order()) == last && *is_open;
                let error = (failed || !(begun || unanswered)).then_some(failed);
                ToolCall { timed: false, ..tool_call(&tool, model.span, model.end, error) }
            }
        })
    };
    let mut calls: Vec<ToolCall> = called.filter_map(tool).collect();
    if calls.is_empty() {
        return calls;
    }
    told.sort_unstable();
    let series = Series::of(shape, &told);
    for (call, caller) in calls.iter_mut().zip(callers) {
        call.within = series.at(shape, caller, &told).and_then(|at| u32::try_from(at).ok());
    }
    calls
}

/// Whether a trace may have a loop, by what its calls have in common; this often rules out a loop without preparing the trace.
pub fn may_repeat(parts: &TraceContents, options: &LoopOptions) -> bool {
    let (mut ran, mut said) = (Repeats::new(options), Repeats::new(options));
    let (mut says, mut reports) = (false, false);
    for span in parts.spans.iter() {
        reports |= span.reports_loop();
        if span.operation == Operation::ExecuteTool {
            ran.add(
                span.tool().and_then(|tool| tool.arguments).map(|arguments| &arguments.values[..]),
            );
            span.failed.then(|| ran.fail());
        }
        // A function that ran may be a tool that a model called.
        (span.failed && span.operation == Operation::Other).then(|| said.fail());
        let Some(model) = span.model_details() else { continue };
        for call in model.calls {
            said.add(call.seen().arguments.map(|arguments| &arguments.values[..]));
        }
        model.results.iter().filter(|result| result.failed).for_each(|_| said.fail());
        says |= !model.calls.is_empty();
    }
    for log in parts.logs() {
        let arguments = log.tool_calls.iter().map(|call| call.arguments.as_ref());
        arguments.for_each(|own| said.add(own.map(|own| &own.values()[..])));
        log.tool_results.iter().filter(|result| result.failed).for_each(|_| said.fail());
        says |= !log.tool_calls.is_empty();
    }
    if says {
        ran.guess();
    }
    let least = loops::least(options);
    reports || least.known.min(least.names) < 2 || ran.reach(least) || said.reach(least)
}

/// The results that models received, by the id of the call.
fn results(models: &[ModelCall<'_>], logs: &Logs<'_>) -> BTreeMap<IdHash, ToolResult> {
    let own = models.iter().filter_map(ModelCall::details);
    let own = own.flat_map(|model| model.results);
    let logged = logs.all.iter().flat_map(|log| &log.tool_results);
    own.chain(logged).copied().filter_map(|told| Some((told.call_id?, told))).collect()
}

/// The results without an id, by the index of the model that requested the calls: the results in an agent's next model call belong
/// to the calls of the previous one, in order, if there are as many of both.
fn results_in_order(
    shape: &Shape<'_>,
    models: &[ModelCall<'_>],
    logs: &Logs<'_>,
) -> BTreeMap<usize, vec::IntoIter<ToolResult>> {
    let given = |model: &ModelCall<'_>| {
        let results = model.details().map(|model| model.results).unwrap_or_default();
        let unnamed = results.iter().filter(|result| result.call_id.is_none());
        unnamed.copied().collect::<Vec<ToolResult>>()
    };
    let mut in_order = BTreeMap::new();
    if models.iter().all(|model| given(model).is_empty()) {
        return in_order;
    }
    let mut models: Vec<&ModelCall<'_>> = models.iter().collect();
    models.sort_by_key(|model| model.order());
    // By agent, its last model call with calls without an id, and their number.
    let mut asked: BTreeMap<Option<usize>, (&ModelCall<'_>, usize)> = BTreeMap::new();
    for model in models {
        let (maker, results) = (shape.maker(model.at), given(model));
        if let Some((caller, calls)) = asked.get(&maker)
            && caller.end <= model.start
            && *calls == results.len()
        {
            in_order.entry(caller.at).or_insert_with(|| results.into_iter());
        }
        let calls = model.called(logs).iter().filter(|call| call.call_id.is_none()).count();
        if calls > 0 {
            asked.insert(maker, (model, calls));
        }
    }
    in_order
}

impl<'s> ModelCall<'s> {
    /// The tool calls in the model's output, each once, from its span or else its log records.
    pub(super) fn called(&self, logs: &Logs<'s>) -> Vec<Tool<'s>> {
        called(self.span, self.details(), logs)
    }
}

/// The tool calls in the output of the model call of a span, each once.
pub(super) fn called<'s>(
    span: &SpanView<'_>,
    model: Option<Model<'s>>,
    logs: &Logs<'s>,
) -> Vec<Tool<'s>> {
    let mut calls = Vec::new();
    add_called(&mut calls, span, model, logs);
    calls
}

/// Adds the tool calls in the output of the model call of a span, each once.
fn add_called<'s>(
    calls: &mut Vec<Tool<'s>>,
    span: &SpanView<'_>,
    model: Option<Model<'s>>,
    logs: &Logs<'s>,
) {
    let own = model.map(|model| model.calls).unwrap_or_default();
    if own.is_empty() && logs.all.is_empty() {
        return;
    }
    let mut seen = BTreeSet::new();
    let mut add = |tool: Tool<'s>, alone: bool| {
        if !tool.phantom && (alone || tool.call_id.is_none_or(|id| seen.insert(id))) {
            calls.push(tool);
        }
    };
    own.iter().for_each(|tool| add(tool.seen(), own.len() == 1));
    if own.is_empty() {
        let logged = logs.of_span(span).flat_map(|log| &log.tool_calls);
        logged.for_each(|tool| add(Tool::of(tool), false));
    }
}

fn tool_call(
    tool: &Tool<'_>,
    span: &SpanView<'_>,
    end: Timestamp,
    error: Option<bool>,
) -> ToolCall {
    let arguments = tool.arguments;
    ToolCall {
        name: tool.name.cloned().unwrap_or_default(),
        arguments: arguments.and_then(|arguments| arguments.text).cloned(),
        result_hash: tool.result,
        error,
        error_type: None,
        start_unix_nano: span.start.0,
        end_unix_nano: end.0,
        arguments_hash: arguments.map(|arguments| arguments.hash),
        argument_values: arguments.map(|arguments| arguments.values.clone()).unwrap_or_default(),
        call_id: tool.call_id,
        timed: true,
        within: None,
        span_id: span.span_id,
    }
}

/// Reduces calls to what is sent on: arguments only if content is kept; values of arguments and ids of calls only if a loop may
/// continue in another trace.
pub(super) fn publish(calls: &mut [ToolCall], keep_content: bool, goes_on: bool) {
    for call in calls {
        if !keep_content {
            call.arguments = None;
        }
        if !goes_on {
            call.call_id = None;
            call.argument_values = Values::new();
        }
    }
}

/// The results that models received for calls that may belong to an earlier trace.
pub(super) fn results_told(models: &[ModelCall<'_>], logs: &Logs<'_>) -> Vec<ToolResult> {
    results(models, logs).into_values().collect()
}
