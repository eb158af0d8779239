//! `metrics`: prints the metrics that are exported.

use clap::Args;

use super::{CliError, Process};
use crate::daemon::own_families;
use crate::export;

/// Prints every metric with its formula and source, in Markdown.
#[derive(Args, Debug)]
pub(super) struct Metrics {}

impl Metrics {
    #[expect(clippy::unused_self, reason = "every command is run alike")]
    pub(super) fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        let page = export::page(&own_families()?);
        process.out.write_all(page.as_bytes()).map_err(CliError::Output)
    }
}
