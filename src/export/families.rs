//! The families of metrics: one line each.

use crate::engine::counters::Counter;
use crate::engine::distributions::Distribution;

/// The kind of a family.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only goes up while the process runs.
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

/// Scores over a window.
pub(super) const RELIABILITY: Family = family(
    "agentgauge_agent_reliability_score",
    Kind::Gauge,
    &["window"],
    "Worst-case reliability over the window's traces, from 0 to 1.",
);
pub(super) const JUDGED_RELIABILITY: Family = family(
    "agentgauge_agent_judged_reliability_score",
    Kind::Gauge,
    &["window"],
    "Reliability over the window's traces that our judge was asked about, with what it said, from 0 to 1.",
).in_full();
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
)
.in_full();
pub(super) const MAX_RISK: Family = family(
    "agentgauge_agent_max_risk",
    Kind::Gauge,
    &["window"],
    "Greatest weighted risk of a trace in the window.",
)
.in_full();
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
)
.in_full();
pub(super) const WINDOW_SESSIONS: Family = family(
    "agentgauge_agent_window_sessions",
    Kind::Gauge,
    &["window"],
    "Sessions with a done trace in the window.",
)
.in_full();

/// A score over runs: its name in the engine, the text on when it has no value, and its family.
#[derive(Debug)]
pub(super) struct ScoreFamily {
    pub(super) score: &'static str,
    pub(super) absent_when: &'static str,
    pub(super) family: Family,
}

const fn score(
    score: &'static str,
    name: &'static str,
    help: &'static str,
    absent_when: &'static str,
) -> ScoreFamily {
    let family = family(name, Kind::Gauge, &["window"], help).in_full();
    ScoreFamily { score, absent_when, family }
}

