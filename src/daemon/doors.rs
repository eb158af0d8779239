//! The doors of the daemon: which listener speaks TLS, who may come in, and what is said of doors that stand open.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;

use super::Bound;
use crate::access::tls::Tls;
use crate::access::{self, Access, AccessError, Listener, TlsOptions};
use crate::config::Config;
use crate::health::Health;
use crate::ingest::server::Port;

/// TLS and access, as configured.
pub(super) struct Doors {
    tls: Option<Tls>,
    options: TlsOptions,
    access: Access,
    // Whether nobody comes in without a token or a certificate.
    closed: bool,
}

impl Doors {
    /// Reads the certificates and tokens.
    pub(super) fn open(config: &Config) -> Result<Self, AccessError> {
        let certified = config.tls.client_ca_file.is_some();
        Ok(Self {
            tls: Tls::start(&config.tls)?,
            options: config.tls.clone(),
            access: Access::read(&config.access, certified)?,
            closed: config.access.is_any(),
        })
    }

    /// A listener, with TLS if it is to have it.
    pub(super) fn port(&self, name: Listener, listener: TcpListener) -> Port {
        Port::new(listener, self.tls_of(name))
    }

    /// The router of a listener, which lets in only whom it should.
    pub(super) fn guard(&self, name: Listener, router: Router, health: &Arc<Health>) -> Router {
        let health = Arc::clone(health);
        let denied = Arc::new(move |reason| health.refused(reason));
        let access = self.access.clone();
        let access = if self.tls_of(name).is_some() { access } else { access.in_plain_text() };
        access::guard(router, Arc::new(access), denied)
    }

    /// Warns of every address that other machines can reach and that is not secured.
    pub(super) fn warn(&self, bound: &Bound) {
        for (name, key, address) in [
            (Listener::OtlpGrpc, "listen.otlp_grpc", bound.otlp_grpc),
            (Listener::OtlpHttp, "listen.otlp_http", bound.otlp_http),
            (Listener::Http, "listen.http", bound.http),
        ] {
            if let Some(what) = self.lacks(name, address) {
                tracing::warn!(%address, "`{key}` can be reached from other machines, {what}");
            }
        }
    }

    fn lacks(&self, name: Listener, address: SocketAddr) -> Option<&'static str> {
        let tls = self.tls_of(name).is_some();
        let mutual = tls && self.options.client_ca_file.is_some();
        if address.ip().is_loopback() {
            return None;
        }
        match (tls, self.closed || mutual) {
            (true, true) => None,
            (true, false) => Some("and by anybody: see `access.tokens`"),
            (false, true) => Some("in plain text, tokens included: see `tls.cert_file`"),
            (false, false) => {
                Some("in plain text and by anybody: see `tls.cert_file` and `access.tokens`")
            }
        }
    }

    fn tls_of(&self, name: Listener) -> Option<Tls> {
        self.tls.clone().filter(|_| self.options.listeners.contains(&name))
    }
}
