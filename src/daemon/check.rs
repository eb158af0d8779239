//! Finds what a start would refuse in a configuration, without starting: `check` and `serve` both use it, so they refuse the same.
//!
//! It does not check the state of the machine: whether an address is free, whether another process uses the store.

use std::path::Path;
use std::sync::Arc;

use super::clients::Clients;
use super::{StartError, webhook};
use crate::access::Access;
use crate::access::tls::Tls;
use crate::clock::Clock;
use crate::config::Config;
use crate::config::expect::{self, Expectations};
use crate::config::key::{self, KeyError};
use crate::export::board::Board;
use crate::health::Health;
use crate::store::{self, Durability};
use crate::telemetry::Telemetry;

/// Reads every file and makes every client that a configuration names, as a start does; returns the expectations of traces, with
/// remarks on what is configured and has no effect.
///
/// # Errors
///
/// Fails as a start would.
pub fn check(config: &Config) -> Result<Expectations, StartError> {
    let mut expected = expect::read(&config.expect.files, config.judge.is_on())?;
    Tls::check(&config.tls)?;
    Access::read(&config.access, config.tls.client_ca_file.is_some())?;
    // These metrics are discarded.
    let clock = Clock::system();
    let health = Health::new(clock.wall())?;
    let board = Arc::new(Board::new(config.api));
    webhook(config, &clock, &health)?;
    Telemetry::check(&config.telemetry, &config.listen.telemetry())?;
    Clients::new(config, &clock, &health, Vec::new(), &board)?;
    #[cfg(feature = "kafka")]
    if config.kafka.enabled() {
        crate::ingest::kafka::check(&config.kafka)?;
    }
    if config.store.durability != Durability::Memory {
        store::check(Path::new(&config.store.directory))?;
    }
    expected.remarks.extend(keyless(config)?);
    Ok(expected)
}

/// The endpoints of models that are called over TLS without a key, although a variable was to hold one. An empty `api_key_env` says
/// that there is none.
fn keyless(config: &Config) -> Result<Vec<String>, KeyError> {
    let (judge, embed) = (&config.judge, &config.embed);
    let endpoints = [
        ("judge", &judge.url, &judge.api_key_env, &judge.api_key_file, judge.is_on()),
        ("embed", &embed.url, &embed.api_key_env, &embed.api_key_file, embed.wanted().is_some()),
    ];
    let mut remarks = Vec::new();
    for (section, url, variable, file, is_on) in endpoints {
        let keyed = variable.is_empty() || key::read(section, file, variable)?.is_some();
        if is_on && !keyed && url.starts_with("https:") {
            remarks.push(format!(
                "`{section}.url` is asked without a key: there is none in {variable} (`{section}.api_key_env`, empty if none is needed)"
            ));
        }
    }
    Ok(remarks)
}
