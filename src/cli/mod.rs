//! The command line: arguments and exit codes. One command, one file.

mod check;
mod completions;
mod conventions;
mod demo;
mod error;
mod expect;
mod logging;
mod man;
mod metrics;
mod replay;
mod rules;
mod serve;
mod settings;
mod topics;
mod verify;

use std::ffi::OsString;
use std::io::Write;

use clap::{Parser, Subcommand};
use tokio::runtime::Runtime;

pub use error::CliError;
pub use replay::Floor;

/// Usage or configuration is wrong.
pub const EXIT_USAGE: u8 = 64;

/// A gate was not met.
pub const EXIT_GATE: u8 = 2;

/// Anything else went wrong.
pub const EXIT_FAILURE: u8 = 1;

/// Tells when an AI agent gets worse, loops or hangs, and why, from the OpenTelemetry data that it
/// sends.
#[derive(Debug, Parser)]
#[command(name = "agentgauge", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Serve,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the daemon (the default)
    Serve(serve::Serve),
    /// Scores recorded requests offline, with the daemon's engine
    Replay(replay::Replay),
    /// Checks the configuration without starting the daemon
    Check(check::Check),
    /// Computes the scores of recorded requests again with a slow reference model, and compares
    Verify(verify::Verify),
    /// Prints which attributes are read, library by library, in Markdown
    Conventions(conventions::Conventions),
    /// Prints every metric with its formula and source, in Markdown
    Metrics(metrics::Metrics),
    /// Prints a completion script for your shell
    Completions(completions::Completions),
    /// Prints the manual page
    Man(man::Man),
    /// Prints recording and alert rules for Prometheus
    Rules(rules::Rules),
    /// Creates the Kafka topics that several instances share
    Topics(topics::Topics),
    /// Starts the daemon with simulated agents: five minutes at a small company
    Demo(demo::Demo),
}

/// The parts of its process that a command may use.
struct Process<'p> {
    environment: Vec<(OsString, OsString)>,
    out: &'p mut dyn Write,
    err: &'p mut dyn Write,
}

/// Runs the command in `arguments` (the program's name first) and returns the exit code: 0,
/// [`EXIT_USAGE`], [`EXIT_GATE`] or [`EXIT_FAILURE`].
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let environment = environment.into_iter().collect();
    let mut process = Process { environment, out, err };
    let command = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli.command.unwrap_or(Command::Serve(cli.serve)),
        Err(error) => return print_usage(&error, &mut process),
    };
    let result = match command {
        Command::Serve(serve) => serve.run(&mut process),
        Command::Replay(replay) => replay.run(&mut process),
        Command::Check(check) => check.run(&mut process),
        Command::Verify(verify) => verify.run(&mut process),
        Command::Conventions(conventions) => conventions.run(&mut process),
        Command::Metrics(metrics) => metrics.run(&mut process),
        Command::Completions(completions) => completions.run(&mut process),
        Command::Man(man) => man.run(&mut process),
        Command::Rules(rules) => rules.run(&mut process),
        Command::Topics(topics) => topics.run(&mut process),
        Command::Demo(demo) => demo.run(&mut process),
    };
    // If standard error cannot be written, the exit code still shows the failure.
    match result.and_then(|()| process.out.flush().map_err(CliError::Output)) {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(process.err, "error: {}", error.chain());
            error.code()
        }
    }
}

/// The runtime of a daemon.
fn runtime() -> Result<Runtime, CliError> {
    tokio::runtime::Builder::new_multi_thread()
        // Set here, as the runtime would read its own variable, and panic on an invalid value.
        .worker_threads(std::thread::available_parallelism().map_or(1, usize::from))
        .enable_all()
        .build()
        .map_err(CliError::Runtime)
}

/// Prints clap's message and returns the exit code: help and version are no errors, and for the rest clap itself would exit with 2.
fn print_usage(error: &clap::Error, process: &mut Process<'_>) -> u8 {
    let text = error.render();
    if error.use_stderr() {
        let _ = write!(process.err, "{text}");
        EXIT_USAGE
    } else {
        let _ = write!(process.out, "{text}");
        0
    }
}
