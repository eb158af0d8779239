//! Why a daemon does not start.

use std::io;
use std::path::PathBuf;

use crate::access::AccessError;
use crate::config::expect::ExpectError;
use crate::config::key::KeyError;
use crate::embed::EmbedError;
use crate::export::otlp::ScoresOutError;
use crate::judge::JudgeError;
use crate::outbound::EndpointError;
use crate::store::StoreError;
use crate::telemetry::TelemetryError;
use crate::webhook::WebhookError;

/// Why a daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error(
        "cannot listen on {address} (`{key}`): {source}{}", hint(source.kind())
    )]
    Bind {
        /// The address.
        address: String,
        /// The option that sets it.
        key: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// A file of expectations cannot be read.
    #[error(transparent)]
    Expect(#[from] ExpectError),
    /// Certificates or tokens cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The judge cannot be set up.
    #[error(transparent)]
    Judge(#[from] JudgeError),
    /// Texts cannot be embedded.
    #[error(transparent)]
    Embed(#[from] EmbedError),
    /// Scores cannot be sent to others.
    #[error(transparent)]
    ScoresOut(#[from] ScoresOutError),
    /// The key of an endpoint cannot be read.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The Kafka source cannot be set up.
    #[cfg(feature = "kafka")]
    #[error(transparent)]
    Kafka(#[from] crate::ingest::kafka::SourceError),
    /// The daemon cannot share its work with other instances.
    #[cfg(feature = "kafka")]
    #[error(transparent)]
    Fleet(#[from] crate::fleet::FleetError),
    /// The system has no thread for a source.
    #[cfg(feature = "kafka")]
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The webhook cannot be used.
    #[error(transparent)]
    Webhook(#[from] WebhookError),
    /// The daemon's own telemetry cannot be sent.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The daemon's own metrics cannot be set up.
    #[error("cannot set up the daemon's own metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The kept history of agents cannot be used.
    #[error("cannot keep the history of agents in {path}: {source}")]
    History {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The Prometheus that is asked about alerts cannot be used.
    #[error(transparent)]
    Prometheus(#[from] EndpointError),
    /// The recovery of the store ended without a result.
    #[error("recovery of the store failed: {0}")]
    Recovery(String),
}

/// Why a daemon has to be restarted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Failed {
    /// A sync of the log failed.
    Sync,
    /// The task with this name panicked.
    Task(&'static str),
    /// At the stop files of the store were gone, and no last snapshot could be written in their place.
    Lost,
}

/// What may help if an address cannot be listened on.
fn hint(kind: io::ErrorKind) -> &'static str {
    let hints = [
        (io::ErrorKind::AddrInUse, "; is another process using it? port 0 takes a free one"),
        (io::ErrorKind::AddrNotAvailable, "; this machine has no such address"),
        (io::ErrorKind::PermissionDenied, "; ports below 1024 take a right of their own"),
    ];
    hints.into_iter().find(|(of, _)| *of == kind).map_or("", |(_, hint)| hint)
}
