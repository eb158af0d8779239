//! From the spans, logs and reports of one trace to its [`TraceUpdate`].
//!
//! A pure function of the set: nothing here depends on the order of arrival.

mod shape;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use self::shape::Shape;
use super::loops::{self, Spend};
use super::math::sequence::adjacent_repeats;
use super::math::text::digest;
use super::options::{LoopOptions, SessionFallback};
use super::span::{
    Log, ModelFacts, Operation, Report, Span, SpanId, Status, Text, Tokens, ToolFacts, ToolResult,
    TraceId,
};
use super::update::{
    self, AgentKey, Content, ReportedScore, SessionKey, SpanStatus, ToolCall, TraceUpdate,
};

/// All that is known of a trace.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// Spans by id; boxed, as a node of the map has room for eleven.
    pub spans: BTreeMap<SpanId, Box<Span>>,
    /// Log records by id.
    pub logs: BTreeMap<u64, Log>,
    /// Reports by (name, identifier).
    pub reports: BTreeMap<(Arc<str>, Arc<str>), Report>,
}

/// The rules that a trace is read by.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Where a trace without a session key goes.
    pub fallback: SessionFallback,
    /// What a loop is.
    pub loops: LoopOptions,
    /// Whether texts and arguments go along.
    pub keep_content: bool,
}

/// Why a trace is no agent's.
pub fn ignored(parts: &Parts) -> &'static str {
    let has = |operation| parts.spans.values().any(|span| span.operation == operation);
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
/// Revision, state and times of arrival are the stage's to fill in.
pub fn evaluate(trace_id: TraceId, parts: &Parts, rules: &Rules) -> Option<TraceUpdate> {
    let shape = Shape::new(parts.spans.values().map(AsRef::as_ref));
    let behaves = |span: &Span| {
        matches!(span.operation, Operation::Chat | Operation::ExecuteTool | Operation::InvokeAgent)
    };
    if !shape.behaviour().any(behaves) {
        return None;
    }
    let logs = Logs::of(parts);
    let mut models = shape.model_calls();
    blame_last(&mut models, &shape, &logs);
    let models: Vec<&Span> = models.iter().map(AsRef::as_ref).collect();
    let tools = tools(&shape, &models, &logs);
    let totals = shape.totals(&models);
    let spends: Vec<Spend> =
        models.iter().copied().chain(totals.iter().map(|(span, _)| *span)).map(spend).collect();
    let last_model = models.iter().max_by_key(|span| (span.end, span.span_id)).copied();
    let root = shape.root();
    let outermost = shape.outermost_first();
    let turn = Turn { shape: &shape, outermost: &outermost, models: &models, logs: &logs };
    let output = turn.output(last_model);
    let tokens = |of: fn(&Tokens) -> Option<u64>| sum_known(&models, &totals, of);
    let (agent, sub_agents) = agent(&outermost);
    let names: Vec<&str> = tools.iter().map(|tool| tool.call.name.as_str()).collect();
    let calls: Vec<ToolCall> = tools.iter().map(|tool| tool.call.clone()).collect();
    Some(TraceUpdate {
        trace_id: trace_id.0.to_vec(),
        session: Some(session(trace_id, &shape, &outermost, rules.fallback)),
        agent: Some(agent),
        start_unix_nano: shape.behaviour().map(|span| span.start.0).min().unwrap_or(0),
        end_unix_nano: shape.behaviour().map(|span| span.end.0).max().unwrap_or(0),
        complete: root.is_some(),
        status: root.map_or(SpanStatus::Unspecified, |root| status(root.status)).into(),
        error: root.is_some_and(|root| root.failed) || last_model.is_some_and(|model| model.failed),
        llm_calls: models.len() as u64,
        tokens: Some(update::Tokens {
            input: tokens(|tokens| tokens.input),
            output: tokens(|tokens| tokens.output),
        }),
        cost_quanta: spends
            .iter()
            .filter_map(|spend| spend.cost)
            .map(|cost| cost.0)
            .reduce(i64::saturating_add),
        loops: loops::find(&calls, &spends, &rules.loops, &trace_id.0),
        reported: reported(parts),
        output_digest: output.and_then(|text| digest(&text.text)),
        content: rules.keep_content.then(|| Content {
            input: turn.input().map(|text| text.text.to_string()),
            output: output.map(|text| text.text.to_string()),
        }),
        steps: (models.len() + tools.len()) as u64,
        wasted_steps: wasted(&models, &calls),
        adjacent_tool_repeats: adjacent_repeats(&names) as u64,
        sub_agents,
        tools: tools.into_iter().map(|tool| tool.published(rules.keep_content)).collect(),
        ..TraceUpdate::default()
    })
}

