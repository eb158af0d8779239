//! From the spans, logs and reports of one trace to its [`TraceFacts`].
//!
//! A pure function of the set: nothing here depends on the order of arrival.

mod attempt;
mod bytes;
mod calls;
mod candidates;
mod details;
mod expected;
mod observed;
mod owner;
mod remarks;
mod rows;
mod series;
mod shape;
mod span_view;
mod steps;
mod sub_agents;
mod symbol;
mod tools;
mod transcript;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

pub use self::bytes::Bytes;
pub(crate) use self::bytes::of_attempt as attempt_bytes;
use self::calls::ModelCall;
pub use self::expected::expectations;
pub use self::owner::scope_by_agent;
use self::owner::session;
pub use self::rows::{Added, Hanging, Spans};
use self::shape::{ModelCalls, Shape, Totals, may_recur};
use self::span_view::{Model, Named, SpanView};
use self::sub_agents::Work;
pub use self::symbol::{Symbol, Symbols};
pub use self::tools::may_repeat;
pub use self::transcript::{Transcript, TranscriptStep, transcript};
use self::turn::Turn;
use super::facts::{AgentKey, AgentKeys, Loop, ReportedScore, ToolCall, TraceFacts, TurnStart};
use super::loops::{self, Spend};
use super::options::{LoopOptions, SessionFallback, SessionScope};
use super::price::Prices;
use super::span::{Log, Operation, Report, Resource, SpanId, Status, Timestamp, Tokens, TraceId};

/// All that is known about a trace.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct TraceContents {
    /// Spans by id.
    pub spans: Spans,
    /// Log records and reports; few traces have any.
    pub others: Option<Box<Others>>,
}

/// What a trace has apart from spans.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Others {
    /// Log records by id.
    pub logs: BTreeMap<u64, Log>,
    // Bytes that the log records take.
    #[serde(skip)]
    log_bytes: Bytes,
    /// Reports by (name, identifier).
    pub reports: BTreeMap<(Arc<str>, Arc<str>), Report>,
}

/// A trace prepared for evaluation.
pub struct TraceView<'a> {
    parts: &'a TraceContents,
    shape: Shape<'a>,
    logs: Logs<'a>,
}

impl TraceContents {
    /// Prepares the trace for evaluation.
    pub fn view(&self) -> TraceView<'_> {
        TraceView { parts: self, shape: Shape::new(&self.spans), logs: Logs::of(self) }
    }

    /// Log records in order of their ids.
    pub fn logs(&self) -> impl Iterator<Item = &Log> {
        self.others.iter().flat_map(|others| others.logs.values())
    }

    /// The bytes of memory that spans and log records take.
    pub fn bytes(&self) -> Bytes {
        let mut bytes = self.spans.bytes();
        bytes += self.others.as_ref().map_or_else(Bytes::default, |others| others.log_bytes);
        bytes
    }

    /// The bytes of the texts among these; scans all of them.
    pub fn text_bytes(&self) -> usize {
        let logged = self.logs().flat_map(bytes::texts_of_log);
        self.spans.texts().chain(logged).map(|text| text.len()).sum()
    }

    /// Adds a log record with a new id.
    pub fn add_log(&mut self, log: Log) {
        let others = self.others.get_or_insert_default();
        others.log_bytes += bytes::of_log(&log);
        others.logs.insert(log.id, log);
    }

    /// Drops all texts, except the arguments of calls in log records; keeps the fact that there were some.
    pub fn drop_texts(&mut self) {
        self.spans.drop_texts();
        for log in self.others.iter_mut().flat_map(|others| others.logs.values_mut()) {
            let said = [&mut log.input, &mut log.output].into_iter().flatten();
            said.for_each(|said| said.text = Arc::from(""));
        }
        self.measure_logs();
    }

    /// Fills in what is not serialised.
    pub fn restored(&mut self, symbols: &mut Symbols) {
        self.spans.restored(symbols);
        self.measure_logs();
    }

    fn measure_logs(&mut self) {
        let Some(others) = &mut self.others else { return };
        others.log_bytes = Bytes::default();
        others.logs.values().for_each(|log| others.log_bytes += bytes::of_log(log));
    }

    /// The number of spans and log records.
    pub fn len(&self) -> usize {
        self.spans.len() + self.others.as_ref().map_or(0, |others| others.logs.len())
    }

    /// Whether there are neither spans nor log records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The rules by which a trace is evaluated.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The session of a trace that names none.
    pub fallback: SessionFallback,
    /// What distinguishes sessions with the same id.
    pub scope: SessionScope,
    /// What a loop is.
    pub loops: LoopOptions,
    /// Whether updates have texts and arguments.
    pub keep_content: bool,
    /// Prices of model calls whose spans do not report their cost.
    pub prices: Prices,
}

