//! Verdicts: whether a trace passes, signal by signal, and whether its session climbs, stalls or
//! falls. They count a trace once, when it is done for the first time.

use std::borrow::Cow;
use std::sync::LazyLock;

use super::record::TraceRecord;
use super::rules::Rules;
use super::scoring::{Signal, Signals};
use super::shard_agents::ShardAgents;
use super::summary::Summary;
use crate::counters::Counter;
use crate::facts::{DoneTrace, Expectation, ExpectedStatus, SessionId, TurnStart};
use crate::math::Quanta;
use crate::runs::reported_outcome;
use crate::score::trajectory_gate::TrajectoryGate;
use crate::signal::name::{CONFIDENCE, LOOP_DETECTION, TOOL_LOOP};
use crate::signal::{SignalName, tool_loop};
use crate::small_map::SmallMap;
use crate::span::{Source, Timestamp};

/// The trajectory gates of a session, by signal.
pub(super) type Gates = SmallMap<SignalName, TrajectoryGate>;

/// Counts the verdicts of a trace that is done for the first time.
pub(super) fn evaluate(
    trace: &TraceRecord,
    done: DoneTrace,
    gates: &mut Gates,
    rules: &Rules,
    shard_agents: &mut ShardAgents,
) {
    let scored = &*trace.scored;
    let summary = shard_agents.summary(trace.agent());
    summary.count(Counter::Traces, &[], 1);
    summary.take(&trace.taken());
    summary.tell_done(done);
    if trace.course.unjudged {
        return skip(rules, summary);
    }
    for (layer, expected) in trace.rare().expectations.iter().flat_map(Expectation::layers) {
        let result = expected.map_or(ExpectedStatus::Skip, |layer| layer.status);
        summary.count(Counter::Expectations, &[layer, result.name()], 1);
    }
    let (mut next, mut next_gate) = (0, 0);
    for (name, score) in scored.sums() {
        let judged = summary.judged(&mut next, name);
        judged.count(verdict(Some(score), rules.threshold(name)));
        judged.observe(score, (trace.end(), trace.id));
        if rules.weight(name).is_some() {
            let gate = gates.or_default_next(&mut next_gate, name);
            judged.turn(gate.observe(score.to_f64(), &rules.gate));
        }
    }
    next = 0;
    let mut present = scored.signals.iter().map(|(name, _)| name).peekable();
    for (name, _) in rules.weights.iter() {
        while present.next_if(|other| *other < name).is_some() {}
        if present.peek() != Some(&name) {
            summary.judged(&mut next, name).count(Verdict::Skipped);
        }
    }
    // Without the judge's scores, so that it does not change with how much is judged.
    let mut risk = scored.own_risk();
    if verdict(risk.map(safe), PASS) == Verdict::Fail && may_be_forgiven(trace, rules) {
        risk = failing(trace, &scored.own_signals(), rules).map(|(_, risk)| risk).max();
    }
    let safety = risk.map(safe);
    summary.judged(&mut next, &TRACE_RISK).count(verdict(safety, PASS));
}

/// Counts the verdicts of a trace about which too little is known as skipped.
fn skip(rules: &Rules, summary: &mut Summary) {
    let mut next = 0;
    let weighed = rules.weights.iter().map(|(name, _)| name);
    weighed.for_each(|name| summary.judged(&mut next, name).count(Verdict::Skipped));
    summary.judged(&mut next, &TRACE_RISK).count(Verdict::Skipped);
}

/// The input of drop detection for a trace that is done for the first time. Its verdicts are from computed signals alone, so that a
/// stream of verdicts does not change with how much is judged or reported.
pub(super) fn done(
    trace: &TraceRecord,
    session: &SessionId,
    earlier: &[TraceRecord],
    rules: &Rules,
) -> DoneTrace {
    if trace.course.unjudged {
        return DoneTrace { at_unix_nano: trace.end().0, ..named(trace, session) };
    }
    let own = trace.scored.own(trace, earlier, rules);
    // Whatever fails lowers confidence, too, and explains more than confidence does.
    let greatest =
        failing(trace, &own, rules).max_by_key(|(name, risk)| (*risk, **name != CONFIDENCE, *name));
    let passes = |risk: Quanta| verdict(Some(safe(risk)), PASS) == Verdict::Pass;
    let signal = greatest.filter(|(_, risk)| risk.0 > 0);
    let signal: Cow<'static, str> = signal.map_or(Cow::Borrowed(""), |(name, _)| name.into());
    let tells = trace.course.calls.iter().any(|call| call.error.is_some());
    let weighing = trace.loops().iter().filter(|found| found.evidence.weighs());
    let looping = weighing.map(|found| &*found.tool);
    let last_failed = trace.last_failed();
    let of_trace = trace.course.error_type.as_ref();
    let (tool, error_type) = match (last_failed, looping.max()) {
        (_, Some(tool)) if signal == tool_loop::NAME => (tool, None),
        (Some(call), _) => (&*call.name, call.error_type.as_ref().or(of_trace)),
        (None, tool) => (tool.unwrap_or(""), of_trace),
    };
    DoneTrace {
        at_unix_nano: trace.end().0,
        risk_quanta: trace.scored.own_risk().map(|risk| risk.0),
        failed: greatest.map(|(_, risk)| !passes(risk)),
        outcome_failed: outcome(trace).map(|success| !success),
        tools_failed: tells.then_some(last_failed.is_some()),
        looped: Some(trace.loop_severity().is_some() || trace.rare().output_repeat.is_some()),
        effort: Some(trace.effort()),
        signal,
        tool: tool.to_owned(),
        error_type: error_type.map(ToString::to_string).unwrap_or_default(),
        ..named(trace, session)
    }
}

