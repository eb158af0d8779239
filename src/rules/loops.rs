//! Loops, their cost, and runs that exceed a limit.

use super::{
    AGENT, Alert, BY_COST, Group, NAME, NAME_IF_KNOWN, Plan, Rule, grown, looked_up, number,
};

/// The alerts that must fire at once.
pub(super) fn group(plan: &Plan) -> Group {
    Group {
        name: "agentgauge-loops",
        interval: "15s",
        rules: vec![
            looping("critical", None),
            looping("warning", Some("critical")),
            spend(plan),
            limit(),
        ],
    }
}

/// The number of looping sessions of agents with a loop of this severity and none that is worse. It counts each session once: the
/// series by kind count a session under each of its loops.
fn looping(severity: &str, worse: Option<&str>) -> Rule {
    let have = |severity: &str| {
        format!(
            "sum by ({AGENT}) (agentgauge_sessions_looping{{evidence!=\"names\",severity=\"{severity}\"}}) > 0"
        )
    };
    let mut expr =
        format!("sum by ({AGENT}) (agentgauge_sessions_in_loops)\nand {}", have(severity));
    if let Some(worse) = worse {
        expr.push_str("\nunless ");
        expr.push_str(&have(worse));
    }
    let of = "{{ $of := printf \"service_name=%q,gen_ai_agent_name=%q,deployment_environment_name=%q,tenant=%q,evidence!=%q\" \
              $labels.service_name $labels.gen_ai_agent_name $labels.deployment_environment_name $labels.tenant \"names\" }}";
    let kinds = looked_up(
        "count by (kind) (agentgauge_sessions_looping{%s} > 0)",
        " ({{ range $at, $one := . | sortByLabel \"kind\" }}{{ if $at }}, {{ end }}{{ label \"kind\" $one }}{{ end }})",
    );
    Alert::new("AgentSessionLooping", severity, expr)
        .explained_by("loops")
        .says(
            &format!("{of}{{{{ $value }}}} session(s) of {NAME_IF_KNOWN} loop now{kinds}"),
            "Tool calls repeat without progress, now or within the last minutes. The severity is that of the longest loop.",
        )
        .into()
}

fn limit() -> Rule {
    let expr = format!("sum by ({AGENT}, kind, limit, run) (agentgauge_sessions_over_limit) > 0");
    Alert::new("AgentRunLimit", "critical", expr)
        .held("5m")
        .explained_by("recent&over_limit=true")
        .says(
            &format!(
                "{{{{ $value }}}} session(s) of {NAME_IF_KNOWN} went over a limit ({{{{ $labels.limit }}}} of a {{{{ $labels.run }}}})"
            ),
            "A limit of [limits] in the configuration is exceeded by a run that is still growing, or was within the last five minutes. \
             It is no loop: nothing repeats.",
        )
        .into()
}

fn spend(plan: &Plan) -> Rule {
    const SPENT: &str = "agentgauge_loop_wasted_cost_usd_total";
    let limit = number(plan.loop_spend);
    let spent = grown(SPENT, "evidence", "15m");
    let expr = format!("sum by ({AGENT}) (\n{spent}\n) > {limit}");
    Alert::new("AgentLoopSpend", "critical", expr)
        .explained_by(BY_COST)
        .says(
            &format!("Loops of {NAME} cost {{{{ $value | printf \"$%.2f\" }}}} in 15 minutes"),
            &format!("More than ${limit} went into model calls inside tool loops."),
        )
        .into()
}
