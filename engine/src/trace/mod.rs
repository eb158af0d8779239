//! From the spans, logs and reports of one trace to its [`TraceUpdate`].
//!
//! A pure function of the set: nothing here depends on the order of arrival.

mod attempt;
mod expected;
mod facts;
mod observed;
mod rows;
mod shape;
mod span_view;
mod steps;
mod sub_agents;
mod symbol;
mod tools;
mod transcript;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::expected::expectations;
pub use self::rows::{Added, Hanging, Spans};
use self::shape::{Call, Shape};
use self::span_view::{Model, Said, SpanView};
use self::sub_agents::Work;
pub use self::symbol::Symbols;
pub use self::transcript::{Step, Transcript, transcript, whole_words};
use super::convention::{is_generic, is_random};
use super::loops::{self, Spend};
use super::math::sequence::adjacent_repeats;
use super::math::text::digest;
use super::options::{LoopOptions, SessionFallback, SessionScope};
use super::price::{Prices, Rate};
use super::signal::CONSTRAINT_VIOLATION;
use super::span::{Log, Operation, Report, Resource, SpanId, Text, Tokens, TraceId};
use super::update::{
    self, AgentKey, Content, Loop, ReportedScore, SessionKey, ToolCall, TraceUpdate, TurnStart,
};

/// All that is known of a trace.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct TraceContents {
    /// Spans by id.
    pub spans: Spans,
    /// Log records by id; few traces have any.
    pub logs: Option<Box<BTreeMap<u64, Log>>>,
    /// Reports; likewise.
    pub reports: Option<Box<Reports>>,
}

/// Reports by (name, identifier).
type Reports = BTreeMap<(Arc<str>, Arc<str>), Report>;

/// A trace laid out to be read, by whoever has something to read in it.
pub struct TraceView<'a> {
    parts: &'a TraceContents,
    shape: Shape<'a>,
    logs: Logs<'a>,
}

impl TraceContents {
    /// Lays the trace out.
    pub fn view(&self) -> TraceView<'_> {
        TraceView { parts: self, shape: Shape::new(self.spans.iter()), logs: Logs::of(self) }
    }

    /// Log records in order of their ids.
    pub fn logs(&self) -> impl Iterator<Item = &Log> {
        self.logs.iter().flat_map(|logs| logs.values())
    }

    /// Spans and log records.
    pub fn len(&self) -> usize {
        self.spans.len() + self.logs.as_ref().map_or(0, |logs| logs.len())
    }

    /// Whether there are neither.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The rules that a trace is read by.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Where a trace without a session key goes.
    pub fallback: SessionFallback,
    /// What ids of sessions are told apart by.
    pub scope: SessionScope,
    /// What a loop is.
    pub loops: LoopOptions,
    /// Whether texts and arguments go along.
    pub keep_content: bool,
    /// What model calls cost where their spans do not say.
    pub prices: Prices,
}

/// Why a trace is no agent's.
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

