//! The families whose samples come from the state of one agent: lists of them, each with its help text and how its samples are
//! read.
//!
//! Families of what is found by watching an agent are in [`watched`](super::watched).

use std::collections::BTreeMap;

use super::families::{Family, Kind, SCORES, family};
use super::samples::Histogram;
use crate::engine::agent_facts::AgentFacts;
use crate::engine::math::ratio;
use crate::engine::view::WindowView;

/// A family, and the function that reads its samples.
#[derive(Debug)]
pub(super) struct Gauge {
    pub(super) family: Family,
    /// Whether its head is on the page even if no agent has a sample.
    pub(super) always: bool,
    pub(super) of: Samples,
}

/// Calls back with the labels and the value of each sample of an agent.
pub(super) type Samples = fn(&AgentFacts, Sample<'_>);

/// Takes the labels and the value of a sample.
pub(super) type Sample<'s> = &'s mut dyn FnMut(&[&str], f64);

/// A family that is exported with the default detail.
pub(super) const fn gauge(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    of: Samples,
) -> Gauge {
    Gauge { family: family(name, Kind::Gauge, labels, help), always: false, of }
}

/// The same family, exported only with `metrics.detail = "full"`.
pub(super) const fn full(Gauge { family, always, of }: Gauge) -> Gauge {
    Gauge { family: family.in_full(), always, of }
}

/// The same family, whose head is always on the page.
const fn always(Gauge { family, of, .. }: Gauge) -> Gauge {
    Gauge { family, always: true, of }
}

/// Scores over a window.
pub(super) const WINDOWS: &[Gauge] = &[
    always(gauge(
        "agentgauge_agent_reliability_score",
        &["window"],
        "Worst-case reliability over the window's traces, from 0 to 1.",
        |update, sample| windows(update, sample, |window| window.reliability),
    )),
    always(full(gauge(
        "agentgauge_agent_judged_reliability_score",
        &["window"],
        "Reliability over the window's traces that the judge was asked about, with its scores, from 0 to 1.",
        |update, sample| windows(update, sample, |window| window.judged_reliability),
    ))),
    always(gauge(
        "agentgauge_agent_consistency_score",
        &["window"],
        "Consistency over the window's traces with a confidence, from 0 to 1.",
        |update, sample| windows(update, sample, |window| window.consistency),
    )),
    always(full(gauge(
        "agentgauge_agent_max_risk",
        &["window"],
        "Greatest weighted risk of a trace in the window.",
        |update, sample| windows(update, sample, |window| window.max_risk),
    ))),
    always(gauge(
        "agentgauge_agent_window_traces",
        &["window"],
        "Done traces in the window: the sample size of the scores.",
        |update, sample| windows(update, sample, |window| Some(number(window.traces))),
    )),
    always(full(gauge(
        "agentgauge_agent_window_sessions",
        &["window"],
        "Sessions with a done trace in the window.",
        |update, sample| {
            // The number of sessions is not known for windows of the last traces.
            let known = update.view.windows.iter().filter(|(name, _)| !name.starts_with("last_"));
            known.for_each(|(name, window)| sample(&[name], number(window.sessions)));
        },
    ))),
    always(full(gauge(
        "agentgauge_agent_window_traces_evaluated",
        &["score", "window"],
        "Traces in the window that a score could be computed over.",
        |update, sample| {
            for (name, window) in &update.view.windows {
                sample(&["consistency", name], number(window.traces_with_confidence));
                if window.traces_judged > 0 {
                    sample(&["judged_reliability", name], number(window.traces_judged));
                }
                sample(&["reliability", name], number(window.traces_evaluated));
            }
        },
    ))),
    always(full(gauge(
        "agentgauge_agent_signal_score",
        &["signal", "window"],
        "Mean of a signal over the window's traces, from 0 to 1.",
        |update, sample| {
            for (name, window) in &update.view.windows {
                window.signals.iter().for_each(|(signal, mean)| sample(&[signal, name], *mean));
            }
        },
    ))),
];

/// The inputs of the scores over runs.
pub(super) const RUNS: &[Gauge] = &[
    full(gauge(
        "agentgauge_agent_score_samples",
        &["score", "window"],
        "Runs, tasks or confidences that a score over runs is computed from.",
        |update, sample| {
            for (name, scores) in &update.run_scores {
                for score in SCORES.iter().map(|score| score.score) {
                    if let Some((_, samples)) = scores.scores.get(score) {
                        sample(&[score, name], number(*samples));
                    }
                }
            }
        },
    )),
    full(gauge(
        "agentgauge_agent_pass_hat_k_score",
        &["k", "window"],
        "Chance that all of k runs of a task succeed, mean over tasks with at least k runs.",
        |update, sample| {
            for (name, scores) in &update.run_scores {
                for (k, chance) in &scores.pass_hat_k {
                    sample(&[&k.to_string(), name], *chance);
                }
            }
        },
    )),
    full(gauge(
        "agentgauge_agent_ars_component_score",
        &["component"],
        "Components of the agent reliability score, from 0 to 100.",
        |update, sample| {
            let components = update.view.ars.iter().flat_map(|ars| &ars.components);
            components.for_each(|(name, component)| sample(&[name], component.score));
        },
    )),
    full(gauge(
        "agentgauge_agent_runs",
        &[],
        "Runs that scores over runs are computed from.",
        |update, sample| {
            if update.runs > 0 {
                sample(&[], number(update.runs));
            }
        },
    )),
    full(gauge(
        "agentgauge_agent_version_difference",
        &["baseline_version", "bound"],
        "Difference of the mean of 1 - risk from an earlier version: bounds (lower, upper) at 95 % confidence, valid at all times.",
        |update, sample| {
            for version in &update.view.versions {
                sample(&[&version.baseline, "lower"], version.lower);
                sample(&[&version.baseline, "upper"], version.upper);
            }
        },
    )),
];

/// The current sessions.
pub(super) const SESSIONS: &[Gauge] = &[
    always(gauge("agentgauge_sessions_active", &[], "Open sessions.", |update, sample| {
        sample(&[], number(update.sessions_active));
    })),
    always(gauge(
        "agentgauge_sessions_in_loops",
        &[],
        "Sessions with an ongoing loop for which there is more evidence than names, each once, however many loops it has.",
        |update, sample| sample(&[], number(update.looping)),
    )),
    always(gauge(
        "agentgauge_sessions_looping",
        &["kind", "severity", "evidence"],
        "Sessions with an ongoing loop, under the labels of each of its loops, so a session may be in several series; with the evidence `names` nothing but names was sent, and it may be no loop.",
        |update, sample| {
            let looping = update.sessions_looping.iter();
            let by_labels: BTreeMap<_, _> =
                looping.map(|(labels, sessions)| (labels.values(), *sessions)).collect();
            by_labels.iter().for_each(|(values, sessions)| sample(values, number(*sessions)));
        },
    )),
    gauge(
        "agentgauge_sessions_over_limit",
        &["kind", "limit", "run"],
        "Sessions that are over a limit (`[limits]`) and still running, or have such a trace; kind is run_limit, run is trace or session.",
        |update, sample| {
            for (limit, sessions) in &update.sessions_over_limit {
                sample(&limit.values(), number(*sessions));
            }
        },
    ),
    always(full(gauge(
        "agentgauge_open_sessions",
        &["score", "at_most"],
        "Open sessions whose current score is at most this.",
        |update, sample| {
            for (score, buckets) in &update.open_sessions {
                for (bound, sessions) in Histogram::of_scores(buckets).cumulative() {
                    sample(&[score, bound], number(sessions));
                }
            }
        },
    ))),
];

/// Samples of one value of each window.
fn windows(update: &AgentFacts, sample: Sample<'_>, of: fn(&WindowView) -> Option<f64>) {
    for (name, window) in &update.view.windows {
        of(window).into_iter().for_each(|value| sample(&[name], value));
    }
}

/// The float that is nearest to a count.
pub(super) fn number(count: u64) -> f64 {
    ratio(i128::from(count), 1)
}
