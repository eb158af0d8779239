//! The families of metrics: one line each.

/// What kind of family it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only goes up while the process runs.
    Counter,
    /// A distribution of scores.
    Histogram,
}

/// A family: its exported name (without `_total`), its type, what it says, and its labels beside the agent's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    pub(super) labels: &'static [&'static str],
}

const fn family(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { name, kind, help, labels }
}

/// Scores over a window.
pub(super) const RELIABILITY: Family = family(
    "agentgauge_agent_reliability_score",
    Kind::Gauge,
    &["window"],
    "Worst-case reliability over the window's traces, from 0 to 1.",
);
pub(super) const CONSISTENCY: Family = family(
    "agentgauge_agent_consistency_score",
    Kind::Gauge,
    &["window"],
    "Consistency over the window's traces with a confidence, from 0 to 1.",
);
pub(super) const SIGNAL: Family = family(
    "agentgauge_agent_signal_score",
    Kind::Gauge,
    &["signal", "window"],
    "Mean of a signal over the window's traces, from 0 to 1.",
);
pub(super) const MAX_RISK: Family = family(
    "agentgauge_agent_max_risk",
    Kind::Gauge,
    &["window"],
    "Greatest weighted risk of a trace in the window.",
);
pub(super) const WINDOW_TRACES: Family = family(
    "agentgauge_agent_window_traces",
    Kind::Gauge,
    &["window"],
    "Done traces in the window: the sample size of the scores.",
);
pub(super) const WINDOW_EVALUATED: Family = family(
    "agentgauge_agent_window_traces_evaluated",
    Kind::Gauge,
    &["score", "window"],
    "Traces in the window that a score could be computed over.",
);
pub(super) const WINDOW_SESSIONS: Family = family(
    "agentgauge_agent_window_sessions",
    Kind::Gauge,
    &["window"],
    "Sessions with a done trace in the window.",
);

/// Sessions as they stand.
pub(super) const SESSIONS_ACTIVE: Family =
    family("agentgauge_sessions_active", Kind::Gauge, &[], "Open sessions.");
pub(super) const SESSIONS_LOOPING: Family = family(
    "agentgauge_sessions_looping",
    Kind::Gauge,
    &["kind", "severity"],
    "Sessions in which a loop goes on.",
);
pub(super) const OPEN_SESSIONS: Family = family(
    "agentgauge_open_sessions",
    Kind::Gauge,
    &["score", "at_most"],
    "Open sessions whose score is at most this, as they stand.",
);

/// Distributions.
pub(super) const TRACE_SIGNAL: Family = family(
    "agentgauge_trace_signal_score",
    Kind::Histogram,
    &["signal"],
    "Scores of traces by signal, each trace once, when it is first done.",
);
pub(super) const SESSION_RELIABILITY: Family = family(
    "agentgauge_session_reliability_score",
    Kind::Histogram,
    &[],
    "Reliability of sessions, each once, when it closes.",
);
pub(super) const SESSION_CONSISTENCY: Family = family(
    "agentgauge_session_consistency_score",
    Kind::Histogram,
    &[],
    "Consistency of sessions, each once, when it closes.",
);

/// A counter of the engine: the engine's name for it, its family, and how many of its units make one.
pub(super) struct CounterFamily {
    pub(super) engine: &'static str,
    pub(super) family: Family,
    pub(super) per_unit: u64,
}

const fn counter(
    engine: &'static str,
    labels: &'static [&'static str],
    name: &'static str,
    help: &'static str,
) -> CounterFamily {
    CounterFamily { engine, family: family(name, Kind::Counter, labels, help), per_unit: 1 }
}

const fn dollars(engine: &'static str, name: &'static str, help: &'static str) -> CounterFamily {
    CounterFamily {
        engine,
        family: family(name, Kind::Counter, &[], help),
        per_unit: 1_000_000_000_000,
    }
}

/// All counters of the engine. Counters belong to the process: they start at 0 and never fall.
pub(super) const COUNTERS: &[CounterFamily] = &[
    counter("traces", &[], "agentgauge_traces", "Done traces, each once."),
    counter(
        "trace_evaluations",
        &["signal", "verdict"],
        "agentgauge_trace_evaluations",
        "Verdicts on traces, each trace once: pass, fail, or skipped where the signal is absent; trace_risk is the whole.",
    ),
    counter(
        "loops_detected",
        &["kind", "severity"],
        "agentgauge_loops_detected",
        "Loops that reached this severity, counted while they run.",
    ),
    counter(
        "loop_wasted_tokens",
        &["type"],
        "agentgauge_loop_wasted_tokens",
        "Tokens spent inside loops.",
    ),
    dollars(
        "loop_wasted_cost_usd",
        "agentgauge_loop_wasted_cost_usd",
        "US dollars spent inside loops.",
    ),
    counter("tokens", &["type"], "agentgauge_tokens", "Tokens of model calls, every call once."),
    dollars("cost_usd", "agentgauge_cost_usd", "US dollars of model calls, where the spans tell."),
    counter("model_calls", &[], "agentgauge_model_calls", "Model calls, every call once."),
    counter(
        "tool_calls",
        &["outcome"],
        "agentgauge_tool_calls",
        "Tool calls by outcome: ok, error, or unknown where the spans do not tell.",
    ),
    counter(
        "adjacent_tool_repeats",
        &[],
        "agentgauge_adjacent_tool_repeats",
        "Tool calls of the same name as the one before.",
    ),
    counter(
        "sessions_closed",
        &["reason", "verdict"],
        "agentgauge_sessions_closed",
        "Closed sessions, each once, and whether their reliability was at least 0.5.",
    ),
    counter(
        "gate_breaches",
        &["signal", "breach"],
        "agentgauge_trajectory_gate_breaches",
        "Stalls and regressions of a signal along a session.",
    ),
];
