//! The tool calls of a trace: from tool spans, else from the model's output.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::arguments::Arguments;
use super::models::{self, ModelCall};
use super::series;
use super::tree::{Tree, is_interrupted, is_record, overlay};
use crate::engine::span::{
    self, IdHash, Log, Operation, Span, SpanId, Status, ToolFacts, ToolResult,
};

/// A tool call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The name of the tool; `None` if it is unknown, and then it equals no other.
    pub(super) name: Option<Arc<str>>,
    pub(super) arguments: Option<Arguments>,
    /// The hash of its result, if it is known.
    pub(super) result: Option<u64>,
    /// Whether it failed; `None` if the wire does not say.
    pub(super) failed: Option<bool>,
    /// The kind of error, if it failed.
    pub(super) error_type: Option<Arc<str>>,
    pub(super) start: u64,
    pub(super) end: u64,
    /// Whether start and end are the call's own.
    pub(super) is_timed: bool,
    pub(super) id: Option<IdHash>,
    pub(super) span_id: SpanId,
    /// The trace, and the representative of the call's series in it.
    pub(super) within: Option<(usize, usize)>,
}

/// A tool span, completed from other spans and records of its call.
struct ToolSpan {
    span: Span,
    at: usize,
    /// The indices of all spans of the call.
    places: Vec<usize>,
    recorded: bool,
    /// The scopes of the libraries that recorded it.
    told_by: Vec<u64>,
}

/// The tool calls of a trace, in order.
pub(super) fn calls(tree: &Tree, models: &[ModelCall], logs: &[Log]) -> Vec<Call> {
    let told = tool_spans(tree);
    let asked: Vec<(&ModelCall, ToolFacts)> = models
        .iter()
        .flat_map(|model| called(model, logs).into_iter().map(move |tool| (model, tool)))
        .collect();
    let results = results(models, logs);
    let result_of = |id: Option<IdHash>| {
        results.iter().rev().find(|result| id.is_some() && result.call_id == id)
    };
    if told.is_empty() {
        let open = models.iter().find(|model| is_left_open(tree, models, model));
        let unnamed = answers_in_order(tree, models, logs);
        let nth_unnamed = |number: usize| {
            let (model, tool) = &asked[number];
            let before = asked[..number]
                .iter()
                .filter(|(other, call)| other.at == model.at && call.call_id.is_none());
            let (_, results) = unnamed.iter().find(|(caller, _)| *caller == model.at)?;
            results.get(before.count()).filter(|_| tool.call_id.is_none())
        };
        let results: Vec<Option<&ToolResult>> = (0..asked.len())
            .map(|number| result_of(asked[number].1.call_id).or_else(|| nth_unnamed(number)))
            .collect();
        return of_models(tree, asked.clone(), open, &results);
    }
    let tools: Vec<&ToolFacts> = asked.iter().map(|(_, tool)| tool).collect();
    let all = &told;
    let told_by =
        |above: usize| all.iter().find(|call| call.places.contains(&above)).map(|call| call.at);
    let series = Around::new(tree, &told_by);
    let call = |ToolSpan { span, at, .. }: &ToolSpan| {
        let mut tool = span.tool.clone().unwrap_or_default();
        let inside = tree.ancestors(*at).any(|above| above.operation == Operation::ExecuteTool);
        let meant = meant_tool(&tool, &tools).filter(|_| !inside);
        let own = |other: &&&ToolFacts| tool.call_id.is_some() && other.call_id == tool.call_id;
        let known = tools.iter().rev().find(own).and_then(|tool| tool.arguments.clone());
        tool.name = meant.or_else(|| tool.name.take());
        tool.arguments = tool.arguments.take().or(known);
        let told = result_of(tool.call_id).and_then(|result| result.hash);
        tool.result_hash = tool.result_hash.or(told);
        let within = series.of(*at);
        Call { within, ..call_of(&tool, span, span.failed) }
    };
    told.iter().map(call).collect()
}

