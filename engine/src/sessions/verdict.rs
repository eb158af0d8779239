//! Verdicts: whether a trace passes, signal by signal, and whether its session climbs, stalls or
//! falls. They count a trace once, when it is done for the first time.

use std::borrow::Cow;
use std::sync::LazyLock;

use super::fleet::Fleet;
use super::record::TraceRecord;
use super::rules::Rules;
use super::scoring;
use super::summary::Summary;
use crate::counters::Counter;
use crate::facts::SessionId;
use crate::facts::{DoneTrace, Expectation, ExpectedStatus};
use crate::few::Few;
use crate::math::Quanta;
use crate::runs::told_outcome;
use crate::score::trajectory_gate::TrajectoryGate;
use crate::signal::name::CONFIDENCE;
use crate::signal::{SignalName, tool_loop};
use crate::span::Timestamp;

/// The trajectory gates of a session, by signal.
pub(super) type Gates = Few<SignalName, TrajectoryGate>;

/// Counts the verdicts of a trace that is done for the first time.
pub(super) fn evaluate(
    trace: &TraceRecord,
    done: DoneTrace,
    gates: &mut Gates,
    rules: &Rules,
    fleet: &mut Fleet,
) {
    let scored = &*trace.scored;
    let summary = fleet.summary(trace.agent());
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
    let safety = scored.own_risk().map(|risk| Quanta(Quanta::ONE.saturating_sub(risk.0)));
    summary.judged(&mut next, &TRACE_RISK).count(verdict(safety, PASS));
}

/// Counts the verdicts of a trace of which too little is known as skipped.
fn skip(rules: &Rules, summary: &mut Summary) {
    let mut next = 0;
    let weighed = rules.weights.iter().map(|(name, _)| name);
    weighed.for_each(|name| summary.judged(&mut next, name).count(Verdict::Skipped));
    summary.judged(&mut next, &TRACE_RISK).count(Verdict::Skipped);
}

/// What drops are detected from, of a trace that is done for the first time. It has verdicts of computed signals alone, so that a stream
/// of verdicts does not change with how much is judged or reported.
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
    // Whatever fails lowers confidence too, and says more than confidence does.
    let greatest = rules
        .risks(scoring::scores(&own))
        .max_by_key(|(name, risk)| (*risk, **name != CONFIDENCE, *name));
    let passes = |risk: Quanta| {
        verdict(Some(Quanta(Quanta::ONE.saturating_sub(risk.0))), PASS) == Verdict::Pass
    };
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

/// An outcome that became known at this wall time, after the verdicts of the trace were counted.
pub(super) fn told_later(trace: &TraceRecord, session: &SessionId, wall: Timestamp) -> DoneTrace {
    DoneTrace {
        at_unix_nano: trace.end().max(wall).0,
        outcome_failed: outcome(trace).map(|success| !success),
        effort: Some(trace.effort()),
        ..named(trace, session)
    }
}

/// Whether the trace succeeded, if anybody reported it.
pub(super) fn outcome(trace: &TraceRecord) -> Option<bool> {
    told_outcome(&trace.rare().reported, trace.rare().attempt.as_deref())
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
    /// It does not.
    Fail,
    /// It does.
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

/// The score from which a trace or a session passes; one less than this as a risk.
pub(super) const PASS: f64 = 0.5;
