//! Sessions and traces for people and scripts.

use std::sync::Arc;

use serde_json::json;

use super::record::{Rare, TraceRecord};
use super::rules::Rules;
use super::scoring::{Signal, scores};
use super::session::Session;
use crate::facts::{
    Expectation, ExpectedLayer, Loop, Remarks, ReportedScore, Step, Tokens, ToolCall,
};
use crate::limits::LimitScope;
use crate::math::{Quanta, ratio};
use crate::score::agent_reliability::band;
use crate::signal::{CONSTRAINT_VIOLATION, SignalName, thresholds};
use crate::span::{Source, SpanId, Status, TraceId, Violation};
use crate::view::{
    AgentName, AttemptView, ExpectationView, LayerView, LimitView, LoopView, SessionView,
    SignalView, StepView, SubAgentView, TokensView, ToolView, TraceView, ViolationView,
};

/// The remarks of a trace without remarks.
static NO_REMARKS: Remarks = Remarks {
    previous_session: None,
    guardrails: Vec::new(),
    waits_since_unix_nano: None,
    accepted_edits: 0,
    rejected_edits: 0,
    compacted_unix_nano: Vec::new(),
};

/// Nanoseconds in a second.
const NANOS: i128 = 1_000_000_000;

/// One session, explained.
pub(super) fn session(session: &Session, rules: &Rules) -> SessionView {
    let traces: Vec<&TraceRecord> = session.traces.iter().collect();
    let first = traces.first();
    let reliability = session.reliability.result();
    let consistency = session.consistency().result();
    let empty = (rules.empty_is_one && !traces.is_empty()).then_some(1.0);
    let score = |score: Option<f64>| score.or(empty).map(|score| rules.shown(score));
    let shown = score(reliability.map(|result| result.score));
    let judged = session.rare().judged.result();
    let previous =
        traces.iter().find_map(|held| held.rare().remarks.as_ref()?.previous_session.clone());
    let reports = session.rare().reports.iter();
    SessionView {
        session_id: session.id.id.to_string(),
        scope: session.id.scope.to_string(),
        session_source: first
            .map(|held| held.course.session_source.to_string())
            .unwrap_or_default(),
        agent: first.map(|held| agent(held)).unwrap_or_default(),
        previous_session_id: previous,
        signals: reports
            .map(|(name, report)| {
                (name.to_string(), signal(&(&**name).into(), report.score, report.source, rules))
            })
            .collect(),
        total_traces: traces.len() as u64,
        traces_evaluated: reliability.map_or(0, |result| result.evaluated),
        reliability: shown,
        traces_judged: judged.map_or(0, |result| result.evaluated),
        judged_reliability: judged.map(|result| rules.shown(result.score)),
        consistency: score(consistency.map(|result| result.score)),
        raw_risk: reliability.map(|result| rules.shown(result.raw_risk)),
        max_risk: reliability.map(|result| result.max_risk),
        mean_top_k_risk: reliability.map(|result| result.mean_top_k_risk),
        rms: consistency.map(|result| result.rms),
        flagged: traces
            .iter()
            .filter(|held| is_flagged(held))
            .map(|held| held.id.to_string())
            .collect(),
        band: shown.map(band),
        signal_weights: rules
            .weights
            .iter()
            .map(|(name, weight)| (name.to_string(), *weight))
            .collect(),
        took: session.took(),
        traces: traces.into_iter().map(|held| trace(held, rules)).collect(),
        limits: session.exceeded(rules).into_iter().map(LimitView::from).collect(),
        ..SessionView::default()
    }
}

