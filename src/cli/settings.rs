//! Where commands take their configuration from.

use std::path::PathBuf;

use clap::Args;

use super::{CliError, Process};
use crate::config::Config;

/// The configuration file, for every command.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct Settings {
    /// Configuration file in TOML; variables such as AGENTGAUGE__SECTION__KEY override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Settings {
    /// Loads the configuration; `flags` are (flag, dotted key, value).
    pub(super) fn load(
        &self,
        process: &Process<'_>,
        flags: &[(&'static str, &'static str, String)],
    ) -> Result<Config, CliError> {
        let environment = Config::environment(process.environment.iter().cloned())?;
        Ok(Config::load(self.config.as_deref(), environment, flags)?)
    }
}