/// Marks the last model call as failed if it gave no answer at all and the root failed: some libraries tell of a
/// model's error there alone.
fn blame_last(models: &mut [Cow<'_, Span>], shape: &Shape<'_>, logs: &Logs<'_>) {
    let last = models.iter_mut().max_by_key(|span| (span.end, span.span_id));
    let Some(last) = last.filter(|_| shape.root().is_some_and(|root| root.failed)) else { return };
    let answered = |facts: &ModelFacts| {
        facts.tokens.input.is_some()
            || facts.tokens.output.is_some()
            || !facts.tool_calls.is_empty()
    };
    let logged = logs.of_span(last).any(|log| log.output.is_some() || !log.tool_calls.is_empty());
    if last.output.is_none()
        && !logged
        && !last.model.as_ref().is_some_and(answered)
        && !last.failed
    {
        last.to_mut().failed = true;
    }
}

/// What log records add to the spans they belong to.
struct Logs<'a> {
    by_span: BTreeMap<SpanId, Vec<&'a Log>>,
    all: Vec<&'a Log>,
}

impl<'a> Logs<'a> {
    fn of(parts: &'a Parts) -> Self {
        let mut by_span: BTreeMap<SpanId, Vec<&Log>> = BTreeMap::new();
        let mut all: Vec<&Log> = parts.logs.values().collect();
        all.sort_by_key(|log| (log.time, log.index, log.id));
        for log in &all {
            if let Some(span_id) = log.span_id {
                by_span.entry(span_id).or_default().push(*log);
            }
        }
        Self { by_span, all }
    }

    fn of_span(&self, span: &Span) -> impl DoubleEndedIterator<Item = &'a Log> + '_ {
        self.by_span.get(&span.span_id).into_iter().flatten().copied()
    }
}

/// A tool call and its arguments, which go along only where content is kept.
struct Tool {
    call: ToolCall,
    arguments: Option<Arc<str>>,
}

impl Tool {
    fn new(facts: &ToolFacts, span: &Span, failed: bool) -> Self {
        let arguments = facts.arguments.as_ref().map(|arguments| Arc::from(arguments.as_str()));
        let call = ToolCall {
            name: facts.name.as_deref().unwrap_or_default().to_owned(),
            arguments: None,
            result_hash: facts.result_hash,
            error: Some(failed),
            start_unix_nano: span.start.0,
            end_unix_nano: span.end.0,
            arguments_hash: arguments
                .as_ref()
                .map(|arguments: &Arc<str>| xxh3_64(arguments.as_bytes())),
        };
        Self { call, arguments }
    }

    fn published(mut self, keep_content: bool) -> ToolCall {
        self.call.arguments =
            self.arguments.filter(|_| keep_content).map(|arguments| arguments.to_string());
        self.call
    }
}

