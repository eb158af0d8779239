//! Wiring of the daemon.

use std::net::SocketAddr;

use serde::Serialize;

use crate::config::Config;

/// Addresses that the daemon listens on.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bound {
    /// OTLP over gRPC.
    pub otlp_grpc: SocketAddr,
    /// OTLP over HTTP.
    pub otlp_http: SocketAddr,
    /// Metrics, health and API.
    pub http: SocketAddr,
}

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It cannot listen.
    #[error("failed to listen on {address} (`{key}`)")]
    Listen {
        /// The address.
        address: String,
        /// The option that sets it.
        key: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// The running daemon.
#[derive(Debug)]
pub struct Daemon {
    bound: Bound,
}

impl Daemon {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// Fails if it cannot listen.
    #[expect(clippy::unused_async, reason = "listens")]
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        Err(StartError::Listen {
            address: config.listen.http.clone(),
            key: "listen.http",
            source: std::io::ErrorKind::Unsupported.into(),
        })
    }

    /// Where it listens.
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// Stops it.
    #[expect(clippy::unused_async, reason = "drains")]
    pub async fn stop(self) {}
}
