//! `demo`: the daemon, to which a real OTLP client sends five minutes of a small company.

mod coding;
mod prometheus;
mod sender;
mod story;
mod turn;
mod watch;

use std::io::IsTerminal;
use std::net::TcpListener;
use std::time::Duration;

use clap::Args;

use self::prometheus::Alerting;
use self::sender::Sender;
use self::story::{LOOPING, OUTAGE, RELEASE, Story};
use super::serve::Stop;
use super::settings::Settings;
use super::{CliError, Process, logging};
use crate::clock::Clock;
use crate::config::{Config, LogLevel};
use crate::daemon::{Bound, Daemon};
use crate::engine::options::human;

/// Time between two requests for the list of problems.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Quiet time after which a trace is done: shorter than in production, so that scores show soon.
const TRACE_IDLE: Duration = Duration::from_secs(1);

/// Quiet time after which a turn from log records is done: shorter than in production.
const ROOTLESS_IDLE: Duration = Duration::from_secs(15);

/// Time between two points of the page's charts: shorter than in production, so that they show soon.
const HISTORY_STEP: Duration = Duration::from_secs(2);

/// Starts the daemon and plays five minutes at a small company to it, until interrupted.
#[derive(Args, Debug)]
pub(super) struct Demo {
    /// End by itself after this long, such as 30s
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    lasting: Option<Duration>,
    /// Also run Prometheus and Alertmanager, if they are installed
    #[arg(long)]
    with_prometheus: bool,
    #[command(flatten)]
    settings: Settings,
}

impl Demo {
    pub(super) fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        let mut config = self.settings.load(process, &[])?;
        let taken = prepare(&mut config);
        logging::start(&config.log);
        let runtime = super::runtime()?;
        runtime.block_on(async {
            let stop = Stop::listen().map_err(CliError::Runtime)?;
            let daemon = Daemon::start(&config).await?;
            let bound = daemon.bound();
            introduce(process, bound, &taken).map_err(CliError::Output)?;
            let grpc = bound.otlp_grpc.map(|address| address.to_string()).unwrap_or_default();
            let http = bound.http.to_string();
            let alerting = match self.with_prometheus {
                true => Some(Alerting::start(process, &http, &config)?),
                false => None,
            };
            writeln!(process.out, "What the daemon finds:").map_err(CliError::Output)?;
            let sender = Sender::connect(&grpc).await?;
            let end = async {
                match self.lasting {
                    Some(lasting) => tokio::time::sleep(lasting).await,
                    None => std::future::pending().await,
                }
            };
            let result = tokio::select! {
                result = play(sender, Clock::system()) => result,
                result = watch::watch(process, &http) => result,
                _ = stop.asked() => Ok(()),
                () = end => Ok(()),
            };
            drop(alerting);
            daemon.stop().await;
            result
        })
    }
}

/// Adapts the configuration to the demo; returns the addresses that are in use, which it replaces by free ones.
fn prepare(config: &mut Config) -> Vec<String> {
    config.assemble.trace_idle = config.assemble.trace_idle.min(TRACE_IDLE);
    config.assemble.rootless_idle = config.assemble.rootless_idle.min(ROOTLESS_IDLE);
    config.api.history_step = config.api.history_step.min(HISTORY_STEP);
    // The demo's texts are invented, so they contain no secrets.
    config.assemble.keep_content = true;
    // The demo's output is about what it finds, so informational log events are left out.
    if config.log.level == LogLevel::Info {
        config.log.level = LogLevel::Warn;
    }
    // The demo runs in one process.
    config.fleet.roles.clear();
    free_ports(config)
}

fn introduce(process: &mut Process<'_>, bound: &Bound, taken: &[String]) -> std::io::Result<()> {
    let at = |second: u64| format!("{}:{:02}", second / 60, second % 60);
    let out = &mut process.out;
    writeln!(out, "Open http://{}/ in a browser.\n", bound.http)?;
    for address in taken {
        writeln!(
            out,
            "({address} is in use by another process, so a free port stands in for it.)"
        )?;
    }
    writeln!(
        out,
        "It plays five minutes at a small company, over and over. Prompts and answers are made up, and are kept."
    )?;
    writeln!(
        out,
        "  0:00  support, refunds, invoices, analyst and a coding agent have worked well for an hour"
    )?;
    writeln!(
        out,
        "  {}  the ledger is locked: invoices fails half of its turns for a minute, then recovers",
        at(OUTAGE.0)
    )?;
    writeln!(
        out,
        "  {}  analyst begins to search for the same thing again and again, at 11 cents a time",
        at(LOOPING.0)
    )?;
    writeln!(out, "  {}  refunds 1.5 is released; it fails 40 % of its turns\n", at(RELEASE))?;
    if let Some((http, grpc)) = bound.otlp_http.zip(bound.otlp_grpc) {
        writeln!(
            out,
            "Metrics are at http://{}/metrics; agents of your own may send to OTEL_EXPORTER_OTLP_ENDPOINT=http://{http} (HTTP), or http://{grpc} (gRPC).",
            bound.http
        )?;
    }
    if std::io::stdout().is_terminal() {
        writeln!(out, "Ctrl-C ends it.")?;
    }
    writeln!(out)?;
    out.flush()
}

/// Sends the story in real time.
async fn play(mut sender: Sender, clock: Clock) -> Result<(), CliError> {
    let begin = clock.wall().0;
    let story = Story { seed: begin, begin };
    sender.send(story.past()).await?;
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    for second in 0.. {
        ticks.tick().await;
        sender.send(story.second(second)).await?;
    }
    Ok(())
}

/// Replaces each address that is in use by one with a free port; returns the replaced addresses.
fn free_ports(config: &mut Config) -> Vec<String> {
    let listen = &mut config.listen;
    let mut taken = Vec::new();
    for address in [&mut listen.otlp_grpc, &mut listen.otlp_http, &mut listen.http] {
        if TcpListener::bind(address.as_str()).is_err() {
            taken.push(std::mem::replace(address, "127.0.0.1:0".to_owned()));
        }
    }
    taken
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    human::parse(text).ok_or("write a duration like 30s or 5m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_use_gets_a_free_port_and_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = Config::default();
        config.listen.http = listener.local_addr().unwrap().to_string();
        let taken = prepare(&mut config);
        assert_eq!(config.listen.http, "127.0.0.1:0");
        assert!(taken.contains(&listener.local_addr().unwrap().to_string()));
    }
}