/// The reason why a trace belongs to no agent.
pub fn ignored(parts: &TraceContents) -> &'static str {
    let has = |operation| parts.spans.operations().any(|other| other == operation);
    if has(Operation::Evaluation) {
        "evaluator"
    } else if has(Operation::CreateAgent) {
        "create_agent"
    } else if has(Operation::Embeddings) {
        "embeddings"
    } else {
        "no_agent"
    }
}

/// Evaluates a trace; `None` if it belongs to no agent: if it has no model call, tool or agent span of its own.
///
/// The stage fills in revision, state and times of arrival. The digest of the output, by which outputs are compared, is present
/// only if the trace is done: for a text that still grows it is not worth computing.
pub fn evaluate(
    trace_id: TraceId,
    TraceView { parts, shape, logs }: &TraceView<'_>,
    rules: &Rules,
    agent: AgentKey,
    done: bool,
) -> Option<Box<TraceFacts>> {
    if !behaves(shape) {
        return None;
    }
    let models = model_calls(shape, logs);
    let mut calls = tools::of(shape, &models, logs, done);
    let last = shape.last_model(&models);
    let mut update = Box::<TraceFacts>::default();
    update.trace_id = trace_id;
    update.session = Some(session(trace_id, shape, rules));
    update.agent = Some(agent);
    update.start_unix_nano = shape.start().0;
    update.end_unix_nano = shape.behaviour().map(|span| span.end.0).max().unwrap_or(0);
    update.user = shape.outermost_first().find_map(SpanView::user).map(str::to_owned);
    update.attempt = attempt::of(shape, parts).map(Box::new);
    update.remarks = remarks::of(shape, parts, &models).map(Box::new);
    update.reported = reported(parts);
    outcome(&mut update, shape, &models);
    update.error |= shape.has_failed_run();
    update.error_type = error_type(shape, &models);
    let turn = Turn { shape, models: &models, last, logs };
    turn.texts(&mut update, rules.keep_content, done);
    turn.link(&mut update, &calls);
    let totals = shape.totals(&models);
    let spends = spent(&mut update, (&models, &totals), shape, &rules.prices);
    if let Some(content) = &mut update.content {
        content.steps = steps::of(shape, &models, &spends, &calls);
    }
    let compacted = update.remarks.as_ref().map_or(&[][..], |remarks| &remarks.compacted_unix_nano);
    let found = loops::find_between(&calls, compacted, &spends, &rules.loops).into_iter();
    update.loops = found.map(|found| of_trace(trace_id, found)).collect();
    let own = update.agent.as_ref().map_or("", |agent| &agent.agent_name);
    let work = Work {
        models: &models,
        totals: &totals,
        spends: &spends,
        calls: &calls,
        loops: &update.loops,
    };
    update.sub_agents = sub_agents::of(shape, own, &work);
    if let Some(said) = shape.reported_loop().filter(|_| update.loops.is_empty()) {
        let told = loops::reported(&calls, said.end, &spends);
        update.loops.push(Loop { trace_ids: vec![trace_id], ..told });
    }
    // Unknown tools are not equal to each other.
    let again = |pair: &&[ToolCall]| !pair[0].name.is_empty() && pair[0].name == pair[1].name;
    update.adjacent_tool_repeats = calls.windows(2).filter(again).count() as u64;
    update.calls_without_tool = calls_without_tool(&models, &calls);
    let attempts = attempts(&models, &calls);
    update.steps = (models.len() + calls.len() - attempts.len()) as u64;
    let failed =
        |at: usize| models[at].failed && !attempts.contains(&at) && !shape.is_survived(&models[at]);
    update.wasted_steps = (0..models.len()).filter(|at| failed(*at)).count() as u64;
    update.wasted_steps += wasted(&calls, &rules.loops);
    let goes_on = update.unfinished || update.turn_start != TurnStart::Asked;
    tools::publish(&mut calls, rules.keep_content, goes_on);
    update.tools = calls;
    Some(update)
}