/// Reads a trace; `None` if it is no agent's: if it has no model call, tool or agent span of its own.
///
/// Revision, state and times of arrival are the stage's to fill in. What the output is compared by is there only if it is
/// done: a text that still grows is not worth it.
pub fn evaluate(
    trace_id: TraceId,
    TraceView { parts, shape, logs }: &TraceView<'_>,
    rules: &Rules,
    done: bool,
) -> Option<TraceUpdate> {
    let behaves = |span: &SpanView<'_>| {
        matches!(span.operation, Operation::Chat | Operation::ExecuteTool | Operation::InvokeAgent)
    };
    if !shape.behaviour().any(behaves) {
        return None;
    }
    let mut models = shape.model_calls();
    for model in &mut models {
        if !model.failed && logs.of_span(model).any(|log| log.failed) {
            model.failed = true;
        }
    }
    blame_last(&mut models, shape, logs);
    let calls = tools::of(shape, &models, logs, done);
    let outermost: Vec<&SpanView<'_>> = shape.outermost_first().collect();
    let mut update = TraceUpdate {
        trace_id,
        session: Some(session(trace_id, shape, &outermost, rules)),
        start_unix_nano: shape.behaviour().map(|span| span.start.0).min().unwrap_or(0),
        end_unix_nano: shape.behaviour().map(|span| span.end.0).max().unwrap_or(0),
        user: outermost.iter().find_map(|span| span.user()).map(str::to_owned),
        attempt: attempt::of(shape, parts).map(Box::new),
        reported: reported(parts),
        ..TraceUpdate::default()
    };
    update.agent = Some(agent(&outermost));
    outcome(&mut update, shape, &models);
    let turn = Turn { shape, outermost: &outermost, models: &models, logs };
    turn.texts(&mut update, rules.keep_content, done);
    turn.link(&mut update, &calls);
    let spends = spent(&mut update, shape, &models, &rules.prices);
    if let Some(content) = &mut update.content {
        content.steps = steps::of(shape, &models, &spends, &calls);
    }
    update.loops = loops_of(trace_id, (&calls, &compactions(&models)), &spends, &rules.loops);
    let own = update.agent.as_ref().map_or("", |agent| &agent.agent_name);
    let work = Work { models: &models, spends: &spends, calls: &calls, loops: &update.loops };
    update.sub_agents = sub_agents::of(shape, own, &work);
    let said = shape.behaviour().find(|span| span.reports_loop());
    if let Some(said) = said.filter(|_| update.loops.is_empty()) {
        let told = loops::reported(&calls, said.end, &spends);
        update.loops.push(Loop { trace_ids: vec![trace_id], ..told });
    }
    // Unknown tools are not equal to each other.
    let names = calls.iter().enumerate();
    let names =
        names.map(|(at, call)| Some(call.name.as_str()).filter(|name| !name.is_empty()).ok_or(at));
    let names: Vec<Result<&str, usize>> = names.collect();
    update.adjacent_tool_repeats = adjacent_repeats(&names) as u64;
    update.calls_without_tool = calls_without_tool(&models, &calls);
    update.steps = (models.len() + calls.len()) as u64;
    update.wasted_steps = wasted(&models, &calls);
    let goes_on = update.unfinished || update.turn_start != TurnStart::Asked;
    update.tools = tools::published(calls, rules.keep_content, goes_on);
    Some(update)
}

/// The agent that the spans of a trace name, if they do.
pub fn named_agent(TraceView { shape, .. }: &TraceView<'_>) -> Option<AgentKey> {
    let outermost: Vec<&SpanView<'_>> = shape.outermost_first().collect();
    Some(agent(&outermost)).filter(|agent| !agent.agent_name.is_empty())
}

/// Whether a log record told its root: that comes first, and all that is in it is its agent's.
pub fn is_turn(TraceView { shape, .. }: &TraceView<'_>) -> bool {
    shape.root().is_some_and(|root| root.is_record())
}

/// Where the outermost span of a trace comes from.
pub fn source<'a>(TraceView { shape, .. }: &TraceView<'a>) -> Option<(&'a Arc<Resource>, u64)> {
    shape.outermost_first().next().map(|span| (span.resource(), span.scope))
}

/// How it ended.
fn outcome<'a>(update: &mut TraceUpdate, shape: &Shape<'a>, models: &[Call<'a>]) {
    let root = shape.root();
    let last = shape.last_model(models);
    update.complete = root.is_some();
    update.status = root.map(|root| root.status);
    update.error = root.is_some_and(|root| root.failed) || last.is_some_and(|model| model.failed);
}

