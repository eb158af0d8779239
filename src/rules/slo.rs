//! Error budgets: multi-window, multi-burn-rate alerts over verdicts on traces.
//!
//! ```text
//! bad(w)  = failed traces / evaluated traces, over the window w
//! budget  = 1 - objective
//! alert   if bad(long) > rate * budget and bad(short) > rate * budget and evaluated(long) >= least traces
//!         unless a drop of the agent paged within the long window
//! ```
//!
//! Source: Google, The Site Reliability Workbook, "Alerting on SLOs", 6. Departures: a guard on the number of traces, as agents
//! have far fewer traces than services have requests; one alert for one cause; and rates that a budget cannot reach, where `rate *
//! budget >= 1`, are refused, as agents' objectives are lower than services'.

use std::fmt::{self, Write};
use std::str::FromStr;

use crc32c::crc32c;

use super::{AGENT, Alert, Group, NAME, Plan, Rule, RulesError, grown, number};
use crate::config::Config;
use crate::export::prometheus::Detail;

/// An objective: a share of traces that should pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// The name of its agent; `None`: all agents without their own objective.
    agent: Option<String>,
    name: String,
    share: f64,
    /// Its burn rates, if they differ from the plan's.
    burn: Option<BurnRates>,
}

/// The burn rates over one hour and over six hours at which alerts fire, in budgets per period of the objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurnRates {
    fast: f64,
    slow: f64,
}

impl Default for Objective {
    /// 95 % of the whole traces of all agents.
    fn default() -> Self {
        Self { agent: None, name: RELIABILITY.to_owned(), share: 0.95, burn: None }
    }
}

impl Default for BurnRates {
    fn default() -> Self {
        Self { fast: 5.0, slow: 2.0 }
    }
}

impl FromStr for Objective {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "write `reliability=0.95`, or a signal of trace_evaluations and the share of traces \
                                that should pass, over 0 and below 1; of one agent `AGENT:reliability=0.95`; with burn rates of its \
                                own `reliability=0.95@5,2`";
        let (name, share) = text.rsplit_once('=').ok_or(EXPECTED)?;
        let (share, burn) = match share.split_once('@') {
            Some((share, burn)) => (share, Some(burn.parse()?)),
            None => (share, None),
        };
        let share: f64 = share.parse().map_err(|_| EXPECTED)?;
        let (agent, name) = match name.rsplit_once(':') {
            Some((agent, name)) => (Some(agent.to_owned()), name),
            None => (None, name),
        };
        // One name for one signal.
        let name = if name == WHOLE_TRACES { RELIABILITY } else { name };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || !name.chars().all(is_name) || !(share > 0.0 && share < 1.0) {
            return Err(EXPECTED);
        }
        Ok(Self { agent, name: name.to_owned(), share, burn })
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(agent) = &self.agent {
            write!(f, "{agent}:")?;
        }
        write!(f, "{}={}", self.name, self.share)
    }
}

impl FromStr for BurnRates {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str =
            "write the fast and the slow one, such as `5,2`, the slow one at least 1";
        let (fast, slow) = text.split_once(',').ok_or(EXPECTED)?;
        let rate = |text: &str| text.trim().parse::<f64>().map_err(|_| EXPECTED);
        let rates = Self { fast: rate(fast)?, slow: rate(slow)? };
        let in_order = rates.fast.is_finite() && rates.fast > rates.slow && rates.slow >= 1.0;
        if in_order { Ok(rates) } else { Err(EXPECTED) }
    }
}

impl Objective {
    /// An objective for the whole traces of one agent.
    pub fn of_agent(agent: &str, share: f64) -> Self {
        Self { agent: Some(agent.to_owned()), name: RELIABILITY.to_owned(), share, burn: None }
    }

    /// Whether both are for the same signal of the same agents.
    pub fn is_of_the_same(&self, other: &Self) -> bool {
        self.agent == other.agent && self.signal() == other.signal()
    }

    /// Its agent; `None`: all agents without their own objective.
    pub(super) fn agent(&self) -> Option<&str> {
        self.agent.as_deref()
    }

