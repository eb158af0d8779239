//! `topics`: creates the Kafka topics through which instances share the work.

use clap::{Args, Subcommand};

use super::settings::Settings;
use super::{CliError, Process};

/// Creates the Kafka topics that several instances share.
#[derive(Args, Debug)]
pub(super) struct Topics {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Creates the topics that do not exist yet, at `kafka.brokers`
    Create(Create),
}

/// Creates the topics that do not exist yet.
#[derive(Args, Debug)]
struct Create {
    #[command(flatten)]
    settings: Settings,
}

impl Topics {
    pub(super) fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        let Command::Create(create) = &self.command;
        create.run(process)
    }
}

impl Create {
    #[cfg(feature = "kafka")]
    fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        let config = self.settings.load(process, &[])?;
        if !config.kafka.enabled() {
            return Err(CliError::NoBrokers);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(CliError::Runtime)?;
        let made = runtime.block_on(crate::fleet::topics::create(&config.kafka, &config.fleet))?;
        for crate::fleet::topics::Made { topic, new } in made {
            let what = if new { "made" } else { "there already" };
            writeln!(process.out, "{topic}: {what}").map_err(CliError::Output)?;
        }
        Ok(())
    }

    #[cfg(not(feature = "kafka"))]
    fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        self.settings.load(process, &[])?;
        Err(CliError::NoBrokers)
    }
}
