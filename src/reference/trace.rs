//! Reads the spans, log records and reports of one trace.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::gather::GatheredTrace;
use super::loops::{self, Found, Spend, plus};
use super::models::{self, ModelCall, Total};
use super::names::{self, SessionKey};
use super::price;
use super::text::Digest;
use super::tools::{self, Call};
use super::tree::{Tree, is_record};
use crate::engine::options::LoopOptions;
use crate::engine::pipeline::EngineOptions;
use crate::engine::span::{
    Attempt, Log, Operation, REPORTED_LOOP, Report, Span, Status, Text, Timestamp, ToolResult,
    TraceId, Violation,
};
use crate::engine::view::AgentName;

/// Whether new user input began a trace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TurnStart {
    Unknown,
    Asked,
    Continued,
}

/// One trace.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    pub(super) id: TraceId,
    pub(super) agent: AgentName,
    pub(super) session: SessionKey,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) complete: bool,
    pub(super) status: Option<Status>,
    pub(super) error: bool,
    pub(super) error_type: Option<Arc<str>>,
    pub(super) input: Option<String>,
    pub(super) output: Option<String>,
    pub(super) digest: Option<Digest>,
    pub(super) calls: Vec<Call>,
    pub(super) loops: Vec<Found>,
    /// The times at which the conversation was compacted to a summary.
    pub(super) compacted: Vec<u64>,
    pub(super) adjacent_repeats: usize,
    pub(super) steps: usize,
    pub(super) wasted_steps: usize,
    pub(super) model_calls: usize,
    pub(super) failed_model_calls: usize,
    pub(super) model_nanos: u64,
    pub(super) input_tokens: Option<u64>,
    pub(super) output_tokens: Option<u64>,
    pub(super) cost: Option<f64>,
    pub(super) calls_without_tokens: usize,
    pub(super) calls_without_cost: usize,
    pub(super) attempt: Option<Attempt>,
    pub(super) reports: Vec<Report>,
    pub(super) begun: TurnStart,
    /// Whether it ends in the middle of tool calls.
    pub(super) is_unfinished: bool,
    /// Results of tool calls that models received, for calls of earlier traces.
    pub(super) results: Vec<ToolResult>,
}

/// Reads a trace; `None` if no model, tool or agent is at work in it.
pub(super) fn read(id: TraceId, parts: GatheredTrace, options: &EngineOptions) -> Option<Trace> {
    let tree = Tree::new(parts.spans);
    let at_work = [Operation::Chat, Operation::ExecuteTool, Operation::InvokeAgent];
    if !tree.own().any(|span| at_work.contains(&span.operation)) {
        return None;
    }
    let logs = &parts.logs;
    let models = models::calls(&tree, logs);
    let calls = tools::calls(&tree, &models, logs);
    let outermost = tree.outermost();
    let agent = names::agent(&tree, &outermost);
    let session = names::session(id, &tree.spans, &outermost, &agent, options);
    let totals = models::totals(&tree, &models);
    let spends = spends(&models, &totals, options);
    let compacted: Vec<u64> =
        models.iter().filter(|call| call.facts().compacted).map(|call| call.span.start.0).collect();
    let mut found = loops::find_apart(&calls, &compacted, &spends, &options.loops);
    let said = tree.own().find(|span| is_record(span) && &*span.name == REPORTED_LOOP);
    if let Some(said) = said.filter(|_| found.is_empty()) {
        found.push(loops::reported(&calls, said.end.0, &spends));
    }
    let is_well = tree.own_root().is_some_and(|root| root.status == Status::Ok);
    let turn = Turn { tree: &tree, models: &models, logs };
    let output = turn.output();
    let (input_tokens, no_input) = sum(&models, &totals, |span| span.model.as_ref()?.tokens.input);
    let (output_tokens, no_output) =
        sum(&models, &totals, |span| span.model.as_ref()?.tokens.output);
    let again = models.iter().filter(|call| is_made_again(call, &models, &calls)).count();
    Some(Trace {
        id,
        agent,
        session,
        start: tree.start(),
        end: tree.own().map(|span| span.end.0).max().unwrap_or(0),
        complete: tree.root().is_some(),
        status: tree.own_root().map(|root| root.status),
        error: tree.own_root().is_some_and(|root| root.failed)
            || is_given_up(&tree)
            || loses_an_item(&tree)
            || (!is_well && models::failed_at_last(&tree, &models))
            || fails_by_a_part(&tree),
        error_type: outermost
            .iter()
            .find_map(|span| tools::error_type(span))
            .or_else(|| models.iter().rev().find_map(|call| recorded_error(call, logs))),
        input: turn.input(),
        digest: output.as_deref().and_then(Digest::of),
        output,
        loops: found,
        compacted,
        adjacent_repeats: calls
            .windows(2)
            .filter(|pair| pair[0].name.is_some() && pair[0].name == pair[1].name)
            .count(),
        steps: models.len() + calls.len() - again,
        wasted_steps: wasted(&tree, &models, &calls, &options.loops),
        model_calls: models.len(),
        failed_model_calls: models.iter().filter(|call| call.span.failed).count(),
        model_nanos: models.iter().map(|call| call.span.end.0 - call.span.start.0).sum(),
        input_tokens,
        output_tokens,
        cost: spends.iter().fold(None, |sum, spend| plus(sum, spend.cost)),
        calls_without_tokens: no_input.max(no_output),
        calls_without_cost: unpriced(&models, &totals, &spends),
        attempt: attempt(&tree, logs),
        begun: turn.begun(),
        is_unfinished: turn.is_unfinished(&calls),
        results: tools::results(&models, logs),
        calls,
        reports: parts.reports,
    })
}