/// What the model calls used and cost; returns it call by call.
fn spent(
    update: &mut TraceUpdate,
    shape: &Shape<'_>,
    models: &[Call<'_>],
    prices: &Prices,
) -> Vec<Spend> {
    let totals = shape.totals(models);
    let all = models.iter().chain(totals.iter().map(|(call, _)| call));
    let spends: Vec<Spend> = all
        .map(|span| {
            let model = span.model.as_ref();
            let cost = |model: &Model<'_>| {
                model.cost.or_else(|| prices.of_model(priced(model)?, &model.tokens))
            };
            Spend {
                start: span.start,
                end: span.end,
                tokens: model.map(|model| model.tokens).unwrap_or_default(),
                cost: model.and_then(cost),
            }
        })
        .collect();
    update.llm_calls = models.len() as u64;
    let lasting = models.iter().map(|span| span.end.0.saturating_sub(span.start.0));
    update.failed_model_calls = models.iter().filter(|span| span.failed).count() as u64;
    update.model_nanos = lasting.fold(0, u64::saturating_add);
    let (input, no_input) = sum_known(models, &totals, |tokens| tokens.input);
    let (output, no_output) = sum_known(models, &totals, |tokens| tokens.output);
    update.tokens = Some(update::Tokens { input, output });
    update.calls_without_tokens = no_input.max(no_output);
    let costs = spends.iter().filter_map(|spend| spend.cost).map(|cost| cost.0);
    update.cost_quanta = costs.reduce(i64::saturating_add);
    // Totals say what their calls cost together.
    let unpriced = models.iter().zip(&spends).filter(|(span, spend)| {
        let covered = || {
            totals
                .iter()
                .zip(&spends[models.len()..])
                .any(|((_, below), total)| below.contains(&span.at) && total.cost.is_some())
        };
        spend.cost.is_none() && !span.failed && !covered()
    });
    let unpriced: Vec<&Call<'_>> = unpriced.map(|(call, _)| call).collect();
    update.calls_without_cost = unpriced.len() as u64;
    update.unpriced = unknown_models(&unpriced, prices);
    let named = models.iter().filter_map(|span| span.model.as_ref()?.name);
    let mut names: Vec<&str> = named.map(|name| name.text).collect();
    names.sort_unstable();
    names.dedup();
    update.models = names.into_iter().map(str::to_owned).collect();
    spends
}

/// The models of these calls that no table has a price for, of calls of which it would be known what they cost; how many each.
fn unknown_models(unpriced: &[&Call<'_>], prices: &Prices) -> Vec<(String, u64)> {
    let mut models: BTreeMap<&str, u64> = BTreeMap::new();
    let tells = |model: &&Model<'_>| model.tokens.input.and(model.tokens.output).is_some();
    for model in unpriced.iter().filter_map(|span| span.model.as_ref()).filter(tells) {
        if let Some(name) = priced(model).filter(|name| prices.lacks(*name)) {
            *models.entry(name.0).or_default() += 1;
        }
    }
    models.into_iter().map(|(name, calls)| (name.to_owned(), calls)).collect()
}

/// The model's name, and the price that ships for it.
fn priced<'a>(model: &Model<'a>) -> Option<(&'a str, Option<&'static Rate>)> {
    model.name.map(|name| (name.text, name.price))
}

fn loops_of(
    trace_id: TraceId,
    (calls, compactions): (&[ToolCall], &[u64]),
    spends: &[Spend],
    options: &LoopOptions,
) -> Vec<Loop> {
    let mut loops = Vec::new();
    let mut first = 0;
    // Invariant: calls are in the order of their starts.
    let ends =
        compactions.iter().map(|at| calls.partition_point(|call| call.start_unix_nano < *at));
    for end in ends.chain([calls.len()]) {
        let found = loops::find(&calls[first..end], spends, options).into_iter();
        loops.extend(found.map(|found| {
            let last = first + found.calls.end.saturating_sub(1);
            let calls = Some(((first + found.calls.start) as u64, last as u64));
            Loop { trace_ids: vec![trace_id], calls, ..found.entry }
        }));
        first = end;
    }
    loops
}