    /// The share of traces that should pass.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// A name that distinguishes it from other objectives: lower case, digits and hyphens. If the agent's name has other
    /// characters, it ends in a hash of that name.
    pub(super) fn id(&self) -> String {
        let plain = |name: &str| {
            let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
            let name = name.to_lowercase().chars().map(plain).collect::<String>();
            name.trim_matches('-').to_owned()
        };
        let name = plain(&self.name);
        let Some(agent) = &self.agent else { return name };
        let lost = if plain(agent) == *agent {
            String::new()
        } else {
            format!("-{:08x}", crc32c(agent.as_bytes()))
        };
        format!("{}-{name}{lost}", plain(agent)).trim_matches('-').to_owned()
    }

    /// The alert of its budget, whose runbook says what to do.
    pub(super) fn alert(&self) -> &'static str {
        if self.name == RELIABILITY { FAST.of_reliability } else { FAST.of_signal }
    }

    /// The signal in `agentgauge_trace_evaluations_total`, where reliability is the risk of whole traces.
    pub(super) fn signal(&self) -> &str {
        if self.name == RELIABILITY { WHOLE_TRACES } else { &self.name }
    }

    pub(super) fn budget(&self) -> f64 {
        1.0 - self.share
    }

    /// The share of failed traces at which the budget burns at this rate; fails if that is all traces or more.
    fn threshold(&self, rate: f64) -> Result<String, RulesError> {
        // The threshold is compared in its written, rounded form: 10 times a budget of 0.1 is all traces.
        let threshold = number(rate * self.budget());
        if threshold.parse::<f64>().is_ok_and(|threshold| threshold < 1.0) {
            return Ok(threshold);
        }
        Err(RulesError::Unreachable {
            objective: self.to_string(),
            rate,
            percent: number(100.0 * rate * self.budget()),
            proposal: self.proposal(),
        })
    }

    /// Burn rates that can be reached: at six tenths and three tenths of all traces, if that is more than may fail; 6 and 3 at an
    /// objective of 0.9.
    fn proposal(&self) -> String {
        let all = 1.0 / self.budget();
        let (fast, slow) = ((0.6 * all).max(f64::midpoint(1.0, all)), (0.3 * all).max(1.0));
        let rate = |rate: f64| number((10.0 * rate).round() / 10.0);
        format!("{},{}", rate(fast), rate(slow))
    }

    /// The matchers of its recorded series.
    fn matchers(&self) -> String {
        let slo = format!("slo=\"{}\"", self.name);
        match &self.agent {
            None => format!("{{{slo}}}"),
            Some(agent) => {
                // A JSON string is a PromQL string.
                let agent = serde_json::Value::from(agent.as_str());
                format!("{{{slo},gen_ai_agent_name={agent}}}")
            }
        }
    }
}

pub(super) fn group(plan: &Plan, config: &Config) -> Result<Group, RulesError> {
    let mut rules = Vec::new();
    plan.check(config)?;
    for (at, objective) in plan.objectives.iter().enumerate() {
        let mut before = plan.objectives[..at].iter();
        if !before.any(|other| other.signal() == objective.signal()) {
            rules.extend(["5m", "30m", "1h", "6h"].map(|window| bad(objective, window)));
            rules.extend(["1h", "6h"].map(|window| evaluated(objective, window)));
        }
    }
    // An objective that lets all traces fail needs no alert.
    for objective in plan.objectives.iter().filter(|objective| objective.budget() < 1.0) {
        let rates = objective.burn.unwrap_or(plan.burn);
        rules.push(burn(objective, plan, &FAST, rates.fast)?);
        rules.push(burn(objective, plan, &SLOW, rates.slow)?);
    }
    Ok(Group { name: "agentgauge-objectives", interval: "30s", rules })
}

impl Plan {
    /// Refuses two objectives for one signal of the same agents, and objectives whose series are not exported.
    pub(super) fn check(&self, config: &Config) -> Result<(), RulesError> {
        for (at, objective) in self.objectives.iter().enumerate() {
            if objective.name != RELIABILITY && config.metrics.detail == Detail::Core {
                return Err(RulesError::NotExported { objective: objective.to_string() });
            }
            if self.objectives[..at].iter().any(|other| other.is_of_the_same(objective)) {
                let of = objective.to_string();
                let of = of.rsplit_once('=').map_or(of.as_str(), |(of, _)| of).to_owned();
                return Err(RulesError::Twice { of });
            }
        }
        Ok(())
    }
}

const RELIABILITY: &str = "reliability";

/// The signal of `reliability` in `agentgauge_trace_evaluations_total`.
const WHOLE_TRACES: &str = "trace_risk";

