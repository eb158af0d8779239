//! `verify`: the engine against the reference model, on recorded requests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::settings::Settings;
use super::{CliError, Process, replay};
use crate::engine::loops::Severity;
use crate::engine::options::Profile;
use crate::engine::view::{AgentView, Document, SessionView, TraceView};
use crate::reference::score::{self, Scores, TraceScore};

/// How far the engine's integers may be from the model's floats.
const TOLERANCE: f64 = 1e-9;

/// And in a profile that rounds to four decimals.
const ROUNDED: f64 = 5.1e-5;

/// An agent's risks are kept in steps of 1e-4.
const GRID: f64 = 5.1e-5;

/// Compares the engine with the reference model.
#[derive(Args, Debug)]
pub(super) struct Verify {
    /// Recordings (.pb, .json, .jsonl; also .gz, .zst) and folders of them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// What was compared and what differs.
#[derive(Debug, Default)]
struct Comparison {
    compared: usize,
    differences: Vec<String>,
}

impl Verify {
    pub(super) fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        let config = self.settings.load(process, &[])?;
        let tolerance = match config.session.profile {
            Profile::Agentgauge => TOLERANCE,
            Profile::Pandaprobe => ROUNDED,
        };
        let document = replay::replay(&self.paths, config, Arc::default())?.document;
        let comparison = compare(&document, tolerance);
        for difference in &comparison.differences {
            writeln!(process.out, "{difference}").map_err(CliError::Output)?;
        }
        let (compared, count) = (comparison.compared, comparison.differences.len());
        if count > 0 {
            return Err(CliError::Different { count, compared });
        }
        let sessions = document.sessions.len();
        writeln!(
            process.out,
            "{compared} values of {sessions} sessions agree with the reference model"
        )
        .map_err(CliError::Output)
    }
}

/// Recomputes everything in the document from the signals of its traces.
fn compare(document: &Document, tolerance: f64) -> Comparison {
    let mut comparison = Comparison::default();
    let mut by_agent: BTreeMap<_, Vec<TraceScore>> = BTreeMap::new();
    for session in &document.sessions {
        let traces: Vec<TraceScore> = session
            .traces
            .iter()
            .map(|trace| trace_score(trace, session, tolerance, &mut comparison))
            .collect();
        compare_session(session, &traces, tolerance, &mut comparison);
        for (trace, score) in session.traces.iter().zip(traces) {
            by_agent.entry(trace.agent.clone()).or_default().push(score);
        }
    }
    for agent in &document.agents {
        let traces = by_agent.remove(&agent.agent).unwrap_or_default();
        compare_agent(agent, &score::scores(&traces), &mut comparison);
    }
    comparison
}

fn trace_score(
    trace: &TraceView,
    session: &SessionView,
    tolerance: f64,
    comparison: &mut Comparison,
) -> TraceScore {
    let at =
        |what: &str| format!("session {}, trace {}: {what}", session.session_id, trace.trace_id);
    let signals: BTreeMap<String, f64> =
        trace.signals.iter().map(|(name, signal)| (name.clone(), signal.score)).collect();
    let score = score::trace(&signals, &session.signal_weights);
    for (name, risk) in &score.risks {
        let engine = trace.risks.get(name).copied();
        comparison.number(&at(&format!("risk of {name}")), engine, Some(*risk), tolerance);
    }
    comparison.count(&at("risks"), trace.risks.len(), score.risks.len());
    comparison.number(&at("risk"), trace.risk, score.risk, tolerance);
    comparison.number(
        &at("situational_penalty"),
        trace.situational_penalty,
        score.penalty,
        tolerance,
    );
    comparison.number(
        &at("weighted_uncertainty"),
        trace.weighted_uncertainty,
        score.uncertainty,
        tolerance,
    );
    for (name, value) in [("error", error(trace)), ("tool_loop", tool_loop(trace, session))] {
        let computed = trace.signals.get(name).filter(|signal| signal.source == "computed");
        if let Some(signal) = computed {
            comparison.number(&at(name), Some(signal.score), Some(value), tolerance);
        }
    }
    let repeats = trace
        .tools
        .windows(2)
        .filter(|pair| pair[0].name.is_some() && pair[0].name == pair[1].name);
    let engine = usize::try_from(trace.adjacent_tool_repeats).unwrap_or(usize::MAX);
    comparison.count(&at("adjacent_tool_repeats"), engine, repeats.count());
    score
}

/// 0 for a trace that ended in error, else 1.
fn error(trace: &TraceView) -> f64 {
    if trace.error { 0.0 } else { 1.0 }
}