/// When the conversation was cut down to a summary, in order: what is called again after that is called anew.
fn compactions(models: &[Call<'_>]) -> Vec<u64> {
    let compacted = |model: &&Call<'_>| model.model.as_ref().is_some_and(|facts| facts.compacted);
    let mut starts: Vec<u64> = models.iter().filter(compacted).map(|model| model.start.0).collect();
    starts.sort_unstable();
    starts
}

/// Marks the last model call as failed if it gave no answer at all and the root failed: some libraries tell of a
/// model's error there alone.
fn blame_last(models: &mut [Call<'_>], shape: &Shape<'_>, logs: &Logs<'_>) {
    let last = models.iter_mut().max_by_key(|span| (span.end, span.span_id));
    let Some(last) = last.filter(|_| shape.root().is_some_and(|root| root.failed)) else { return };
    let answered = |model: &Model<'_>| {
        model.tokens.input.is_some() || model.tokens.output.is_some() || !model.calls.is_empty()
    };
    let logged = logs.of_span(last).any(|log| log.output.is_some() || !log.tool_calls.is_empty());
    if last.output.is_none()
        && !logged
        && !last.model.as_ref().is_some_and(answered)
        && !last.failed
    {
        last.failed = true;
    }
}

/// What log records add to the spans they belong to.
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

/// The sum of what model calls know, and how many do not know: a failed call that says nothing used nothing, and one that a total
/// covers is in there. `None` if none knows.
fn sum_known(
    models: &[Call<'_>],
    totals: &[(Call<'_>, BTreeSet<usize>)],
    of: fn(&Tokens) -> Option<u64>,
) -> (Option<u64>, u64) {
    let known = |call: &Call<'_>| call.model.as_ref().and_then(|model| of(&model.tokens));
    let covered = |span: &Call<'_>| {
        totals.iter().any(|(total, below)| below.contains(&span.at) && known(total).is_some())
    };
    let silent = models.iter().filter(|span| known(span).is_none());
    let unknown = silent.clone().filter(|span| !span.failed && !covered(span)).count() as u64;
    let nothing = (unknown == 0 && !models.is_empty()).then_some(0);
    let counts = models.iter().filter_map(|span| known(span));
    let totals = totals.iter().filter_map(|(total, _)| known(total));
    (counts.chain(totals).chain(nothing).reduce(u64::saturating_add), unknown)
}

/// The most model calls, in the order of their starts, between which no tool call starts.
fn calls_without_tool(models: &[Call<'_>], calls: &[ToolCall]) -> u64 {
    let mut starts: Vec<u64> = models.iter().map(|model| model.start.0).collect();
    starts.sort_unstable();
    // Invariant: calls are in the order of their starts.
    let before = |start: u64| calls.partition_point(|call| call.start_unix_nano <= start);
    let rows = starts.chunk_by(|one, next| before(*one) == before(*next));
    rows.map(<[u64]>::len).max().unwrap_or(0) as u64
}

/// Failed model and tool calls, and tool calls that repeat an earlier one and its result.
fn wasted(models: &[Call<'_>], calls: &[ToolCall]) -> u64 {
    let mut seen = BTreeSet::new();
    let failed_models = models.iter().filter(|span| span.failed).count();
    let wasted_calls = calls.iter().filter(|call| {
        let known = call.arguments_hash.zip(call.result_hash).filter(|_| !call.name.is_empty());
        let redundant = known.is_some_and(|known| !seen.insert((call.name.as_str(), known)));
        redundant || call.error == Some(true)
    });
    (failed_models + wasted_calls.count()) as u64
}

/// Where the texts of the turn are.
struct Turn<'s> {
    shape: &'s Shape<'s>,
    outermost: &'s [&'s SpanView<'s>],
    models: &'s [Call<'s>],
    logs: &'s Logs<'s>,
}

impl<'s> Turn<'s> {
    /// Fills in the texts, and what the output's likeness is computed from.
    fn texts(&self, update: &mut TraceUpdate, keep_content: bool, done: bool) {
        let output = || self.output().and_then(|said| said.text);
        update.output_digest = done.then(output).flatten().and_then(digest);
        update.content = keep_content.then(|| Content {
            input: self.input().and_then(|said| said.text).map(str::to_owned),
            output: output().map(str::to_owned),
            steps: Vec::new(),
        });
    }

    /// Fills in how the trace hangs together with the one before it and the one after it.
    ///
    /// New user input began it if a user's message ends the first model call's input, or if an agent was invoked: that
    /// implies one. It ended on an answer if an agent was, or if the last model call made no tool call.
    fn link(&self, update: &mut TraceUpdate, calls: &[ToolCall]) {
        let first = self.models.first().and_then(|model| self.asked_by_user(model));
        let invoked = self.shape.behaviour().any(|span| span.operation == Operation::InvokeAgent);
        update.turn_start = match first {
            Some(false) => TurnStart::Continued,
            Some(true) => TurnStart::Asked,
            None if invoked || self.input().is_some() => TurnStart::Asked,
            None => TurnStart::Unknown,
        };
        let last = self.shape.last_model(self.models);
        let after_last =
            last.is_none_or(|last| calls.iter().any(|call| call.start_unix_nano >= last.end.0));
        let called = last.is_some_and(|last| !tools::called(last, self.logs).is_empty());
        update.unfinished = !invoked && !calls.is_empty() && (after_last || called);
        if update.turn_start != TurnStart::Asked {
            update.results = tools::results_told(self.models, self.logs);
        }
    }

    /// Whether a user's message ends a model call's input, on its span or in the last record of it.
    fn asked_by_user(&self, model: &Call<'_>) -> Option<bool> {
        let own = model.model.as_ref().and_then(|facts| facts.asked_by_user);
        own.or_else(|| self.logs.of_span(model).rev().find_map(|log| log.asked_by_user))
    }

    /// The user's text: the root's or the outermost agent's, else the first model call's last user message.
    fn input(&self) -> Option<Said<'s>> {
        let said = |text: &'s Text| Said::of(text);
        let of_model = |span: &'s Call<'s>| {
            let logged =
                || self.logs.of_span(span).rev().find_map(|log| log.input.as_ref()).map(said);
            span.input.or_else(logged)
        };
        let own = self.owners().filter_map(SpanView::input);
        let of_models = self.models.iter().filter_map(of_model);
        let loose = self.logs.all.iter().rev().filter_map(|log| log.input.as_ref()).map(said);
        first_good(own.chain(of_models).chain(loose))
    }

    /// The final answer: the root's or the outermost agent's, else the last model call's, if that succeeded.
    fn output(&self) -> Option<Said<'s>> {
        let last_model = self.shape.last_model(self.models);
        let own = self.owners().filter_map(SpanView::output);
        let of_model = last_model.filter(|span| !span.failed).and_then(|span| {
            let logged = || self.logs.of_span(span).rev().find_map(|log| log.output.as_ref());
            span.output.or_else(|| logged().map(Said::of))
        });
        first_good(own.chain(of_model))
    }

    /// The spans that speak for the whole turn.
    fn owners(&self) -> impl Iterator<Item = &'s SpanView<'s>> + '_ {
        let agent =
            self.outermost.iter().copied().find(|span| span.operation == Operation::InvokeAgent);
        let speaks = |span: &&SpanView<'_>| {
            !matches!(span.operation, Operation::Chat | Operation::ExecuteTool)
        };
        self.shape.root().filter(speaks).into_iter().chain(agent)
    }
}

