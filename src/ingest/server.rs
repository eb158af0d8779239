//! Limits of connections.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How connections are served, whatever they carry.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerOptions {
    /// Connections of one listener; over it new ones wait to be accepted.
    pub max_connections: usize,
    /// How long a client may take over the head of a request.
    #[serde(with = "crate::engine::options::human")]
    pub header_read_timeout: Duration,
    /// How long a client may take over the body of a request.
    #[serde(with = "crate::engine::options::human")]
    pub read_timeout: Duration,
    /// Largest head of a request, in bytes.
    pub max_header_bytes: u32,
    /// How long connections may take to finish at shutdown.
    #[serde(with = "crate::engine::options::human")]
    pub drain_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            header_read_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(30),
            max_header_bytes: 16 << 10,
            drain_timeout: Duration::from_secs(10),
        }
    }
}