/// The kind of error of a model call that failed according to a record.
fn recorded_error(call: &ModelCall, logs: &[Log]) -> Option<Arc<str>> {
    let own = logs.iter().filter(|log| log.failed && log.span_id == Some(call.span.span_id));
    own.filter_map(|log| log.error_type.clone()).next()
}

/// Whether no root says how the trace ended, and a run that was called by no agent or tool failed after all work had begun: an
/// agent's, or one inside a library's outermost span. Or the root is a step that says that it succeeded, and such an agent failed
/// last.
fn is_given_up(tree: &Tree) -> bool {
    let calls = [Operation::ExecuteTool, Operation::InvokeAgent];
    let work = |span: &&Span| span.operation == Operation::Chat || calls.contains(&span.operation);
    let last = tree.own().filter(work).map(|span| span.start).max();
    let at_work =
        |at: &usize| matches!(tree.spans[*at].operation, Operation::Chat | Operation::InvokeAgent);
    let is_around_work = |at: usize| {
        let outermost = !tree.ancestors(at).any(|above| above.scope == tree.spans[at].scope);
        let mut below = tree.behaviour().iter().filter(|below| tree.above(**below).contains(&at));
        tree.spans[at].operation == Operation::Other && outermost && below.any(at_work)
    };
    let is_called = |at: usize| tree.ancestors(at).any(|above| calls.contains(&above.operation));
    let is_outlived = |end: Timestamp| {
        tree.behaviour().iter().any(|at| {
            let beside = &tree.spans[*at];
            at_work(at) && !beside.failed && beside.end >= end && !is_called(*at)
        })
    };
    let root = tree.own_root();
    // The success of a step, or of the creation of an agent, says nothing about the agents below, unless something succeeded after
    // them.
    let is_step = root
        .is_some_and(|root| [Operation::Other, Operation::CreateAgent].contains(&root.operation));
    let is_failed_run = |at: usize| {
        let span = &tree.spans[at];
        let is_agent = span.operation == Operation::InvokeAgent;
        match root.map(|root| root.status) {
            None | Some(Status::Unset) => is_agent || is_around_work(at),
            Some(Status::Ok) => is_step && is_agent && !is_outlived(span.end),
            Some(Status::Error) => false,
        }
    };
    tree.behaviour().iter().any(|at| {
        let span = &tree.spans[*at];
        span.failed && Some(span.end) >= last && !is_called(*at) && is_failed_run(*at)
    })
}