/// The first text that is one; the JSON of something else only where there is no other.
fn first_good<'a>(texts: impl Iterator<Item = Said<'a>>) -> Option<Said<'a>> {
    let mut last_resort = None;
    for text in texts {
        if text.rank < Text::LOOSE {
            return Some(text);
        }
        last_resort = last_resort.or(Some(text));
    }
    last_resort
}

/// The session: on the outermost span that names one, the best key; then resources, then JSON values. Without a namespace its
/// scope is the agent, which [`scope_by_agent`] fills in.
fn session(
    trace_id: TraceId,
    shape: &Shape<'_>,
    outermost: &[&SpanView<'_>],
    rules: &Rules,
) -> SessionKey {
    let namespace = outermost.iter().find_map(|span| span.resource().service_namespace.as_deref());
    let namespace = namespace.filter(|_| rules.scope == SessionScope::Service);
    let tenant =
        shape.spans.iter().find_map(|span| span.resource().tenant.as_deref()).unwrap_or_default();
    let key = |source: &str, id: &str| SessionKey {
        tenant: tenant.to_owned(),
        id: id.to_owned(),
        scope: namespace.unwrap_or_default().to_owned(),
        source: source.to_owned(),
    };
    let of_resource = |span: &&SpanView<'_>| {
        span.resource().session.as_ref().map(|name| key(&name.attribute, &name.id))
    };
    let of_span = |session: span_view::Session<'_>| key(session.attribute, session.id);
    let named = outermost.iter().find_map(|span| span.session()).map(of_span);
    let named = named.or_else(|| outermost.iter().find_map(of_resource));
    let in_json = || outermost.iter().find_map(|span| span.session_in_json()).map(of_span);
    if let Some(named) = named.or_else(in_json) {
        return named;
    }
    let instance = outermost.iter().find_map(|span| span.resource().instance_id.as_deref());
    match (rules.fallback, instance) {
        (SessionFallback::Instance, Some(instance)) => key("instance", instance),
        (SessionFallback::Instance, None) | (SessionFallback::Trace, _) => {
            SessionKey { scope: String::new(), ..key("trace", &trace_id.to_string()) }
        }
    }
}

/// Gives the session that a trace names, and whose services have no namespace, the scope of the trace's agent; its service where
/// no agent is named.
pub fn scope_by_agent(update: &mut TraceUpdate, scope: SessionScope) {
    let Some((session, agent)) = update.session.as_mut().zip(update.agent.as_ref()) else { return };
    if scope == SessionScope::Tenant || session.is_own() || !session.scope.is_empty() {
        return;
    }
    let name = if agent.agent_name.is_empty() { &agent.service_name } else { &agent.agent_name };
    session.scope.clone_from(name);
}

