//! The families of what is found by watching an agent: one list, with help texts and how samples are read.

use super::gauges::{Gauge, full, gauge, number};
use crate::engine::agent_facts::AgentFacts;
use crate::engine::math::ratio;
use crate::engine::predict::Learned;
use crate::engine::view::{DropFoundView, DropView};

/// All families of watched agents, in the order of the page. Streams are those of `engine/src/drops/stream.rs`.
pub(super) const WATCHED: &[Gauge] = &[
    gauge(
        "agentgauge_agent_drop",
        &["stream", "severity"],
        "1 while the stream is in a drop of this severity, else 0. A critical drop has the series of the warning too, which exists only while it is 1. Streams that never page have no critical series.",
        |update, sample| {
            for drop in &update.view.drops {
                if drop.pages {
                    let critical = drop.severity == "critical";
                    sample(&[drop.stream, "critical"], f64::from(u8::from(critical)));
                }
                if is_on(drop) {
                    sample(&[drop.stream, "warning"], 1.0);
                }
            }
        },
    ),
    gauge(
        "agentgauge_agent_drop_start_timestamp_seconds",
        &["stream"],
        "Start of the drop: the end of the first trace that belongs to it.",
        |update, sample| {
            found(update, |drop, found| sample(&[drop.stream], seconds(&found.since_unix_nano)));
        },
    ),
    gauge(
        "agentgauge_agent_drop_level",
        &["stream"],
        "Share of bad traces since the drop began, from 0 to 1; for effort, cost and latency the mean percentile among usual traces.",
        |update, sample| found(update, |drop, found| sample(&[drop.stream], found.to)),
    ),
    gauge(
        "agentgauge_agent_drop_baseline",
        &["stream"],
        "The usual level of the stream, from 0 to 1, or that of its objective while there is no past. Streams other than `verdict` have it only during a drop.",
        |update, sample| {
            let shown = |drop: &&DropView| drop.stream == "verdict" || is_on(drop);
            for drop in update.view.drops.iter().filter(shown) {
                let before = drop.drop.as_ref().filter(|_| is_on(drop)).map(|found| found.from);
                sample(&[drop.stream], before.unwrap_or(drop.usual));
            }
        },
    ),
    gauge(
        "agentgauge_agent_drop_traces",
        &["stream"],
        "Number of traces that the level of a drop is computed from.",
        |update, sample| found(update, |drop, found| sample(&[drop.stream], number(found.traces))),
    ),
    gauge(
        "agentgauge_agent_drop_against",
        &["stream", "against", "version_before"],
        "1 during a drop of the stream; against is what it is compared with: the agent's own past, the previous version (which is not in a drop itself), or the objective.",
        |update, sample| {
            found(update, |drop, _| {
                let version = drop.version_before.as_deref().unwrap_or_default();
                sample(&[drop.stream, drop.against, version], 1.0);
            });
        },
    ),
    gauge(
        "agentgauge_agent_drop_example",
        &["stream", "signal", "tool", "error_type", "example_session", "second_session"],
        "1 during a drop of the stream: the signal and the tool with most of the failures, the most frequent error type among these, and two sessions that contain them.",
        |update, sample| {
            found(update, |drop, found| {
                let name = |name: &'_ Option<String>| name.clone().unwrap_or_default();
                let session =
                    |at: usize| found.sessions.get(at).map_or("", |name| name.session_id.as_str());
                let [signal, tool, error] =
                    [&found.signal, &found.tool, &found.error_type].map(name);
                sample(&[drop.stream, &signal, &tool, &error, session(0), session(1)], 1.0);
            });
        },
    ),
    gauge(
        "agentgauge_agent_failure_ratio",
        &["window"],
        "Share of the window's evaluated traces that fail: those with a risk over one half.",
        |update, sample| {
            for (name, window) in &update.view.windows {
                window.failure_ratio.into_iter().for_each(|share| sample(&[name], share));
            }
        },
    ),
    full(gauge(
        "agentgauge_agent_failure_ratio_traces",
        &["window"],
        "Evaluated traces in the window: the sample size of the failure ratio.",
        |update, sample| {
            for (name, window) in &update.view.windows {
                sample(&[name], number(window.traces_evaluated));
            }
        },
    )),
    full(gauge(
        "agentgauge_agent_success_ratio",
        &["window", "bound"],
        "Estimated share of the agent's sessions that succeed, from known outcomes and the effort of all sessions, from 0 to 1; bound is estimate, lower or upper (95 %), always_lower or always_upper (95 % at all times at once).",
        |update, sample| {
            for (name, success) in learned(update).flat_map(Learned::success) {
                sample(&[name, "estimate"], success.estimate);
                sample(&[name, "lower"], success.lower);
                sample(&[name, "upper"], success.upper);
                sample(&[name, "always_lower"], success.always_lower);
                sample(&[name, "always_upper"], success.always_upper);
            }
        },
    )),
    full(gauge(
        "agentgauge_agent_success_ratio_sessions",
        &["window", "outcome"],
        "Sample sizes of the success ratio: any (all sessions of the window), known (those with a known outcome), and selected (those of them whose outcome is not from the judge's random sample).",
        |update, sample| {
            for (name, success) in learned(update).flat_map(Learned::success) {
                sample(&[name, "any"], number(success.sessions));
                sample(&[name, "known"], number(success.told));
                sample(&[name, "selected"], number(success.selected));
            }
        },
    )),
    full(gauge(
        "agentgauge_agent_signal_auroc",
        &["signal"],
        "AUROC of a signal, of reliability (as risk, without the outcome in it), effort or predicted_failure for failed sessions: 1 is perfect, 0.5 is chance.",
        |update, sample| {
            for (name, auroc) in learned(update).flat_map(|learned| &learned.quality().auroc) {
                sample(&[name], auroc.auroc);
            }
        },
    )),
    full(gauge(
        "agentgauge_agent_signal_auroc_sessions",
        &["signal"],
        "Sessions with the signal and a known outcome.",
        |update, sample| {
            for (name, auroc) in learned(update).flat_map(|learned| &learned.quality().auroc) {
                sample(&[name], number(auroc.sessions));
            }
        },
    )),
    full(gauge(
        "agentgauge_agent_prediction_error",
        &["error"],
        "Error of the predicted failure, from 0 to 1: brier, brier_of_base (Brier score of always predicting the base rate), calibration (expected error over ten bins).",
        |update, sample| {
            for error in learned(update).filter_map(|learned| learned.quality().calibration) {
                sample(&["brier"], error.brier);
                sample(&["brier_of_base"], error.brier_of_base);
                sample(&["calibration"], error.expected_error);
            }
        },
    )),
    gauge(
        "agentgauge_agent_last_trace_timestamp_seconds",
        &[],
        "When data of the agent last arrived, including data of open traces.",
        |update, sample| {
            let last = update.view.last_trace_unix_nano.iter();
            last.for_each(|last| sample(&[], seconds(last)));
        },
    ),
    gauge(
        "agentgauge_agent_usual_gap_seconds",
        &[],
        "Longest usual silence of the agent in seconds, plus `assemble.trace_idle`, as arrivals may show that late; absent until twenty gaps over a day are known.",
        |update, sample| update.view.usual_gap_seconds.into_iter().for_each(|gap| sample(&[], gap)),
    ),
    gauge(
        "agentgauge_agent_stalled_traces",
        &[],
        "Open traces that have been silent for longer than is usual for the agent and for `session.stall_after`; absent while there are no more of them than are usually lost.",
        |update, sample| {
            let stalled = Some(update.silences.stalled()).filter(|stalled| *stalled > 0);
            stalled.into_iter().for_each(|stalled| sample(&[], number(stalled)));
        },
    ),
];

/// What is learned about an agent, if the outcome of some session is known.
fn learned(update: &AgentFacts) -> impl Iterator<Item = &Learned> {
    (!update.known_runs.is_empty()).then(|| update.learned()).into_iter()
}

/// Calls `tell` with each stream that drops or may drop.
fn found(update: &AgentFacts, mut tell: impl FnMut(&DropView, &DropFoundView)) {
    let on = update.view.drops.iter().filter(|drop| is_on(drop));
    on.filter_map(|drop| Some((drop, drop.drop.as_ref()?)))
        .for_each(|(drop, found)| tell(drop, found));
}

fn is_on(drop: &DropView) -> bool {
    matches!(drop.severity, "warning" | "critical")
}

fn seconds(nanos: &str) -> f64 {
    ratio(nanos.parse().unwrap_or(0), 1_000_000_000)
}