/// Whether [`evaluate`] would find a loop in an open trace; it is faster, as it computes nothing else.
pub fn has_loop(TraceView { shape, logs, .. }: &TraceView<'_>, rules: &Rules) -> bool {
    if !behaves(shape) {
        return false;
    }
    let models = model_calls(shape, logs);
    let calls = tools::of(shape, &models, logs, false);
    let compacted = remarks::compactions(&models);
    shape.reported_loop().is_some()
        || !loops::find_between(&calls, &compacted, &[], &rules.loops).is_empty()
}

/// Whether a trace has any agent activity.
fn behaves(shape: &Shape<'_>) -> bool {
    let active = [Operation::Chat, Operation::ExecuteTool, Operation::InvokeAgent];
    active.into_iter().any(|operation| shape.has(operation))
}

/// The model calls of a trace, with the facts from its log records.
fn model_calls<'s>(shape: &'s Shape<'_>, logs: &Logs<'s>) -> ModelCalls<'s> {
    let mut models = shape.model_calls();
    for model in &mut models {
        let mut errors = logs.of_span(model).filter(|log| log.failed).peekable();
        model.failed |= errors.peek().is_some();
        model.error_type =
            model.error_type.or_else(|| errors.find_map(|log| log.error_type.as_ref()));
    }
    blame_last(&mut models, shape, logs);
    models
}

/// Whether so many calls of a trace were at once that, when it was evaluated, not all were compared with each other: a call that two
/// libraries recorded may then count twice.
pub fn has_uncompared(TraceView { shape, .. }: &TraceView<'_>) -> bool {
    shape.has_uncompared()
}

/// The agent of a trace, without a name if its spans name none.
pub(crate) fn agent(TraceView { shape, .. }: &TraceView<'_>, known: &mut AgentKeys) -> AgentKey {
    owner::agent(shape, known)
}

/// The agent that the spans of a trace name, if they do.
pub(crate) fn named_agent(trace: &TraceView<'_>, known: &mut AgentKeys) -> Option<AgentKey> {
    Some(agent(trace, known)).filter(|agent| !agent.agent_name.is_empty())
}

/// Whether the root of a trace is from a log record: such a root arrives first, and the whole trace belongs to its agent.
pub fn is_turn(TraceView { shape, .. }: &TraceView<'_>) -> bool {
    shape.root().is_some_and(SpanView::is_record)
}

/// The resource and the scope of the outermost span of a trace.
pub fn source<'a>(TraceView { shape, .. }: &TraceView<'a>) -> Option<(&'a Arc<Resource>, u64)> {
    shape.outermost_first().next().map(|span| (span.resource(), span.scope()))
}

/// Fills in how the trace ended.
fn outcome(update: &mut TraceFacts, shape: &Shape<'_>, models: &[ModelCall<'_>]) {
    let root = shape.own_root();
    update.complete = root.is_some();
    update.status = root.map(|root| root.status);
    // A root without status may be a step around the agent, and some libraries send none for a failed run.
    let without_status = root.is_none_or(|root| root.status == Status::Unset);
    // A root that ended well survived whatever failed, unless it is a step around agents, which says nothing about them.
    let well = root.is_some_and(|root| root.status == Status::Ok);
    let around = root
        .is_some_and(|root| matches!(root.operation, Operation::Other | Operation::CreateAgent));
    let ends_in_failure = (without_status && shape.ends_in_failure())
        || (well && around && shape.ends_in_agent_failure());
    let failed =
        root.is_some_and(|root| root.failed) || ends_in_failure || shape.has_failed_batch_item();
    update.error = failed || (!well && shape.ended_in_failure(models));
}