/// The trace's agent: the name of the outermost agent span that has one of its own, else of the outermost other span that names
/// an agent; version, environment and service from that span, else its resource. Where no span names one, the resource, the
/// outermost workflow and the agent's id do; empty if nobody says one.
fn agent(outermost: &[&SpanView<'_>]) -> AgentKey {
    let agents = || outermost.iter().filter(|span| span.operation == Operation::InvokeAgent);
    let named = agents().chain(outermost).find_map(|span| Some((span, agent_name(span)?)));
    let chosen = named
        .as_ref()
        .map(|(span, _)| *span)
        .or_else(|| agents().next())
        .or_else(|| outermost.first());
    let resource = |of: fn(&Resource) -> Option<&Arc<str>>| -> Option<String> {
        let own = chosen.and_then(|span| of(span.resource()));
        own.or_else(|| outermost.iter().find_map(|span| of(span.resource())))
            .map(|name| String::from(&**name))
    };
    let service_name = resource(|resource| resource.service_name.as_ref()).unwrap_or_default();
    // What is further in is a part of it: a generic name of the outermost one does not yield to theirs.
    let outer =
        |of: fn(&SpanView<'_>) -> Option<String>| outermost.iter().find_map(|span| of(span));
    let workflow = || outer(|span| span.workflow().map(str::to_owned));
    let id = || outer(|span| span.agent_id().map(str::to_owned));
    let is_own = |name: &String| !is_generic(name) && !is_random(name);
    let name = named
        .map(|(_, name)| name)
        .or_else(|| resource(|resource| resource.agent_name.as_ref()))
        .or_else(|| workflow().filter(is_own))
        .or_else(|| id().filter(is_own))
        .unwrap_or_default();
    let version = chosen.and_then(|span| span.agent_version()).map(str::to_owned);
    let environment = chosen.and_then(|span| span.environment()).map(str::to_owned);
    AgentKey {
        tenant: resource(|resource| resource.tenant.as_ref()).unwrap_or_default(),
        agent_version: version
            .or_else(|| resource(|resource| resource.service_version.as_ref()))
            .unwrap_or_default(),
        environment: environment
            .or_else(|| resource(|resource| resource.environment.as_ref()))
            .unwrap_or_default(),
        agent_name: name,
        service_name,
    }
}

/// The agent that a span names, or an agent's span is named after; what a library calls every agent is no name, nor is the model.
fn agent_name(span: &SpanView<'_>) -> Option<String> {
    let agent = span.operation == Operation::InvokeAgent;
    let from_span = || {
        let name = span.name().trim_start_matches("invoke_agent").trim();
        let is_model = span.model_name().is_some_and(|model| model.starts_with(name));
        Some(name).filter(|name| agent && !name.is_empty() && !is_model && !is_random(name))
    };
    span.agent_name().or_else(from_span).filter(|name| !is_generic(name)).map(str::to_owned)
}

/// Of each reported name the best score: the source that ranks highest, then the latest, then the greatest.
fn reported(parts: &TraceContents) -> Vec<ReportedScore> {
    let mut best: BTreeMap<(&str, &str), &Report> = BTreeMap::new();
    let rank =
        |report: &Report| (report.source, report.time, report.identifier.clone(), report.score);
    for report in parts.reports.iter().flat_map(|reports| reports.values()) {
        // Rules are broken one by one: of these all count.
        let rule = if &*report.name == CONSTRAINT_VIOLATION { &report.identifier } else { "" };
        let held = best.entry((&report.name, rule)).or_insert(report);
        if rank(report) > rank(held) {
            *held = report;
        }
    }
    best.into_values()
        .map(|report| ReportedScore {
            name: report.name.to_string(),
            score_quanta: report.score.0,
            source: report.source.name().to_owned(),
            identifier: report.identifier.to_string(),
            label: report.label.as_ref().map(ToString::to_string),
            explanation: report.explanation.as_ref().map(ToString::to_string),
            judge: report.judge.as_ref().map(ToString::to_string),
            time_unix_nano: report.time.0,
        })
        .collect()
}
