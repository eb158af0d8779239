//! `rules`: writes recording and alert rules for Prometheus.

use clap::Args;

use super::settings::Settings;
use super::{CliError, Process};
use crate::rules::{BurnRates, Objective, Plan};

/// Prints recording and alert rules for Prometheus.
#[derive(Args, Debug)]
pub(super) struct Rules {
    /// Share of traces that should pass: reliability=0.95 for whole traces, or a signal such as tool_loop=0.99; of one
    /// agent alone: support:reliability=0.9, which then holds for it in place of the general one; with rates of its
    /// own: reliability=0.7@2,1.2. Agents in `drop.objectives` have theirs without it
    #[arg(
        long,
        value_name = "[AGENT:]SIGNAL=SHARE[@FAST,SLOW]",
        default_value = "reliability=0.95"
    )]
    slo: Vec<Objective>,
    /// How many times more traces than may fail have to do so, over 1 h (pages) and over 6 h (warns)
    #[arg(long, value_name = "FAST,SLOW", default_value = "5,2")]
    burn: BurnRates,
    /// Traces without which no budget is judged
    #[arg(long, value_name = "TRACES", default_value = "50", value_parser = clap::value_parser!(u32).range(1..))]
    min_traces: u32,
    /// US dollars in 15 minutes that loops may cost
    #[arg(long, value_name = "USD", default_value = "5", value_parser = dollars)]
    loop_spend: f64,
    /// Where people reach the daemon, for the links in alerts; by default `links.public_url`
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Where docs/runbook.md is shown, if not by the daemon
    #[arg(long, value_name = "URL")]
    runbook_url: Option<String>,
    #[command(flatten)]
    settings: Settings,
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
        let text = plan.with_own(&config).render(&config)?;
        process.out.write_all(text.as_bytes()).map_err(CliError::Output)
    }
}

fn dollars(text: &str) -> Result<f64, &'static str> {
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
    value.ok_or("write an amount of 0 or more")
}
