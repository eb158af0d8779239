//! Sessions and traces as people and scripts read them.

use serde_json::json;

use super::held::Held;
use super::rules::Rules;
use super::scoring::is_done;
use super::session::Session;
use crate::engine::math::Quanta;
use crate::engine::score::agent_reliability::band;
use crate::engine::score::risk::risks;
use crate::engine::signal::{CONSTRAINT_VIOLATION, thresholds};
use crate::engine::span::{Source, Status, TraceId};
use crate::engine::update::{
    Expectation, ExpectedLayer, Loop, ReportedScore, Tokens, ToolCall, TraceUpdate, Violation,
};
use crate::engine::view::{
    AgentName, AttemptView, ExpectationView, LayerView, LoopView, SessionView, SignalView,
    TokensView, ToolView, TraceView, ViolationView,
};

/// One session, explained.
pub(super) fn session(session: &Session, rules: &Rules) -> SessionView {
    let traces: Vec<&Held> = session
        .order
        .iter()
        .filter_map(|(_, trace)| session.traces.get(trace).map(AsRef::as_ref))
        .collect();
    let first = traces.first();
    let key = first.and_then(|held| held.update.session.as_ref());
    let reliability = session.reliability.result();
    let consistency = session.consistency.result();
    let empty = (rules.empty_is_one && !traces.is_empty()).then_some(1.0);
    let score = |score: Option<f64>| score.or(empty).map(|score| rules.shown(score));
    let shown = score(reliability.map(|result| result.score));
    let reports = session.reports.iter();
    SessionView {
        session_id: session.id.id.clone(),
        scope: session.id.scope.clone(),
        session_source: key.map(|key| key.source.clone()).unwrap_or_default(),
        agent: first.map(|held| agent(held)).unwrap_or_default(),
        signals: reports
            .map(|(name, report)| {
                (name.to_string(), signal(name, report.score, report.source, rules))
            })
            .collect(),
        total_traces: traces.len() as u64,
        traces_evaluated: reliability.map_or(0, |result| result.evaluated),
        reliability: shown,
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
        signal_weights: rules.weights.clone(),
        took: session.took(),
        traces: traces.into_iter().map(|held| trace(held, rules)).collect(),
        ..SessionView::default()
    }
}

pub(super) fn trace(held: &Held, rules: &Rules) -> TraceView {
    let update = &held.update;
    let risk = &held.scored.risk;
    let content = update.content.as_ref();
    let signals = held.scored.signals.iter();
    let weighed = signals.clone().map(|(name, (score, _))| (name.as_ref(), *score));
    let weighed = risks(weighed, &rules.weights);
    TraceView {
        trace_id: held.id.to_string(),
        start_unix_nano: update.start_unix_nano.to_string(),
        end_unix_nano: update.end_unix_nano.to_string(),
        complete: update.complete,
        status: update.status.map(Status::name),
        error: update.error,
        agent: agent(held),
        input: content.and_then(|content| content.input.clone()),
        output: content.and_then(|content| content.output.clone()),
        content: if content.is_some() { "kept" } else { "dropped" },
        tools: update.tools.iter().map(tool).collect(),
        llm_calls: update.llm_calls,
        tokens: tokens(update.tokens),
        cost_usd: dollars(update.cost_quanta),
        models: update.models.clone(),
        user: update.user.clone(),
        attempt: attempt(update),
        loops: held.loops().iter().chain(&held.scored.output_repeat).map(found_loop).collect(),
        adjacent_tool_repeats: update.adjacent_tool_repeats,
        signals: signals
            .map(|(name, scored)| (name.to_string(), explained(held, name, *scored, rules)))
            .collect(),
        risks: weighed.map(|(name, risk)| (name.to_owned(), risk.to_f64())).collect(),
        risk: risk.risk.map(Quanta::to_f64),
        weighted_uncertainty: risk.uncertainty.map(Quanta::to_f64),
        situational_penalty: risk.penalty.map(Quanta::to_f64),
        expectations: update.expectations.iter().map(expectation).collect(),
    }
}

/// The attempt; what evaluators say of broken rules goes to those that the trace itself names.
fn attempt(update: &TraceUpdate) -> Option<AttemptView> {
    let said = update.attempt.as_deref().cloned().unwrap_or_default();
    let judged = update.reported.iter().filter(|score| score.name == CONSTRAINT_VIOLATION);
    let judged =
        judged.filter(|score| score.score_quanta < Quanta::ONE).map(|score| ViolationView {
            constraint: score.identifier.clone(),
            severity: score.label.clone(),
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

pub(super) fn is_flagged(held: &Held) -> bool {
    is_done(&held.update) && held.scored.risk.is_flagged()
}

pub(super) fn agent(held: &Held) -> AgentName {
    held.update.agent.as_ref().map(AgentName::from).unwrap_or_default()
}

/// A trace's score with what whoever made it said of it.
pub(super) fn explained(
    held: &Held,
    name: &str,
    (score, source): (Quanta, Source),
    rules: &Rules,
) -> SignalView {
    let made = |made: &&ReportedScore| {
        made.name == name && made.score_quanta == score.0 && made.source == source.name()
    };
    let made = held.update.reported.iter().find(made);
    SignalView {
        evaluator: made
            .map(|made| made.judge.as_ref().unwrap_or(&made.identifier).clone())
            .filter(|name| !name.is_empty()),
        explanation: made.and_then(|made| made.explanation.clone()),
        ..signal(name, score, source, rules)
    }
}

fn signal(name: &str, score: Quanta, source: Source, rules: &Rules) -> SignalView {
    SignalView {
        score: score.to_f64(),
        source: source.name().to_owned(),
        evaluator: None,
        explanation: None,
        passed: score.to_f64() >= rules.threshold(name),
        band: thresholds::of(name).and_then(|metric| metric.band(score)),
    }
}

pub(super) fn tool(call: &ToolCall) -> ToolView {
    let json = |text: &String| {
        serde_json::from_str(text).unwrap_or_else(|_| serde_json::Value::String(text.clone()))
    };
    ToolView {
        name: (!call.name.is_empty()).then(|| call.name.clone()),
        arguments: call.arguments.as_ref().map(json),
        error: call.error,
    }
}

pub(super) fn found_loop(entry: &Loop) -> LoopView {
    LoopView {
        kind: entry.kind,
        severity: entry.severity,
        tool: (!entry.tool.is_empty()).then(|| entry.tool.clone()),
        tools: entry.tools.clone(),
        count: entry.count,
        evidence: entry.evidence,
        trace_ids: entry.trace_ids.iter().map(TraceId::to_string).collect(),
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