/// The kind of error of the outermost failed span that reports one, else of the last model call with a record of one.
fn error_type(shape: &Shape<'_>, models: &[ModelCall<'_>]) -> Option<Arc<str>> {
    let told = shape.outermost_first().find_map(SpanView::error_type);
    told.or_else(|| models.iter().rev().find_map(|model| model.error_type)).cloned()
}

/// Fills in what the model calls used and cost; returns this for each call, and then for each total.
fn spent(
    update: &mut TraceFacts,
    (models, totals): (&[ModelCall<'_>], &Totals<'_>),
    shape: &Shape<'_>,
    prices: &Prices,
) -> Spends {
    let mut spends = Spends::with_capacity(models.len() + totals.len());
    update.llm_calls = models.len() as u64;
    let agent = shape.root().filter(|root| root.operation != Operation::Chat && root.stopped);
    update.stopped_calls = agent.is_some().into();
    let mut nameless = BTreeSet::new();
    for span in models {
        let nanos = span.end.0.saturating_sub(span.start.0);
        update.model_nanos = update.model_nanos.saturating_add(nanos);
        update.longest_model_nanos = update.longest_model_nanos.max(nanos);
        update.failed_model_calls += u64::from(span.failed);
        update.stopped_calls += u64::from(span.stopped);
        let model = span.model();
        let name = model.as_ref().and_then(|model| model.name).map(|name| name.text);
        update.models.extend(name.filter(|name| update.models.last() != Some(name)).cloned());
        nameless.extend(name.is_none().then_some(span.at));
        spends.push(spend(span, model.as_ref(), prices));
    }
    // A total may have the model of the calls that it covers.
    let of_nameless = totals.iter().filter(|(_, below)| !below.is_disjoint(&nameless));
    let names = of_nameless.filter_map(|(total, _)| total.model()?.name);
    update.models.extend(names.map(|name| Arc::clone(name.text)));
    spends.extend(totals.iter().map(|(span, _)| spend(span, span.model().as_ref(), prices)));
    update.models.sort_unstable();
    update.models.dedup();
    let (input, no_input) = sum_known(models, totals, &spends, |tokens| tokens.input);
    let (output, no_output) = sum_known(models, totals, &spends, |tokens| tokens.output);
    update.tokens = Some(crate::facts::Tokens { input, output });
    update.calls_without_tokens = no_input.max(no_output);
    let costs = spends.iter().filter_map(|spend| spend.cost).map(|cost| cost.0);
    update.cost_quanta = costs.reduce(i64::saturating_add);
    // A total may have the cost of the calls that it covers.
    let covered = covered(totals, &spends[models.len()..], |total| total.cost.is_some());
    let unpriced = models.iter().zip(&spends).filter(|(span, spend)| {
        spend.cost.is_none() && !span.failed && !covered.contains(&span.at)
    });
    let unpriced: Vec<&ModelCall<'_>> = unpriced.map(|(call, _)| call).collect();
    update.calls_without_cost = unpriced.len() as u64;
    update.unpriced = unknown_models(&unpriced, prices);
    spends
}

/// The usage of each model call of a trace, and then of each total; few traces have more.
type Spends = SmallVec<[Spend; 8]>;

/// The usage of a model call.
fn spend(span: &ModelCall<'_>, model: Option<&Model<'_>>, prices: &Prices) -> Spend {
    let cost = |model: &Model<'_>| {
        let at = |name: Named<'_>| prices.of_model(name.text, model.shipped(name), &model.tokens);
        let mut names = [model.name, model.requested].into_iter().flatten();
        model.cost.or_else(|| names.find_map(at))
    };
    Spend {
        start: span.start,
        end: span.end,
        tokens: model.map(|model| model.tokens).unwrap_or_default(),
        cost: model.and_then(cost),
    }
}

