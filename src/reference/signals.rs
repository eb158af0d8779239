//! The signals of a trace in its session, and the risks from them.

use std::collections::BTreeMap;

use super::score::{self, TraceScore, round4};
use super::text::likeness;
use super::trace::Trace;
use crate::engine::loops::Severity;
use crate::engine::options::{EmptyScore, Profile, SessionOptions};
use crate::engine::span::{Report, Source};

/// The names of reported scores that are outcomes.
const OUTCOMES: [&str; 3] = ["outcome", "task_completion", "goal_success"];

/// How many earlier outputs an output is compared with.
const WINDOW: usize = 3;

/// A score and its source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Signal {
    pub(super) score: f64,
    pub(super) source: Source,
}

/// The signals and scores of a trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Worth {
    pub(super) signals: BTreeMap<String, Signal>,
    /// Its score by all signals.
    pub(super) all: TraceScore,
    /// Its score without the judge's signals.
    pub(super) own: TraceScore,
    /// Whether the judge gave a signal that has a weight.
    pub(super) is_judged: bool,
    /// The computed confidence, if the judge's is used in its place.
    pub(super) computed_confidence: Option<f64>,
    /// How much the output differs from the previous ones, in `[0,1]`.
    pub(super) novelty: Option<f64>,
}

/// The context of a trace in its session.
pub(super) struct Place<'t> {
    /// The traces before it, oldest first.
    pub(super) earlier: &'t [Trace],
    /// The worst severity of the loops of tool calls that it is part of, except loops known by names alone.
    pub(super) loops: Option<Severity>,
    /// The reported outcome of the session and of its run, if it is the last trace of that.
    pub(super) outcome: Option<bool>,
}

/// The signals of a trace and its scores.
pub(super) fn worth(trace: &Trace, place: &Place<'_>, options: &SessionOptions) -> Worth {
    let documents = options.profile == Profile::Pandaprobe;
    let novelty = novelty(trace, place.earlier);
    let novelty = if documents { novelty.map(round4) } else { novelty };
    let computed = |score| Signal { score, source: Source::Computed };
    let mut signals = BTreeMap::new();
    let empty = (options.empty_score == EmptyScore::One).then_some(1.0);
    signals.extend(novelty.or(empty).map(|score| ("loop_detection".to_owned(), computed(score))));
    if !documents {
        let own = [
            ("confidence", confidence(trace)),
            ("error", Some(if trace.error { 0.0 } else { 1.0 })),
            ("tool_loop", Some(tool_loop(place.loops))),
            ("tool_success", tool_success(trace)),
        ];
        let own = own.into_iter().filter_map(|(name, score)| Some((name.to_owned(), score?)));
        signals.extend(own.map(|(name, score)| (name, computed(score))));
    }
    for report in &trace.reports {
        if let Some(best) = believed(&trace.reports, &[&report.name], None) {
            let score = Signal { score: quanta(best.score.0), source: best.source };
            signals.insert(report.name.to_string(), score);
        }
    }
    if let Some(outcome) = outcome(trace, place.outcome).filter(|_| !documents) {
        signals.insert("outcome".to_owned(), outcome);
    }
    weighed(trace, signals, novelty, options)
}

/// The weights in force: the configured ones over the defaults; in the documents' profile only those of its four signals.
pub(super) fn weights(options: &SessionOptions) -> BTreeMap<String, f64> {
    let mut weights = SessionOptions::default().signal_weights;
    weights.extend(options.signal_weights.clone());
    let four = ["coherence", "confidence", "loop_detection", "tool_correctness"];
    let documents = options.profile == Profile::Pandaprobe;
    weights.retain(|name, _| !documents || four.contains(&name.as_str()));
    weights
}

/// The reported outcome, if there is one: the last report counts.
pub(super) fn reported_outcome(reports: &[Report]) -> Option<bool> {
    believed(reports, &OUTCOMES, Some(Source::Reported)).map(succeeds)
}

/// Whether an outcome is a success: as it says itself, else only if it is 1.
pub(super) fn succeeds(report: &Report) -> bool {
    report.success.unwrap_or_else(|| quanta(report.score.0) >= 1.0)
}

/// The score to believe among those with these names: of the highest-ranking source, then the latest, then the greatest.
pub(super) fn believed<'r>(
    reports: &'r [Report],
    names: &[&str],
    source: Option<Source>,
) -> Option<&'r Report> {
    let named = reports.iter().filter(|report| names.contains(&&*report.name));
    let named = named.filter(|report| source.is_none_or(|source| report.source == source));
    named.max_by_key(|report| {
        (report.source, report.time, &report.identifier, report.score, succeeds(report))
    })
}

