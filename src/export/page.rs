//! The document about all metrics, written from the families and the head comments of the files that compute them.

use std::fmt::Write;

use super::families::{self, Family, Kind};
use super::samples::families;
use crate::engine::signal::SIGNALS;
use crate::registry::OwnFamilies;

const HEAD: &str = "\
# What is measured

Written by `agentgauge metrics` from the source; a test fails when it is stale.

Every family of agents has the labels `service_name`, `gen_ai_agent_name`, `gen_ai_agent_version` and `deployment_environment_name` (and
`tenant`, where there are tenants), and those in the table. Scores are in `[0,1]` (those of ARS in `[0,100]`); higher is better. What could not be measured is absent: a score without data
has no series, and sample sizes have families of their own. Windows are those of `agents.windows`, the last
`agents.last_traces` traces or runs (`last_50`), and, for scores over runs, `all`. Families marked *full* are exported only with
`metrics.detail = \"full\"`. The default detail has only the signal `trace_risk` of `agentgauge_trace_evaluations_total`, and
`agentgauge_loop_wasted_cost_usd_total` without the label `evidence`. In the default detail an agent has at most 41 series while one
of its streams drops and its loops are of one kind; a thousand agents, a tenth of them in this state and with names of a dozen
letters, are a page of 4 MiB. A label without a value is left out.

## Families
";

const OWN_HEAD: &str = "
## The daemon itself

Families about the daemon, without the labels of an agent. Those with an option have series only where it is set. A counter has a
series once it counts something, so an absent counter is 0. Units are in the names: bytes, seconds, US dollars (`_usd`); a name
without a unit is a number of things.

| Family | Type | Labels | Meaning | With |
|---|---|---|---|---|
";

const SIGNALS_HEAD: &str = "
## Signals

One number per trace. A score that is reported under any other name is a signal too.

| Signal | Meaning |
|---|---|
";

const FORMULAS: &str = "
## Formulas

The heads of the files that compute them.
";

/// A file that computes exported values: its title and its text.
struct Source {
    title: &'static str,
    text: &'static str,
}

macro_rules! sources {
    ($($title:literal => $file:literal),* $(,)?) => {
        &[$(Source { title: $title, text: include_str!(concat!("../../engine/src/", $file)) }),*]
    };
}

/// All files that compute exported values.
const SOURCES: &[Source] = sources! {
    "agent_reliability" => "score/agent_reliability.rs",
    "agent_consistency" => "score/agent_consistency.rs",
    "risk of a trace" => "score/risk.rs",
    "trajectory gate" => "score/trajectory_gate.rs",
    "argument_correctness" => "signal/argument_correctness.rs",
    "coherence" => "signal/coherence.rs",
    "confidence" => "signal/confidence.rs",
    "error" => "signal/error.rs",
    "loop_detection" => "signal/loop_detection.rs",
    "outcome" => "signal/outcome.rs",
    "tool_loop" => "signal/tool_loop.rs",
    "tool_success" => "signal/tool_success.rs",
    "thresholds and bands of signals" => "signal/thresholds.rs",
    "error_retry" => "loops/error_retry.rs",
    "exact_repeat" => "loops/exact_repeat.rs",
    "near_repeat" => "loops/near_repeat.rs",
    "cycle" => "loops/cycle.rs",
    "reported" => "loops/reported.rs",
    "run limits" => "limits.rs",
    "runs" => "runs.rs",
    "Princeton's agent reliability" => "score/princeton/mod.rs",
    "outcome_consistency" => "score/princeton/outcome.rs",
    "trajectory consistency" => "score/princeton/trajectory.rs",
    "confidence_consistency" => "score/princeton/confidence.rs",
    "resource_consistency" => "score/princeton/resource.rs",
    "brier, auroc" => "score/princeton/predictability.rs",
    "calibration" => "score/princeton/calibration.rs",
    "risk_coverage" => "score/princeton/risk_coverage.rs",
    "robustness" => "score/princeton/robustness.rs",
    "compliance, harm, safety" => "score/princeton/safety.rs",
    "aggregates" => "score/princeton/aggregate.rs",
    "pass^k" => "score/princeton/pass_hat_k.rs",
    "ars" => "score/ars/mod.rs",
    "drops" => "detect/mod.rs",
    "usual gap" => "drops/gaps.rs",
    "stalled traces" => "silences.rs",
    "version difference" => "drift/sequential.rs",
};