pub(super) fn trace(held: &TraceRecord, rules: &Rules) -> TraceView {
    let (rare, course, risk) = (held.rare(), &held.course, &held.scored.risk);
    let content = rare.content.as_deref();
    let remarks = rare.remarks.as_deref().unwrap_or(&NO_REMARKS);
    let signals = held.scored.signals.iter();
    let usage = held.usage();
    let exceeded = rules.limits.exceeded(held.named(), LimitScope::Trace, &usage);
    let weighed = rules.risks(scores(&held.scored.signals));
    TraceView {
        trace_id: held.id.to_string(),
        sent_trace_id: (course.turn > 0).then(|| held.id.of_further_turn(course.turn).to_string()),
        start_unix_nano: held.start.0.to_string(),
        end_unix_nano: held.sent_end.0.to_string(),
        complete: course.complete,
        status: course.status.map(Status::name),
        error: course.error,
        error_type: course.error_type.as_deref().map(str::to_owned),
        agent: agent(held),
        input: content.and_then(|content| content.input.as_deref()).map(str::to_owned),
        output: content.and_then(|content| content.output.as_deref()).map(str::to_owned),
        content: if content.is_some() { "kept" } else { "dropped" },
        tools: held.calls().map(|call| tool(&call)).collect(),
        steps: content.into_iter().flat_map(|content| &content.steps).map(step).collect(),
        llm_calls: course.llm_calls,
        model_seconds: ratio(held.times.model_nanos().into(), NANOS),
        tokens: tokens(Some(held.tokens())),
        cost_usd: dollars(held.cost()),
        calls_without_tokens: course.calls_without_tokens,
        calls_without_cost: course.calls_without_cost,
        models: course.models.iter().map(ToString::to_string).collect(),
        user: held.said().user.as_deref().map(str::to_owned),
        attempt: attempt(rare),
        guardrails: remarks.guardrails.clone(),
        waits_since_unix_nano: remarks.waits_since_unix_nano.map(|since| since.to_string()),
        accepted_edits: remarks.accepted_edits,
        rejected_edits: remarks.rejected_edits,
        loops: held.all_loops().map(found_loop).collect(),
        limits: exceeded.map(LimitView::from).collect(),
        sub_agents: rare.sub_agents.iter().map(SubAgentView::from).collect(),
        adjacent_tool_repeats: course.adjacent_tool_repeats,
        signals: signals
            .map(|(name, scored)| (name.to_string(), explained(held, name, scored, rules)))
            .collect(),
        risks: weighed.map(|(name, risk)| (name.to_string(), risk.to_f64())).collect(),
        risk: risk.risk.map(Quanta::to_f64),
        weighted_uncertainty: risk.uncertainty.map(Quanta::to_f64),
        situational_penalty: risk.penalty.map(Quanta::to_f64),
        expectations: rare.expectations.iter().map(expectation).collect(),
        took: (!held.panes.is_empty()).then(|| held.effort()),
        ..TraceView::default()
    }
}

/// The attempt, with the violations that the trace itself names and those that evaluators report.
fn attempt(rare: &Rare) -> Option<AttemptView> {
    let said = rare.attempt.as_deref().cloned().unwrap_or_default();
    let judged = rare.reported.iter().filter(|score| score.name == CONSTRAINT_VIOLATION);
    let judged =
        judged.filter(|score| score.score_quanta < Quanta::ONE).map(|score| ViolationView {
            constraint: Arc::from(&*score.identifier),
            severity: score.label.as_deref().map(Arc::from),
            evaluator: score.judge.clone(),
            explanation: score.explanation.clone(),
        });
    let own = said.violations.into_iter();
    let own = own.map(|Violation { constraint, severity }| ViolationView {
        constraint,
        severity,
        ..ViolationView::default()
    });
    let view = AttemptView {
        task: said.task,
        run: said.run,
        trial: said.trial,
        outcome: said.success.map(|success| if success { "success" } else { "failure" }),
        abstained: said.abstained,
        perturbation: said.perturbation,
        perturbation_id: said.perturbation_id,
        baseline: said.baseline,
        expected_tools: said.expected_tools,
        retrieved_documents: said.retrieved,
        cited_documents: said.cited,
        violations: own.chain(judged).collect(),
    };
    (view != AttemptView::default()).then_some(view)
}

pub(super) fn is_flagged(held: &TraceRecord) -> bool {
    held.is_done() && held.scored.risk.is_flagged()
}

pub(super) fn agent(held: &TraceRecord) -> AgentName {
    AgentName::from(held.named())
}