/// A decoded score, in steps of 1e-12, as a float.
pub(super) fn quanta(steps: i64) -> f64 {
    steps as f64 / 1e12
}

/// One minus the greatest likeness to an output of the three previous traces; 1 for a first trace, and `None` if there is nothing
/// to compare.
fn novelty(trace: &Trace, earlier: &[Trace]) -> Option<f64> {
    if earlier.is_empty() {
        return Some(1.0);
    }
    let window = &earlier[earlier.len().saturating_sub(WINDOW)..];
    let own = trace.digest.as_ref()?;
    let compared = window.iter().filter_map(|before| before.digest.as_ref());
    let likest = compared.map(|before| likeness(before, own)).max_by(f64::total_cmp)?;
    Some((1.0 - likest).clamp(0.0, 1.0))
}

/// The one of the three previous traces with the most similar output; of equals the newest.
pub(super) fn repeated<'t>(trace: &Trace, earlier: &'t [Trace]) -> Option<&'t Trace> {
    let window = &earlier[earlier.len().saturating_sub(WINDOW)..];
    let alike = |before: &&Trace| match (&before.digest, &trace.digest) {
        (Some(before), Some(own)) => likeness(before, own),
        (None, _) | (_, None) => 0.0,
    };
    window.iter().max_by(|one, other| alike(one).total_cmp(&alike(other)))
}

/// The share of steps that neither failed nor repeated; `None` without steps.
fn confidence(trace: &Trace) -> Option<f64> {
    let useful = trace.steps - trace.wasted_steps.min(trace.steps);
    (trace.steps > 0).then(|| useful as f64 / trace.steps as f64)
}

/// The share of tool calls that did not fail, among those with a known outcome, in a trace that did not end in error.
fn tool_success(trace: &Trace) -> Option<f64> {
    let told: Vec<bool> = trace.calls.iter().filter_map(|call| call.failed).collect();
    let failed = told.iter().filter(|failed| **failed).count();
    (!trace.error && !told.is_empty()).then(|| (told.len() - failed) as f64 / told.len() as f64)
}

fn tool_loop(worst: Option<Severity>) -> f64 {
    match worst {
        None => 1.0,
        Some(Severity::Warning) => 0.4,
        Some(Severity::Critical) => 0.0,
    }
}

/// The outcome that was reported for the trace, or that it states, and that of the session if it is the last trace: the worse of
/// both; else the judge's.
fn outcome(trace: &Trace, of_session: Option<bool>) -> Option<Signal> {
    let said = trace.attempt.as_ref().and_then(|attempt| attempt.success);
    let own = reported_outcome(&trace.reports).or(said);
    let told = match (own, of_session) {
        (Some(own), Some(other)) => Some(own && other),
        (own, other) => own.or(other),
    };
    if let Some(success) = told {
        let score = if success { 1.0 } else { 0.0 };
        return Some(Signal { score, source: Source::Reported });
    }
    let judged = believed(&trace.reports, &OUTCOMES, Some(Source::Judge))?;
    Some(Signal { score: quanta(judged.score.0), source: Source::Judge })
}

fn weighed(
    trace: &Trace,
    signals: BTreeMap<String, Signal>,
    novelty: Option<f64>,
    options: &SessionOptions,
) -> Worth {
    let weights = weights(options);
    let is_judge = |signal: &Signal| signal.source == Source::Judge;
    let is_judged = options.profile != Profile::Pandaprobe
        && signals.iter().any(|(name, signal)| is_judge(signal) && weights.contains_key(name));
    let scores = |judged: bool| -> BTreeMap<String, f64> {
        let signals = signals.iter().filter(|(_, signal)| judged || !is_judge(signal));
        signals.map(|(name, signal)| (name.clone(), signal.score)).collect()
    };
    let replaced = is_judged && signals.get("confidence").is_some_and(is_judge);
    let computed_confidence = confidence(trace).filter(|_| replaced);
    let all = score::trace(&scores(true), &weights);
    let own = if is_judged {
        let mut rest = scores(false);
        rest.extend(computed_confidence.map(|score| ("confidence".to_owned(), score)));
        score::trace(&rest, &weights)
    } else {
        all.clone()
    };
    Worth { signals, all, own, is_judged, computed_confidence, novelty }
}
