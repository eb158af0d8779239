//! The families of what is found by watching an agent: one list, with help texts and how samples are read.

use super::gauges::{Gauge, full, gauge, number};
use crate::engine::agent_facts::AgentFacts;
use crate::engine::math::ratio;
use crate::engine::predict::Learned;
use crate::engine::view::{DropFoundView, DropView};

/// All families of watched agents, in the order of the page. Streams are those of `engine/drops/stream.rs`.
pub(super) const WATCHED: &[Gauge] = &[
    gauge(
        "agentgauge_agent_drop",
        &["stream", "severity"],
        "Whether a stream of the agent drops: 1, else 0. What is critical is a warning too, which is there only while it is 1; streams that do not page have no critical.",
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
        "Since when the stream drops: the end of the first trace that belongs to it.",
        |update, sample| {
            found(update, |drop, found| sample(&[drop.stream], seconds(&found.since_unix_nano)));
        },
    ),
    gauge(
        "agentgauge_agent_drop_level",
        &["stream"],
        "Share of the stream's traces that are bad since it drops, from 0 to 1; of effort, cost and latency their mean percentile among usual ones.",
        |update, sample| found(update, |drop, found| sample(&[drop.stream], found.to)),
    ),
    gauge(
        "agentgauge_agent_drop_baseline",
        &["stream"],
        "The level that is usual for the stream, from 0 to 1; without a past that of the objective. Of streams but `verdict` while they drop.",
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
        "Traces that the level of a drop is over.",
        |update, sample| found(update, |drop, found| sample(&[drop.stream], number(found.traces))),
    ),
    gauge(
        "agentgauge_agent_drop_against",
        &["stream", "against", "version_before"],
        "1 while the stream drops: against the agent's own past, the version before (which does not drop itself), or the objective.",
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
        "1 while the stream drops: which signal and tool carry most of the failures, the kind of error of most of these, and two sessions in which they are.",
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
        "Share of the window's evaluated traces that fail: their risk is over one half.",
        |update, sample| {
            for (name, window) in &update.view.windows {
                window.failure_ratio.into_iter().for_each(|share| sample(&[name], share));
            }
        },
    ),
    full(gauge(
        "agentgauge_agent_failure_ratio_traces",
        &["window"],
        "Evaluated traces in the window: what the share of failing ones is of.",
        |update, sample| {
            for (name, window) in &update.view.windows {
                sample(&[name], number(window.traces_evaluated));
            }
        },
    )),
    full(gauge(
        "agentgauge_agent_success_ratio",
        &["window", "bound"],
        "Share of the agent's sessions that succeed, from those whose outcome is known and the effort of all, from 0 to 1; bound is estimate, lower or upper (95 %), always_lower or always_upper (95 % at all times at once).",
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
        "Sessions that the share of those that succeed is over: all of the window, those whose outcome is known, and those of them that others than the judge chose to tell.",
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
        "How well a signal or reliability (as risk, without the outcome in it), effort or predicted_failure tells sessions that failed from others: 1 always, 0.5 as a coin does.",
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
        "How wrong predicted failures are, from 0 to 1: brier, brier_of_base (if the share that fails were told for each), calibration (ten bins).",
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
        "When something of the agent last arrived, also of a trace that is open.",
        |update, sample| {
            let last = update.view.last_trace_unix_nano.iter();
            last.for_each(|last| sample(&[], seconds(last)));
        },
    ),
    gauge(
        "agentgauge_agent_usual_gap_seconds",
        &[],
        "Seconds of silence of which more is not usual for the agent, with `assemble.trace_idle`, as what arrives may show that late; absent before a day of twenty gaps.",
        |update, sample| update.view.usual_gap_seconds.into_iter().for_each(|gap| sample(&[], gap)),
    ),
    gauge(
        "agentgauge_agent_stalled_traces",
        &[],
        "Open traces of which nothing has come for longer than is usual for the agent, and for `session.stall_after`; absent while there are no more of them than are usually lost.",
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