/// Whether the root is no agent, and an agent that was called by no agent or tool failed at a conversation or a run of a task, also
/// worked on others, and never succeeded at the failed one after that.
fn loses_an_item(tree: &Tree) -> bool {
    let calls = [Operation::ExecuteTool, Operation::InvokeAgent];
    let agents: Vec<usize> = tree
        .behaviour()
        .iter()
        .copied()
        .filter(|at| tree.spans[*at].operation == Operation::InvokeAgent)
        .filter(|at| !tree.ancestors(*at).any(|above| calls.contains(&above.operation)))
        .collect();
    let item = |at: usize| {
        let all: Vec<&Span> = std::iter::once(&tree.spans[at]).chain(tree.ancestors(at)).collect();
        let session = all.iter().find_map(|span| Some(Arc::clone(&span.session.as_ref()?.id)));
        let attempts = all.iter().filter_map(|span| span.attempt.as_deref());
        let attempt = attempts.clone().find(|said| said.task.is_some());
        let attempt = attempt.map(|of| (of.task.clone(), of.run.clone(), of.trial.clone()));
        (session.is_some() || attempt.is_some()).then_some((session, attempt))
    };
    let is_by_same = |one: usize, other: usize| {
        names::name_of(&tree.spans[one]) == names::name_of(&tree.spans[other])
    };
    let is_lost = |at: usize| {
        let others = || agents.iter().copied().filter(move |other| is_by_same(at, *other));
        let several = others().any(|other| item(other).is_some() && item(other) != item(at));
        let made_good = others().any(|other| {
            let span = &tree.spans[other];
            item(other) == item(at) && !span.failed && span.end >= tree.spans[at].end
        });
        tree.spans[at].failed && item(at).is_some() && several && !made_good
    };
    tree.own_root().is_none_or(|root| root.operation != Operation::InvokeAgent)
        && agents.iter().any(|at| is_lost(*at))
}

/// Whether a part of the run, and not of a tool's, says that the whole run failed with it, and no further run began after it and
/// succeeded.
fn fails_by_a_part(tree: &Tree) -> bool {
    let is_fatal = |at: &&usize| {
        let remarks = tree.spans[**at].remarks.as_ref();
        remarks.is_some_and(|remarks| remarks.failed_run)
    };
    let calls = [Operation::ExecuteTool, Operation::InvokeAgent];
    let in_tool =
        |at: &usize| tree.ancestors(*at).any(|above| above.operation == Operation::ExecuteTool);
    let goes_well = |at: usize, end: Timestamp| {
        let agent = &tree.spans[at];
        let is_called = tree.ancestors(at).any(|above| calls.contains(&above.operation));
        agent.operation == Operation::InvokeAgent
            && !agent.failed
            && agent.start >= end
            && !is_called
    };
    let run_again = |at: &usize| {
        let own = tree.ancestors(*at).find(|above| above.operation == Operation::InvokeAgent);
        own.is_some_and(|own| tree.behaviour().iter().any(|at| goes_well(*at, own.end)))
    };
    tree.behaviour().iter().filter(is_fatal).any(|at| !in_tool(at) && !run_again(at))
}

/// The usage of each model call, and then of each total over several.
fn spends(models: &[ModelCall], totals: &[Total], options: &EngineOptions) -> Vec<Spend> {
    let spans = models.iter().map(|call| &call.span).chain(totals.iter().map(|total| &total.span));
    let spend = |span: &Span| {
        let facts = span.model.clone().unwrap_or_default();
        Spend {
            start: span.start.0,
            end: span.end.0,
            input_tokens: facts.tokens.input,
            output_tokens: facts.tokens.output,
            cost: price::cost(&facts, &options.cost),
        }
    };
    spans.map(spend).collect()
}

/// The sum of the known values, and the number of successful calls without a known value. A failed call without a value used
/// nothing.
fn sum(
    models: &[ModelCall],
    totals: &[Total],
    of: fn(&Span) -> Option<u64>,
) -> (Option<u64>, usize) {
    let covered = |call: &ModelCall| {
        totals.iter().any(|total| of(&total.span).is_some() && total.below.contains(&call.at))
    };
    let silent = models
        .iter()
        .filter(|call| of(&call.span).is_none() && !call.span.failed && !covered(call))
        .count();
    let known = models.iter().map(|call| of(&call.span));
    let known = known.chain(totals.iter().map(|total| of(&total.span))).fold(None, plus);
    let nothing = (silent == 0 && !models.is_empty()).then_some(0);
    (known.or(nothing), silent)
}

