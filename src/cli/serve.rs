//! `serve`: the daemon, until SIGTERM, SIGINT, or SIGHUP when its terminal closes.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use clap::Args;
use tokio::runtime::Runtime;

use super::settings::Flags;
use super::{CliError, Process, logging};
use crate::daemon::{Bound, Daemon, Failed};
use crate::memory;

/// Runs the daemon.
#[derive(Args, Debug)]
pub(super) struct Serve {
    #[command(flatten)]
    flags: Flags,
}

impl Serve {
    pub(super) fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        memory::take_small_pages();
        take_files();
        let config = self.flags.load(process)?;
        logging::start(&config.log);
        let runtime = super::runtime()?;
        let ran = runtime.block_on(async {
            // Signals are caught before the daemon says that it is ready, so that no later signal is missed.
            let mut asked = pin!(Stop::listen().map_err(CliError::Runtime)?.asked());
            let daemon = tokio::select! {
                daemon = Daemon::start(&config) => daemon?,
                signal = asked.as_mut() => {
                    tracing::info!(signal, "asked to stop before the start was over");
                    return Ok(None);
                }
            };
            let text = match std::io::stdout().is_terminal() {
                true => for_people(daemon.bound()),
                false => serde_json::to_string(daemon.bound()).map_err(CliError::Json)?,
            };
            writeln!(process.out, "{text}")
                .and_then(|()| process.out.flush())
                .map_err(CliError::Output)?;
            let Bound { otlp_grpc, otlp_http, http } = daemon.bound();
            let (version, durability) = (env!("CARGO_PKG_VERSION"), config.store.durability);
            let directory = &config.store.directory;
            tracing::info!(version, ?otlp_grpc, ?otlp_http, %http, ?durability, directory, "started");
            let ended = tokio::select! {
                signal = asked => {
                    tracing::info!(signal, "stopping");
                    Ok(())
                }
                failed = daemon.failed() => Err(failed.into()),
            };
            Ok(Some((daemon, ended)))
        });
        let limit = config.server.drain_timeout + MAX_STOP;
        let ended = ran.and_then(|ran| match ran {
            Some((daemon, ended)) => {
                let stopped = stop(&runtime, daemon, limit);
                ended.and(stopped)
            }
            None => Ok(()),
        });
        // Work that is still running has no recipient: an aborted recovery, which is like a crash, or a request whose sender was
        // given up. It ends with the process.
        runtime.shutdown_background();
        ended
    }
}

/// How long a stop may take beyond `server.drain_timeout`: less than the usual time until a kill.
const MAX_STOP: Duration = Duration::from_secs(40);

/// Stops the daemon within a limit, as a hanging disk would delay it for ever. This thread waits, as those of the runtime may all
/// hang.
fn stop(runtime: &Runtime, daemon: Daemon, limit: Duration) -> Result<(), CliError> {
    let step = daemon.stop_step();
    match within(runtime, daemon.stop(), limit) {
        Ok(None) => tracing::info!("stopped"),
        Ok(Some(failed)) => return Err(failed.into()),
        Err(RecvTimeoutError::Timeout) => {
            let left = *step.borrow();
            return Err(CliError::Stop { limit, left });
        }
        Err(RecvTimeoutError::Disconnected) => return Err(CliError::Task { task: "the stop" }),
    }
    Ok(())
}

/// Runs a future to its end, if it ends within the limit.
fn within<T: Send + 'static>(
    runtime: &Runtime,
    run: impl Future<Output = T> + Send + 'static,
    limit: Duration,
) -> Result<T, RecvTimeoutError> {
    let (done, ends) = std::sync::mpsc::channel();
    runtime.spawn(async move {
        let _ = done.send(run.await);
    });
    ends.recv_timeout(limit)
}

impl From<Failed> for CliError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Sync => Self::Sync,
            Failed::Task(task) => Self::Task { task },
            Failed::Lost => Self::Lost,
        }
    }
}

/// The text that tells people the addresses of the page and for data.
fn for_people(bound: &Bound) -> String {
    let otlp = |address: &Option<SocketAddr>| {
        address.map_or_else(|| "off".to_owned(), |address| format!("http://{address}"))
    };
    format!(
        "The page:      http://{}/\nPoint OTLP at: {} (HTTP: OTEL_EXPORTER_OTLP_ENDPOINT), {} (gRPC)\nPrometheus at: http://{}/metrics",
        bound.http,
        otlp(&bound.otlp_http),
        otlp(&bound.otlp_grpc),
        bound.http
    )
}

/// Raises the limit of open files as far as this process may: each connection is a file, and the limit is often lower than the
/// permitted number of connections.
fn take_files() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // If the limit cannot be raised, useless connections are closed to make room.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// The usual number of the signal for a write beyond the maximal size of a file.
#[cfg(unix)]
const SIGXFSZ: i32 = 25;

/// Waits for a signal that the process should end.
#[cfg(unix)]
pub(super) struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    // `None` if it must not end the process.
    hangup: Option<tokio::signal::unix::Signal>,
    // Held so that a write beyond the process's limit of file sizes fails instead of ending the process.
    _file_size: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Stop {
    pub(super) fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            // `nohup` ignores it, and catching it would undo that.
            hangup: (!hangup_is_ignored()).then(|| signal(SignalKind::hangup())).transpose()?,
            _file_size: signal(SignalKind::from_raw(SIGXFSZ))?,
        })
    }

    /// Waits until the process should end; returns the name of the signal.
    pub(super) async fn asked(mut self) -> &'static str {
        let hung_up = async {
            match &mut self.hangup {
                Some(hangup) if has_terminal() => hangup.recv().await,
                Some(hangup) => loop {
                    hangup.recv().await;
                    tracing::warn!(
                        "SIGHUP without a terminal has no effect: the configuration is read only at the start"
                    );
                },
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = hung_up => "SIGHUP",
        }
    }
}

/// Whether a terminal could close. Without one, SIGHUP is sent by users who expect it to reload the configuration.
#[cfg(unix)]
fn has_terminal() -> bool {
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    stdin.is_terminal() || stdout.is_terminal() || stderr.is_terminal()
}

/// Whether this process was started with SIGHUP ignored; true if that cannot be determined.
#[cfg(unix)]
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // The first signal is the lowest bit, and SIGHUP is the first.
    ignored.is_none_or(|mask| mask & 1 == 1)
}

/// Waits for a signal that the process should end.
#[cfg(not(unix))]
pub(super) struct Stop;

#[cfg(not(unix))]
impl Stop {
    #[expect(clippy::unnecessary_wraps, reason = "other systems can refuse")]
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self)
    }

    /// Waits until the process should end; returns the name of the signal.
    pub(super) async fn asked(self) -> &'static str {
        // If signals cannot be caught, the daemon runs until it is killed.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        "Ctrl-C"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_ends_even_if_every_thread_of_the_runtime_hangs() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let limit = Duration::from_secs(20);
        assert_eq!(within(&runtime, async {}, limit), Ok(()));
        assert_eq!(
            within(&runtime, async { panic!("of a test") }, limit),
            Err(RecvTimeoutError::Disconnected)
        );
        let (hang, hangs) = std::sync::mpsc::channel::<()>();
        let hung = async move {
            let _ = hangs.recv();
        };
        let short = Duration::from_millis(50);
        assert_eq!(within(&runtime, hung, short), Err(RecvTimeoutError::Timeout));
        drop(hang);
    }
}
