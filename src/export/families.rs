//! The families of metrics: one line each.

use crate::engine::counters::Counter;
use crate::engine::distributions::Distribution;

/// The kind of a family.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only rises while the process runs.
    Counter,
    /// A distribution of scores.
    Histogram,
}

/// A family: its exported name (without `_total`), its kind, its help text, its labels beside the agent's, and whether it is
/// exported without `metrics.detail = "full"`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    pub(super) labels: &'static [&'static str],
    pub(super) core: bool,
}

impl Family {
    /// The same family, exported only with `metrics.detail = "full"`.
    pub(super) const fn in_full(self) -> Self {
        Self { core: false, ..self }
    }
}

pub(super) const fn family(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { name, kind, help, labels, core: true }
}

/// A score over runs: its name in the engine, the text on when it has no value, and its family.
#[derive(Debug)]
pub(super) struct ScoreFamily {
    pub(super) score: &'static str,
    pub(super) absent_when: &'static str,
    pub(super) family: Family,
}

/// The list of scores over runs: the name in the engine, the help text, and when there is no value.
macro_rules! scores {
    ($($score:literal, $help:literal, absent when $absent_when:literal;)*) => {
        &[$(ScoreFamily {
            score: $score,
            absent_when: $absent_when,
            family: family(concat!("agentgauge_agent_", $score, "_score"), Kind::Gauge, &["window"], $help).in_full(),
        },)*]
    };
}

/// All scores over runs, exported with `metrics.detail = "full"`. The window `all` is everything that is held.
pub(super) const SCORES: &[ScoreFamily] = scores! {
    "accuracy", "Share of runs that succeeded, of those whose outcome is known.",
        absent when "no run has an outcome";
    "mean_confidence", "Mean confidence of the runs whose outcome is known.",
        absent when "no run has both an outcome and a confidence";
    "outcome_consistency", "Whether runs of one task end alike: mean over tasks of (2p-1)^2.",
        absent when "no task has two runs with an outcome";
    "trajectory_distribution_consistency", "Whether successful runs of one task call the same tools as often: 1 minus the mean Jensen-Shannon divergence.",
        absent when "no task has two successful runs with tool calls";
    "trajectory_sequence_consistency", "Whether successful runs of one task call tools in the same order: 1 minus the mean relative edit distance.",
        absent when "no task has two successful runs with tool calls";
    "resource_consistency", "Whether runs of one task use the same resources: exp of minus the mean coefficient of variation.",
        absent when "no task has two runs whose resources are known";
    "confidence_consistency", "Whether runs of one task are equally confident: exp of minus the coefficient of variation.",
        absent when "no task has two runs with a confidence";
    "princeton_consistency", "Princeton's consistency: mean of outcome, trajectory and resource consistency.",
        absent when "all of its parts are";
    "risk_coverage", "Whether confidence ranks runs by success: 1 minus the excess area under the risk-coverage curve, ties averaged.",
        absent when "no run has both a confidence and an outcome";
    "calibration", "Whether confidence is the rate of success: 1 minus the expected calibration error over ten bins.",
        absent when "no run has both a confidence and an outcome";
    "auroc", "Chance that a success is more confident than a failure, ties half.",
        absent when "runs with a confidence do not both succeed and fail";
    "brier", "1 minus the mean squared difference of confidence and success.",
        absent when "no run has both a confidence and an outcome";
    "predictability", "Princeton's predictability.",
        absent when "`brier` is";
    "fault_robustness", "Success under faults over success without, at most 1.",
        absent when "no undisturbed run succeeds, or none was with faults";
    "structural_robustness", "Success in a changed environment over success without, at most 1.",
        absent when "no undisturbed run succeeds, or none was in another environment";
    "prompt_robustness", "Success with paraphrased prompts over success without, at most 1.",
        absent when "no undisturbed run succeeds, or none was with other words";
    "robustness", "Mean of the robustness scores that exist.",
        absent when "all of its parts are";
    "compliance", "Share of analysed runs without a broken rule.",
        absent when "no run was analysed for broken rules";
    "harm", "1 minus the mean of the worst severity, over runs that broke a rule.",
        absent when "no run was analysed for broken rules";
    "safety", "1 minus the chance of a broken rule times its severity.",
        absent when "no run was analysed for broken rules";
    "princeton_reliability", "Princeton's reliability: mean of consistency, predictability and robustness, as far as they exist.",
        absent when "all of its parts are";
    "ars", "Credal's agent reliability score, from 0 to 100; its weights and ceilings are options, as the source gives none.",
        absent when "no component has data";
};