/// The models of these calls without a price in any table, each with its number of calls; only calls with known tokens count.
fn unknown_models(unpriced: &[&ModelCall<'_>], prices: &Prices) -> Vec<(Arc<str>, u64)> {
    let mut models: BTreeMap<&Arc<str>, u64> = BTreeMap::new();
    let tells = |model: &Model<'_>| model.tokens.input.and(model.tokens.output).is_some();
    for model in unpriced.iter().filter_map(|span| span.model()).filter(tells) {
        let lacks = |name: &Named<'_>| prices.lacks(name.text, model.shipped(*name));
        if let Some(name) = model.name.filter(lacks) {
            *models.entry(name.text).or_default() += 1;
        }
    }
    models.into_iter().map(|(name, calls)| (Arc::clone(name), calls)).collect()
}

/// A loop within a trace.
fn of_trace(trace_id: TraceId, found: loops::Found) -> Loop {
    let last = found.calls.end.saturating_sub(1);
    let calls = Some((found.calls.start as u64, last as u64));
    Loop { trace_ids: vec![trace_id], calls, ..found.entry }
}

/// Marks the last model call as failed if it gave no answer and the root failed: some libraries report a model's error on the root
/// alone.
fn blame_last<'s>(models: &mut [ModelCall<'s>], shape: &'s Shape<'_>, logs: &Logs<'_>) {
    let Some(root) = shape.root().filter(|root| root.failed) else { return };
    let last = models.iter_mut().max_by_key(|call| call.order());
    let Some(last) = last else { return };
    let answered = |model: &Model<'_>| {
        model.tokens.input.is_some() || model.tokens.output.is_some() || !model.calls.is_empty()
    };
    let logged = logs.of_span(last).any(|log| log.output.is_some() || !log.tool_calls.is_empty());
    if last.output().is_none()
        && !logged
        && !last.model().as_ref().is_some_and(answered)
        && !last.failed
    {
        (last.failed, last.error_type) = (true, root.error_type());
    }
}

/// What log records add to their spans.
struct Logs<'a> {
    by_span: BTreeMap<SpanId, Vec<&'a Log>>,
    all: Vec<&'a Log>,
}

impl<'a> Logs<'a> {
    fn of(parts: &'a TraceContents) -> Self {
        let mut by_span: BTreeMap<SpanId, Vec<&Log>> = BTreeMap::new();
        let mut all: Vec<&Log> = parts.logs().collect();
        all.sort_by_key(|log| (log.time, log.index, log.id));
        for log in &all {
            if let Some(span_id) = log.span_id {
                by_span.entry(span_id).or_default().push(*log);
            }
        }
        Self { by_span, all }
    }

    fn of_span(
        &self,
        span: &SpanView<'_>,
    ) -> impl DoubleEndedIterator<Item = &'a Log> + use<'a, '_> {
        self.by_span.get(&span.span_id).into_iter().flatten().copied()
    }
}

