//! The model calls of a trace, each once, however many libraries recorded it.

use super::tree::{Tree, is_record, overlay};
use crate::engine::span::{IdHash, Log, ModelFacts, Operation, Span, SpanId, Timestamp};

/// A model call, with everything that its spans and records report.
#[derive(Clone, Debug)]
pub(super) struct ModelCall {
    pub(super) span: Span,
    /// Its index in the trace.
    pub(super) at: usize,
    // Whether a log record reports it.
    recorded: bool,
    // All response ids of its answer.
    answers: Vec<IdHash>,
}

/// A span with the total usage of the calls below it, and the indices of these calls.
#[derive(Debug)]
pub(super) struct Total {
    pub(super) span: Span,
    pub(super) below: Vec<usize>,
}

impl ModelCall {
    /// Its facts as a model call.
    pub(super) fn facts(&self) -> ModelFacts {
        self.span.model.clone().unwrap_or_default()
    }
}

/// The model calls that have no model call below them, in order. Those in a cycle, each of which is above all others, are calls
/// unless another one is below them.
///
/// Two libraries may record one call: as a span around another, two spans of one answer, spans side by side, or a span and a
/// record. Each completes what the other does not report.
pub(super) fn calls(tree: &Tree, logs: &[Log]) -> Vec<ModelCall> {
    let innermost: Vec<usize> =
        (0..tree.spans.len()).filter(|at| is_model(tree, *at) && !has_below(tree, *at)).collect();
    let is_around =
        |at: usize| innermost.iter().any(|below| around(tree, *below).any(|above| above == at));
    let mut calls: Vec<ModelCall> = Vec::new();
    for at in tree.behaviour().iter().copied().filter(|at| is_model(tree, *at) && !is_around(*at)) {
        let span = answered(tree, at);
        let answers = span.model.iter().filter_map(|model| model.response_id).collect();
        let mut call = ModelCall { recorded: is_record(&span), span, at, answers };
        for outer in around(tree, at).filter(|above| is_model(tree, *above)) {
            let below = innermost.iter().filter(|at| around(tree, **at).any(|at| at == outer));
            if below.count() == 1 {
                complete(&mut call.span, &answered(tree, outer));
            }
        }
        call.answers.extend(call.facts().response_id);
        merge(tree, &mut calls, call);
    }
    blame_last(tree, &mut calls, logs);
    calls
}

/// The last model call that no other one starts during; in a turn from records, the last one that the agent itself made.
pub(super) fn last<'c>(tree: &Tree, calls: &'c [ModelCall]) -> Option<&'c ModelCall> {
    let is_own = |call: &&ModelCall| !tree.is_aside(call.at);
    let later = |one: &ModelCall, other: &ModelCall| place_in_time(one) < place_in_time(other);
    let last_of = |calls: Vec<&'c ModelCall>| {
        calls.iter().copied().find(|call| !calls.iter().any(|other| later(call, other)))
    };
    last_of(calls.iter().filter(is_own).collect()).or_else(|| last_of(calls.iter().collect()))
}

/// Whether the last model call of the outermost agent that made any failed. A call made by a tool of an agent is the tool's; if
/// calls of the agent overlapped, none failed the trace if one succeeded.
pub(super) fn failed_at_last(tree: &Tree, calls: &[ModelCall]) -> bool {
    let count = |at: usize, operation: Operation| {
        tree.ancestors(at).filter(|above| above.operation == operation).count()
    };
    let rank = |call: &ModelCall| {
        (count(call.at, Operation::ExecuteTool), count(call.at, Operation::InvokeAgent))
    };
    let is_of_tool = |call: &ModelCall| {
        let mut above =
            tree.ancestors(call.at).skip_while(|above| above.operation != Operation::ExecuteTool);
        above.any(|above| above.operation == Operation::InvokeAgent)
    };
    let own_turn: Vec<&ModelCall> = calls.iter().filter(|call| !tree.is_aside(call.at)).collect();
    let turn = if own_turn.is_empty() { calls.iter().collect() } else { own_turn };
    let made: Vec<&ModelCall> = turn.into_iter().filter(|call| !is_of_tool(call)).collect();
    let least = made.iter().map(|call| rank(call)).min();
    let own: Vec<&ModelCall> = made.into_iter().filter(|call| Some(rank(call)) == least).collect();
    let failed = |call: &ModelCall| call.span.failed && !went_well_around(tree, call);
    let Some(last) = own.iter().max_by_key(|call| place_in_time(call)) else { return false };
    let cut = if last.span.start.0 % 1_000_000 == 0 { 1_000_000 } else { 0 };
    let beside = |call: &ModelCall| last.span.start.0 + cut < call.span.end.0;
    failed(last) && own.iter().all(|call| failed(call) || !beside(call))
}

