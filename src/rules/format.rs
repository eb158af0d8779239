//! Writes rules for Prometheus itself and its operator, and objectives for tools that generate rules from them.

use std::fmt::Write;

use super::slo::Objective;
use super::{HEAD, Plan, RulesError, grown, line, number};
use crate::config::Config;

/// The tool that reads the output.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum RulesFormat {
    /// A file of rules.
    #[default]
    Prometheus,
    /// A `PrometheusRule` of the Prometheus Operator, with the same rules.
    Operator,
    /// The objectives alone, for Sloth, which generates its own rules from them.
    Sloth,
    /// The objectives alone, for Pyrra, which generates its own rules from them: one object for each.
    Pyrra,
}

impl Plan {
    /// The rules, or the objectives, in YAML.
    ///
    /// # Errors
    ///
    /// Fails if a rule could never fire, or two objectives are for the same signal of the same agents.
    pub fn write(&self, format: RulesFormat, config: &Config) -> Result<String, RulesError> {
        match format {
            RulesFormat::Prometheus => self.render(config),
            RulesFormat::Operator => self.render(config).map(|text| operator(&text)),
            RulesFormat::Sloth => self.check(config).map(|()| self.sloth()),
            RulesFormat::Pyrra => self.check(config).map(|()| self.pyrra()),
        }
    }

    /// The objectives that can be missed.
    fn missable(&self) -> impl Iterator<Item = &Objective> {
        self.objectives.iter().filter(|objective| objective.budget() < 1.0)
    }

    fn sloth(&self) -> String {
        let mut text = String::from(SLOTH);
        for objective in self.missable() {
            let series = |verdict| series(self, objective, verdict);
            let count =
                |series: String| format!("sum({})", grown(&series, "verdict", "{{.window}}"));
            let (errors, total) = (count(series(FAIL)), count(series(ANY)));
            let name = objective.id();
            line(&mut text, format_args!("  - name: {}", quoted(&name)));
            line(&mut text, format_args!("    objective: {}", number(100.0 * objective.share())));
            line(&mut text, format_args!("    description: {}", quoted(&describe(objective))));
            line(&mut text, format_args!("    sli:\n      events:"));
            line(&mut text, format_args!("        error_query: {}", quoted(&errors)));
            line(&mut text, format_args!("        total_query: {}", quoted(&total)));
            line(
                &mut text,
                format_args!("    alerting:\n      name: {}", quoted(objective.alert())),
            );
            let runbook = self.runbook(objective.alert());
            line(
                &mut text,
                format_args!("      annotations:\n        runbook_url: {}", quoted(&runbook)),
            );
            text.push_str("      page_alert:\n        labels:\n          severity: critical\n");
            text.push_str("      ticket_alert:\n        labels:\n          severity: warning\n");
        }
        text
    }

    fn pyrra(&self) -> String {
        let mut text = String::new();
        for objective in self.missable() {
            let series = |verdict| series(self, objective, verdict);
            // `---` separates documents; a comment comes before the first.
            text.push_str(if text.is_empty() { PYRRA } else { "---\n" });
            text.push_str("apiVersion: pyrra.dev/v1alpha1\nkind: ServiceLevelObjective\n");
            line(
                &mut text,
                format_args!(
                    "metadata:\n  name: {}",
                    quoted(&format!("agentgauge-{}", objective.id()))
                ),
            );
            line(
                &mut text,
                format_args!("spec:\n  target: {}", quoted(&number(100.0 * objective.share()))),
            );
            line(
                &mut text,
                format_args!("  window: 4w\n  description: {}", quoted(&describe(objective))),
            );
            text.push_str("  indicator:\n    ratio:\n");
            line(
                &mut text,
                format_args!("      errors:\n        metric: {}", quoted(&series(FAIL))),
            );
            line(&mut text, format_args!("      total:\n        metric: {}", quoted(&series(ANY))));
            let labels = ["service_name", "gen_ai_agent_name", "deployment_environment_name"];
            line(&mut text, format_args!("      grouping: [{}]", labels.join(", ")));
            line(&mut text, format_args!("  alerting:\n    name: {}", quoted(objective.alert())));
        }
        text
    }
}

/// The rules as an object of the operator.
fn operator(rules: &str) -> String {
    let (head, groups) = rules.split_at(rules.find("groups:\n").unwrap_or(HEAD.len()));
    let mut text = format!("{head}{OPERATOR}");
    for of_rules in groups.lines() {
        line(&mut text, format_args!("  {of_rules}"));
    }
    text
}

