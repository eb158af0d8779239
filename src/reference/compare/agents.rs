//! Compares agents: totals, windows, and scores over runs.

use std::collections::BTreeMap;

use super::{Compared, EXACT, ROUNDED, count};
use crate::engine::pipeline::EngineOptions;
use crate::engine::score::princeton::RunRecord;
use crate::engine::span::{Report, Timestamp};
use crate::engine::view::{AgentView, ArsView, ScoreValue, TaskView, WindowView};
use crate::reference::agents::{Window, all, windows};
use crate::reference::credal::{self, Ars};
use crate::reference::loops::plus;
use crate::reference::princeton::{self, pass_hat_k};
use crate::reference::runs::runs;
use crate::reference::sessions::{Scored, Session};

/// Compares one agent, by its traces.
pub(super) fn agent(
    view: &AgentView,
    own: &[(usize, &Scored)],
    options: &EngineOptions,
    wall: Timestamp,
    part: &mut Compared<'_>,
) {
    let of_agent = named(view);
    part.at.clone_from(&of_agent);
    part.kind = "agents";
    totals(view, own, part);
    let tolerance = part.tolerance;
    part.tolerance = ROUNDED;
    for (name, model) in windows(own, &options.agents, wall) {
        part.at = format!("{of_agent}, window {name}");
        let shown = view.windows.get(name.as_str()).cloned().unwrap_or_default();
        window(&shown, &model, part);
    }
    part.tolerance = tolerance;
}

/// Compares one agent, by its runs in all sessions and by reports.
pub(super) fn over_sessions(
    view: &AgentView,
    sessions: &[Session],
    reports: &[Report],
    options: &EngineOptions,
    part: &mut Compared<'_>,
) {
    let of_agent = named(view);
    part.at.clone_from(&of_agent);
    let tolerance = std::mem::replace(&mut part.tolerance, EXACT);
    part.kind = "runs";
    let (records, ars) = runs(&view.agent, sessions, reports);
    over_runs(view, &records, options, part);
    let model = credal::ars(&ars, &options.ars);
    agent_reliability_score(view.ars.as_ref(), &model, part);
    for task in &view.tasks {
        part.at = format!("{of_agent}, task {}", task.task_id);
        over_task(task, &records, &model, options, part);
    }
    part.tolerance = tolerance;
}

fn named(view: &AgentView) -> String {
    let name = view.agent.agent_name.as_deref().or(view.agent.service_name.as_deref());
    format!("agent {}", name.unwrap_or("?"))
}

fn totals(view: &AgentView, own: &[(usize, &Scored)], part: &mut Compared<'_>) {
    let model = all(own);
    let tolerance = std::mem::replace(&mut part.tolerance, ROUNDED);
    part.number("reliability", view.reliability, model.scores.reliability);
    part.number("consistency", view.consistency, model.scores.consistency);
    part.tolerance = tolerance;
    part.same("sessions", view.sessions, count(model.sessions));
    part.same("traces", view.traces, count(model.traces));
    part.same("traces_evaluated", view.traces_evaluated, model.scores.evaluated);
    let mut loops: BTreeMap<String, u64> = BTreeMap::new();
    for entry in own.iter().flat_map(|(_, scored)| &scored.loops) {
        *loops.entry(entry.found.kind.name().to_owned()).or_default() += 1;
    }
    part.same("loops", &view.loops, &loops);
    let sum = |of: fn(&Scored) -> Option<u64>| {
        own.iter().fold(None, |sum, (_, scored)| plus(sum, of(scored)))
    };
    part.same("tokens read", view.tokens.input, sum(|scored| scored.trace.input_tokens));
    part.same("tokens written", view.tokens.output, sum(|scored| scored.trace.output_tokens));
    let cost = own.iter().fold(None, |sum, (_, scored)| plus(sum, scored.trace.cost));
    part.number("cost_usd", view.cost_usd, cost);
}

fn window(view: &WindowView, model: &Window, part: &mut Compared<'_>) {
    let Window { scores, judged, .. } = model;
    part.same("traces", view.traces, count(model.traces));
    part.same("sessions", view.sessions, count(model.sessions));
    part.same("traces_evaluated", view.traces_evaluated, scores.evaluated);
    let confidences = count(model.with_confidence);
    part.same("traces_with_confidence", view.traces_with_confidence, confidences);
    part.same("traces_judged", view.traces_judged, judged.evaluated);
    part.number("reliability", view.reliability, scores.reliability);
    part.number("judged_reliability", view.judged_reliability, judged.reliability);
    part.number("consistency", view.consistency, scores.consistency);
    part.number("max_risk", view.max_risk, scores.max_risk);
    let share = model.failing as f64 / scores.evaluated as f64;
    part.number("failure_ratio", view.failure_ratio, (scores.evaluated > 0).then_some(share));
    let ours = view.signals.iter().map(|(name, mean)| (&**name, *mean));
    let means = model.signals.iter().map(|(name, mean)| (name.as_str(), *mean));
    part.numbers("mean of", ours, means);
}

fn over_runs(
    view: &AgentView,
    records: &[RunRecord],
    options: &EngineOptions,
    part: &mut Compared<'_>,
) {
    let mut ours: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, value) in view.scores.iter().filter(|(name, _)| *name != "ars") {
        match value {
            ScoreValue::One(value) => drop(ours.insert(name, *value)),
            ScoreValue::ByK(by_k) => {
                let outcomes = princeton::outcomes_by_task(records);
                for (k, value) in by_k {
                    let k = usize::try_from(*k).unwrap_or(usize::MAX);
                    part.number(&format!("pass_hat_{k}"), Some(*value), pass_hat_k(&outcomes, k));
                }
            }
        }
    }
    let model = princeton::scores(records, &options.tasks);
    part.numbers("score", ours, model.iter().map(|(name, value)| (renamed(name), *value)));
}

fn agent_reliability_score(view: Option<&ArsView>, model: &Ars, part: &mut Compared<'_>) {
    part.number("ars", view.map(|view| view.score), model.score);
    let none = BTreeMap::new();
    let ours = view.map_or(&none, |view| &view.components).iter();
    let theirs = model.components.iter().map(|(name, (score, _))| (*name, *score));
    part.numbers("ars of", ours.map(|(name, of)| (name.as_str(), of.score)), theirs);
}

fn over_task(
    view: &TaskView,
    records: &[RunRecord],
    ars: &Ars,
    options: &EngineOptions,
    part: &mut Compared<'_>,
) {
    let (runs, scores) = princeton::task(records, &view.task_id, &options.tasks);
    part.same("runs", view.runs, count(runs.len()));
    let successes = runs.iter().filter(|run| run.success == Some(true)).count();
    part.same("successes", view.successes, count(successes));
    let ours = view.scores.iter().map(|(name, value)| (name.as_str(), *value));
    part.numbers("score", ours, scores.iter().map(|(name, value)| (renamed(name), *value)));
    let none = BTreeMap::new();
    let case = ars.cases.get(&view.task_id).unwrap_or(&none);
    let ours = view.ars_components.iter().map(|(name, value)| (name.as_str(), *value));
    part.numbers("ars of", ours, case.iter().map(|(name, value)| (*name, *value)));
}

/// The name of a score in views: longer if it could be confused with another document's score.
fn renamed(name: &'static str) -> &'static str {
    match name {
        "consistency" => "princeton_consistency",
        "reliability" => "princeton_reliability",
        "environment_robustness" => "structural_robustness",
        other => other,
    }
}
