//! `demo`: the daemon, fed with recorded sessions by a real OTLP client, and a live table.

mod recording;
mod sender;
mod watch;

use std::io::IsTerminal;
use std::net::TcpListener;
use std::time::Duration;

use clap::Args;

use self::recording::Recording;
use self::sender::Sender;
use super::serve::Stop;
use super::settings::Settings;
use super::{CliError, Process, logging};
use crate::clock::Clock;
use crate::config::{Config, LogLevel};
use crate::daemon::Daemon;
use crate::engine::options::human;

/// Between two turns of a session.
const TURN_PAUSE: Duration = Duration::from_millis(400);

/// Between two looks at the agents.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Quiet time after which a trace is done: shorter than in production, so that scores show soon.
const TRACE_IDLE: Duration = Duration::from_secs(1);

/// Starts the daemon and sends it recorded sessions, until interrupted.
#[derive(Args, Debug)]
pub(super) struct Demo {
    /// End by itself after this long, such as 30s
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    lasting: Option<Duration>,
    #[command(flatten)]
    settings: Settings,
}

impl Demo {
    pub(super) fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        let mut config = self.settings.load(process, &[])?;
        config.assemble.trace_idle = config.assemble.trace_idle.min(TRACE_IDLE);
        // The table is what is to be seen.
        if config.log.level == LogLevel::Info {
            config.log.level = LogLevel::Warn;
        }
        free_ports(&mut config);
        // It shows what one process does.
        config.fleet.roles.clear();
        logging::start(&config.log);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(CliError::Runtime)?;
        runtime.block_on(async {
            let stop = Stop::listen().map_err(CliError::Runtime)?;
            let daemon = Daemon::start(&config).await?;
            let bound = daemon.bound();
            let grpc = bound.otlp_grpc.map(|address| address.to_string()).unwrap_or_default();
            let http = bound.http.to_string();
            introduce(process, &grpc, &http).map_err(CliError::Output)?;
            let sender = Sender::connect(&grpc, Clock::system()).await?;
            let end = async {
                match self.lasting {
                    Some(lasting) => tokio::time::sleep(lasting).await,
                    None => std::future::pending().await,
                }
            };
            let result = tokio::select! {
                result = send(sender) => result,
                result = watch::watch(process, &http) => result,
                () = stop.asked() => Ok(()),
                () = end => Ok(()),
            };
            daemon.stop().await;
            result
        })
    }
}

fn introduce(process: &mut Process<'_>, grpc: &str, http: &str) -> std::io::Result<()> {
    writeln!(process.out, "agentgauge is running and is being sent recorded agent sessions.\n")?;
    writeln!(process.out, "  metrics    curl -s http://{http}/metrics | grep ^agentgauge_agent")?;
    writeln!(process.out, "  agents     curl -s http://{http}/api/v1/agents")?;
    writeln!(process.out, "  sessions   curl -s http://{http}/api/v1/sessions")?;
    writeln!(process.out, "  your own   OTEL_EXPORTER_OTLP_ENDPOINT=http://{grpc} (gRPC)\n")?;
    if std::io::stdout().is_terminal() {
        writeln!(process.out, "Ctrl-C ends it.\n")?;
    }
    process.out.flush()
}

/// Sends the recorded sessions again and again, each time as new sessions, turn by turn and
/// side by side.
async fn send(mut sender: Sender) -> Result<(), CliError> {
    let recordings = recording::all();
    let longest = recordings.iter().map(Recording::turns).max().unwrap_or(0);
    for round in 0.. {
        for turn in 0..longest {
            for recording in &recordings {
                sender.turn(recording, turn, round).await?;
            }
            tokio::time::sleep(TURN_PAUSE).await;
        }
    }
    Ok(())
}

/// Takes a free port for each address that is in use.
fn free_ports(config: &mut Config) {
    let listen = &mut config.listen;
    for address in [&mut listen.otlp_grpc, &mut listen.otlp_http, &mut listen.http] {
        if TcpListener::bind(address.as_str()).is_err() {
            "127.0.0.1:0".clone_into(address);
        }
    }
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    human::parse(text).ok_or("write a duration like 30s or 5m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_use_gets_a_free_port() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = Config::default();
        config.listen.http = taken.local_addr().unwrap().to_string();
        free_ports(&mut config);
        // It shows what one process does.
        config.fleet.roles.clear();
        assert_eq!(config.listen.http, "127.0.0.1:0");
    }
}
