//! What a start refuses of a configuration, found out without starting: `check` and `serve` ask here, and say the same.
//!
//! What depends on the machine at that moment is not asked: whether an address is free, whether another process has the store.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::askers::Askers;
use super::{StartError, webhook};
use crate::access::Access;
use crate::access::tls::Tls;
use crate::clock::Clock;
use crate::config::Config;
use crate::config::expect::{self, Expectations};
use crate::export::board::Board;
use crate::health::Health;
use crate::store::{Durability, StoreError};
use crate::telemetry::Telemetry;

/// Reads every file and makes every client that a configuration names, as a start does; returns what traces are expected to be.
///
/// # Errors
///
/// Fails with what a start would fail with.
pub fn check(config: &Config) -> Result<Expectations, StartError> {
    let expected = expect::read(&config.expect.files)?;
    Tls::check(&config.tls)?;
    Access::read(&config.access, config.tls.client_ca_file.is_some())?;
    // Nobody sees these metrics.
    let clock = Clock::system();
    let health = Health::new(clock.wall())?;
    let board = Arc::new(Board::new(config.api));
    webhook(config, &clock, &health)?;
    Telemetry::check(&config.telemetry, &config.listen.telemetry())?;
    Askers::new(config, &clock, &health, Vec::new(), &board)?;
    #[cfg(feature = "kafka")]
    if config.kafka.enabled() {
        crate::ingest::kafka::check(&config.kafka)?;
    }
    let (store, directory) = (&config.store, Path::new(&config.store.directory));
    if store.durability != Durability::Memory && directory.exists() && !directory.is_dir() {
        let source = io::ErrorKind::NotADirectory.into();
        return Err(StoreError::Directory { path: directory.to_owned(), source }.into());
    }
    Ok(expected)
}
