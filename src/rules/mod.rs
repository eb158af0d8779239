//! Recording and alert rules for Prometheus, fitted to objectives and to the configuration.
//!
//! The rules are about drops of agents ([`drops`]), error budgets ([`slo`]), loops ([`loops`]), and the daemon itself ([`own`]). A rule
//! that could never fire is refused. [`mod@format`] writes them in the forms that different tools read.

mod drops;
mod format;
mod loops;
mod own;
mod slo;

use std::fmt::Write;

pub use format::RulesFormat;
pub use slo::{BurnRates, Objective};

use crate::config::Config;
use crate::runbook;

/// The objectives, limits and addresses that the rules are fitted to.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Error budgets, one for each signal, and for each agent that has its own.
    pub objectives: Vec<Objective>,
    /// How fast a budget may burn.
    pub burn: BurnRates,
    /// The fewest traces in a window over which a budget raises an alert.
    pub least_traces: u32,
    /// US dollars spent in loops in 15 minutes above which an alert is raised.
    pub loop_spend: f64,
    /// The address at which people reach the daemon, without a slash at the end.
    pub url: String,
    /// The address of the runbook, if it is not the daemon's.
    pub runbook_url: Option<String>,
}

/// Why there are no rules.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RulesError {
    /// More than all traces would have to fail.
    #[error(
        "`--slo {objective}` with the burn rate {rate} (`--burn`) would need more than {percent} % of failing traces, so it \
         can never fire; write `--slo {objective}@{proposal}`, or an objective nearer to 1 (those of agents are in `drop.objectives`)"
    )]
    Unreachable {
        /// The objective, as it was given.
        objective: String,
        /// The rate.
        rate: f64,
        /// The share of failing traces that it requires.
        percent: String,
        /// Rates that can be reached.
        proposal: String,
    },
    /// Two objectives are for the same signal of the same agents.
    #[error("`--slo` has two objectives for `{of}`: leave one out")]
    Twice {
        /// The signal, and the agent if it is for one.
        of: String,
    },
    /// The series of an objective are not exported.
    #[error(
        "`--slo {objective}` is for one signal, which is exported only with `metrics.detail = \"full\"`: set that in the daemon's configuration \
         and pass its file with `--config`, or write an objective for whole traces, such as `--slo reliability=0.95`"
    )]
    NotExported {
        /// The objective, as it was given.
        objective: String,
    },
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            objectives: vec![Objective::default()],
            burn: BurnRates::default(),
            least_traces: 50,
            loop_spend: 5.0,
            url: String::new(),
            runbook_url: None,
        }
    }
}

impl Plan {
    /// Adds the objectives of single agents in the configuration, for agents that have none here.
    #[must_use]
    pub fn with_own(mut self, config: &Config) -> Self {
        for (agent, share) in &config.drop.objectives {
            let own = Objective::of_agent(agent, *share);
            if !self.objectives.iter().any(|given| given.is_of_the_same(&own)) {
                self.objectives.push(own);
            }
        }
        self
    }

    /// The rules as a file of Prometheus, in YAML.
    ///
    /// # Errors
    ///
    /// Fails if a rule could never fire.
    pub fn render(&self, config: &Config) -> Result<String, RulesError> {
        let groups =
            [drops::group(self), slo::group(self, config)?, loops::group(self), own::group(config)];
        let mut text = String::from(HEAD);
        for group in &groups {
            self.group(group, &mut text);
        }
        Ok(text)
    }

    fn group(&self, group: &Group, text: &mut String) {
        line(text, format_args!("- name: {}", group.name));
        line(text, format_args!("  interval: {}", group.interval));
        line(text, format_args!("  rules:"));
        for rule in &group.rules {
            match rule {
                Rule::Record { record, expr, labels } => {
                    line(text, format_args!("  - record: {record}"));
                    block(text, expr);
                    map(text, "labels", labels);
                }
                Rule::Alert(alert) => {
                    if let Some(comment) = &alert.comment {
                        line(text, format_args!("  # {comment}"));
                    }
                    line(text, format_args!("  - alert: {}", alert.name));
                    block(text, &alert.expr);
                    if let Some(lasting) = alert.lasting {
                        line(text, format_args!("    for: {lasting}"));
                    }
                    if let Some(held) = alert.held {
                        line(text, format_args!("    keep_firing_for: {held}"));
                    }
                    map(text, "labels", &alert.labels);
                    map(text, "annotations", &self.annotations(alert));
                }
            }
        }
    }

    /// The address of the runbook's section about an alert.
    fn runbook(&self, alert: &str) -> String {
        match &self.runbook_url {
            Some(url) => format!("{url}#{}", alert.to_lowercase()),
            None => format!("{}/#/runbook/{alert}", self.url),
        }
    }