/// The indices of the calls that are covered by a total for which `tells` holds.
fn covered(
    totals: &[(ModelCall<'_>, BTreeSet<usize>)],
    spends: &[Spend],
    tells: impl Fn(&Spend) -> bool,
) -> BTreeSet<usize> {
    let telling = totals.iter().zip(spends).filter(|(_, spend)| tells(spend));
    telling.flat_map(|((_, below), _)| below).copied().collect()
}

/// The sum of a count over the model calls, and the number of calls without it: a failed call without it used nothing, and a call
/// that a total covers is in that total. The sum is `None` if nothing is known.
fn sum_known(
    models: &[ModelCall<'_>],
    totals: &[(ModelCall<'_>, BTreeSet<usize>)],
    spends: &[Spend],
    of: fn(&Tokens) -> Option<u64>,
) -> (Option<u64>, u64) {
    let (own, of_totals) = spends.split_at(models.len());
    let covered = covered(totals, of_totals, |total| of(&total.tokens).is_some());
    let (mut sum, mut unknown) = (None, 0);
    for (span, spend) in models.iter().zip(own) {
        match of(&spend.tokens) {
            Some(count) => sum = Some(count.saturating_add(sum.unwrap_or(0))),
            None => unknown += u64::from(!span.failed && !covered.contains(&span.at)),
        }
    }
    let nothing = (unknown == 0 && !models.is_empty()).then_some(0);
    let totals = of_totals.iter().filter_map(|total| of(&total.tokens));
    (sum.into_iter().chain(totals).chain(nothing).reduce(u64::saturating_add), unknown)
}

/// The length of the longest sequence of model calls, in the order of their starts, between which no tool call starts.
fn calls_without_tool(models: &[ModelCall<'_>], calls: &[ToolCall]) -> u64 {
    let starts = models.iter().map(|model| model.start.0);
    if starts.clone().is_sorted() {
        return longest_row(starts, calls);
    }
    // A call with several spans may come before calls that began earlier.
    let mut starts: Vec<u64> = starts.collect();
    starts.sort_unstable();
    longest_row(starts.into_iter(), calls)
}

fn longest_row(starts: impl Iterator<Item = u64>, calls: &[ToolCall]) -> u64 {
    // Invariant: calls are in the order of their starts, too.
    let mut calls = calls.iter().map(|call| call.start_unix_nano).peekable();
    let (mut longest, mut row) = (0, 0);
    for start in starts {
        let mut ended = false;
        while calls.next_if(|call| *call <= start).is_some() {
            ended = true;
        }
        row = if ended { 1 } else { row + 1 };
        longest = longest.max(row);
    }
    longest
}

/// The indices of model calls that failed and were retried at once: the next call with the same parent began after this one had
/// ended, no tool was called between them, and it succeeded or is a failed attempt as well. All of them are one step.
fn attempts(models: &[ModelCall<'_>], calls: &[ToolCall]) -> BTreeSet<usize> {
    let mut attempts = BTreeSet::new();
    if !models.iter().any(|call| call.failed) {
        return attempts;
    }
    let mut beside: BTreeMap<(Option<SpanId>, Option<&str>), Vec<usize>> = BTreeMap::new();
    for (at, call) in models.iter().enumerate() {
        beside.entry((call.parent(), call.agent_id())).or_default().push(at);
    }
    // Invariant: calls are in the order of their starts.
    let begun = |by: Timestamp| calls.partition_point(|call| call.start_unix_nano < by.0);
    for mut places in beside.into_values() {
        places.sort_by_key(|at| models[*at].order());
        let mut next: Option<&ModelCall<'_>> = None;
        for at in places.into_iter().rev() {
            let call = &models[at];
            let is_again = |next: &&ModelCall<'_>| {
                !loops::begins_before(next.start.0, call.end.0)
                    && begun(call.start) == begun(next.start)
            };
            next = next.filter(is_again).filter(|_| call.failed);
            attempts.extend(next.map(|_| at));
            next = (!call.failed || next.is_some()).then_some(call);
        }
    }
    attempts
}

/// The number of tool calls that failed, or repeat an earlier one of their series with the same result and are not allowed to.
fn wasted(calls: &[ToolCall], options: &LoopOptions) -> u64 {
    let known = |call: &ToolCall| {
        call.arguments_hash.zip(call.result_hash).filter(|_| !call.name.is_empty())
    };
    let again = may_recur(calls.iter().filter_map(known).map(|(asked, told)| asked ^ told));
    let mut seen = BTreeSet::new();
    let wasted = calls.iter().filter(|call| {
        let known = known(call).filter(|_| again);
        let redundant = known.is_some_and(|known| !seen.insert((call.within, &call.name, known)));
        (redundant && !options.allows(&call.name)) || call.error == Some(true)
    });
    wasted.count() as u64
}

/// The reported score that applies for each name.
fn reported(parts: &TraceContents) -> Vec<ReportedScore> {
    let mut scores = Vec::new();
    for report in parts.others.iter().flat_map(|others| others.reports.values()) {
        // A score that is outranked is left out.
        let _ = ReportedScore::from(report).join(&mut scores, usize::MAX);
    }
    scores
}