/// The number of successful calls without a known cost.
fn unpriced(models: &[ModelCall], totals: &[Total], spends: &[Spend]) -> usize {
    let priced: Vec<&Total> = totals
        .iter()
        .zip(&spends[models.len()..])
        .filter(|(_, spend)| spend.cost.is_some())
        .map(|(total, _)| total)
        .collect();
    let covered = |call: &ModelCall| priced.iter().any(|total| total.below.contains(&call.at));
    let unknown = models
        .iter()
        .zip(spends)
        .filter(|(call, spend)| spend.cost.is_none() && !call.span.failed && !covered(call));
    unknown.count()
}

/// The number of failed steps, and of tool calls that repeat an earlier call of their series with its result, unless their tool may
/// repeat; an attempt that was repeated is no step.
fn wasted(tree: &Tree, models: &[ModelCall], calls: &[Call], options: &LoopOptions) -> usize {
    let same = |one: &Call, other: &Call| {
        one.within == other.within
            && one.name.is_some()
            && one.name == other.name
            && one.arguments.is_some()
            && one.arguments == other.arguments
            && one.result.is_some()
            && one.result == other.result
    };
    let wasted = |at: &usize| {
        let call = &calls[*at];
        let name = call.name.as_deref().unwrap_or_default();
        let allowed = options.allow.iter().any(|pattern| loops::fits(pattern, name));
        call.failed == Some(true)
            || (!allowed && calls[..*at].iter().any(|before| same(before, call)))
    };
    let fails = |call: &&ModelCall| {
        call.span.failed
            && !models::went_well_around(tree, call)
            && !is_made_again(call, models, calls)
    };
    models.iter().filter(fails).count() + (0..calls.len()).filter(wasted).count()
}

/// Whether a call failed and was repeated: the next call beside it began after its end, before any tool call, and succeeded or was
/// repeated itself.
fn is_made_again(call: &ModelCall, models: &[ModelCall], calls: &[Call]) -> bool {
    let later = |other: &&ModelCall| {
        other.span.parent == call.span.parent
            && other.span.agent_id == call.span.agent_id
            && models::place_in_time(other) > models::place_in_time(call)
    };
    let next = models.iter().filter(later).min_by_key(|other| models::place_in_time(other));
    let Some(next) = next.filter(|_| call.span.failed) else { return false };
    let (begun, ended) = (call.span.start.0, call.span.end.0);
    let cut = if next.span.start.0 % 1_000_000 == 0 { 1_000_000 } else { 0 };
    let is_after = next.span.start.0 + cut >= ended;
    let between = calls.iter().any(|tool| tool.start >= begun && tool.start < next.span.start.0);
    is_after && !between && (!next.span.failed || is_made_again(next, models, calls))
}

/// The attempt: for each concept the first value from the outermost span inwards, evaluators included, then from resources; for
/// documents and violations all values.
fn attempt(tree: &Tree, logs: &[Log]) -> Option<Attempt> {
    let inwards: Vec<&Span> = tree.inwards().into_iter().map(|at| &tree.spans[at]).collect();
    let own = inwards.iter().filter_map(|span| span.attempt.as_deref());
    let resources = inwards.iter().filter_map(|span| span.resource.attempt.as_deref());
    let said: Vec<&Attempt> = own.chain(resources).collect();
    let logged = logs.iter().flat_map(|log| &log.violations);
    let violations: BTreeSet<&Violation> =
        said.iter().flat_map(|said| &said.violations).chain(logged).collect();
    let first =
        |of: fn(&Attempt) -> &Option<Arc<str>>| said.iter().find_map(|said| of(said).clone());
    let all = |of: fn(&Attempt) -> &Vec<Arc<str>>| {
        let mut all: Vec<Arc<str>> = Vec::new();
        for name in tree.own().filter_map(|span| span.attempt.as_deref()).flat_map(of) {
            if !all.contains(name) {
                all.push(Arc::clone(name));
            }
        }
        all
    };
    let tools = said.iter().map(|said| &said.expected_tools).find(|tools| !tools.is_empty());
    let attempt = Attempt {
        task: first(|said| &said.task),
        run: first(|said| &said.run),
        trial: first(|said| &said.trial),
        success: said.iter().find_map(|said| said.success),
        abstained: said.iter().find_map(|said| said.abstained),
        perturbation: first(|said| &said.perturbation),
        perturbation_id: first(|said| &said.perturbation_id),
        baseline: said.iter().find_map(|said| said.baseline),
        expected_output: first(|said| &said.expected_output),
        expected_tools: tools.cloned().unwrap_or_default(),
        retrieved: all(|said| &said.retrieved),
        cited: all(|said| &said.cited),
        violations: violations.into_iter().cloned().collect(),
    };
    (attempt != Attempt::default()).then_some(attempt)
}

