//! Verdicts: whether a trace passes, signal by signal, and whether its session climbs, stalls or
//! falls. They count a trace once, when it is done for the first time.

use super::fleet::Fleet;
use super::held::Held;
use super::rules::Rules;
use super::scoring::SignalName;
use crate::engine::few::Few;
use crate::engine::math::Quanta;
use crate::engine::score::trajectory_gate::TrajectoryGate;
use crate::engine::update::{Expectation, ExpectedLayer, ExpectedStatus};

/// Counts the verdicts of a trace that is done for the first time.
pub(super) fn evaluate(
    held: &Held,
    gates: &mut Few<SignalName, TrajectoryGate>,
    rules: &Rules,
    fleet: &mut Fleet,
) {
    let Some(given) = &held.given else { return };
    let summary = fleet.summary(&given.agent);
    summary.count("traces", &[], 1);
    summary.tell_done(held.position(), &given.contribution);
    for (layer, expected) in held.update.expectations.iter().flat_map(Expectation::layers) {
        let result = expected.map_or(ExpectedStatus::Skip, ExpectedLayer::status);
        summary.count("expectations", &[layer, result.name()], 1);
    }
    for (name, score) in given.contribution.signals.iter() {
        let verdict = verdict(Some(*score), rules.threshold(name));
        summary.count("trace_evaluations", &[name, verdict], 1);
        summary.observe_signal(name, *score, (given.end, held.id));
        if rules.weights.contains_key(name.as_ref()) {
            let turn = gates.or_default(name.clone()).observe(score.to_f64(), &rules.gate);
            summary.count("gate_breaches", &[name, "stall"], u64::from(turn.stalled));
            summary.count("gate_breaches", &[name, "regression"], u64::from(turn.regressed));
        }
    }
    let absent =
        rules.weights.keys().filter(|name| !given.contribution.signals.contains_key(name.as_str()));
    absent.for_each(|name| summary.count("trace_evaluations", &[name, SKIPPED], 1));
    let safety = given.contribution.risk.map(|risk| Quanta(Quanta::ONE.saturating_sub(risk.0)));
    summary.count("trace_evaluations", &["trace_risk", verdict(safety, PASS)], 1);
}

/// Whether a score passes: `pass` from `least`, else `fail`; `skipped` without one.
pub(super) fn verdict(score: Option<Quanta>, least: f64) -> &'static str {
    match score {
        Some(score) if score.to_f64() >= least => "pass",
        Some(_) => "fail",
        None => SKIPPED,
    }
}

/// The score from which a trace or a session passes; one less than this as a risk.
pub(super) const PASS: f64 = 0.5;

/// The verdict on what could not be measured.
const SKIPPED: &str = "skipped";