/// The spans that calls may be made within.
struct Around<'t> {
    tree: &'t Tree,
    told_by: &'t dyn Fn(usize) -> Option<usize>,
    agents: BTreeMap<usize, usize>,
    absent: BTreeMap<SpanId, usize>,
}

impl<'t> Around<'t> {
    fn new(tree: &'t Tree, told_by: &'t dyn Fn(usize) -> Option<usize>) -> Self {
        let agents = series::of_agents(tree, told_by);
        Self { tree, told_by, agents, absent: series::of_absent(tree) }
    }

    /// The representative of the series of the call at this index: the nearest call or agent that it was made within; else the span
    /// that never arrived and is the ancestor of all of this.
    fn of(&self, at: usize) -> Option<(usize, usize)> {
        let around = |above: &usize| {
            let call = (self.told_by)(*above).filter(|call| *call != at);
            call.or_else(|| self.agents.get(above).copied())
        };
        let id = |place: usize| {
            let span = &self.tree.spans[place];
            span.agent_id.as_deref().filter(|_| is_record(span))
        };
        if let Some(own) = id(at) {
            let mut own = (0..self.tree.spans.len()).filter(|place| id(*place) == Some(own));
            return own.next().map(|place| (1, place));
        }
        let above = self.tree.above(at);
        let outermost = above.last().copied().unwrap_or(at);
        let parent = self.tree.spans[outermost].parent;
        let absent = || parent.and_then(|id| self.absent.get(&id).copied());
        above.iter().find_map(around).or_else(absent).map(|place| (0, place))
    }
}

/// The tool calls in a model's output, each once, from its span, else from its records.
pub(super) fn called(model: &ModelCall, logs: &[Log]) -> Vec<ToolFacts> {
    let mut calls = model.facts().tool_calls;
    if calls.is_empty() {
        let own = logs.iter().filter(|log| log.span_id == Some(model.span.span_id));
        calls = own.flat_map(|log| log.tool_calls.clone()).collect();
    }
    let mut once: Vec<ToolFacts> = Vec::new();
    for tool in calls.into_iter().filter(|tool| !tool.phantom) {
        let again = tool.call_id.is_some() && once.iter().any(|one| one.call_id == tool.call_id);
        if !again {
            once.push(tool);
        }
    }
    once
}

/// The results of tool calls that models received; the last result of a call counts.
pub(super) fn results(models: &[ModelCall], logs: &[Log]) -> Vec<ToolResult> {
    let own = models.iter().flat_map(|model| model.facts().tool_results);
    own.chain(logs.iter().flat_map(|log| log.tool_results.clone())).collect()
}

/// The index of each model call with calls without an id, and their results: the results without an id that the agent's next model
/// call received, if their number is the same.
fn answers_in_order(
    tree: &Tree,
    models: &[ModelCall],
    logs: &[Log],
) -> Vec<(usize, Vec<ToolResult>)> {
    let unnamed = |model: &ModelCall| {
        called(model, logs).iter().filter(|call| call.call_id.is_none()).count()
    };
    let given = |model: &ModelCall| {
        let results = model.facts().tool_results.into_iter();
        results.filter(|result| result.call_id.is_none()).collect::<Vec<_>>()
    };
    let mut answers: Vec<(usize, Vec<ToolResult>)> = Vec::new();
    let mut in_time: Vec<&ModelCall> = models.iter().collect();
    in_time.sort_by_key(|model| models::place_in_time(model));
    for (number, model) in in_time.iter().enumerate() {
        let results = given(model);
        let mut before = in_time[..number].iter().rev();
        let mut caller = before.find(|other| {
            unnamed(other) > 0 && models::maker(tree, other.at) == models::maker(tree, model.at)
        });
        caller = caller.filter(|caller| {
            caller.span.end <= model.span.start && unnamed(caller) == results.len()
        });
        if let Some(caller) = caller.filter(|caller| answers.iter().all(|(at, _)| *at != caller.at))
        {
            answers.push((caller.at, results));
        }
    }
    answers
}

