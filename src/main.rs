//! The `agentgauge` command.

use std::io::{stderr, stdout};
use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Requests are large buffers that come and go: the system's allocator gives each back to the kernel.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // State grows by what agents send, a little everywhere. Cleared two megabytes at a time, it takes more memory than is used, and
    // a fifth of the processor; where that cannot be told to the kernel it goes on as it is.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let (arguments, environment) = (std::env::args_os(), std::env::vars_os());
    agentgauge::cli::run(arguments, environment, &mut stdout(), &mut stderr()).into()
}