/// Two windows that must agree: the long one for significance, the short one so that the alert ends soon after its cause.
struct Windows {
    long: &'static str,
    short: &'static str,
    in_words: &'static str,
    severity: &'static str,
    of_reliability: &'static str,
    of_signal: &'static str,
}

const FAST: Windows = Windows {
    long: "1h",
    short: "5m",
    in_words: "hour",
    severity: "critical",
    of_reliability: "AgentReliabilityBudgetBurnFast",
    of_signal: "AgentSignalBudgetBurnFast",
};

const SLOW: Windows = Windows {
    long: "6h",
    short: "30m",
    in_words: "six hours",
    severity: "warning",
    of_reliability: "AgentReliabilityBudgetBurnSlow",
    of_signal: "AgentSignalBudgetBurnSlow",
};

fn bad(objective: &Objective, window: &str) -> Rule {
    let of = |verdict: &str| traces(objective, verdict, window);
    // Without any verdict there is no ratio, as it would be no number.
    let expr = format!("{}\n/\n({} > 0)", of("=\"fail\""), of("=~\"pass|fail\""));
    let record = format!("service_agent:agentgauge_trace_evaluations_bad:ratio_rate{window}");
    Rule::Record { record, expr, labels: labels(objective) }
}

fn evaluated(objective: &Objective, window: &str) -> Rule {
    let expr = traces(objective, "=~\"pass|fail\"", window);
    let record = format!("service_agent:agentgauge_trace_evaluations:increase{window}");
    Rule::Record { record, expr, labels: labels(objective) }
}

/// The traces of each agent that got a verdict in a window.
fn traces(objective: &Objective, verdict: &str, window: &str) -> String {
    let signal = objective.signal();
    let series =
        format!("agentgauge_trace_evaluations_total{{signal=\"{signal}\",verdict{verdict}}}");
    format!("sum by ({AGENT}) (\n{}\n)", grown(&series, "verdict", window))
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
    let Windows { long, short, in_words, .. } = windows;
    let threshold = objective.threshold(rate)?;
    let of = objective.matchers();
    let bad = "service_agent:agentgauge_trace_evaluations_bad:ratio_rate";
    let evaluated = "service_agent:agentgauge_trace_evaluations:increase";
    let least = plan.least_traces;
    let mut expr = format!(
        "{bad}{long}{of} > {threshold}\nand\n{bad}{short}{of} > {threshold}\nand\n{evaluated}{long}{of} >= {least}"
    );
    // Agents with their own objective are left out of the general one.
    let others = plan.objectives.iter().filter(|other| {
        objective.agent.is_none() && other.agent.is_some() && other.name == objective.name
    });
    for other in others {
        let _ =
            write!(expr, "\nunless on (gen_ai_agent_name)\n{evaluated}{long}{}", other.matchers());
    }
    // A drop counts as long as its failures are in the long window.
    let paged = format!("max_over_time(agentgauge_agent_drop{{severity=\"critical\"}}[{long}])");
    let _ = write!(expr, "\nunless on ({AGENT})\nmax by ({AGENT}) ({paged}) > 0");
    let (over, may) = (percent(rate * objective.budget()), percent(objective.budget()));
    let is_whole = objective.name == RELIABILITY;
    let (name, what) = if is_whole {
        (windows.of_reliability, "fails in")
    } else {
        (windows.of_signal, "fails {{ $labels.slo }} in")
    };
    let mut alert = Alert::new(name, windows.severity, expr).explained_by("reliability").says(
        &format!(
            "{NAME} {what} {{{{ $value | humanizePercentage }}}} of its traces in the last {in_words}; its objective allows {may} %"
        ),
        &format!(
            "Over {over} % of at least {least} traces failed in the last {long}, and still do in the last {short}. The \
             objective is that {} % pass.",
            percent(objective.share)
        ),
    );
    let traces = fewest_over(rate * objective.budget(), least);
    alert.comment = Some(format!(
        "From over {over} % of traces failing: {} times the {may} % of {objective}. Of {least} evaluated traces, {traces}.",
        number(rate)
    ));
    Ok(alert.into())
}

/// A share as a percentage for people.
fn percent(share: f64) -> String {
    number((share * 1e6).round() / 1e4)
}

/// The smallest number of traces that exceeds this share of `traces`.
fn fewest_over(share: f64, traces: u32) -> u32 {
    (0..=traces).find(|few| f64::from(*few) > share * f64::from(traces) + 1e-9).unwrap_or(traces)
}