/// 1 without a loop of tool calls, known by more than names, that the trace is part of, 0.4 at a warning, 0 at a critical loop.
fn tool_loop(trace: &TraceView, session: &SessionView) -> f64 {
    let loops = session.traces.iter().flat_map(|trace| &trace.loops);
    let tools = loops.filter(|entry| {
        let weighs = entry.kind.is_of_calls() && entry.evidence.weighs();
        weighs && entry.trace_ids.contains(&trace.trace_id)
    });
    tools.fold(1.0, |score: f64, entry| {
        score.min(if entry.severity == Severity::Critical { 0.0 } else { 0.4 })
    })
}

fn compare_session(
    session: &SessionView,
    traces: &[TraceScore],
    tolerance: f64,
    comparison: &mut Comparison,
) {
    let scores = score::scores(traces);
    let at = |what: &str| format!("session {}: {what}", session.session_id);
    for (what, engine, model) in [
        ("reliability", session.reliability, scores.reliability),
        ("raw_risk", session.raw_risk, scores.raw_risk),
        ("mean_top_k_risk", session.mean_top_k_risk, scores.mean_top_k_risk),
        ("max_risk", session.max_risk, scores.max_risk),
        ("consistency", session.consistency, scores.consistency),
        ("rms", session.rms, scores.rms),
    ] {
        comparison.number(&at(what), engine, model, tolerance);
    }
    let evaluated = usize::try_from(session.traces_evaluated).unwrap_or(usize::MAX);
    let model = traces.iter().filter(|trace| trace.risk.is_some()).count();
    comparison.count(&at("traces_evaluated"), evaluated, model);
    let flagged = session
        .traces
        .iter()
        .zip(traces)
        .filter(|(_, score)| score.risk.is_some_and(|risk| risk > 0.5 + TOLERANCE));
    comparison.count(&at("flagged"), session.flagged.len(), flagged.count());
}

fn compare_agent(agent: &AgentView, model: &Scores, comparison: &mut Comparison) {
    let name = agent.agent.agent_name.as_deref().or(agent.agent.service_name.as_deref());
    let at = |what: &str| format!("agent {}: {what}", name.unwrap_or("?"));
    comparison.number(&at("reliability"), agent.reliability, model.reliability, GRID);
    comparison.number(&at("consistency"), agent.consistency, model.consistency, GRID);
    let evaluated = usize::try_from(agent.traces_evaluated).unwrap_or(usize::MAX);
    let model = usize::try_from(model.evaluated).unwrap_or(usize::MAX);
    comparison.count(&at("traces_evaluated"), evaluated, model);
}

impl Comparison {
    fn number(&mut self, what: &str, engine: Option<f64>, model: Option<f64>, tolerance: f64) {
        self.compared += 1;
        let same = match (engine, model) {
            (Some(engine), Some(model)) => (engine - model).abs() <= tolerance,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !same {
            let text =
                |value: Option<f64>| value.map_or_else(|| "absent".to_owned(), |v| v.to_string());
            self.differ(what, &text(engine), &text(model));
        }
    }

    fn count(&mut self, what: &str, engine: usize, model: usize) {
        self.compared += 1;
        if engine != model {
            self.differ(what, &engine.to_string(), &model.to_string());
        }
    }

    fn differ(&mut self, what: &str, engine: &str, model: &str) {
        self.differences.push(format!("{what} is {engine}, by the reference model {model}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::view::SignalView;

    fn document(reliability: f64) -> Document {
        let signal = SignalView {
            score: 0.75,
            source: "reported".to_owned(),
            evaluator: None,
            explanation: None,
            passed: true,
            band: None,
        };
        let trace = TraceView {
            signals: [("coherence".to_owned(), signal)].into(),
            risks: [("coherence".to_owned(), 0.25)].into(),
            risk: Some(0.25),
            ..TraceView::default()
        };
        let session = SessionView {
            traces: vec![trace],
            traces_evaluated: 1,
            reliability: Some(reliability),
            raw_risk: Some(0.25),
            mean_top_k_risk: Some(0.25),
            max_risk: Some(0.25),
            signal_weights: [("coherence".to_owned(), 1.0)].into(),
            ..SessionView::default()
        };
        Document { sessions: vec![session], agents: vec![] }
    }

    #[test]
    fn what_agrees_is_not_reported() {
        let comparison = compare(&document(0.75), TOLERANCE);
        assert!(comparison.differences.is_empty(), "{:?}", comparison.differences);
        assert!(comparison.compared > 8);
    }

    #[test]
    fn a_score_that_is_off_is_named() {
        let comparison = compare(&document(0.750_000_01), TOLERANCE);
        assert_eq!(comparison.differences.len(), 1);
        assert!(comparison.differences[0].contains("reliability is 0.75000001"));
    }
}
