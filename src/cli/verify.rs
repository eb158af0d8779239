//! `verify`: compares the engine with the reference model, on recorded requests.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::replay::{Replayed, replay};
use super::settings::Settings;
use super::{CliError, Process};
use crate::reference::compare::compare;
use crate::reference::gather::Recorded;

/// Computes scores a second time, by the reference model, and compares them
#[derive(Args, Debug)]
pub(super) struct Verify {
    /// Recordings (.pb, .json, .jsonl; also .gz, .zst) and folders of them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

impl Verify {
    pub(super) fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        let config = self.settings.load(process, &[])?;
        let mut recorded = Recorded::default();
        let replayed = replay(&self.paths, config, Arc::default(), Some(&mut recorded))?;
        let Replayed { document, options, end, .. } = &replayed;
        let comparison = compare(&recorded, options, *end, document);
        for difference in &comparison.differences {
            writeln!(process.out, "{difference}").map_err(CliError::Output)?;
        }
        writeln!(process.out, "{comparison}").map_err(CliError::Output)?;
        let (compared, count) = (comparison.count(), comparison.differences.len());
        if count > 0 {
            return Err(CliError::Different { count, compared });
        }
        let sessions = document.sessions.len();
        writeln!(
            process.out,
            "{compared} values of {sessions} sessions agree with the reference model"
        )
        .map_err(CliError::Output)
    }
}
