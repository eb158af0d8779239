//! `rules`: writes recording and alert rules for Prometheus.

use clap::Args;

use super::settings::Settings;
use super::{CliError, Process};
use crate::rules::{BurnRates, Objective, Plan};

/// Prints recording and alert rules for Prometheus.
#[derive(Args, Debug)]
pub(super) struct Rules {
    /// Share of traces that should pass: reliability=0.95 for whole traces, or a signal such as tool_loop=0.99
    #[arg(long, value_name = "SIGNAL=SHARE", default_value = "reliability=0.95")]
    slo: Vec<Objective>,
    /// Rates at which a budget burns too fast, over 1 h and over 6 h
    #[arg(long, value_name = "FAST,SLOW", default_value = "14.4,6")]
    burn: BurnRates,
    /// Traces without which neither a budget nor a score is judged
    #[arg(long, value_name = "TRACES", default_value = "20", value_parser = clap::value_parser!(u32).range(1..))]
    min_traces: u32,
    /// Window, of `agents.windows`, whose scores are held against the agent's past
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    window: String,
    /// Fall of a score, beside three standard deviations of its past, that is a drop
    #[arg(long, value_name = "SCORE", default_value = "0.05", value_parser = share)]
    drop: f64,
    /// US dollars in 15 minutes that loops may cost
    #[arg(long, value_name = "USD", default_value = "5", value_parser = dollars)]
    loop_spend: f64,
    /// Where people reach the daemon, for the links in alerts
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9464")]
    url: String,
    /// Where docs/runbook.md is shown, if not by the daemon
    #[arg(long, value_name = "URL")]
    runbook_url: Option<String>,
    #[command(flatten)]
    settings: Settings,
}

impl Rules {
    pub(super) fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        let config = self.settings.load(process, &[])?;
        let plan = Plan {
            objectives: self.slo.clone(),
            burn: self.burn,
            least_traces: self.min_traces,
            window: self.window.clone(),
            drop: self.drop,
            loop_spend: self.loop_spend,
            url: self.url.trim_end_matches('/').to_owned(),
            runbook_url: self.runbook_url.clone(),
        };
        let text = plan.render(&config)?;
        process.out.write_all(text.as_bytes()).map_err(CliError::Output)
    }
}

fn share(text: &str) -> Result<f64, &'static str> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..1.0).contains(value));
    value.ok_or("write a number from 0 to below 1")
}

fn dollars(text: &str) -> Result<f64, &'static str> {
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
    value.ok_or("write an amount of 0 or more")
}
