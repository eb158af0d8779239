//! `check`: reads the configuration and says whether it can be used.

use clap::Args;

use super::settings::Settings;
use super::{CliError, Process};
use crate::access::Access;
use crate::access::tls::Tls;
use crate::config::expect;

/// Checks the configuration, without starting.
#[derive(Args, Debug)]
pub(super) struct Check {
    #[command(flatten)]
    settings: Settings,
}

impl Check {
    pub(super) fn run(&self, process: &mut Process<'_>) -> Result<(), CliError> {
        let config = self.settings.load(process, &[])?;
        let expected = expect::read(&config.expect.files)?;
        let unjudged = expected.unjudged.iter().filter(|_| !config.judge.is_on());
        for remark in expected.remarks.iter().chain(unjudged) {
            writeln!(process.out, "{remark}").map_err(CliError::Output)?;
        }
        Tls::check(&config.tls)?;
        Access::read(&config.access, config.tls.client_ca_file.is_some())?;
        let listen = &config.listen;
        writeln!(
            process.out,
            "the configuration is good: OTLP/gRPC on {}, OTLP/HTTP on {}, metrics and API on {}",
            listen.otlp_grpc, listen.otlp_http, listen.http
        )
        .map_err(CliError::Output)
    }
}