/// Whether a model call around this one succeeded.
pub(super) fn went_well_around(tree: &Tree, call: &ModelCall) -> bool {
    let own = tree.spans.iter().position(|span| span.span_id == call.span.span_id);
    let mut models =
        own.into_iter().flat_map(|at| around(tree, at)).filter(|at| is_model(tree, *at));
    models.any(|at| !tree.spans[at].failed)
}

/// The sort key of calls: their starts, then their ends.
pub(super) fn place_in_time(call: &ModelCall) -> (Timestamp, Timestamp, SpanId) {
    (call.span.start, call.span.end, call.span.span_id)
}

/// Spans around calls that have their total usage, if the calls themselves do not have it: model spans, else the agents that made
/// the calls. The usage of an agent all of whose calls failed may be that of earlier runs.
pub(super) fn totals(tree: &Tree, calls: &[ModelCall]) -> Vec<Total> {
    let own = tree.behaviour();
    let mut totals: Vec<Total> = Vec::new();
    for at in tree.inwards().into_iter().filter(|at| own.contains(at) && is_model(tree, *at)) {
        let below: Vec<&ModelCall> =
            calls.iter().filter(|call| around(tree, call.at).any(|above| above == at)).collect();
        let told = |call: &ModelCall| totals.iter().any(|total| total.below.contains(&call.at));
        let silent =
            !below.is_empty() && below.iter().all(|call| !counts(&call.span) && !told(call));
        let span = answered(tree, at);
        if silent && counts(&span) {
            let below = below.iter().map(|call| call.at).collect();
            totals.push(Total { span, below });
        }
    }
    let chats = own.iter().any(|at| tree.spans[*at].operation == Operation::Chat);
    let mut of_agents: Vec<Total> = Vec::new();
    for (at, span) in tree.spans.iter().enumerate() {
        let made: Vec<&ModelCall> =
            calls.iter().filter(|call| maker(tree, call.at) == Some(at)).collect();
        let told = |call: &&ModelCall| {
            counts(&call.span) || totals.iter().any(|total| total.below.contains(&call.at))
        };
        let is_silent = made.iter().any(|call| !call.span.failed) && !made.iter().any(told);
        if chats && is_silent && span.operation == Operation::InvokeAgent && counts(span) {
            let below = made.iter().map(|call| call.at).collect();
            of_agents.push(Total { span: span.clone(), below });
        }
    }
    totals.extend(of_agents);
    totals
}

/// The nearest tool or agent above a span.
pub(super) fn maker(tree: &Tree, at: usize) -> Option<usize> {
    let steps = [Operation::ExecuteTool, Operation::InvokeAgent];
    tree.above(at).iter().copied().find(|above| steps.contains(&tree.spans[*above].operation))
}

/// Whether a span reports how many tokens were used.
fn counts(span: &Span) -> bool {
    let tokens = span.model.as_ref().map(|model| model.tokens).unwrap_or_default();
    tokens.input.or(tokens.output).is_some()
}

/// Whether a span is a model call: if there is no span for any, agent spans with the total usage of their calls stand for them.
fn is_model(tree: &Tree, at: usize) -> bool {
    let chats = tree.own().any(|span| span.operation == Operation::Chat);
    let span = &tree.spans[at];
    if tree.answers.iter().any(|(_, answer)| *answer == at) {
        false
    } else if chats {
        span.operation == Operation::Chat
    } else {
        span.operation == Operation::InvokeAgent && span.model.is_some()
    }
}

