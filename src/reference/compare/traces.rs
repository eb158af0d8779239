//! Compares sessions, traces and loops.

use std::collections::BTreeMap;

use super::{Compared, EXACT, count};
use crate::engine::pipeline::EngineOptions;
use crate::engine::span::Status;
use crate::engine::view::{LoopView, SessionView, SignalView, TraceView};
use crate::reference::score::TraceScore;
use crate::reference::sessions::{Entry, Scored, Session, round};
use crate::reference::signals::{Signal, weights};
use crate::reference::tools::Call;

/// Compares one session and its whole content.
pub(super) fn session(
    view: &SessionView,
    model: &Session,
    options: &EngineOptions,
    part: &mut Compared<'_>,
) {
    let of_session = format!("session {}", view.session_id);
    part.at.clone_from(&of_session);
    part.kind = "sessions";
    let ids = |traces: &[Scored]| -> Vec<String> {
        traces.iter().map(|scored| scored.trace.id.to_string()).collect()
    };
    let ours = view.traces.iter().map(|trace| trace.trace_id.clone()).collect();
    part.same("traces", ours, ids(&model.traces));
    let first = model.traces.first().map(|scored| &scored.trace);
    part.same("agent", Some(&view.agent), first.map(|trace| &trace.agent));
    let source = first.map(|trace| trace.session.source.as_str());
    part.same("session_source", Some(view.session_source.as_str()), source);
    part.same("signal_weights", &view.signal_weights, &weights(&options.session));
    let shown = |score: Option<f64>| score.map(|score| round(score, &options.session));
    let scores = &model.scores;
    part.number("reliability", view.reliability, model.reliability);
    part.same("traces_judged", view.traces_judged, model.judged.evaluated);
    part.number("judged_reliability", view.judged_reliability, shown(model.judged.reliability));
    part.number("consistency", view.consistency, model.consistency);
    part.number("raw_risk", view.raw_risk, shown(scores.raw_risk));
    part.number("mean_top_k_risk", view.mean_top_k_risk, scores.mean_top_k_risk);
    part.number("max_risk", view.max_risk, scores.max_risk);
    part.number("rms", view.rms, scores.rms);
    part.same("traces_evaluated", view.traces_evaluated, scores.evaluated);
    part.same("total_traces", view.total_traces, count(model.traces.len()));
    let over = |one: &&Scored| one.worth.all.risk.is_some_and(|risk| risk > 0.5 + EXACT);
    let flagged: Vec<Scored> = model.traces.iter().filter(over).cloned().collect();
    part.same("flagged", view.flagged.clone(), ids(&flagged));
    part.kind = "signals";
    signals(&view.signals, &model.signals, part);
    for (view, model) in view.traces.iter().zip(&model.traces) {
        part.at = format!("{of_session}, trace {}", view.trace_id);
        trace(view, model, part);
    }
}

fn trace(
    view: &TraceView,
    Scored { trace: model, loops, worth }: &Scored,
    part: &mut Compared<'_>,
) {
    part.kind = "signals";
    signals(&view.signals, &worth.signals, part);
    part.kind = "risks";
    risks(view, &worth.all, part);
    part.kind = "loops";
    part.same("loops", view.loops.len(), loops.len());
    for (view, model) in view.loops.iter().zip(loops) {
        entry(view, model, part);
    }
    part.kind = "traces";
    part.same("agent", &view.agent, &model.agent);
    part.same("start", view.start_unix_nano.parse(), Ok(model.start));
    part.same("end", view.end_unix_nano.parse(), Ok(model.end));
    part.same("complete", view.complete, model.complete);
    part.same("status", view.status, model.status.map(name));
    part.same("error", view.error, model.error);
    part.same("error_type", view.error_type.as_deref(), model.error_type.as_deref());
    part.same("input", &view.input, &model.input);
    part.same("output", &view.output, &model.output);
    part.same("llm_calls", view.llm_calls, count(model.model_calls));
    part.same("tokens read", view.tokens.input, model.input_tokens);
    part.same("tokens written", view.tokens.output, model.output_tokens);
    part.number("cost_usd", view.cost_usd, model.cost);
    let unknown = (count(model.calls_without_tokens), count(model.calls_without_cost));
    let ours = (view.calls_without_tokens, view.calls_without_cost);
    part.same("calls without tokens and cost", ours, unknown);
    let repeats = count(model.adjacent_repeats);
    part.same("adjacent_tool_repeats", view.adjacent_tool_repeats, repeats);
    part.same("number of tools", view.tools.len(), model.calls.len());
    for (at, (view, model)) in view.tools.iter().zip(&model.calls).enumerate() {
        let Call { name, arguments, failed, error_type, .. } = model;
        part.same(&format!("tools[{at}].name"), view.name.as_deref(), name.as_deref());
        part.same(&format!("tools[{at}].error"), view.error, *failed);
        let told = view.error_type.as_deref();
        part.same(&format!("tools[{at}].error_type"), told, error_type.as_deref());
        let parsed = arguments.as_ref().map(|arguments| {
            serde_json::from_str(&arguments.text).unwrap_or(serde_json::Value::Null)
        });
        part.same(&format!("tools[{at}].arguments"), view.arguments.as_ref(), parsed.as_ref());
        let normal = arguments.as_ref().map(|arguments| (&arguments.decoded, &arguments.text));
        let (decoded, normal) = normal.unzip();
        part.same(&format!("normal form of tools[{at}].arguments"), decoded, normal);
    }
}

fn signals(
    view: &BTreeMap<String, SignalView>,
    model: &BTreeMap<String, Signal>,
    part: &mut Compared<'_>,
) {
    let ours = view.iter().map(|(name, signal)| (name.as_str(), signal.score));
    part.numbers("", ours, model.iter().map(|(name, signal)| (name.as_str(), signal.score)));
    for (name, signal) in view {
        let model = model.get(name).map(|signal| signal.source.name());
        part.same(&format!("source of {name}"), Some(signal.source.as_str()), model);
    }
}

fn risks(view: &TraceView, model: &TraceScore, part: &mut Compared<'_>) {
    part.numbers(
        "risk of",
        view.risks.iter().map(|(name, risk)| (name.as_str(), *risk)),
        model.risks.iter().map(|(name, risk)| (name.as_str(), *risk)),
    );
    part.number("risk", view.risk, model.risk);
    part.number("situational_penalty", view.situational_penalty, model.penalty);
    part.number("weighted_uncertainty", view.weighted_uncertainty, model.uncertainty);
}

fn entry(view: &LoopView, Entry { found, traces, places }: &Entry, part: &mut Compared<'_>) {
    part.same("kind of a loop", view.kind, found.kind);
    part.same("severity of a loop", view.severity, found.severity);
    part.same("evidence of a loop", view.evidence, found.evidence);
    part.same("count of a loop", view.count, count(found.count));
    part.same("tools of a loop", &view.tools, &found.tools);
    let ids: Vec<String> = traces.iter().map(ToString::to_string).collect();
    part.same("traces of a loop", &view.trace_ids, &ids);
    let spans: Vec<String> = found.spans.iter().map(ToString::to_string).collect();
    part.same("spans of a loop", &view.span_ids, &spans);
    part.same("places of a loop", view.first.zip(view.last), *places);
    part.same("tokens read in a loop", view.tokens.input, found.input_tokens);
    part.same("tokens written in a loop", view.tokens.output, found.output_tokens);
    part.number("dollars of a loop", view.cost_usd, found.cost);
}

fn name(status: Status) -> &'static str {
    match status {
        Status::Unset => "unset",
        Status::Ok => "ok",
        Status::Error => "error",
    }
}