/// Tool calls from tool spans; only if there are none, from the model's output. A tool span that does not say its
/// arguments has those that the model called it with.
fn tools(shape: &Shape<'_>, models: &[&Span], logs: &Logs<'_>) -> Vec<Tool> {
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
            Tool::new(&facts, ran.unwrap_or(model), failed)
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
        Tool::new(&facts, span, span.failed)
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
fn called<'a>(model: &'a Span, logs: &Logs<'a>) -> Vec<&'a ToolFacts> {
    let own = model.model.as_ref().map(|facts| facts.tool_calls.as_slice()).unwrap_or_default();
    let logged = || logs.of_span(model).flat_map(|log| &log.tool_calls);
    let calls: Vec<&ToolFacts> =
        if own.is_empty() { logged().collect() } else { own.iter().collect() };
    let mut seen = BTreeSet::new();
    let fresh = |facts: &&ToolFacts| facts.call_id.clone().is_none_or(|id| seen.insert(id));
    calls.into_iter().filter(|facts| !facts.phantom).filter(fresh).collect()
}

fn spend(span: &Span) -> Spend {
    let facts = span.model.as_ref();
    Spend {
        start: span.start,
        end: span.end,
        tokens: facts.map(|facts| facts.tokens).unwrap_or_default(),
        cost: facts.and_then(|facts| facts.cost),
    }
}

/// Sums what every model call knows; a failed call that says nothing used nothing, one that a total covers is in
/// there, and a successful one that says nothing makes the sum unknown.
fn sum_known(
    models: &[&Span],
    totals: &[(&Span, BTreeSet<SpanId>)],
    of: fn(&Tokens) -> Option<u64>,
) -> Option<u64> {
    let known = |span: &Span| span.model.as_ref().and_then(|facts| of(&facts.tokens));
    let covered = |span: &Span| {
        totals.iter().any(|(total, below)| below.contains(&span.span_id) && known(total).is_some())
    };
    let counts = models
        .iter()
        .map(|span| known(span).or_else(|| (span.failed || covered(span)).then_some(0)));
    let totals = totals.iter().filter_map(|(total, _)| known(total)).map(Some);
    counts.chain(totals).reduce(|sum, count| Some(sum?.saturating_add(count?))).flatten()
}

/// Failed model and tool calls, and tool calls that repeat an earlier one and its result.
fn wasted(models: &[&Span], calls: &[ToolCall]) -> u64 {
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
struct Turn<'a, 'b> {
    shape: &'b Shape<'a>,
    outermost: &'b [&'a Span],
    models: &'b [&'a Span],
    logs: &'b Logs<'a>,
}

impl<'a> Turn<'a, '_> {
    /// The user's text: the root's or the outermost agent's, else the first model call's last user message.
    fn input(&self) -> Option<&'a Text> {
        let of_model = |span: &&'a Span| {
            let logged = self.logs.of_span(span).rev().find_map(|log| log.input.as_ref());
            span.input.as_ref().or(logged)
        };
        let own = self.owners().filter_map(|span| span.input.as_ref());
        let of_models = self.models.iter().filter_map(of_model);
        let loose = self.logs.all.iter().rev().filter_map(|log| log.input.as_ref());
        first_good(own.chain(of_models).chain(loose))
    }

    /// The final answer: the root's or the outermost agent's, else the last model call's, if that succeeded.
    fn output(&self, last_model: Option<&'a Span>) -> Option<&'a Text> {
        let own = self.owners().filter_map(|span| span.output.as_ref());
        let of_model = last_model.filter(|span| !span.failed).and_then(|span| {
            let logged = self.logs.of_span(span).rev().find_map(|log| log.output.as_ref());
            span.output.as_ref().or(logged)
        });
        first_good(own.chain(of_model))
    }

    /// The spans that speak for the whole turn.
    fn owners(&self) -> impl Iterator<Item = &'a Span> + '_ {
        let agent =
            self.outermost.iter().copied().find(|span| span.operation == Operation::InvokeAgent);
        let speaks =
            |span: &&Span| !matches!(span.operation, Operation::Chat | Operation::ExecuteTool);
        self.shape.root().filter(speaks).into_iter().chain(agent)
    }
}

/// The first text that is one; the JSON of something else only where there is no other.
fn first_good<'a>(texts: impl Iterator<Item = &'a Text>) -> Option<&'a Text> {
    let mut last_resort = None;
    for text in texts {
        if text.rank < Text::LOOSE {
            return Some(text);
        }
        last_resort = last_resort.or(Some(text));
    }
    last_resort
}