/// The risks by which a trace fails: those of all weighted signals, except where the behaviour may have been right. An answer that
/// repeats an earlier one may answer a user who asked again, and a tool that failed repeatedly may have succeeded in the end.
fn failing<'s>(
    trace: &TraceRecord,
    signals: &'s Signals,
    rules: &Rules,
) -> impl Iterator<Item = (&'s SignalName, Quanta)> {
    let (answers, retries) = (answers_anew(trace, rules), retries_alone(trace, rules));
    let is_forgiven = move |(name, signal): &(&SignalName, &Signal)| {
        let of_loops = (answers && **name == LOOP_DETECTION) || (retries && **name == TOOL_LOOP);
        of_loops && signal.source == Source::Computed
    };
    let counts = signals.iter().filter(move |signal| !is_forgiven(signal));
    rules.risks(counts.map(|(name, signal)| (name, signal.score)))
}

/// Whether the greatest risk of a trace may be one that does not make it fail.
fn may_be_forgiven(trace: &TraceRecord, rules: &Rules) -> bool {
    answers_anew(trace, rules) || retries_alone(trace, rules)
}

/// Whether a user's message began the trace: the same answer may be the right one.
fn answers_anew(trace: &TraceRecord, rules: &Rules) -> bool {
    !rules.pandaprobe && trace.course.turn_start == TurnStart::Asked
}

/// Whether the loops of the trace are retries that succeeded in the end, and no more than warnings.
fn retries_alone(trace: &TraceRecord, rules: &Rules) -> bool {
    !rules.pandaprobe && trace.loop_severity().is_some() && trace.made_good()
}

/// One minus this risk.
fn safe(risk: Quanta) -> Quanta {
    Quanta(Quanta::ONE.saturating_sub(risk.0))
}

/// An outcome that became known at this wall time, after the verdicts of the trace were counted.
pub(super) fn told_later(trace: &TraceRecord, session: &SessionId, wall: Timestamp) -> DoneTrace {
    DoneTrace {
        at_unix_nano: trace.end().max(wall).0,
        outcome_failed: outcome(trace).map(|success| !success),
        effort: Some(trace.effort()),
        ..named(trace, session)
    }
}

/// Whether the trace succeeded, if that was reported.
pub(super) fn outcome(trace: &TraceRecord) -> Option<bool> {
    reported_outcome(&trace.rare().reported, trace.rare().attempt.as_deref())
}

fn named(trace: &TraceRecord, session: &SessionId) -> DoneTrace {
    DoneTrace {
        trace_id: Some(trace.id),
        start_unix_nano: trace.start.0,
        touched_unix_nano: trace.arrived.0,
        session: session.scoped(),
        ..DoneTrace::default()
    }
}

/// The name under which the risk of a trace is counted among signals.
static TRACE_RISK: LazyLock<SignalName> = LazyLock::new(|| SignalName::from("trace_risk"));

/// Whether a trace or a session passes; in the order of the names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// It fails.
    Fail,
    /// It passes.
    Pass,
    /// It could not be measured.
    Skipped,
}

impl Verdict {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Fail, Self::Pass, Self::Skipped];

    /// The label value.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Pass => "pass",
            Self::Skipped => "skipped",
        }
    }
}

/// Whether a score passes: from `least`.
pub(super) fn verdict(score: Option<Quanta>, least: f64) -> Verdict {
    match score {
        Some(score) if score.to_f64() >= least => Verdict::Pass,
        Some(_) => Verdict::Fail,
        None => Verdict::Skipped,
    }
}

/// The score from which a trace or a session passes; one minus it is the limit for a risk.
pub(super) const PASS: f64 = 0.5;