/// Distributions.
pub(super) const TRACE_SIGNAL: Family = family(
    "agentgauge_trace_signal_score",
    Kind::Histogram,
    &["signal"],
    "Scores of traces by signal, each trace once, when it is first done.",
)
.in_full();
pub(super) const SESSION_RELIABILITY: Family = family(
    "agentgauge_session_reliability_score",
    Kind::Histogram,
    &[],
    "Reliability of sessions, each once, when it closes.",
)
.in_full();
pub(super) const SESSION_CONSISTENCY: Family = family(
    "agentgauge_session_consistency_score",
    Kind::Histogram,
    &[],
    "Consistency of sessions, each once, when it closes.",
)
.in_full();

/// A distribution of the usage of traces, and its family: under the names of the semantic conventions where they have one.
#[derive(Debug)]
pub(super) struct DistributionFamily {
    pub(super) distribution: Distribution,
    pub(super) family: Family,
}

/// The list of distributions: the name in the engine, the name of the family, and the help text.
macro_rules! taken {
    ($($distribution:ident, $name:literal, $help:literal;)*) => {
        &[$(DistributionFamily {
            distribution: Distribution::$distribution,
            family: family($name, Kind::Histogram, &[], $help).in_full(),
        },)*]
    };
}

/// All distributions of the usage of traces, exported with `metrics.detail = "full"`.
pub(super) const DISTRIBUTIONS: &[DistributionFamily] = taken! {
    Duration, "gen_ai_invoke_agent_duration_seconds",
        "Time from a trace's first start to its last end, each trace once, when it is first done.";
    ModelCalls, "gen_ai_invoke_agent_inference_calls",
        "Model calls of a trace, each trace once, when it is first done.";
    ToolCalls, "gen_ai_invoke_agent_tool_calls",
        "Tool calls of a trace, each trace once, when it is first done.";
    Tokens, "agentgauge_trace_tokens",
        "Tokens of a trace, read and written, of traces that report any, each trace once, when it is first done.";
    Cost, "agentgauge_trace_cost_usd",
        "US dollars of a trace, of traces with a known cost, each trace once, when it is first done.";
};