/// The series of verdicts of an objective. The general one leaves out agents that have their own.
fn series(plan: &Plan, objective: &Objective, verdict: &str) -> String {
    let mut matchers = format!("signal=\"{}\",verdict{verdict}", objective.signal());
    for other in plan.objectives.iter().filter(|other| other.signal() == objective.signal()) {
        let sign = match (objective.agent(), other.agent()) {
            (Some(own), Some(agent)) if own == agent => "=",
            (None, Some(_)) => "!=",
            _ => continue,
        };
        let agent = quoted(other.agent().unwrap_or_default());
        // Writing to a string does not fail.
        let _ = write!(matchers, ",gen_ai_agent_name{sign}{agent}");
    }
    format!("agentgauge_trace_evaluations_total{{{matchers}}}")
}

fn describe(objective: &Objective) -> String {
    let of = objective.agent().map_or_else(|| "agents".to_owned(), |agent| format!("`{agent}`"));
    let by = match objective.signal() {
        "trace_risk" => String::new(),
        signal => format!(" by {signal}"),
    };
    format!("{} % of the traces of {of} pass{by}.", number(100.0 * objective.share()))
}

/// A quoted string: a JSON string is a string of YAML and of PromQL, too.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

const FAIL: &str = "=\"fail\"";
const ANY: &str = "=~\"pass|fail\"";

const OPERATOR: &str = "\
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: agentgauge
spec:
";

const SLOTH: &str = "\
# Objectives of agents for Sloth, written by `agentgauge rules --format sloth`.
version: prometheus/v1
service: agentgauge
slos:
";

const PYRRA: &str =
    "# Objectives of agents for Pyrra, written by `agentgauge rules --format pyrra`.\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::prometheus::Detail;

    fn plan() -> Plan {
        let objectives = ["reliability=0.95", "tool_loop=0.99", "support:reliability=0.9"];
        Plan {
            objectives: objectives.map(|text| text.parse().unwrap()).into(),
            url: "http://gauge:9464".to_owned(),
            ..Plan::default()
        }
    }

    fn config() -> Config {
        let mut config = Config::default();
        config.metrics.detail = Detail::Full;
        config
    }

    fn text(format: RulesFormat) -> String {
        plan().write(format, &config()).unwrap()
    }

    #[test]
    fn the_operator_gets_the_same_rules() {
        let (plain, object) = (text(RulesFormat::Prometheus), text(RulesFormat::Operator));
        let rules = object.split_once("spec:\n").unwrap().1;
        let shifted: String = rules.lines().map(|line| format!("{}\n", &line[2..])).collect();
        assert_eq!(plain.split_once('\n').unwrap().1, shifted);
        assert!(object.contains("\nkind: PrometheusRule\n"));
    }

    #[test]
    fn objectives_say_what_is_counted() {
        let (sloth, pyrra) = (text(RulesFormat::Sloth), text(RulesFormat::Pyrra));
        assert_eq!(sloth.matches("  - name: ").count(), 3);
        assert_eq!(pyrra.matches("kind: ServiceLevelObjective").count(), 3);
        assert!(sloth.contains("objective: 99\n") && pyrra.contains("target: \"90\"\n"));
        // The general objective does not apply to an agent that has its own.
        for of_support in
            ["gen_ai_agent_name!=\\\"support\\\"", "gen_ai_agent_name=\\\"support\\\""]
        {
            assert!(sloth.contains(of_support) && pyrra.contains(of_support), "{sloth}{pyrra}");
        }
        assert!(sloth.contains("signal=\\\"tool_loop\\\",verdict=\\\"fail\\\"}[{{.window}}]"));
        assert!(sloth.contains("http://gauge:9464/#/runbook/AgentSignalBudgetBurnFast"));
        let mut twice = plan();
        twice.objectives.push("reliability=0.9".parse().unwrap());
        assert!(twice.write(RulesFormat::Pyrra, &config()).is_err());
        for format in [RulesFormat::Operator, RulesFormat::Sloth, RulesFormat::Pyrra] {
            let refused = plan().write(format, &Config::default());
            assert!(matches!(refused, Err(RulesError::NotExported { .. })), "{format:?}");
        }
    }
}
