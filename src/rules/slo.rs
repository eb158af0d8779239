//! Error budgets: multi-window, multi-burn-rate alerts over verdicts on traces.
//!
//! ```text
//! bad(w)  = failed traces / judged traces, over the window w
//! budget  = 1 - objective
//! alert   if bad(long) > rate * budget and bad(short) > rate * budget and judged(long) >= least traces
//! ```
//!
//! Source: Google, The Site Reliability Workbook, "Alerting on SLOs", 6. Departures: a guard on the number of traces, as agents
//! have far fewer of them than services have requests; and rates that a budget cannot reach are refused, which is `rate *
//! budget >= 1`: agents' objectives are lower than services'.

use std::str::FromStr;

use super::{AGENT, Alert, Group, NAME, Plan, Rule, RulesError, number};

/// A share of traces that should pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    name: String,
    share: f64,
}

/// How fast a budget may burn over the hour and over six hours, in budgets per period of the objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurnRates {
    fast: f64,
    slow: f64,
}

impl FromStr for Objective {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "write `reliability=0.95`, or a signal of trace_evaluations and the share of traces \
                                that should pass, over 0 and below 1";
        let (name, share) = text.split_once('=').ok_or(EXPECTED)?;
        let share: f64 = share.parse().map_err(|_| EXPECTED)?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || !name.chars().all(is_name) || !(share > 0.0 && share < 1.0) {
            return Err(EXPECTED);
        }
        Ok(Self { name: name.to_owned(), share })
    }
}

impl FromStr for BurnRates {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str =
            "write the fast and the slow one, such as `14.4,6`, the slow one at least 1";
        let (fast, slow) = text.split_once(',').ok_or(EXPECTED)?;
        let rate = |text: &str| text.trim().parse::<f64>().map_err(|_| EXPECTED);
        let rates = Self { fast: rate(fast)?, slow: rate(slow)? };
        let in_order = rates.fast.is_finite() && rates.fast > rates.slow && rates.slow >= 1.0;
        if in_order { Ok(rates) } else { Err(EXPECTED) }
    }
}

impl Objective {
    /// The signal of `agentgauge_trace_evaluations_total`; the reliability is that of whole traces.
    fn signal(&self) -> &str {
        if self.name == RELIABILITY { "trace_risk" } else { &self.name }
    }

    fn budget(&self) -> f64 {
        1.0 - self.share
    }

    /// The share of failed traces from which the budget burns at this rate.
    fn threshold(&self, rate: f64) -> Result<String, RulesError> {
        // Rounded as it is written: 10 times a budget of 0.1 is all traces.
        let threshold = number(rate * self.budget());
        if threshold.parse::<f64>().is_ok_and(|threshold| threshold < 1.0) {
            return Ok(threshold);
        }
        Err(RulesError::Unreachable {
            objective: format!("{}={}", self.name, self.share),
            rate,
            greatest: (10.0 / self.budget()).round() / 10.0,
            proposal: self.proposal(),
        })
    }

    /// Six tenths and three tenths of what can be reached; at an objective of 0.9 that is 6 and 3.
    fn proposal(&self) -> String {
        let rate = |part: f64| number((10.0 * part / self.budget()).round() / 10.0);
        format!("{},{}", rate(0.6), rate(0.3))
    }
}

pub(super) fn group(plan: &Plan) -> Result<Group, RulesError> {
    let mut rules = Vec::new();
    for (at, objective) in plan.objectives.iter().enumerate() {
        let before = plan.objectives.iter().take(at);
        if before.map(Objective::signal).any(|signal| signal == objective.signal()) {
            return Err(RulesError::Twice { signal: objective.name.clone() });
        }
        rules.extend(["5m", "30m", "1h", "6h"].map(|window| bad(objective, window)));
        rules.extend(["1h", "6h"].map(|window| judged(objective, window)));
        rules.push(burn(objective, plan, &FAST, plan.burn.fast)?);
        rules.push(burn(objective, plan, &SLOW, plan.burn.slow)?);
    }
    Ok(Group { name: "agentgauge-objectives", interval: "30s", rules })
}

const RELIABILITY: &str = "reliability";

/// Two windows that must agree: the long one for significance, the short one so that it ends when it is over.
struct Windows {
    long: &'static str,
    short: &'static str,
    severity: &'static str,
    of_reliability: &'static str,
    of_signal: &'static str,
}

const FAST: Windows = Windows {
    long: "1h",
    short: "5m",
    severity: "critical",
    of_reliability: "AgentReliabilityBudgetBurnFast",
    of_signal: "AgentSignalBudgetBurnFast",
};

const SLOW: Windows = Windows {
    long: "6h",
    short: "30m",
    severity: "warning",
    of_reliability: "AgentReliabilityBudgetBurnSlow",
    of_signal: "AgentSignalBudgetBurnSlow",
};

fn bad(objective: &Objective, window: &str) -> Rule {
    let rate = |verdict: &str| {
        format!(
            "sum by ({AGENT}) (rate(agentgauge_trace_evaluations_total{{signal=\"{}\",verdict{verdict}}}[{window}]))",
            objective.signal()
        )
    };
    // Without any verdict there is no ratio, rather than one that is no number.
    let expr = format!("{}\n/\n({} > 0)", rate("=\"fail\""), rate("=~\"pass|fail\""));
    let record = format!("service_agent:agentgauge_trace_evaluations_bad:ratio_rate{window}");
    Rule::Record { record, expr, labels: labels(objective) }
}

fn judged(objective: &Objective, window: &str) -> Rule {
    let expr = format!(
        "sum by ({AGENT}) (increase(agentgauge_trace_evaluations_total{{signal=\"{}\",verdict=~\"pass|fail\"}}[{window}]))",
        objective.signal()
    );
    let record = format!("service_agent:agentgauge_trace_evaluations:increase{window}");
    Rule::Record { record, expr, labels: labels(objective) }
}

fn labels(objective: &Objective) -> Vec<(&'static str, String)> {
    vec![("slo", objective.name.clone())]
}

fn burn(
    objective: &Objective,
    plan: &Plan,
    windows: &Windows,
    rate: f64,
) -> Result<Rule, RulesError> {
    let Windows { long, short, .. } = windows;
    let threshold = objective.threshold(rate)?;
    let of = format!("{{slo=\"{}\"}}", objective.name);
    let bad = "service_agent:agentgauge_trace_evaluations_bad:ratio_rate";
    let expr = format!(
        "{bad}{long}{of} > {threshold}\nand\n{bad}{short}{of} > {threshold}\nand\n\
         service_agent:agentgauge_trace_evaluations:increase{long}{of} >= {}",
        plan.least_traces
    );
    let is_whole = objective.name == RELIABILITY;
    let name = if is_whole { windows.of_reliability } else { windows.of_signal };
    let rate = number(rate);
    let alert = Alert::new(name, windows.severity, expr).explained_by("reliability").says(
        &format!("{NAME} burns its budget of {{{{ $labels.slo }}}} at more than {rate}x"),
        &format!(
            "{{{{ $value | humanizePercentage }}}} of its traces failed in the last {long}; {} % may \
             (objective {} %).",
            number(100.0 * objective.budget()),
            number(100.0 * objective.share)
        ),
    );
    Ok(alert.into())
}