    fn annotations(&self, alert: &Alert) -> Vec<(&'static str, String)> {
        let mut annotations =
            vec![("summary", alert.summary.clone()), ("description", alert.description.clone())];
        annotations.extend(runbook::first_step(alert.name).map(|step| ("first_step", step)));
        annotations.push(("runbook_url", self.runbook(alert.name)));
        if let Some(list) = alert.explain {
            // Cost may be counted before the agent's name is known, and then under another name.
            let agent = match list {
                BY_COST => "",
                _ => "&agent_name={{ $labels.gen_ai_agent_name | urlquery }}",
            };
            let query = format!(
                "service_name={{{{ $labels.service_name | urlquery }}}}{agent}{PLACE_IF_KNOWN}"
            );
            let url = format!("{}/#/sessions?sort={list}&{query}", self.url);
            annotations.push(("explain_url", url));
        }
        annotations.extend(alert.annotations.iter().cloned());
        annotations
    }

    /// The link to the agent version of an alert on the page.
    fn agent_page(&self) -> String {
        let names = [
            ("service_name", "service_name"),
            ("agent_name", "gen_ai_agent_name"),
            ("agent_version", "gen_ai_agent_version"),
            ("environment", "deployment_environment_name"),
            ("tenant", "tenant"),
        ];
        let names =
            names.map(|(name, label)| format!("{name}={{{{ $labels.{label} | urlquery }}}}"));
        format!("{}/#/agent?{}", self.url, names.join("&"))
    }
}

/// A group of rules that are evaluated in order, so that alerts use the newly recorded series.
struct Group {
    name: &'static str,
    interval: &'static str,
    rules: Vec<Rule>,
}

