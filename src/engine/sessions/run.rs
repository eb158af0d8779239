//! Traces that are part of a run: an attempt at a task, or one that somebody has an outcome or a verdict for.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::held::Held;
use super::key::SessionId;
use super::scoring::is_done;
use crate::engine::runs::is_about_runs;
use crate::engine::span::Report;
use crate::engine::update::{Effort, ReportedScore, RunTrace};

/// What a done trace adds to a run of its agent; `None` if it is part of none.
pub(super) fn trace(
    held: &Held,
    session: &SessionId,
    reports: &BTreeMap<Arc<str>, Report>,
) -> Option<RunTrace> {
    let update = &held.update;
    if !is_done(update) {
        return None;
    }
    let own = update.reported.iter().filter(|score| is_about_runs(&score.name));
    let mut reported: Vec<ReportedScore> = own.cloned().collect();
    let of_session = reports.values().filter(|report| is_about_runs(&report.name));
    for report in of_session {
        if !reported.iter().any(|score| score.name.as_str() == &*report.name) {
            reported.push(ReportedScore {
                name: report.name.to_string(),
                score_quanta: report.score.0,
                source: report.source.name().to_owned(),
                identifier: report.identifier.to_string(),
                time_unix_nano: report.time.0,
                label: report.label.as_ref().map(ToString::to_string),
                explanation: None,
                judge: None,
            });
        }
    }
    if update.attempt.is_none() && reported.is_empty() {
        return None;
    }
    let failed = update.tools.iter().filter(|call| call.error == Some(true)).count() as u64;
    Some(RunTrace {
        trace_id: update.trace_id,
        gone: false,
        attempt: update.attempt.as_deref().cloned(),
        session: session.scoped(),
        start_unix_nano: update.start_unix_nano,
        end_unix_nano: update.end_unix_nano,
        actions: update.tools.iter().map(|call| call.name.clone()).collect(),
        effort: Effort::of(update),
        model_nanos: update.model_nanos,
        errors: failed.saturating_add(update.failed_model_calls),
        cost_quanta: update.cost_quanta,
        reported,
    })
}