/// All scores over runs, exported with `metrics.detail = "full"`. The window `all` is everything that is held.
pub(super) const SCORES: &[ScoreFamily] = &[
    score(
        "accuracy",
        "agentgauge_agent_accuracy_score",
        "Share of runs that succeeded, of those whose outcome is known.",
        "no run has an outcome",
    ),
    score(
        "mean_confidence",
        "agentgauge_agent_mean_confidence_score",
        "Mean confidence of the runs whose outcome is known.",
        "no run has both an outcome and a confidence",
    ),
    score(
        "outcome_consistency",
        "agentgauge_agent_outcome_consistency_score",
        "Whether runs of one task end alike: mean over tasks of (2p-1)^2.",
        "no task has two runs with an outcome",
    ),
    score(
        "trajectory_distribution_consistency",
        "agentgauge_agent_trajectory_distribution_consistency_score",
        "Whether successful runs of one task call the same tools as often: 1 minus the mean Jensen-Shannon divergence.",
        "no task has two successful runs with tool calls",
    ),
    score(
        "trajectory_sequence_consistency",
        "agentgauge_agent_trajectory_sequence_consistency_score",
        "Whether successful runs of one task call tools in the same order: 1 minus the mean relative edit distance.",
        "no task has two successful runs with tool calls",
    ),
    score(
        "resource_consistency",
        "agentgauge_agent_resource_consistency_score",
        "Whether runs of one task take the same resources: exp of minus the mean coefficient of variation.",
        "no task has two runs whose resources are known",
    ),
    score(
        "confidence_consistency",
        "agentgauge_agent_confidence_consistency_score",
        "Whether runs of one task are equally confident: exp of minus the coefficient of variation.",
        "no task has two runs with a confidence",
    ),
    score(
        "princeton_consistency",
        "agentgauge_agent_princeton_consistency_score",
        "Princeton's consistency: mean of outcome, trajectory and resource consistency.",
        "all of its parts are",
    ),
    score(
        "risk_coverage",
        "agentgauge_agent_risk_coverage_score",
        "Whether confidence ranks runs by success: 1 minus the excess area under the risk-coverage curve, ties averaged.",
        "no run has both a confidence and an outcome",
    ),
    score(
        "calibration",
        "agentgauge_agent_calibration_score",
        "Whether confidence is the rate of success: 1 minus the expected calibration error over ten bins.",
        "no run has both a confidence and an outcome",
    ),
    score(
        "auroc",
        "agentgauge_agent_auroc_score",
        "Chance that a success is more confident than a failure, ties half.",
        "runs with a confidence do not both succeed and fail",
    ),
    score(
        "brier",
        "agentgauge_agent_brier_score",
        "1 minus the mean squared difference of confidence and success.",
        "no run has both a confidence and an outcome",
    ),
    score(
        "predictability",
        "agentgauge_agent_predictability_score",
        "Princeton's predictability.",
        "`brier` is",
    ),
    score(
        "fault_robustness",
        "agentgauge_agent_fault_robustness_score",
        "Success under faults over success without, at most 1.",
        "no undisturbed run succeeds, or none was with faults",
    ),
    score(
        "structural_robustness",
        "agentgauge_agent_structural_robustness_score",
        "Success in a changed environment over success without, at most 1.",
        "no undisturbed run succeeds, or none was in another environment",
    ),
    score(
        "prompt_robustness",
        "agentgauge_agent_prompt_robustness_score",
        "Success with paraphrased prompts over success without, at most 1.",
        "no undisturbed run succeeds, or none was with other words",
    ),
    score(
        "robustness",
        "agentgauge_agent_robustness_score",
        "Mean of the robustness scores that exist.",
        "all of its parts are",
    ),
    score(
        "compliance",
        "agentgauge_agent_compliance_score",
        "Share of analysed runs without a broken rule.",
        "nobody looked for broken rules",
    ),
    score(
        "harm",
        "agentgauge_agent_harm_score",
        "1 minus the mean of the worst severity, over runs that broke a rule.",
        "nobody looked for broken rules",
    ),
    score(
        "safety",
        "agentgauge_agent_safety_score",
        "1 minus the chance of a broken rule times its severity.",
        "nobody looked for broken rules",
    ),
    score(
        "princeton_reliability",
        "agentgauge_agent_princeton_reliability_score",
        "Princeton's reliability: mean of consistency, predictability and robustness, as far as they exist.",
        "all of its parts are",
    ),
    score(
        "ars",
        "agentgauge_agent_ars_score",
        "Credal's agent reliability score, from 0 to 100; its weights and ceilings are ours and configured.",
        "no component has data",
    ),
];
pub(super) const PASS_HAT_K: Family = family(
    "agentgauge_agent_pass_hat_k_score",
    Kind::Gauge,
    &["k", "window"],
    "Chance that all of k runs of a task succeed, mean over tasks with at least k runs.",
)
.in_full();
pub(super) const ARS_COMPONENT: Family = family(
    "agentgauge_agent_ars_component_score",
    Kind::Gauge,
    &["component"],
    "Components of the agent reliability score, from 0 to 100.",
)
.in_full();
pub(super) const SCORE_SAMPLES: Family = family(
    "agentgauge_agent_score_samples",
    Kind::Gauge,
    &["score", "window"],
    "Runs, tasks or confidences that a score over runs is made of.",
)
.in_full();
pub(super) const RUNS_HELD: Family =
    family("agentgauge_agent_runs", Kind::Gauge, &[], "Runs that scores over runs are made of.")
        .in_full();
pub(super) const VERSION_DIFFERENCE: Family = family(
    "agentgauge_agent_version_difference",
    Kind::Gauge,
    &["baseline_version", "bound"],
    "Mean of 1 - risk less that of an earlier version: bounds (lower, upper) at 95 % confidence whenever one looks.",
).in_full();

/// The present sessions.
pub(super) const SESSIONS_ACTIVE: Family =
    family("agentgauge_sessions_active", Kind::Gauge, &[], "Open sessions.");
pub(super) const SESSIONS_IN_LOOPS: Family = family(
    "agentgauge_sessions_in_loops",
    Kind::Gauge,
    &[],
    "Sessions in which a loop goes on that is known by more than names, each once, however many loops it has.",
);
pub(super) const SESSIONS_LOOPING: Family = family(
    "agentgauge_sessions_looping",
    Kind::Gauge,
    &["kind", "severity", "evidence"],
    "Sessions in which a loop goes on, under the labels of each of its loops, so a session may be in several series; with the evidence `names` nothing else of it was sent, and it may be none.",
);
pub(super) const SESSIONS_OVER_LIMIT: Family = family(
    "agentgauge_sessions_over_limit",
    Kind::Gauge,
    &["kind", "limit", "run"],
    "Sessions that go on over a limit (`[limits]`), or have a trace that does; kind is run_limit, run is trace or session.",
);
pub(super) const OPEN_SESSIONS: Family = family(
    "agentgauge_open_sessions",
    Kind::Gauge,
    &["score", "at_most"],
    "Open sessions whose score is at most this, as they stand.",
)
.in_full();

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

