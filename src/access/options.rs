//! The options of access.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::options::{DAY, MILLISECOND, MINUTE};
use crate::secret::Secret;

crate::engine::options! {
    /// TLS of the listeners.
    pub struct TlsOptions in "tls" {
        /// The server's certificate chain (PEM), its own first; without it the listeners speak plain text.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cert_file: Option<PathBuf> = None;
        /// The private key of that certificate (PEM).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub key_file: Option<PathBuf> = None;
        /// The authorities (PEM) whose certificates clients show; without it clients show none.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub client_ca_file: Option<PathBuf> = None;
        /// Whether a client must show a certificate, where there is a `client_ca_file`: require; request (health can be asked for
        /// without).
        pub client_auth: ClientAuth = ClientAuth::default();
        /// Which listeners use TLS, once there is a certificate: `otlp_grpc`, `otlp_http`, http.
        pub listeners: Vec<Listener> = vec![Listener::OtlpGrpc, Listener::OtlpHttp, Listener::Http];
        /// How often the certificate files are checked for changes, which apply to new connections.
        #[serde(with = "crate::engine::options::human")]
        pub reload_interval: Duration = MINUTE, within MILLISECOND..=DAY;
    }
}

/// Whether clients must show certificates.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    /// A client without a certificate gets no connection.
    #[default]
    Require,
    /// A client without a certificate gets a connection, for health, for what is open, and for what its token allows.
    Request,
}

/// A listener.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Listener {
    /// OTLP over gRPC.
    OtlpGrpc,
    /// OTLP over HTTP.
    OtlpHttp,
    /// Metrics, health and API.
    Http,
}

/// Who may do what.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AccessOptions {
    /// Bearer tokens. With any of these, or any of `certificates`, only health and what is `open` are answered without one.
    pub tokens: Vec<TokenOptions>,
    /// Client certificates, by a DNS name or URI that they carry as subject alternative name.
    pub certificates: Vec<CertificateOptions>,
    /// What everybody may do.
    pub open: Vec<May>,
}

/// A bearer token: its place and its permissions.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TokenOptions {
    /// Its name in errors and logs.
    pub name: String,
    /// A file that contains only the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// An environment variable that contains the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// The tenant of everything sent with it; without a tenant, the token can read all tenants' data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What it permits.
    pub may: Vec<May>,
    /// What `env` held at the start.
    #[serde(skip)]
    pub value: Option<Secret>,
}

/// A client certificate.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateOptions {
    /// A DNS name or URI, exactly as in the certificate.
    pub name: String,
    /// As for a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What it permits.
    pub may: Vec<May>,
}

/// What a request does.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum May {
    /// Sends spans, logs and reports.
    Ingest,
    /// Reads agents, sessions and traces: the API and the page.
    Read,
    /// Scrapes.
    Metrics,
}

impl AccessOptions {
    /// Reads the tokens that are in environment variables.
    pub fn take_from(&mut self, environment: &[(String, String)]) {
        for token in &mut self.tokens {
            let Some(variable) = &token.env else { continue };
            let found = environment.iter().find(|(name, _)| name == variable);
            token.value = found.map(|(_, value)| Secret::trimmed(value));
        }
    }

    /// Whether any token or certificate is configured.
    pub fn is_configured(&self) -> bool {
        !(self.tokens.is_empty() && self.certificates.is_empty())
    }
}

impl May {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Read => "read",
            Self::Metrics => "metrics",
        }
    }
}