/// Example queries of families, by the beginning of their names; the first match is used.
const QUERIES: &[(&str, &str)] = &[
    (
        "agentgauge_agent_reliability_score",
        "agentgauge_agent_reliability_score{window=\"1h\"} < 0.8 * avg_over_time(agentgauge_agent_reliability_score{window=\"1h\"}[7d])",
    ),
    ("agentgauge_agent_window_", "agentgauge_agent_window_traces{window=\"1h\"} >= 20"),
    ("agentgauge_agent_pass_hat_k", "agentgauge_agent_pass_hat_k_score{k=\"4\",window=\"all\"}"),
    ("agentgauge_agent_drop", "agentgauge_agent_drop{severity=\"critical\"} == 1"),
    (
        "agentgauge_sessions_in_loops",
        "sum by (gen_ai_agent_name) (agentgauge_sessions_in_loops) > 0",
    ),
    ("agentgauge_sessions_over_limit", "sum by (limit, run) (agentgauge_sessions_over_limit) > 0"),
    (
        "agentgauge_trace_evaluations",
        "sum by (gen_ai_agent_name) (rate(agentgauge_trace_evaluations_total{signal=\"trace_risk\",verdict=\"fail\"}[1h]))",
    ),
];

/// The page, as Markdown, with the daemon's own families.
pub fn page(own: &[OwnFamilies]) -> String {
    let mut page = String::from(HEAD);
    page.push_str("\n| Family | Type | Labels | Meaning |\n|---|---|---|---|\n");
    for family in families() {
        row(&mut page, family);
    }
    page.push_str(
        "\nA score over runs is absent when:\n\n| Score | Absent when | Example |\n|---|---|---|\n",
    );
    for score in families::SCORES {
        let example = format!("{}{{window=\"1h\"}}", score.family.name);
        line(
            &mut page,
            format_args!("| `{}` | {} | `{example}` |", score.score, score.absent_when),
        );
    }
    page.push_str("\nQueries to start from:\n\n```promql\n");
    for (_, query) in QUERIES {
        line(&mut page, format_args!("{query}"));
    }
    page.push_str("```\n");
    page.push_str(OWN_HEAD);
    own.iter().for_each(|own| own_rows(&mut page, own));
    page.push_str(SIGNALS_HEAD);
    for signal in SIGNALS {
        line(&mut page, format_args!("| `{}` | {}. |", signal.name, signal.doc));
    }
    page.push_str(FORMULAS);
    for source in SOURCES {
        line(&mut page, format_args!("\n### {}\n", source.title));
        for text in source.text.lines().map_while(|line| line.strip_prefix("//!")) {
            // Headings of the file become plain lines, as they are no headings of the page.
            let text = text.strip_prefix(' ').unwrap_or(text);
            // Links to items of the code lead nowhere from the page.
            let text = text.trim_start_matches("# ").replace("[`", "`").replace("`]", "`");
            line(&mut page, format_args!("{text}"));
        }
    }
    page
}

fn row(page: &mut String, family: &Family) {
    let (kind, suffix) = match family.kind {
        Kind::Gauge => ("gauge", ""),
        Kind::Counter => ("counter", "_total"),
        Kind::Histogram => ("histogram", ""),
    };
    let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
    let full = if family.core { "" } else { " *full*" };
    line(
        page,
        format_args!(
            "| `{}{suffix}` | {kind} | {} | {}{full} |",
            family.name,
            labels.join(", "),
            family.help
        ),
    );
}

fn own_rows(page: &mut String, own: &OwnFamilies) {
    for family in &own.families {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, labels, help) =
            (&family.name, family.kind, labels.join(", "), &family.help);
        let with = if own.with.is_empty() { String::new() } else { format!("`{}`", own.with) };
        line(page, format_args!("| `{name}` | {kind} | {labels} | {help} | {with} |"));
    }
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(page, "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::loops::LoopKind;

    #[test]
    fn the_formula_of_every_computed_signal_and_found_loop_is_told() {
        let computed = SIGNALS.iter().filter(|signal| signal.computed.is_some());
        let found = LoopKind::ALL.iter().filter(|kind| kind.has_thresholds());
        let names = computed.map(|signal| signal.name).chain(found.map(|kind| kind.name()));
        for name in names {
            assert!(SOURCES.iter().any(|source| source.title == name), "{name}");
        }
    }

    #[test]
    fn the_page_does_not_refer_to_the_code() {
        let page = page(&[]);
        for code in ["[`", "`]", ".rs`", " a file."] {
            assert!(!page.contains(code), "{code}");
        }
    }

    #[test]
    fn every_kind_of_loop_has_its_words_for_people() {
        let page = include_str!("web/problems.js");
        let options = include_str!("../../config/agentgauge.toml");
        let of_kinds =
            options.lines().find(|line| line.starts_with("# Thresholds of single kinds"));
        for kind in LoopKind::ALL {
            assert!(page.contains(&format!(" {kind}: \"")), "{kind} in web/problems.js");
            let is_listed = of_kinds.unwrap().contains(kind.name());
            assert_eq!(is_listed, kind.has_thresholds(), "{kind} in config/agentgauge.toml");
        }
    }

    #[test]
    fn every_example_is_of_a_family() {
        for (start, query) in QUERIES {
            assert!(query.contains(start));
            assert!(families().any(|family| family.name.starts_with(start)), "{start}");
        }
    }
}
