//! Loops, what they cost, and runs that go over a limit.

use super::{AGENT, Alert, Group, NAME, NAME_IF_KNOWN, Plan, Rule, number};

/// The alerts that must fire at once.
pub(super) fn group(plan: &Plan) -> Group {
    Group {
        name: "agentgauge-loops",
        interval: "15s",
        rules: vec![looping(), spend(plan), limit()],
    }
}

fn looping() -> Rule {
    let expr = format!(
        "sum by ({AGENT}, kind, severity) (agentgauge_sessions_looping{{evidence!=\"names\"}}) > 0"
    );
    let mut alert = Alert::new("AgentSessionLooping", "", expr).explained_by("loops").says(
        &format!("{{{{ $value }}}} session(s) of {NAME_IF_KNOWN} loop now ({{{{ $labels.kind }}}})"),
        "Tool calls repeat without getting anywhere, now or within the last minutes. The severity is that of the \
         longest such loop.",
    );
    // The series has the loop's severity as a label.
    alert.labels.clear();
    alert.into()
}

fn limit() -> Rule {
    let expr = format!("sum by ({AGENT}, kind, limit, run) (agentgauge_sessions_over_limit) > 0");
    Alert::new("AgentRunLimit", "critical", expr)
        .explained_by("cost")
        .says(
            &format!(
                "{{{{ $value }}}} session(s) of {NAME_IF_KNOWN} went over a limit ({{{{ $labels.limit }}}} of a {{{{ $labels.run }}}})"
            ),
            "What went over it goes on, now or within the last minutes, though nothing repeats that would be a loop. The limit is that \
             of [limits] in the configuration.",
        )
        .into()
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
