//! Agents: loops, what they cost, and scores against the agent's own past.
//!
//! ```text
//! worst(t) = least score of the agent's versions with enough traces in the window
//! drop     if worst < mean(past) - 3 standard deviations(past) - drop, past = 7 d that end 1 h ago
//! ```
//!
//! The worst-case score of a healthy agent sits anywhere below 1, so it is held against its own past and never against a
//! fixed number. A past of less than three hours says nothing.

use super::{AGENT, Alert, Group, NAME, Plan, Rule, number};

/// What must be told at once.
pub(super) fn loops(plan: &Plan) -> Group {
    Group { name: "agentgauge-loops", interval: "15s", rules: vec![looping(), spend(plan)] }
}

/// Scores against their past.
pub(super) fn scores(plan: &Plan) -> Group {
    let mut rules = drop(plan, &RELIABILITY);
    rules.extend(drop(plan, &CONSISTENCY));
    rules.extend([change_point(), version()]);
    // The past of a score is read anew each time; three minutes keep that cheap, and are shorter than the five that
    // Prometheus looks back.
    Group { name: "agentgauge-scores", interval: "3m", rules }
}

/// Evaluations without which there is no past: three hours.
const LEAST_PAST: u32 = 60;

/// A score that is held against its past.
struct Score {
    name: &'static str,
    alert: &'static str,
}

const RELIABILITY: Score = Score { name: "reliability", alert: "AgentReliabilityDrop" };
const CONSISTENCY: Score = Score { name: "consistency", alert: "AgentConsistencyDrop" };

fn looping() -> Rule {
    let expr = format!("sum by ({AGENT}, kind, severity) (agentgauge_sessions_looping) > 0");
    let mut alert = Alert::new("AgentSessionLooping", "", expr).explained_by("loops").says(
        &format!("{{{{ $value }}}} session(s) of {NAME} loop now ({{{{ $labels.kind }}}})"),
        "Tool calls repeat without getting anywhere, in sessions that are still running. The severity is that of the \
         longest such loop.",
    );
    // That of the loop stands in the series.
    alert.labels.clear();
    alert.into()
}

fn spend(plan: &Plan) -> Rule {
    let limit = number(plan.loop_spend);
    let expr = format!(
        "sum by ({AGENT}) (increase(agentgauge_loop_wasted_cost_usd_total[15m])) > {limit}"
    );
    Alert::new("AgentLoopSpend", "critical", expr)
        .explained_by("cost")
        .says(
            &format!("Loops of {NAME} cost {{{{ $value | printf \"$%.2f\" }}}} in 15 minutes"),
            &format!("More than ${limit} went into model calls inside tool loops."),
        )
        .into()
}

fn drop(plan: &Plan, score: &Score) -> Vec<Rule> {
    let (name, window) = (score.name, &plan.window);
    let level = format!("service_agent:agentgauge_agent_{name}_score:min{window}");
    let (mean, deviation) = (format!("{level}_mean7d"), format!("{level}_stddev7d"));
    let past = format!("{level}[7d] offset 1h");
    let record = |record: &str, expr: String| Rule::Record {
        record: record.to_owned(),
        expr,
        labels: Vec::new(),
    };
    let enough = format!(
        "and ignoring (score)\nagentgauge_agent_window_traces_evaluated{{score=\"{name}\",window=\"{window}\"}} >= {}",
        plan.least_traces
    );
    let current = format!(
        "min by ({AGENT}) (\nagentgauge_agent_{name}_score{{window=\"{window}\"}}\n{enough}\n)"
    );
    let known = format!("avg_over_time({past})\nand\ncount_over_time({past}) >= {LEAST_PAST}");
    let expr = format!("{level}\n<\n{mean} - 3 * {deviation} - {}", number(plan.drop));
    let alert = Alert::new(score.alert, "warning", expr)
        .lasting("6m")
        .explained_by("reliability")
        .says(
            &format!("The {name} of {NAME} fell to {{{{ $value | printf \"%.3f\" }}}}"),
            &format!(
                "Over the last {window} it is far below what it was in the seven days before, for the worst of the \
                 agent's versions with at least {} traces.",
                plan.least_traces
            ),
        );
    vec![
        record(&level, current),
        record(&mean, known),
        record(&deviation, format!("stddev_over_time({past})")),
        alert.into(),
    ]
}

fn change_point() -> Rule {
    let newest = "agentgauge_score_change_point_timestamp_seconds{direction=\"down\"}";
    let expr = format!("time() - max by ({AGENT}, gen_ai_agent_version, score) ({newest}) < 3600");
    Alert::new("AgentScoreChangePoint", "warning", expr)
        .explained_by("reliability")
        .says(
            &format!("{{{{ $labels.score }}}} of {NAME} shifted down"),
            "The level of the score changed {{ $value | humanizeDuration }} ago, in version \
             {{ $labels.gen_ai_agent_version }}; `change_points` of the agent in the API has the levels before and after.",
        )
        .into()
}

fn version() -> Rule {
    let upper = "agentgauge_agent_version_difference{bound=\"upper\"}";
    let expr = format!("max by ({AGENT}, gen_ai_agent_version, baseline_version) ({upper}) < 0");
    Alert::new("AgentVersionWorse", "warning", expr)
        .lasting("6m")
        .explained_by("reliability")
        .says(
            &format!(
                "Version {{{{ $labels.gen_ai_agent_version }}}} of {NAME} is worse than {{{{ $labels.baseline_version }}}}"
            ),
            "The mean of 1 - risk is lower by at least {{ $value | printf \"%.3f\" }}, at 95 % confidence however often one \
             looks.",
        )
        .into()
}
