//! Verdicts: whether a trace passes, signal by signal, and whether its session climbs, stalls or
//! falls. They count a trace once, when it is done for the first time.

use super::fleet::Fleet;
use super::held::Held;
use super::key::SessionId;
use super::rules::Rules;
use super::scoring::{self, Earlier, SignalName};
use crate::engine::few::Few;
use crate::engine::math::Quanta;
use crate::engine::runs::told_outcome;
use crate::engine::score::risk::{CONFIDENCE, risks};
use crate::engine::score::trajectory_gate::TrajectoryGate;
use crate::engine::signal::tool_loop;
use crate::engine::span::Timestamp;
use crate::engine::update::{DoneTrace, Expectation, ExpectedStatus};

/// Counts the verdicts of a trace that is done for the first time.
pub(super) fn evaluate(
    held: &Held,
    done: DoneTrace,
    gates: &mut Few<SignalName, TrajectoryGate>,
    rules: &Rules,
    fleet: &mut Fleet,
) {
    let Some(given) = &held.given else { return };
    let summary = fleet.summary(&given.agent);
    summary.count("traces", &[], 1);
    summary.tell_done(done);
    for (layer, expected) in held.update.expectations.iter().flat_map(Expectation::layers) {
        let result = expected.map_or(ExpectedStatus::Skip, |layer| layer.status);
        summary.count("expectations", &[layer, result.name()], 1);
    }
    for (name, score) in given.contribution.sums() {
        let verdict = verdict(Some(score), rules.threshold(name));
        summary.count("trace_evaluations", &[name, verdict], 1);
        summary.observe_signal(name, score, (given.end, held.id));
        if rules.weights.contains_key(name) {
            let turn = gates.or_default(scoring::named(name)).observe(score.to_f64(), &rules.gate);
            summary.count("gate_breaches", &[name, "stall"], u64::from(turn.stalled));
            summary.count("gate_breaches", &[name, "regression"], u64::from(turn.regressed));
        }
    }
    let absent =
        rules.weights.keys().filter(|name| !given.contribution.signals.contains_key(name.as_str()));
    absent.for_each(|name| summary.count("trace_evaluations", &[name, SKIPPED], 1));
    // By what all traces have, so that it does not change with how much is judged.
    let safety =
        given.contribution.own_risk().map(|risk| Quanta(Quanta::ONE.saturating_sub(risk.0)));
    summary.count("trace_evaluations", &["trace_risk", verdict(safety, PASS)], 1);
}

/// What drops are found by of a trace that is done for the first time. A stream of verdicts must not change with how much is
/// judged or reported, so they are those of computed signals alone.
pub(super) fn done(
    held: &Held,
    session: &SessionId,
    earlier: &[Earlier<'_>],
    rules: &Rules,
) -> DoneTrace {
    let update = &held.update;
    let own = held.scored.own(update, held.loop_severity(), earlier, rules);
    let scores = own.iter().map(|(name, (score, _))| (name.as_ref(), *score));
    // What failed lowers confidence as well, and says more.
    let greatest = risks(scores, &rules.weights)
        .max_by_key(|(name, risk)| (*risk, *name != CONFIDENCE, *name));
    let passes =
        |risk: Quanta| verdict(Some(Quanta(Quanta::ONE.saturating_sub(risk.0))), PASS) == "pass";
    let signal = greatest.filter(|(_, risk)| risk.0 > 0).map_or("", |(name, _)| name);
    let known = || update.tools.iter().filter(|call| call.error.is_some());
    let failed = known().filter(|call| call.error == Some(true));
    let weighing = held.loops().iter().filter(|found| found.evidence.weighs());
    let looping = weighing.map(|found| found.tool.as_str());
    let last_failed = failed.max_by_key(|call| (call.end_unix_nano, call.name.as_str()));
    let tool = match (last_failed, looping.max()) {
        (_, Some(tool)) if signal == tool_loop::NAME => tool,
        (Some(call), _) => call.name.as_str(),
        (None, tool) => tool.unwrap_or(""),
    };
    DoneTrace {
        at_unix_nano: held.end().0,
        risk_quanta: held
            .given
            .as_ref()
            .and_then(|given| given.contribution.own_risk())
            .map(|risk| risk.0),
        failed: greatest.map(|(_, risk)| !passes(risk)),
        outcome_failed: outcome(held).map(|success| !success),
        tools_failed: known().next().map(|_| last_failed.is_some()),
        looped: Some(held.loop_severity().is_some() || held.scored.output_repeat.is_some()),
        signal: signal.to_owned(),
        tool: tool.to_owned(),
        ..named(held, session)
    }
}

/// An outcome that was told of a trace after its verdicts were counted, at this wall time.
pub(super) fn told_later(held: &Held, session: &SessionId, wall: Timestamp) -> DoneTrace {
    DoneTrace {
        at_unix_nano: held.end().max(wall).0,
        outcome_failed: outcome(held).map(|success| !success),
        ..named(held, session)
    }
}

/// Whether somebody told that the trace succeeded.
pub(super) fn outcome(held: &Held) -> Option<bool> {
    told_outcome(&held.update.reported, held.update.attempt.as_deref())
}

fn named(held: &Held, session: &SessionId) -> DoneTrace {
    DoneTrace {
        trace_id: Some(held.id),
        start_unix_nano: held.update.start_unix_nano,
        touched_unix_nano: held.update.touched_unix_nano,
        session: session.scoped(),
        ..DoneTrace::default()
    }
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