/// The calls in models' output; the next span with that name gives the times of a call, and whether it failed.
fn of_models(
    tree: &Tree,
    asked: Vec<(&ModelCall, ToolFacts)>,
    open: Option<&ModelCall>,
    results: &[Option<&ToolResult>],
) -> Vec<Call> {
    let mut functions: Vec<&Span> =
        tree.own().filter(|span| span.operation == Operation::Other).collect();
    let mut callers = Vec::new();
    let mut functions_of_calls: Vec<SpanId> = Vec::new();
    let call = |((model, mut tool), result): ((&ModelCall, ToolFacts), Option<&ToolResult>)| {
        let ran = functions.iter().position(|span| {
            Some(&*span.name) == tool.name.as_deref() && span.start >= model.span.start
        });
        let ran = ran.map(|at| functions.remove(at));
        let ran = ran.filter(|ran| !is_interrupted(ran));
        // A call that nothing recorded as run before the agent began to wait for a person runs later.
        if ran.is_none() && result.is_none() && tree.own().any(is_interrupted) {
            return None;
        }
        tool.result_hash = tool.result_hash.or_else(|| result?.hash);
        let failed = ran.is_some_and(|ran| ran.failed) || result.is_some_and(|told| told.failed);
        callers.push(model.at);
        functions_of_calls.extend(ran.map(|ran| ran.span_id));
        let call = call_of(&tool, ran.unwrap_or(&model.span), failed);
        let error_type = ran.and_then(error_type);
        let untold =
            ran.is_none() && result.is_none() && open.is_some_and(|open| open.at == model.at);
        let failed = call.failed.filter(|_| !untold);
        Some(Call { is_timed: ran.is_some(), error_type, failed, ..call })
    };
    let mut calls: Vec<Call> =
        asked.into_iter().zip(results.iter().copied()).filter_map(call).collect();
    let is_of_call = |at: usize| functions_of_calls.contains(&tree.spans[at].span_id);
    let told_by = |above: usize| is_of_call(above).then_some(above);
    let around = Around::new(tree, &told_by);
    for (call, caller) in calls.iter_mut().zip(callers) {
        call.within = around.of(caller);
    }
    calls
}

/// Whether the results of the calls in this model's output are unknown: no model call comes later and nothing begins when it is
/// over. A model call that is the root belongs to a chain of traces, and the next trace continues it.
fn is_left_open(tree: &Tree, models: &[ModelCall], model: &ModelCall) -> bool {
    let goes_on =
        tree.own().any(|span| span.start >= model.span.end && span.span_id != model.span.span_id);
    let later = |other: &ModelCall| models::place_in_time(other) > models::place_in_time(model);
    model.span.parent.is_some() && !goes_on && !models.iter().any(later)
}

fn call_of(tool: &ToolFacts, span: &Span, failed: bool) -> Call {
    // Whether the span comes from a record that only says that the call began.
    let begun = is_record(span) && span.status == Status::Unset && !span.failed;
    Call {
        name: tool.name.clone(),
        arguments: tool.arguments.as_ref().map(Arguments::from),
        result: tool.result_hash,
        failed: (failed || !begun).then_some(failed),
        error_type: error_type(span),
        start: span.start.0,
        end: span.end.0,
        is_timed: true,
        id: tool.call_id,
        span_id: span.span_id,
        within: None,
    }
}

/// The tool that a span is meant for if no model called its name: the one that was called with the same arguments.
fn meant_tool(tool: &ToolFacts, called: &[&ToolFacts]) -> Option<Arc<str>> {
    let by_name = called.iter().any(|call| call.name == tool.name);
    let arguments = tool.arguments.as_ref().filter(|_| !by_name && tool.call_id.is_none())?;
    let own = Arguments::from(arguments);
    let same = |call: &&&ToolFacts| {
        call.arguments.as_ref().is_some_and(|other| Arguments::from(other) == own)
    };
    called.iter().find(same)?.name.clone()
}