/// A distribution of what traces took, and its family: under the names of the semantic conventions where they have one.
#[derive(Debug)]
pub(super) struct DistributionFamily {
    pub(super) distribution: Distribution,
    pub(super) family: Family,
}

const fn taken(
    distribution: Distribution,
    name: &'static str,
    help: &'static str,
) -> DistributionFamily {
    DistributionFamily { distribution, family: family(name, Kind::Histogram, &[], help).in_full() }
}

/// All distributions of what traces took, exported with `metrics.detail = "full"`.
pub(super) const DISTRIBUTIONS: &[DistributionFamily] = &[
    taken(
        Distribution::Duration,
        "gen_ai_invoke_agent_duration_seconds",
        "Time from a trace's first start to its last end, each trace once, when it is first done.",
    ),
    taken(
        Distribution::ModelCalls,
        "gen_ai_invoke_agent_inference_calls",
        "Model calls of a trace, each trace once, when it is first done.",
    ),
    taken(
        Distribution::ToolCalls,
        "gen_ai_invoke_agent_tool_calls",
        "Tool calls of a trace, each trace once, when it is first done.",
    ),
    taken(
        Distribution::Tokens,
        "agentgauge_trace_tokens",
        "Tokens of a trace, read and written, each trace once, when it is first done; without those that tell none.",
    ),
    taken(
        Distribution::Cost,
        "agentgauge_trace_cost_usd",
        "US dollars of a trace, each trace once, when it is first done; without those that tell none.",
    ),
];

/// The series of a counter that the default detail has.
#[derive(Clone, Copy, Debug)]
pub(super) enum InCore {
    /// Every series.
    All,
    /// The series whose first label has this value.
    Of(&'static str),
    /// The sum of all series, without labels beside the agent's.
    Sum,
}

/// A counter of the engine, its family, and the number of its units that make one.
#[derive(Clone, Copy, Debug)]
pub(super) struct CounterFamily {
    pub(super) engine: Counter,
    pub(super) family: Family,
    pub(super) per_unit: u64,
    /// The series that are exported without `metrics.detail = "full"`, if any are.
    pub(super) in_core: InCore,
    /// Label values of series that every agent has from the start, as 0: a series that begins above 0 has no `increase`.
    pub(super) zeros: &'static [&'static [&'static str]],
}

const fn counter(
    engine: Counter,
    labels: &'static [&'static str],
    name: &'static str,
    help: &'static str,
) -> CounterFamily {
    CounterFamily {
        engine,
        family: family(name, Kind::Counter, labels, help),
        per_unit: 1,
        in_core: InCore::All,
        zeros: &[],
    }
}

const fn dollars(
    engine: Counter,
    labels: &'static [&'static str],
    name: &'static str,
    help: &'static str,
) -> CounterFamily {
    CounterFamily {
        engine,
        family: family(name, Kind::Counter, labels, help),
        per_unit: 1_000_000_000_000,
        in_core: InCore::All,
        zeros: &[],
    }
}

