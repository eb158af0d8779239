//! `rules`: writes recording and alert rules for Prometheus.

use clap::{Args, ValueEnum};

use super::settings::Settings;
use super::{CliError, Process};
use crate::export::about::LinkOptions;
use crate::rules::{BurnRates, Objective, Plan, RulesFormat};

/// The reader of the rules.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A file of rules
    Prometheus,
    /// A PrometheusRule of the Prometheus Operator
    Operator,
    /// Only the objectives, for Sloth
    Sloth,
    /// Only the objectives, for Pyrra
    Pyrra,
}

/// Prints recording and alert rules for Prometheus.
#[derive(Args, Debug)]
pub(super) struct Rules {
    /// Share of traces that should pass: reliability=0.95 for whole traces, tool_loop=0.99 for one signal (which is
    /// exported only with `metrics.detail = "full"`). For a single agent: support:reliability=0.9, which replaces the
    /// general objective for it. With its own burn rates: reliability=0.7@2,1.2. Agents in `drop.objectives` need no `--slo`
    #[arg(
        long,
        value_name = "[AGENT:]SIGNAL=SHARE[@FAST,SLOW]",
        default_value = "reliability=0.95"
    )]
    slo: Vec<Objective>,
    /// How many times faster than allowed the error budget has to burn: over 1 h (critical), over 6 h (warning)
    #[arg(long, value_name = "FAST,SLOW", default_value = "5,2")]
    burn: BurnRates,
    /// Raise no alert about an error budget over fewer evaluated traces than this
    #[arg(long, value_name = "TRACES", default_value = "50", value_parser = clap::value_parser!(u32).range(1..))]
    min_traces: u32,
    /// Raise an alert when loops cost more than this many US dollars in 15 minutes
    #[arg(long, value_name = "USD", default_value = "5", value_parser = dollars)]
    loop_spend: f64,
    /// Address of the page, for the links in alerts [default: `links.public_url`]
    #[arg(long, value_name = "URL", value_parser = page)]
    url: Option<String>,
    /// Address of a runbook to link to instead of the daemon's own
    #[arg(long, value_name = "URL")]
    runbook_url: Option<String>,
    /// What to write: all rules, for Prometheus or its operator; or only the objectives, for tools that generate rules from them
    #[arg(long, value_enum, default_value_t = Format::Prometheus)]
    format: Format,
    #[command(flatten)]
    settings: Settings,
}

impl From<Format> for RulesFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Prometheus => Self::Prometheus,
            Format::Operator => Self::Operator,
            Format::Sloth => Self::Sloth,
            Format::Pyrra => Self::Pyrra,
        }
    }
}

impl Rules {
    pub(super) fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        let config = self.settings.load(process, &[])?;
        let url = self.url.as_deref().unwrap_or(&config.links.public_url);
        let plan = Plan {
            objectives: self.slo.clone(),
            burn: self.burn,
            least_traces: self.min_traces,
            loop_spend: self.loop_spend,
            url: url.trim_end_matches('/').to_owned(),
            runbook_url: self.runbook_url.clone(),
        };
        let text = plan.with_own(&config).write(self.format.into(), &config)?;
        process.out.write_all(text.as_bytes()).map_err(CliError::Output)
    }
}

/// An address of the page.
fn page(text: &str) -> Result<String, &'static str> {
    let links = LinkOptions { public_url: text.to_owned(), ..LinkOptions::default() };
    let is_page = links.has_own_host();
    is_page.then_some(links.public_url).ok_or(
        "write an address without a path, like https://gauge.example.org, as the page works only at the root of a host",
    )
}

fn dollars(text: &str) -> Result<f64, &'static str> {
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
    value.ok_or("write an amount of 0 or more")
}