/// The tool spans in order; a span inside another of the same call counts once with it, and so do the records of a call.
fn tool_spans(tree: &Tree) -> Vec<ToolSpan> {
    let mut calls: Vec<ToolSpan> = Vec::new();
    // The place of a call's span, and a span of the call inside it.
    let mut inside: Vec<(usize, &Span)> = Vec::new();
    for at in tree.behaviour().iter().copied() {
        let span = &tree.spans[at];
        if span.operation != Operation::ExecuteTool || is_interrupted(span) {
            continue;
        }
        // A call that a person refused, according to any of its spans and records, does not count.
        let id = |span: &Span| span.tool.as_ref().and_then(|tool| tool.call_id);
        let no = |span: &Span| span.remarks.as_ref().is_some_and(|remarks| remarks.refused);
        let own = |other: &Span| id(other).is_some() && id(other) == id(span);
        let refusals =
            tree.own().filter(|other| other.operation == Operation::ExecuteTool && no(other));
        if no(span) || refusals.into_iter().any(own) {
            continue;
        }
        let tool = span.tool.clone().unwrap_or_default();
        if tool.phantom {
            // If both a call and its execution have spans, the span of the execution is the one that fails.
            let above = tree.above(at).first();
            let call = calls.iter_mut().find(|call| Some(&call.at) == above);
            call.into_iter().for_each(|call| fail_with(&mut call.span, span));
            continue;
        }
        let facts = |place: &usize| {
            let above = &tree.spans[*place];
            above.tool.clone().filter(|_| above.operation == Operation::ExecuteTool)
        };
        let same_id =
            |place: &&usize| facts(place).is_some_and(|other| other.call_id == tool.call_id);
        let mut of_id = tree.above(at).iter().take_while(same_id).copied();
        let of_id = tool.call_id.and_then(|_| of_id.by_ref().last());
        let name = of_id.as_ref().map_or_else(|| tool.name.clone(), |place| facts(place)?.name);
        let name = served_call(tree, at, &name).or(name);
        let same_tool = |place: &&usize| facts(place).is_some_and(|other| other.name == name);
        let of_tool = tree.above(at).iter().rfind(same_tool).copied().filter(|_| name.is_some());
        if let Some(outermost) = of_tool.or(of_id) {
            inside.push((outermost, span));
            continue;
        }
        let again = calls.iter_mut().find(|call| {
            let other = call.span.tool.as_ref();
            let same_id = other.is_some_and(|other| other.call_id == tool.call_id);
            let same_name = other.is_some_and(|other| other.name == tool.name);
            // Two spans of one library are two calls, whatever their ids.
            let of_another = same_name && call.span.scope != span.scope;
            tool.call_id.is_some() && same_id && (call.recorded || is_record(span) || of_another)
        });
        if let Some(call) = again {
            call.places.push(at);
            complete(call, span);
        } else if let Some(call) = calls.iter_mut().find(|call| is_told_twice(tree, call, at)) {
            call.places.push(at);
            add(call, span);
        } else {
            let (span, told_by) = (span.clone(), vec![span.scope]);
            let recorded = is_record(&span);
            calls.push(ToolSpan { recorded, span, at, places: vec![at], told_by });
        }
    }
    for call in &mut calls {
        let last = inside.iter().rfind(|(outermost, _)| *outermost == call.at);
        last.into_iter().for_each(|(_, inner)| fail_with(&mut call.span, inner));
    }
    calls
}

/// The name of the call that a span serves: of the outermost span above, below no other agent or model, of another library and with
/// a name that ends with this one.
fn served_call(tree: &Tree, at: usize, name: &Option<Arc<str>>) -> Option<Arc<str>> {
    let name = name.as_ref()?;
    let above = tree.above(at).iter().map(|above| &tree.spans[*above]);
    let is_step =
        |span: &&Span| !matches!(span.operation, Operation::Chat | Operation::InvokeAgent);
    let calls = above.take_while(is_step).filter(|span| {
        span.operation == Operation::ExecuteTool && span.scope != tree.spans[at].scope
    });
    let names = calls.filter_map(|span| span.tool.as_ref()?.name.clone());
    names.filter(|call| is_prefixed(call, name)).last()
}