/// The session: on the outermost span that names one, the best key; then resources, then JSON values.
fn session(
    trace_id: TraceId,
    shape: &Shape<'_>,
    outermost: &[&Span],
    fallback: SessionFallback,
) -> SessionKey {
    let tenant =
        shape.spans.iter().find_map(|span| span.resource.tenant.as_deref()).unwrap_or_default();
    let key = |source: &str, id: &str| SessionKey {
        tenant: tenant.to_owned(),
        id: id.to_owned(),
        source: source.to_owned(),
    };
    let named = outermost
        .iter()
        .find_map(|span| span.session.as_ref())
        .or_else(|| outermost.iter().find_map(|span| span.resource.session.as_ref()))
        .or_else(|| outermost.iter().find_map(|span| span.session_in_json.as_ref()));
    if let Some(name) = named {
        return key(&name.attribute, &name.id);
    }
    let instance = outermost.iter().find_map(|span| span.resource.instance_id.as_deref());
    match (fallback, instance) {
        (SessionFallback::Instance, Some(instance)) => key("instance", instance),
        (SessionFallback::Instance, None) | (SessionFallback::Trace, _) => {
            key("trace", &trace_id.to_string())
        }
    }
}

/// The trace's agent: the outermost agent span's name; version, environment and service from that span, else its
/// resource. And the other agents in it.
fn agent(outermost: &[&Span]) -> (AgentKey, Vec<String>) {
    let own_name = |span: &Span| -> Option<String> {
        let agent = span.operation == Operation::InvokeAgent;
        let from_span = || {
            agent
                .then(|| span.name.trim_start_matches("invoke_agent").trim())
                .filter(|name| !name.is_empty())
        };
        span.agent_name.as_deref().or_else(from_span).map(str::to_owned)
    };
    let agents = || outermost.iter().filter(|span| span.operation == Operation::InvokeAgent);
    let chosen = agents()
        .next()
        .or_else(|| outermost.iter().find(|span| span.agent_name.is_some()))
        .or_else(|| outermost.first());
    let resource = |of: fn(&super::span::Resource) -> Option<&Arc<str>>| -> Option<String> {
        let own = chosen.and_then(|span| of(&span.resource));
        own.or_else(|| outermost.iter().find_map(|span| of(&span.resource)))
            .map(ToString::to_string)
    };
    let service_name = resource(|resource| resource.service_name.as_ref()).unwrap_or_default();
    let name = chosen
        .and_then(|span| own_name(span))
        .or_else(|| resource(|resource| resource.agent_name.as_ref()))
        .unwrap_or_else(|| service_name.clone());
    let version = chosen.and_then(|span| span.agent_version.as_ref()).map(ToString::to_string);
    let environment = chosen.and_then(|span| span.environment.as_ref()).map(ToString::to_string);
    let key = AgentKey {
        tenant: resource(|resource| resource.tenant.as_ref()).unwrap_or_default(),
        agent_version: version
            .or_else(|| resource(|resource| resource.service_version.as_ref()))
            .unwrap_or_default(),
        environment: environment
            .or_else(|| resource(|resource| resource.environment.as_ref()))
            .unwrap_or_default(),
        agent_name: name,
        service_name,
    };
    let others: BTreeSet<String> =
        agents().filter_map(|span| own_name(span)).filter(|name| *name != key.agent_name).collect();
    (key, others.into_iter().collect())
}

/// Of each reported name the best score: the source that ranks highest, then the latest, then the greatest.
fn reported(parts: &Parts) -> Vec<ReportedScore> {
    let mut best: BTreeMap<&str, &Report> = BTreeMap::new();
    let rank =
        |report: &Report| (report.source, report.time, report.identifier.clone(), report.score);
    for report in parts.reports.values() {
        let held = best.entry(&report.name).or_insert(report);
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
            time_unix_nano: report.time.0,
        })
        .collect()
}

fn status(status: Status) -> SpanStatus {
    match status {
        Status::Unset => SpanStatus::Unset,
        Status::Ok => SpanStatus::Ok,
        Status::Error => SpanStatus::Error,
    }
}
