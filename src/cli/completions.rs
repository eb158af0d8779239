//! `completions`: prints the completion script of a shell.

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use super::{Cli, CliError, Process};

/// Prints the completions of a shell.
#[derive(Args, Debug)]
pub(super) struct Completions {
    /// Which shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        // Generating into memory cannot fail; writing to the output can, if its reader is gone.
        let mut text = Vec::new();
        generate(self.shell, &mut Cli::command(), "agentgauge", &mut text);
        process.out.write_all(&text).map_err(CliError::Output)
    }
}