/// A signal of a trace, with the source's terms for its score.
pub(super) fn explained(
    held: &TraceRecord,
    name: &SignalName,
    scored: &Signal,
    rules: &Rules,
) -> SignalView {
    let Signal { score, source, .. } = *scored;
    let made = |made: &&ReportedScore| {
        made.name == name.as_str() && made.score_quanta == score.0 && made.source == source
    };
    let made = held.rare().reported.iter().find(made);
    SignalView {
        evaluator: made
            .map(|made| made.judge.as_ref().unwrap_or(&made.identifier).clone())
            .filter(|name| !name.is_empty()),
        explanation: made.and_then(|made| made.explanation.clone()),
        ..signal(name, score, source, rules)
    }
}

fn signal(name: &SignalName, score: Quanta, source: Source, rules: &Rules) -> SignalView {
    SignalView {
        score: score.to_f64(),
        source: source.name().to_owned(),
        evaluator: None,
        explanation: None,
        passed: score.to_f64() >= rules.threshold(name),
        band: thresholds::of(name.as_str()).and_then(|metric| metric.band(score)),
    }
}

pub(super) fn tool(call: &ToolCall) -> ToolView {
    ToolView {
        name: (!call.name.is_empty()).then(|| call.name.to_string()),
        arguments: call.arguments.as_deref().map(json_of),
        error: call.error,
        error_type: call.error_type.as_deref().map(str::to_owned),
        start_unix_nano: call.start_unix_nano.to_string(),
        end_unix_nano: call.end_unix_nano.to_string(),
    }
}

fn step(step: &Step) -> StepView {
    StepView {
        kind: step.kind,
        name: (!step.name.is_empty()).then(|| step.name.to_string()),
        span_id: step.span_id.to_string(),
        start_unix_nano: step.start_unix_nano.to_string(),
        end_unix_nano: step.end_unix_nano.to_string(),
        error: step.error,
        error_type: step.error_type.as_deref().map(str::to_owned),
        tokens: tokens(step.tokens),
        cost_usd: dollars(step.cost_quanta),
        first_chunk_seconds: step.first_chunk_nanos.map(|nanos| ratio(nanos.into(), NANOS)),
        arguments: step.arguments.as_deref().map(json_of),
        result: step.result.as_deref().map(str::to_owned),
    }
}

/// The JSON value of a text, or the text itself if it is not JSON.
fn json_of(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|_| serde_json::Value::String(text.to_owned()))
}

pub(super) fn found_loop(entry: &Loop) -> LoopView {
    LoopView {
        kind: entry.kind,
        severity: entry.severity,
        tool: (!entry.tool.is_empty()).then(|| entry.tool.to_string()),
        tools: entry.tools.iter().map(ToString::to_string).collect(),
        count: entry.count,
        evidence: entry.evidence,
        trace_ids: entry.trace_ids.iter().map(TraceId::to_string).collect(),
        first: entry.calls.map(|(first, _)| first),
        last: entry.calls.map(|(_, last)| last),
        span_ids: entry.span_ids.iter().map(SpanId::to_string).collect(),
        tokens: tokens(entry.tokens),
        cost_usd: dollars(entry.cost_quanta),
    }
}

fn expectation(held: &Expectation) -> ExpectationView {
    let view = |layer: Option<&ExpectedLayer>| {
        let layer = layer.cloned().unwrap_or_default();
        LayerView {
            status: layer.status.name(),
            details: serde_json::from_str(&layer.details).unwrap_or_else(|_| json!({})),
            problems: layer.problems,
            notes: layer.notes,
        }
    };
    ExpectationView {
        query: held.query.clone(),
        hard_fail: held.hard_fail,
        layers: held.layers().into_iter().map(|(name, layer)| (name, view(layer))).collect(),
    }
}

fn tokens(tokens: Option<Tokens>) -> TokensView {
    let Tokens { input, output } = tokens.unwrap_or_default();
    TokensView { input, output }
}

pub(super) fn dollars(quanta: Option<i64>) -> Option<f64> {
    quanta.map(|quanta| Quanta(quanta).to_f64())
}
