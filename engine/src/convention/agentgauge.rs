//! Names for concepts without a convention: task, run, outcome, confidence, perturbation, violations, cited documents.
//!
//! Names that evaluation harnesses already send come first; agentgauge's own names are `agentgauge.*`, on any span of the trace or
//! on the resource.

use std::sync::Arc;

use super::draft::{Draft, name};
use super::lines::{Concept, line, success_named};
use super::raw::{RawAttributes, RawLog, RawSpan};
use super::{Convention, LogDraft, Trigger};
use crate::span::Violation;

/// The span event or log record of a broken rule.
const VIOLATION: &str = "agentgauge.constraint.violation";

pub(super) const CONVENTION: Convention = Convention {
    name: "agentgauge",
    title: "Names of evaluation harnesses, and our own",
    session: "any of the session keys",
    agent: "`gen_ai.agent.name` on the agent's span",
    lines: &[
        line(Concept::Task, 10, "agentgauge.task.id"),
        line(Concept::Task, 20, "test.case.id"),
        line(Concept::Task, 40, "agentevals.eval.case.id"),
        line(Concept::Task, 50, "gen_ai.evaluation.case.name"),
        line(Concept::Task, 55, "test.case.name"),
        line(Concept::Task, 58, "confident.trace.test_case_id"),
        line(Concept::Run, 10, "agentgauge.run.id"),
        line(Concept::Run, 20, "test.suite.run.id"),
        line(Concept::Run, 40, "agentevals.eval.run.id"),
        line(Concept::Run, 45, "confident.trace.test_run_id"),
        line(Concept::Trial, 10, "agentgauge.trial.id"),
        line(Concept::Trial, 20, "agentgauge.trial.index"),
        line(Concept::Success(success_named), 10, "agentgauge.outcome"),
        line(Concept::Success(success_named), 20, "test.case.result.status"),
        line(Concept::Success(success_named), 30, "gen_ai.evaluation.test_pass"),
        line(Concept::Success(success_named), 40, "gen_ai.task.status"),
        line(Concept::Abstained, 10, "agentgauge.abstained"),
        line(Concept::Perturbation, 10, "agentgauge.perturbation.type"),
        line(Concept::PerturbationId, 10, "agentgauge.perturbation.id"),
        line(Concept::PerturbationId, 20, "feature_flag.result.variant"),
        line(Concept::Baseline, 10, "agentgauge.baseline"),
        line(Concept::ExpectedOutput, 10, "agentgauge.expected.output"),
        line(Concept::ExpectedOutput, 30, "test.case.expected"),
        line(Concept::ExpectedOutput, 40, "gen_ai.evaluation.data.expected_output"),
        line(Concept::ExpectedTools, 10, "agentgauge.expected.tools"),
        line(Concept::ExpectedTools, 20, "confident.trace.expected_tools"),
        line(Concept::Cited, 10, "agentgauge.cited.document_ids"),
    ],
    also: &[
        "`agentgauge.confidence`, in `[0,1]`: the agent's own confidence, as the signal `confidence`.",
        "The span event or log record `agentgauge.constraint.violation` with `agentgauge.constraint.id` and `agentgauge.constraint.severity` (`low`, `medium`, `high`), or both as attributes of a span.",
    ],
    looks_for: &[Trigger::Event, Trigger::Key("agentgauge.constraint.id")],
    read,
    log,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let events = raw.events.iter().filter(|event| event.name == VIOLATION);
    let on_events = events.filter_map(|event| violation(&event.attributes));
    for violation in violation(&raw.attributes).into_iter().chain(on_events) {
        draft.attempt().violations.push(violation);
    }
}

fn log(raw: &RawLog<'_>, event: &str, draft: &mut LogDraft) {
    if event == VIOLATION {
        draft.violations.extend(violation(&raw.attributes));
        draft.recognised = true;
    }
}

fn violation(attributes: &RawAttributes<'_>) -> Option<Violation> {
    let constraint = attributes.get("agentgauge.constraint.id").and_then(name)?;
    let severity = attributes.get("agentgauge.constraint.severity").and_then(name);
    let severity = severity.map(|severity| severity.to_ascii_lowercase().into());
    Some(Violation { constraint: Arc::from(constraint), severity })
}