fn has_below(tree: &Tree, at: usize) -> bool {
    let mut models = (0..tree.spans.len()).filter(|other| is_model(tree, *other));
    models.any(|other| around(tree, other).any(|above| above == at))
}

/// The indices of the spans above a span up to the next tool or agent, whose model calls are no part of what is around it.
fn around(tree: &Tree, at: usize) -> impl Iterator<Item = usize> {
    let chats = tree.own().any(|span| span.operation == Operation::Chat);
    let is_step = move |at: &usize| {
        let operation = tree.spans[*at].operation;
        chats && [Operation::ExecuteTool, Operation::InvokeAgent].contains(&operation)
    };
    tree.above(at).iter().copied().take_while(move |at| !is_step(at))
}

/// Whether two spans of one library with one response id are two answers, as from servers that reuse ids: their tokens differ.
fn answers_apart(one: &ModelCall, other: &ModelCall) -> bool {
    let counts = |call: &ModelCall| {
        let tokens = call.facts().tokens;
        Some((tokens.input?, tokens.output?))
    };
    let differ = matches!((counts(one), counts(other)), (Some(one), Some(other)) if one != other);
    differ && one.span.scope == other.span.scope && !one.recorded && !other.recorded
}

/// Adds a call, or merges it into the call that it is another span of.
fn merge(tree: &Tree, calls: &mut Vec<ModelCall>, mut call: ModelCall) {
    let same_answer = |other: &ModelCall| other.answers.iter().any(|id| call.answers.contains(id));
    let again = calls.iter().rposition(same_answer).filter(|at| !answers_apart(&calls[*at], &call));
    let again = again.or_else(|| calls.iter().position(|other| is_beside(tree, other, &call)));
    let Some(at) = again.or_else(|| recorded_too(calls, &call)) else { return calls.push(call) };
    let held = &mut calls[at];
    if worth(held) < worth(&call) {
        std::mem::swap(held, &mut call);
    }
    held.recorded |= call.recorded;
    held.answers.append(&mut call.answers);
    complete(&mut held.span, &call.span);
    if tree.is_aside(call.at) && (tree.names_aside(call.at) || !tree.names_aside(held.at)) {
        held.at = call.at;
    }
}

/// Whether two spans, of different libraries, record one call side by side: one lies within the other, to a millisecond, and they
/// do not contradict each other.
///
/// Both have one parent, or, if both report the same usage of tokens or failed without any, two libraries may have recorded them
/// apart.
fn is_beside(tree: &Tree, one: &ModelCall, other: &ModelCall) -> bool {
    let use_of = |span: &Span| {
        let tokens = span.model.as_ref()?.tokens;
        tokens.input.zip(tokens.output)
    };
    let (a, b) = (&one.span, &other.span);
    let used_alike = use_of(a) == use_of(b) && use_of(a).is_some();
    let known_places = place_of(tree, one).zip(place_of(tree, other));
    let hang = |(one, other)| tree.told_apart(one, other);
    let nested = known_places.is_some_and(|(one, other)| {
        tree.above(one).contains(&other) || tree.above(other).contains(&one)
    });
    let alike = used_alike || (died_alike(one, other) && !nested);
    a.scope != b.scope
        && (a.parent == b.parent || alike && known_places.is_some_and(hang))
        && a.model.is_some()
        && b.model.is_some()
        && overlay(a, b)
        && agree(one, other)
        && (one.facts().response_id.is_none() || other.facts().response_id.is_none())
}

/// The index of the span that a call was first recorded by.
fn place_of(tree: &Tree, call: &ModelCall) -> Option<usize> {
    tree.spans.iter().position(|span| span.span_id == call.span.span_id)
}

/// Whether two calls failed before any usage is known, and do not name two different models.
fn died_alike(one: &ModelCall, other: &ModelCall) -> bool {
    let died = |call: &ModelCall| call.span.failed && worth(call).1 == 0;
    let (first, second) = (one.facts().model, other.facts().model);
    died(one) && died(other) && (first.is_none() || second.is_none() || first == second)
}