/// The texts of a turn.
struct Turn<'t> {
    tree: &'t Tree,
    models: &'t [ModelCall],
    logs: &'t [Log],
}

impl Turn<'_> {
    /// The user's text: from the root or the outermost agent, else from the first model call that has one, else from any record.
    fn input(&self) -> Option<String> {
        let mut said: Vec<&Text> = self.owners().filter_map(|span| span.input.as_ref()).collect();
        for model in self.models {
            let logged = || self.logs_of(model).find_map(|log| log.input.as_ref());
            said.extend(model.span.input.as_ref().or_else(logged));
        }
        said.extend(self.logs.iter().rev().filter_map(|log| log.input.as_ref()));
        best(&said)
    }

    /// The final answer: from the root or the outermost agent, else from the last model call, if that did not fail.
    fn output(&self) -> Option<String> {
        let mut said: Vec<&Text> = self.owners().filter_map(|span| span.output.as_ref()).collect();
        let last = models::last(self.tree, self.models);
        for model in last.into_iter().filter(|model| !model.span.failed) {
            let logged = || self.logs_of(model).find_map(|log| log.output.as_ref());
            said.extend(model.span.output.as_ref().or_else(logged));
        }
        best(&said)
    }

    /// Whether user input began the turn: it ends the first model call's input, or an agent was invoked, or there is an input at all.
    fn begun(&self) -> TurnStart {
        let asked = self.models.first().and_then(|model| {
            let logged = || self.logs_of(model).find_map(|log| log.asked_by_user);
            model.facts().asked_by_user.or_else(logged)
        });
        let invoked = self.tree.own().any(|span| span.operation == Operation::InvokeAgent);
        match asked {
            Some(true) => TurnStart::Asked,
            Some(false) => TurnStart::Continued,
            None if invoked || self.input().is_some() => TurnStart::Asked,
            None => TurnStart::Unknown,
        }
    }

    /// Whether the turn is unfinished: no agent was invoked, and tool calls come after the last model call, or it asked for some.
    fn is_unfinished(&self, calls: &[Call]) -> bool {
        let invoked = self.tree.own().any(|span| span.operation == Operation::InvokeAgent);
        let open = match models::last(self.tree, self.models) {
            None => true,
            Some(last) => {
                calls.iter().any(|call| call.start >= last.span.end.0)
                    || !tools::called(last, self.logs).is_empty()
            }
        };
        !invoked && !calls.is_empty() && open
    }

    /// The log records of a model call, the latest first.
    fn logs_of(&self, model: &ModelCall) -> impl Iterator<Item = &Log> {
        let id = model.span.span_id;
        self.logs.iter().rev().filter(move |log| log.span_id == Some(id))
    }

    /// The spans that speak for the whole turn.
    fn owners(&self) -> impl Iterator<Item = &Span> {
        let speaks =
            |span: &&Span| !matches!(span.operation, Operation::Chat | Operation::ExecuteTool);
        let root = self.tree.root().filter(speaks);
        let mut outermost = self.tree.outermost().into_iter();
        let agent = outermost.find(|span| span.operation == Operation::InvokeAgent);
        root.into_iter().chain(agent)
    }
}

/// The first text that is not just the JSON of something else, else the first text.
fn best(said: &[&Text]) -> Option<String> {
    let good = said.iter().find(|text| text.rank < Text::LOOSE);
    good.or_else(|| said.first()).map(|text| text.text.to_string())
}
