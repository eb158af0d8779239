//! `check`: reads the configuration and says whether it can be used, with the same errors as `serve`.

use clap::Args;

use super::settings::Flags;
use super::{CliError, Process};
use crate::daemon;

/// Checks the configuration, without starting.
#[derive(Args, Debug)]
pub(super) struct Check {
    #[command(flatten)]
    flags: Flags,
}

impl Check {
    pub(super) fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        let config = self.flags.load(process)?;
        let expected = daemon::check(&config)?;
        for remark in &expected.remarks {
            writeln!(process.out, "{remark}").map_err(CliError::Output)?;
        }
        let listen = &config.listen;
        writeln!(
            process.out,
            "the configuration is valid: OTLP/gRPC on {}, OTLP/HTTP on {}, metrics and API on {}",
            listen.otlp_grpc, listen.otlp_http, listen.http
        )
        .map_err(CliError::Output)
    }
}