/// The index of the call that is the same as `call`, if one comes from a record and the other from a span: among those that overlap
/// in time, to a second, and do not contradict it, the one with the nearest end.
fn recorded_too(calls: &[ModelCall], call: &ModelCall) -> Option<usize> {
    const SECOND: u64 = 1_000_000_000;
    let begins_in = |a: &Span, b: &Span| a.start.0 <= b.end.0 + SECOND;
    let same = |other: &ModelCall| {
        is_record(&other.span) != is_record(&call.span)
            && !(other.recorded && call.recorded)
            && other.span.model.is_some()
            && call.span.model.is_some()
            && begins_in(&other.span, &call.span)
            && begins_in(&call.span, &other.span)
            && other.span.failed == call.span.failed
            && agree(other, call)
    };
    let same = (0..calls.len()).filter(|at| same(&calls[*at]));
    same.min_by_key(|at| calls[*at].span.end.0.abs_diff(call.span.end.0))
}

/// Whether the numbers of tokens of two calls do not contradict each other.
fn agree(one: &ModelCall, other: &ModelCall) -> bool {
    let (a, b) = (one.facts().tokens, other.facts().tokens);
    let same = |a: Option<u64>, b: Option<u64>| a.is_none() || b.is_none() || a == b;
    same(a.input, b.input) && same(a.output, b.output)
}

/// The rank of a source of a call: a span ranks above a record, and then one that knows more.
fn worth(call: &ModelCall) -> (bool, usize) {
    let ModelFacts { tokens, cost, .. } = call.facts();
    let known = [tokens.input.is_some(), tokens.output.is_some(), cost.is_some()];
    (!is_record(&call.span), known.into_iter().filter(|known| *known).count())
}

/// The model span at an index, together with the streamed answer that has its own span.
fn answered(tree: &Tree, at: usize) -> Span {
    let asked = &tree.spans[at];
    let Some((_, answer)) = tree.answers.iter().find(|(request, _)| *request == at) else {
        return asked.clone();
    };
    let mut span = tree.spans[*answer].clone();
    complete(&mut span, asked);
    Span { span_id: asked.span_id, start: asked.start, name: asked.name.clone(), ..span }
}

/// Completes a span of a call from another span of it.
fn complete(call: &mut Span, other: &Span) {
    call.input = call.input.take().or_else(|| other.input.clone());
    call.output = call.output.take().or_else(|| other.output.clone());
    call.failed |= other.failed;
    let (Some(model), Some(more)) = (&mut call.model, &other.model) else { return };
    model.model = model.model.take().or_else(|| more.model.clone());
    model.requested = model.requested.take().or_else(|| more.requested.clone());
    model.response_id = model.response_id.or(more.response_id);
    model.tokens.input = model.tokens.input.or(more.tokens.input);
    model.tokens.cached = model.tokens.cached.or(more.tokens.cached);
    model.tokens.cache_written = model.tokens.cache_written.or(more.tokens.cache_written);
    model.tokens.output = model.tokens.output.or(more.tokens.output);
    model.cost = model.cost.or(more.cost);
    model.asked_by_user = model.asked_by_user.or(more.asked_by_user);
    model.compacted |= more.compacted;
    model.local |= more.local;
    if model.tool_calls.is_empty() {
        model.tool_calls.clone_from(&more.tool_calls);
    }
    if model.tool_results.is_empty() {
        model.tool_results.clone_from(&more.tool_results);
    }
}

/// Marks the last call as failed if it gave no answer at all and the root failed.
fn blame_last(tree: &Tree, calls: &mut [ModelCall], logs: &[Log]) {
    let last = calls.iter_mut().max_by_key(|call| place_in_time(call));
    let Some(last) = last.filter(|_| tree.root().is_some_and(|root| root.failed)) else { return };
    let facts = last.facts();
    let spoke =
        facts.tokens.input.or(facts.tokens.output).is_some() || !facts.tool_calls.is_empty();
    let own = |log: &&Log| log.span_id == Some(last.span.span_id);
    let logged =
        logs.iter().filter(own).any(|log| log.output.is_some() || !log.tool_calls.is_empty());
    last.span.failed |= !spoke && !logged && last.span.output.is_none();
}
