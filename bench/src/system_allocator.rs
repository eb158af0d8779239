//! The same command under the system's allocator: what a server costs that takes everything as it comes.

use std::io::{stderr, stdout};
use std::process::ExitCode;

fn main() -> ExitCode {
    agentgauge_bench::command::run(std::env::args_os(), &mut stdout(), &mut stderr()).into()
}