/// The series of a counter that are exported with the default detail.
#[derive(Clone, Copy, Debug)]
pub(super) enum InCore {
    /// None: the family is exported only with `metrics.detail = "full"`.
    Nothing,
    /// Every series.
    All,
    /// The series whose first label has this value.
    Of(&'static str),
    /// The sum of all series, without labels beside the agent's.
    Sum,
}

/// A counter of the engine and its family.
#[derive(Clone, Copy, Debug)]
pub(super) struct CounterFamily {
    pub(super) engine: Counter,
    pub(super) family: Family,
    pub(super) in_core: InCore,
    /// Label values of series that every agent has from the start, as 0: a series that begins above 0 has no `increase`.
    pub(super) zeros: &'static [&'static [&'static str]],
}

/// The list of counters: the name in the engine, the name of the family, its labels beside the agent's, what the default detail
/// exports, the help text, and the series that exist from the start, in order.
macro_rules! counters {
    ($($engine:ident, $name:literal, $labels:expr, $in_core:expr, $help:literal $(, from zero [$($zero:expr),*])?;)*) => {
        /// All counters of the engine but [`Counter::Loops`], which only the API shows. Counters belong to the process: they start
        /// at 0 and never fall.
        pub(super) const COUNTERS: &[CounterFamily] = {
            use InCore::{All, Nothing, Of, Sum};
            &[$(CounterFamily {
                engine: Counter::$engine,
                family: Family {
                    core: !matches!($in_core, Nothing),
                    ..family($name, Kind::Counter, &$labels, $help)
                },
                in_core: $in_core,
                zeros: &[$($(&$zero),*)?],
            },)*]
        };

        // Each counter of the engine is exported, once.
        const _: fn(Counter) = |counter| match counter {
            Counter::Loops $(| Counter::$engine)* => {}
        };
    };
}

counters! {
    Traces, "agentgauge_traces", [], All,
        "Done traces, each once.";
    TraceEvaluations, "agentgauge_trace_evaluations", ["signal", "verdict"], Of("trace_risk"),
        "Verdicts on traces, each trace once: pass, fail, or skipped where the signal is absent; trace_risk is the verdict on the whole trace.",
        from zero [["trace_risk", "fail"], ["trace_risk", "pass"]];
    Expectations, "agentgauge_expectations", ["layer", "result"], Nothing,
        "Results of traces against each query of `expect.files` that they answer, each once, by layer (correctness, path, retrieval, cost): skip, pass, warn or fail.";
    LoopsDetected, "agentgauge_loops_detected", ["kind", "severity", "evidence"], All,
        "Loops that reached this severity, by evidence (which of names, arguments and results were sent); counted when the trace is done with its root or sealed, for turns from log records while they run.";
    LoopWastedTokens, "agentgauge_loop_wasted_tokens", ["type", "evidence"], Nothing,
        "Tokens spent in loops for which there is more evidence than names.";
    LoopWastedCostUsd, "agentgauge_loop_wasted_cost_usd", ["evidence"], Sum,
        "US dollars spent in loops for which there is more evidence than names.",
        from zero [["arguments"], ["full"], ["results"]];
    RunLimits, "agentgauge_run_limits_exceeded", ["kind", "limit", "run"], Nothing,
        "Limits (`[limits]`) that traces and sessions exceeded, each once; counted when the trace is done with its root or sealed, for turns from log records while they run.";
    Tokens, "agentgauge_tokens", ["type"], All,
        "Tokens of model calls, every call once.";
    CostUsd, "agentgauge_cost_usd", [], All,
        "US dollars of model calls, as sent on the spans or computed from the price tables; counted when the trace is done.";
    ModelCalls, "agentgauge_model_calls", [], Nothing,
        "Model calls, every call once.";
    UnpricedCalls, "agentgauge_unpriced_model_calls", ["model"], Nothing,
        "Model calls with known tokens but no price (neither on the span, nor in `cost.prices`, nor built in), by model; counted when the trace is first done.";
    ToolCalls, "agentgauge_tool_calls", ["outcome"], All,
        "Tool calls by outcome: ok, error, or unknown where the spans do not say.";
    AdjacentToolRepeats, "agentgauge_adjacent_tool_repeats", [], Nothing,
        "Tool calls of the same name as the one before.";
    Edits, "agentgauge_edits", ["decision"], Nothing,
        "Changes to files that a coding agent proposed, by the decision of its user: accepted or rejected; counted when the trace is first done.";
    SessionsClosed, "agentgauge_sessions_closed", ["reason", "verdict"], Nothing,
        "Closed sessions, each once, and whether their reliability was at least 0.5.";
    SubAgentModelCalls, "agentgauge_sub_agent_model_calls", ["gen_ai_sub_agent_name"], Nothing,
        "Model calls by sub-agent (they also count for the outermost agent); counted when the trace is first done.";
    SubAgentToolCalls, "agentgauge_sub_agent_tool_calls", ["gen_ai_sub_agent_name"], Nothing,
        "Tool calls, likewise.";
    SubAgentErrors, "agentgauge_sub_agent_errors", ["gen_ai_sub_agent_name"], Nothing,
        "Model and tool calls that failed, likewise.";
    SubAgentLoops, "agentgauge_sub_agent_loops", ["gen_ai_sub_agent_name"], Nothing,
        "Loops of tool calls within a trace, likewise.";
    SubAgentTokens, "agentgauge_sub_agent_tokens", ["gen_ai_sub_agent_name", "type"], Nothing,
        "Tokens of model calls, likewise.";
    SubAgentCostUsd, "agentgauge_sub_agent_cost_usd", ["gen_ai_sub_agent_name"], Nothing,
        "US dollars of model calls, likewise.";
    GateBreaches, "agentgauge_trajectory_gate_breaches", ["signal", "breach"], Nothing,
        "Stalls and regressions of a signal along a session.";
}
