//! The `agentgauge` command.

use std::io::{stderr, stdout};
use std::process::ExitCode;

use mimalloc::MiMalloc;

/// The allocator. Requests are large buffers that come and go, and the system's allocator returns each to the kernel.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let (arguments, environment) = (std::env::args_os(), std::env::vars_os());
    agentgauge::cli::run(arguments, environment, &mut stdout(), &mut stderr()).into()
}
