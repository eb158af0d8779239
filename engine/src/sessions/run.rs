//! Traces that are part of a run: an attempt at a task, or a trace with an outcome or a verdict.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::record::TraceRecord;
use super::rules::Rules;
use super::scoring::scores;
use crate::facts::{ReportedScore, RunTrace, SessionId};
use crate::predict::Results;
use crate::runs::is_about_runs;
use crate::signal::name::OUTCOME;
use crate::span::Report;

/// The contribution of a done trace to a run of its agent; `None` if it is part of none.
pub(super) fn trace(
    trace: &TraceRecord,
    session: &SessionId,
    reports: &BTreeMap<Arc<str>, Report>,
    rules: &Rules,
) -> Option<RunTrace> {
    if !trace.is_done() {
        return None;
    }
    let rare = trace.rare();
    let own = rare.reported.iter().filter(|score| is_about_runs(&score.name));
    let mut reported: Vec<ReportedScore> = own.cloned().collect();
    let of_session = reports.values().filter(|report| is_about_runs(&report.name));
    for report in of_session {
        if !reported.iter().any(|score| score.name.as_str() == &*report.name) {
            reported.push(ReportedScore {
                explanation: None,
                judge: None,
                ..ReportedScore::from(report)
            });
        }
    }
    if rare.attempt.is_none() && reported.is_empty() {
        return None;
    }
    let is_at_task = rare.attempt.as_ref().is_some_and(|attempt| attempt.task.is_some());
    let calls = trace.course.calls.iter();
    let failed = calls.clone().filter(|call| call.error == Some(true)).count() as u64;
    let signals = trace.scored.signals.iter();
    Some(RunTrace {
        trace_id: trace.id,
        gone: false,
        attempt: rare.attempt.as_deref().cloned(),
        session: session.scoped(),
        start_unix_nano: trace.start.0,
        end_unix_nano: trace.sent_end.0,
        actions: calls.map(|call| call.name.clone()).collect(),
        results: if is_at_task { trace.results().collect() } else { Results::default() },
        effort: trace.effort(),
        model_nanos: trace.times.model_nanos(),
        errors: failed.saturating_add(trace.course.failed_model_calls),
        cost_quanta: trace.cost(),
        flagged: trace.is_always_judged(),
        risk_quanta: risk(trace, rules),
        reported,
        signals: signals.map(|(name, signal)| (name.into(), signal.score.0)).collect(),
    })
}

/// Its risk without the reported outcome, so that it can be compared with the outcome.
fn risk(trace: &TraceRecord, rules: &Rules) -> Option<i64> {
    let own = trace.scored.own_signals();
    let others = scores(&own).filter(|(name, _)| **name != OUTCOME);
    rules.risk(others).risk.map(|risk| risk.0)
}
