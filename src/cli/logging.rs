//! Log events on standard error, as text or JSON.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;

use crate::config::{Log, LogFormat, LogLevel};

/// Starts writing events; a process that already does keeps its ways.
pub(super) fn start(log: &Log) {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let events = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_max_level(level);
    // Fails only if a subscriber was set before.
    let _ = match log.format {
        LogFormat::Text => events.try_init(),
        LogFormat::Json => events.json().try_init(),
    };
}