/// Whether a tool's name is another one after a prefix and a separator; separators differ, as not every character is allowed in the
/// name of a tool.
fn is_prefixed(long: &str, short: &str) -> bool {
    let plain = |name: &str| {
        let mark = |c: char| if c.is_ascii() && !c.is_ascii_alphanumeric() { '_' } else { c };
        name.chars().map(mark).collect::<String>()
    };
    let long = plain(long);
    !short.is_empty()
        && long
            .strip_suffix(&plain(short))
            .is_some_and(|prefix| prefix.len() > 1 && prefix.ends_with('_'))
}

/// The kind of error of a span that failed.
pub(super) fn error_type(span: &Span) -> Option<Arc<str>> {
    span.remarks.as_ref()?.error_type.clone()
}

/// Fails the call if a part of it has failed.
fn fail_with(call: &mut Span, part: &Span) {
    call.failed |= part.failed;
    let told = error_type(call).or_else(|| error_type(part));
    call.remarks.get_or_insert_default().error_type = told;
}

/// Whether a span is another library's record of this call: of the same tool, at the same time, with the same values among its
/// arguments.
fn is_told_twice(tree: &Tree, call: &ToolSpan, at: usize) -> bool {
    let span = &tree.spans[at];
    let (Some(tool), Some(other)) = (&call.span.tool, &span.tool) else { return false };
    let arguments = |tool: &ToolFacts| tool.arguments.as_ref().map(Arguments::from);
    let same_values = match (arguments(tool), arguments(other)) {
        (Some(one), Some(other)) => {
            one.scalars().is_subset(&other.scalars()) || other.scalars().is_subset(&one.scalars())
        }
        _ => true,
    };
    let same_id =
        tool.call_id.is_none() || other.call_id.is_none() || tool.call_id == other.call_id;
    let hang = tree.spans[call.at].parent == span.parent || tree.told_apart(call.at, at);
    let is_inside = tree.above(at).contains(&call.at);
    let by_spans = !call.recorded && !is_record(span);
    let same_tool = tool.name.as_ref().zip(other.name.as_ref()).is_some_and(|(one, other)| {
        one == other || is_prefixed(one, other) || is_prefixed(other, one)
    });
    by_spans
        && !is_inside
        && same_tool
        && same_id
        && same_values
        && hang
        && !call.told_by.contains(&span.scope)
        && overlay(&call.span, span)
}

/// Completes a call from another library's span of it: arguments with names are better than a single value.
fn add(call: &mut ToolSpan, other: &Span) {
    call.told_by.push(other.scope);
    let span = &mut call.span;
    fail_with(span, other);
    span.status = span.status.max(other.status);
    span.end = span.end.max(other.end);
    let (Some(tool), Some(more)) = (&mut span.tool, &other.tool) else { return };
    let length = |tool: &ToolFacts| tool.name.as_ref().map_or(0, |name| name.len());
    if length(more) > length(tool) {
        tool.name.clone_from(&more.name);
    }
    let is_value = |asked: &span::Arguments| Arguments::from(asked).is_bare();
    if more.arguments.is_some() && tool.arguments.as_ref().is_none_or(is_value) {
        tool.arguments.clone_from(&more.arguments);
    }
    tool.call_id = tool.call_id.or(more.call_id);
    tool.result_hash = tool.result_hash.or(more.result_hash);
}

/// Completes a call from a record of it, or a recorded call from its span. A record has all of the arguments, and a span has the
/// name that the model used.
fn complete(call: &mut ToolSpan, other: &Span) {
    let is_told = is_record(other);
    if !call.recorded && !is_told {
        return;
    }
    call.recorded |= is_told;
    let span = &mut call.span;
    fail_with(span, other);
    span.status = span.status.max(if is_told { other.status } else { Status::Ok });
    span.end = span.end.max(other.end);
    let (Some(tool), Some(more)) = (&mut span.tool, &other.tool) else { return };
    let (own, others) = (tool.clone(), more.clone());
    (tool.arguments, tool.name) = if is_told {
        (others.arguments.or(own.arguments), own.name.or(others.name))
    } else {
        (own.arguments.or(others.arguments), others.name.or(own.name))
    };
    tool.result_hash = own.result_hash.or(others.result_hash);
}