enum Rule {
    Record { record: String, expr: String, labels: Vec<(&'static str, String)> },
    Alert(Alert),
}

struct Alert {
    name: &'static str,
    expr: String,
    /// How long the expression must hold before the alert fires.
    lasting: Option<&'static str>,
    /// How long the alert keeps firing after the expression has ceased to hold.
    held: Option<&'static str>,
    labels: Vec<(&'static str, String)>,
    summary: String,
    description: String,
    /// The order in which the agent's sessions explain the alert.
    explain: Option<&'static str>,
    /// Annotations beside summary, description and runbook.
    annotations: Vec<(&'static str, String)>,
    /// A comment about the effect of the rule.
    comment: Option<String>,
}

impl Alert {
    fn new(name: &'static str, severity: &str, expr: String) -> Self {
        Self {
            name,
            expr,
            lasting: None,
            held: None,
            labels: vec![("severity", severity.to_owned())],
            summary: String::new(),
            description: String::new(),
            explain: None,
            annotations: Vec::new(),
            comment: None,
        }
    }

    fn lasting(self, lasting: &'static str) -> Self {
        Self { lasting: Some(lasting), ..self }
    }

    fn held(self, held: &'static str) -> Self {
        Self { held: Some(held), ..self }
    }

    fn says(self, summary: &str, description: &str) -> Self {
        Self { summary: summary.to_owned(), description: description.to_owned(), ..self }
    }

    fn annotated(mut self, name: &'static str, template: &str) -> Self {
        self.annotations.push((name, template.to_owned()));
        self
    }

    /// Adds a link to the agent's sessions in this order; filters may follow it, as in the address.
    fn explained_by(self, list: &'static str) -> Self {
        Self { explain: Some(list), ..self }
    }
}

impl From<Alert> for Rule {
    fn from(alert: Alert) -> Self {
        Self::Alert(alert)
    }
}

/// The list of sessions that explains an alert about cost: the costliest first.
const BY_COST: &str = "cost";

/// The labels of an agent in alerts: all but the version, so that a new version is compared with the old ones.
/// `tenant` is empty where there are no tenants.
const AGENT: &str = "service_name, gen_ai_agent_name, deployment_environment_name, tenant";

/// The name of an agent in alerts.
const NAME: &str = "{{ $labels.service_name }}/{{ $labels.gen_ai_agent_name }}";

/// The name of an agent in alerts that may be about an agent that no span has named yet.
const NAME_IF_KNOWN: &str = "{{ $labels.service_name }}/{{ with $labels.gen_ai_agent_name }}{{ . }}{{ else }}(no span has named the agent yet){{ end }}";

/// The environment and the tenant of an agent in a link to its sessions.
const PLACE_IF_KNOWN: &str = "{{ with $labels.deployment_environment_name }}&environment={{ . | urlquery }}{{ end }}\
    {{ with $labels.tenant }}&tenant={{ . | urlquery }}{{ end }}";

/// The growth of each series of an agent's counter in a window, including its first value there.
///
/// `increase` ignores the first sample of a series: for a new version, or for the first traces that fail, that is everything since
/// the previous scrape. A series is new if no instance had it in the minutes before the window, while its own process was scraped
/// and had run for as long: after a restart, after a gap of Prometheus and if an agent moves between instances, nothing is new.
fn grown(series: &str, own: &str, window: &str) -> String {
    const STARTED: &str = "process_start_time_seconds";
    let before = format!("{STARTED} offset {window}");
    format!(
        "{series}\nunless on (job, {AGENT}, gen_ai_agent_version, {own}) last_over_time({series}[10m] offset {window})\n\
         and on (job, instance) ({STARTED} == ({before} < timestamp({before}) - 600))\n\
         or increase({series}[{window}])"
    )
}

const HEAD: &str = "\
# Recording and alert rules, written by `agentgauge rules`. docs/runbook.md says what to do about each alert.
groups:
";

/// A text with the result of a query, which is left out if the query has no result. `%s` in the query is the selector.
fn looked_up(query: &str, text: &str) -> String {
    format!("{{{{ with printf \"{query}\" $of | query }}}}{text}{{{{ end }}}}")
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}

fn block(text: &mut String, expr: &str) {
    line(text, format_args!("    expr: |"));
    for part in expr.lines() {
        line(text, format_args!("      {part}"));
    }
}

fn map(text: &mut String, name: &str, entries: &[(&'static str, String)]) {
    if !entries.is_empty() {
        line(text, format_args!("    {name}:"));
    }
    for (key, value) in entries {
        // A JSON string is a YAML string.
        line(text, format_args!("      {key}: {}", serde_json::Value::from(value.as_str())));
    }
}

/// A number in the notation of PromQL and people, rounded to nine decimals.
fn number(value: f64) -> String {
    let text = format!("{value:.9}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::prometheus::Detail;

    fn plan() -> Plan {
        Plan {
            objectives: vec!["reliability=0.95".parse().unwrap()],
            burn: "5,2".parse().unwrap(),
            least_traces: 50,
            loop_spend: 5.0,
            url: "http://gauge:9464".to_owned(),
            runbook_url: None,
        }
    }

    #[test]
    fn an_alert_that_cannot_fire_is_refused() {
        let mut plan = plan();
        plan.objectives = vec!["reliability=0.7".parse().unwrap()];
        let error = plan.render(&Config::default()).unwrap_err();
        assert!(matches!(&error, RulesError::Unreachable { rate: 5.0, .. }), "{error}");
        for words in
            ["rate 5 (`--burn`)", "`--slo reliability=0.7`", "150 %", "reliability=0.7@2.2,1`"]
        {
            assert!(error.to_string().contains(words), "{error}");
        }
        plan.objectives = vec!["reliability=0.7@2.2,1".parse().unwrap()];
        assert!(plan.render(&Config::default()).is_ok());
        // 5 x 0.2 is every trace: more than every trace cannot fail.
        plan.objectives = vec!["reliability=0.8".parse().unwrap()];
        assert!(plan.render(&Config::default()).is_err());
        // Nor can it for one agent alone.
        plan.objectives.insert(0, "reliability=0.95".parse().unwrap());
        plan.objectives[1] = "support:reliability=0.7".parse().unwrap();
        let error = plan.render(&Config::default()).unwrap_err().to_string();
        assert!(error.contains("`--slo support:reliability=0.7`"), "{error}");
    }

    #[test]
    fn a_threshold_is_told_in_failing_traces() {
        let text = plan().render(&Config::default()).unwrap();
        let fast = "# From over 25 % of traces failing: 5 times the 5 % of reliability=0.95. Of 50 evaluated traces, 13.\n";
        assert!(text.contains(fast), "{text}");
        assert!(text.contains("# From over 10 % of traces failing"), "{text}");
        assert!(text.contains("ratio_rate1h{slo=\"reliability\"} > 0.25\n"), "{text}");
    }

    #[test]
    fn every_objective_has_its_own_rules() {
        let mut plan = plan();
        plan.objectives.push("tool_loop=0.99".parse().unwrap());
        let mut config = Config::default();
        assert!(matches!(plan.render(&config), Err(RulesError::NotExported { .. })));
        config.metrics.detail = Detail::Full;
        let text = plan.render(&config).unwrap();
        assert_eq!(text.matches("- alert: AgentReliabilityBudgetBurnFast\n").count(), 1);
        assert_eq!(text.matches("- alert: AgentSignalBudgetBurnSlow\n").count(), 1);
        assert!(text.contains("signal=\"tool_loop\"") && text.contains("> 0.05\n"), "{text}");
        plan.objectives.push("tool_loop=0.9".parse().unwrap());
        assert!(matches!(plan.render(&config), Err(RulesError::Twice { .. })));
    }

    #[test]
    fn an_agent_may_have_an_objective_of_its_own() {
        let mut plan = plan();
        plan.objectives.push("support:reliability=0.9".parse().unwrap());
        let text = plan.render(&Config::default()).unwrap();
        let own = "{slo=\"reliability\",gen_ai_agent_name=\"support\"}";
        assert!(text.contains(&format!("ratio_rate1h{own} > 0.5\n")), "{text}");
        // The general one leaves it out, and nothing is recorded twice.
        let unless = "unless on (gen_ai_agent_name)";
        assert!(text.contains(unless) && text.contains(&format!("increase1h{own}")), "{text}");
        assert_eq!(text.matches(":ratio_rate1h\n").count(), 1);
    }

    #[test]
    fn links_go_where_the_daemon_is_or_where_the_runbook_is() {
        let mut plan = plan();
        let text = plan.render(&Config::default()).unwrap();
        assert!(text.contains("http://gauge:9464/#/runbook/AgentSessionLooping"));
        plan.runbook_url = Some("https://wiki/runbook".to_owned());
        let text = plan.render(&Config::default()).unwrap();
        assert!(text.contains("\"https://wiki/runbook#agentsessionlooping\""));
    }
}
