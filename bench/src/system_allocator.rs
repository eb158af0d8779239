//! The same command under the system's allocator, as for a server that keeps all defaults.

use std::io::{stderr, stdout};
use std::process::ExitCode;

fn main() -> ExitCode {
    agentgauge_bench::command::run(std::env::args_os(), &mut stdout(), &mut stderr()).into()
}
