//! The security of the listeners: which ones use TLS, who may use them, and warnings of listeners that are not secured.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::Bound;
use crate::access::tls::Tls;
use crate::access::{self, Access, AccessError, Answer, Hosts, Listener, May, TlsOptions};
use crate::config::Config;
use crate::health::Health;
use crate::ingest::server::Port;

/// TLS and access, as configured.
pub(super) struct ListenerSecurity {
    tls: Option<Tls>,
    options: TlsOptions,
    access: Access,
    // Whether tokens or certificates are configured: a sender without one may do only what is open.
    named: bool,
    open: Vec<May>,
    hosts: Vec<String>,
}

impl ListenerSecurity {
    /// Reads the certificates and tokens.
    pub(super) fn open(config: &Config, health: &Arc<Health>) -> Result<Self, AccessError> {
        let certified = config.tls.client_ca_file.is_some();
        if config.tls.cert_file.is_some() {
            health.watches_certificates();
        }
        let told = Arc::clone(health);
        let reloaded = move |outcome| told.certificates(outcome);
        Ok(Self {
            tls: Tls::start(&config.tls, reloaded, &health.vital)?,
            options: config.tls.clone(),
            access: Access::read(&config.access, certified)?,
            named: config.access.is_configured(),
            open: config.access.open.clone(),
            hosts: config.listen.hosts.clone(),
        })
    }

    /// A listener, with TLS if it is configured for it.
    pub(super) fn port(&self, name: Listener, listener: TcpListener) -> Port {
        Port::new(listener, self.tls_of(name))
    }

    /// The handler of a listener, behind the checks of host names and access.
    pub(super) fn guard(
        &self,
        name: Listener,
        address: Option<SocketAddr>,
        answers: Answer,
        health: &Arc<Health>,
    ) -> Answer {
        let loopback = address.is_none_or(|address| address.ip().to_canonical().is_loopback());
        let hosts = Hosts::new(loopback, &self.hosts);
        let health = Arc::clone(health);
        let denied = move |reason| health.refused(reason);
        let access = self.access.clone();
        let access = if self.tls_of(name).is_some() { access } else { access.in_plain_text() };
        access::guard(answers, hosts, access, denied)
    }

    /// Warns of every address that other machines can reach and that is not secured.
    pub(super) fn warn(&self, bound: &Bound) {
        for (name, key, address) in [
            (Listener::OtlpGrpc, "listen.otlp_grpc", bound.otlp_grpc),
            (Listener::OtlpHttp, "listen.otlp_http", bound.otlp_http),
            (Listener::Http, "listen.http", Some(bound.http)),
        ] {
            let Some(address) = address else { continue };
            if let Some(what) = self.lacks(name, address) {
                tracing::warn!(%address, "`{key}` can be reached from other machines, {what}");
            }
        }
    }

    fn lacks(&self, name: Listener, address: SocketAddr) -> Option<&'static str> {
        let tls = self.tls_of(name).is_some();
        let mutual = tls && self.options.client_ca_file.is_some();
        if address.ip().to_canonical().is_loopback() {
            return None;
        }
        // Metrics alone are often meant for everybody; sending data and reading content are not.
        let open = match name {
            Listener::OtlpGrpc | Listener::OtlpHttp => self.open.contains(&May::Ingest),
            Listener::Http => self.open.contains(&May::Ingest) || self.open.contains(&May::Read),
        };
        match (tls, (self.named || mutual) && !open) {
            (true, true) => None,
            (true, false) => Some("and by any client: see `access.tokens`"),
            (false, true) => Some("in plain text, tokens included: see `tls.cert_file`"),
            (false, false) => {
                Some("in plain text and by any client: see `tls.cert_file` and `access.tokens`")
            }
        }
    }

    fn tls_of(&self, name: Listener) -> Option<Tls> {
        self.tls.clone().filter(|_| self.options.listeners.contains(&name))
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use http::header::HOST;
    use http::{Request, StatusCode};

    use super::*;
    use crate::access::AccessOptions;
    use crate::engine::span::Timestamp;

    fn secured(named: bool, open: &[May]) -> ListenerSecurity {
        let (options, access) = (TlsOptions::default(), Access::default());
        ListenerSecurity {
            tls: None,
            options,
            access,
            named,
            open: open.to_vec(),
            hosts: Vec::new(),
        }
    }

    #[test]
    fn whoever_listens_to_others_is_told_what_that_lacks() {
        let everywhere = "0.0.0.0:4318".parse().unwrap();
        let lacks = |security: &ListenerSecurity, name| {
            security.lacks(name, everywhere).unwrap_or_default()
        };
        for name in [Listener::OtlpGrpc, Listener::OtlpHttp, Listener::Http] {
            let open = secured(false, &[]);
            assert!(lacks(&open, name).contains("`tls.cert_file` and `access.tokens`"));
            for loopback in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
                assert_eq!(open.lacks(name, loopback.parse().unwrap()), None);
            }
            assert!(lacks(&secured(true, &[]), name).starts_with("in plain text, tokens included"));
            assert!(lacks(&secured(true, &[May::Ingest]), name).contains("by any client"));
            let numbers = secured(true, &[May::Metrics]);
            assert!(!lacks(&numbers, name).contains("by any client"));
        }
        let read = secured(true, &[May::Read]);
        assert!(lacks(&read, Listener::Http).contains("by any client"));
        assert!(!lacks(&read, Listener::OtlpHttp).contains("by any client"));
    }

    #[tokio::test]
    async fn only_loopback_knows_all_of_its_names() {
        let health = Health::new(Timestamp(0)).unwrap();
        for (address, expected) in [
            ("127.0.0.1:1", StatusCode::MISDIRECTED_REQUEST),
            ("[::1]:1", StatusCode::MISDIRECTED_REQUEST),
            ("[::ffff:127.0.0.1]:1", StatusCode::MISDIRECTED_REQUEST),
            ("0.0.0.0:1", StatusCode::OK),
            ("[::]:1", StatusCode::OK),
            ("192.0.2.1:1", StatusCode::OK),
        ] {
            let address = Some(address.parse().unwrap());
            let router = Router::new().route("/", get(|| async {}));
            let mut security = secured(false, &[]);
            security.access = Access::read(&AccessOptions::default(), false).unwrap();
            let answers = security.guard(Listener::Http, address, router.into(), &health);
            let request = Request::get("/").header(HOST, "gauge").body(Body::empty()).unwrap();
            assert_eq!(answers.to(request).await.status(), expected, "{address:?}");
        }
    }
}