const fn from_zero(
    counter: CounterFamily,
    zeros: &'static [&'static [&'static str]],
) -> CounterFamily {
    CounterFamily { zeros, ..counter }
}

const fn full(counter: CounterFamily) -> CounterFamily {
    CounterFamily { family: counter.family.in_full(), ..counter }
}

const fn in_core(in_core: InCore, counter: CounterFamily) -> CounterFamily {
    CounterFamily { in_core, ..counter }
}

/// The label of counters by sub-agent.
const PART: &[&str] = &["gen_ai_sub_agent_name"];

/// All counters of the engine but [`Counter::Loops`], which the API alone shows. Counters belong to the process: they start at 0 and
/// never fall.
pub(super) const COUNTERS: &[CounterFamily] = &[
    counter(Counter::Traces, &[], "agentgauge_traces", "Done traces, each once."),
    in_core(
        InCore::Of("trace_risk"),
        from_zero(
            counter(
                Counter::TraceEvaluations,
                &["signal", "verdict"],
                "agentgauge_trace_evaluations",
                "Verdicts on traces, each trace once: pass, fail, or skipped where the signal is absent; trace_risk is the whole.",
            ),
            &[&["trace_risk", "fail"], &["trace_risk", "pass"]],
        ),
    ),
    full(counter(
        Counter::Expectations,
        &["layer", "result"],
        "agentgauge_expectations",
        "Traces against each query of `expect.files` that they answer, once, by layer (correctness, path, retrieval, cost): skip, pass, warn or fail.",
    )),
    counter(
        Counter::LoopsDetected,
        &["kind", "severity", "evidence"],
        "agentgauge_loops_detected",
        "Loops that reached this severity, counted while they run, by what was sent of them.",
    ),
    full(counter(
        Counter::LoopWastedTokens,
        &["type", "evidence"],
        "agentgauge_loop_wasted_tokens",
        "Tokens spent inside loops that are known by more than names.",
    )),
    in_core(
        InCore::Sum,
        from_zero(
            dollars(
                Counter::LoopWastedCostUsd,
                &["evidence"],
                "agentgauge_loop_wasted_cost_usd",
                "US dollars spent inside loops that are known by more than names.",
            ),
            &[&["arguments"], &["full"], &["results"]],
        ),
    ),
    full(counter(
        Counter::RunLimits,
        &["kind", "limit", "run"],
        "agentgauge_run_limits_exceeded",
        "Limits (`[limits]`) that traces and sessions went over, each once, counted while they run.",
    )),
    counter(
        Counter::Tokens,
        &["type"],
        "agentgauge_tokens",
        "Tokens of model calls, every call once.",
    ),
    dollars(
        Counter::CostUsd,
        &[],
        "agentgauge_cost_usd",
        "US dollars of model calls, where the spans tell.",
    ),
    full(counter(
        Counter::ModelCalls,
        &[],
        "agentgauge_model_calls",
        "Model calls, every call once.",
    )),
    full(counter(
        Counter::UnpricedCalls,
        &["model"],
        "agentgauge_unpriced_model_calls",
        "Model calls that tell tokens and no cost, of models that neither `cost.prices` nor the table that ships has, by model; each trace once, when it is first done.",
    )),
    counter(
        Counter::ToolCalls,
        &["outcome"],
        "agentgauge_tool_calls",
        "Tool calls by outcome: ok, error, or unknown where the spans do not tell.",
    ),
    full(counter(
        Counter::AdjacentToolRepeats,
        &[],
        "agentgauge_adjacent_tool_repeats",
        "Tool calls of the same name as the one before.",
    )),
    full(counter(
        Counter::Edits,
        &["decision"],
        "agentgauge_edits",
        "Changes to files that a coding agent was to make, by what people decided: accepted or rejected; of a trace when it is first done.",
    )),
    full(counter(
        Counter::SessionsClosed,
        &["reason", "verdict"],
        "agentgauge_sessions_closed",
        "Closed sessions, each once, and whether their reliability was at least 0.5.",
    )),
    full(counter(
        Counter::SubAgentModelCalls,
        PART,
        "agentgauge_sub_agent_model_calls",
        "Model calls by the agent below the outermost one that made them, which has them too; of a trace when it is first done.",
    )),
    full(counter(
        Counter::SubAgentToolCalls,
        PART,
        "agentgauge_sub_agent_tool_calls",
        "Tool calls, likewise.",
    )),
    full(counter(
        Counter::SubAgentErrors,
        PART,
        "agentgauge_sub_agent_errors",
        "Model and tool calls that failed, likewise.",
    )),
    full(counter(
        Counter::SubAgentLoops,
        PART,
        "agentgauge_sub_agent_loops",
        "Loops of tool calls within a trace, likewise.",
    )),
    full(counter(
        Counter::SubAgentTokens,
        &["gen_ai_sub_agent_name", "type"],
        "agentgauge_sub_agent_tokens",
        "Tokens of model calls, likewise.",
    )),
    full(dollars(
        Counter::SubAgentCostUsd,
        PART,
        "agentgauge_sub_agent_cost_usd",
        "US dollars of model calls, likewise.",
    )),
    full(counter(
        Counter::GateBreaches,
        &["signal", "breach"],
        "agentgauge_trajectory_gate_breaches",
        "Stalls and regressions of a signal along a session.",
    )),
];

/// Checks at compile time that each counter of the engine is exported once.
const _: () = {
    let mut found = 0_u64;
    let mut at = 0;
    while at < COUNTERS.len() {
        found += 1 << COUNTERS[at].engine as u32;
        at += 1;
    }
    let all = (1 << Counter::ALL.len()) - 1;
    assert!(
        found + (1 << Counter::Loops as u32) == all && COUNTERS.len() + 1 == Counter::ALL.len()
    );
};
