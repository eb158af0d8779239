//! The `agentgauge-bench` command, and the floor and stock servers under the daemon's allocator.

use std::io::{stderr, stdout};
use std::process::ExitCode;

use mimalloc::MiMalloc;

/// The daemon's allocator.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    agentgauge_bench::command::run(std::env::args_os(), &mut stdout(), &mut stderr()).into()
}
