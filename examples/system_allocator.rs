//! The `agentgauge` command under the system's allocator, for `agentgauge bench`: what a server costs that takes
//! everything as it comes.

use std::io::{stderr, stdout};
use std::process::ExitCode;

fn main() -> ExitCode {
    let (arguments, environment) = (std::env::args_os(), std::env::vars_os());
    agentgauge::cli::run(arguments, environment, &mut stdout(), &mut stderr()).into()
}
