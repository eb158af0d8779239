//! The `agentgauge` command.

use std::io::{stderr, stdout};
use std::process::ExitCode;

fn main() -> ExitCode {
    let (arguments, environment) = (std::env::args_os(), std::env::vars_os());
    agentgauge::cli::run(arguments, environment, &mut stdout(), &mut stderr()).into()
}
