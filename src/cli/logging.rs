//! Log events on standard error, as text or JSON.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use crate::config::{Log, LogFormat, LogLevel};
use crate::telemetry::Logs;

/// Starts writing log events; has no effect in a process that already does.
pub(super) fn start(log: &Log) {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // Any client can make these libraries log without limit; connections that they end are counted.
    let of_libraries = if level > LevelFilter::INFO { level } else { LevelFilter::ERROR };
    let libraries = OF_CONNECTIONS.map(|library| (library, of_libraries));
    let wanted = Targets::new().with_default(level).with_targets(libraries);
    let written = fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    let events = registry().with(wanted).with(Logs);
    // Fails only if a subscriber was set before.
    let _ = match log.format {
        LogFormat::Text => events.with(written).try_init(),
        LogFormat::Json => events.with(written.json()).try_init(),
    };
}

/// The libraries that read from clients.
const OF_CONNECTIONS: [&str; 4] = ["h2", "hyper", "hyper_util", "rustls"];
