//! `conventions`: prints which attributes are read from each library's spans.

use clap::Args;

use super::{CliError, Process};
use crate::engine::convention;

/// Prints which attributes are read, library by library, in Markdown.
#[derive(Args, Debug)]
pub(super) struct Conventions {}

impl Conventions {
    pub(super) fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        process.out.write_all(convention::page().as_bytes()).map_err(CliError::Output)
    }
}
