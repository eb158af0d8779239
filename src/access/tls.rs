//! TLS of the listeners: rustls, with the certificates of clients if wanted.
//!
//! Certificates expire and are replaced while the daemon runs, so their files are read repeatedly. New certificates apply to new
//! connections; unusable files are reported, and the certificates in use stay.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use super::{AccessError, ClientAuth, TlsOptions};
use crate::blocking::blocking;
use crate::files;
use crate::vital::Vital;

/// The names in a client's certificate: DNS names and URIs.
pub type PeerNames = Arc<[String]>;

/// The most names of a certificate that are read; further ones are ignored.
const MAX_NAMES: usize = 64;

const CERT: &str = "tls.cert_file";
const KEY: &str = "tls.key_file";
const CLIENT_CA: &str = "tls.client_ca_file";

/// Makes connections secure; clones share the certificates.
#[derive(Clone, Debug)]
pub struct Tls {
    config: watch::Receiver<Arc<ServerConfig>>,
}

/// The content of the files.
#[derive(Clone, Eq, PartialEq)]
struct Files {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Tls {
    /// Sets up TLS as configured; `None` without a certificate. A task rereads the files until every clone is dropped, and calls
    /// `reloaded` with `loaded` for files that changed, or `failed` if they cannot be used.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read or has the wrong content, or if certificate and key do not belong together.
    pub(crate) fn start(
        options: &TlsOptions,
        reloaded: impl Fn(&'static str) + Send + 'static,
        vital: &Vital,
    ) -> Result<Option<Self>, AccessError> {
        let Some(files) = Files::read(options)? else { return Ok(None) };
        let (sender, config) = watch::channel(Arc::new(files.config(options)?));
        let reload = reload(options.clone(), files, sender, reloaded);
        vital.spawn("the certificates", reload);
        Ok(Some(Self { config }))
    }

    /// Checks that TLS can be set up as configured.
    ///
    /// # Errors
    ///
    /// As [`Tls::start`].
    pub fn check(options: &TlsOptions) -> Result<(), AccessError> {
        Files::read(options)?.map_or(Ok(()), |files| files.config(options).map(drop))
    }

    /// Performs the handshake with a client; returns the names of its certificate, if it showed one.
    ///
    /// # Errors
    ///
    /// Fails if the client does not speak TLS, or shows no valid certificate where one is required. The client gets nothing but an
    /// alert.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> io::Result<(TlsStream<S>, Option<PeerNames>)> {
        let config = Arc::clone(&self.config.borrow());
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates();
        let names = shown.and_then(|chain| chain.first()).map(names);
        Ok((stream, names))
    }
}

/// The names in a certificate that was verified.
fn names(certificate: &CertificateDer<'_>) -> PeerNames {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return [].into() };
    let names = certificate.valid_dns_names().chain(certificate.valid_uri_names());
    names.take(MAX_NAMES).map(str::to_owned).collect()
}

async fn reload(
    options: TlsOptions,
    mut files: Files,
    sender: watch::Sender<Arc<ServerConfig>>,
    told: impl Fn(&'static str),
) {
    loop {
        tokio::select! {
            () = sender.closed() => return,
            () = sleep(options.reload_interval) => {}
        }
        let (now, before) = (options.clone(), files.clone());
        let read = blocking(move || match Files::read(&now)? {
            Some(files) if files != before => Ok(Some((files.config(&now)?, files))),
            Some(_) | None => Ok::<_, AccessError>(None),
        });
        match read.await {
            Ok(Ok(Some((config, read)))) => {
                files = read;
                sender.send_replace(Arc::new(config));
                told("loaded");
                tracing::info!("certificates were reloaded");
            }
            Ok(Ok(None)) => {}
            // A file may be half written, so it is read again next time.
            Ok(Err(error)) => {
                told("failed");
                tracing::warn!(%error, "the old certificates stay in use");
            }
            Err(error) => {
                told("failed");
                tracing::error!(%error, "certificates were not reloaded");
            }
        }
    }
}

impl Files {
    fn read(options: &TlsOptions) -> Result<Option<Self>, AccessError> {
        let TlsOptions { cert_file, key_file, client_ca_file, .. } = options;
        let alone = |key, other| Err(AccessError::Alone { key, other });
        match (cert_file, key_file, client_ca_file) {
            (None, None, None) => Ok(None),
            (None, Some(_), _) => alone(KEY, CERT),
            (None, None, Some(_)) => alone(CLIENT_CA, CERT),
            (Some(_), None, _) => alone(CERT, KEY),
            (Some(cert), Some(key), client_ca) => Ok(Some(Self {
                cert: read(CERT, cert)?,
                key: read(KEY, key)?,
                client_ca: client_ca.as_deref().map(|path| read(CLIENT_CA, path)).transpose()?,
            })),
        }
    }

    fn config(&self, options: &TlsOptions) -> Result<ServerConfig, AccessError> {
        let TlsOptions { cert_file, key_file, client_ca_file, client_auth, .. } = options;
        let fault = |key, path: &Option<_>, why: String| AccessError::File {
            key,
            path: path.clone().unwrap_or_default(),
            why,
        };
        let chain = certificates(&self.cert).map_err(|why| fault(CERT, cert_file, why))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| fault(KEY, key_file, unread("private key", &error)))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| fault(CERT, cert_file, error.to_string()))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let fault = |why| fault(CLIENT_CA, client_ca_file, why);
                let mut roots = RootCertStore::empty();
                for authority in certificates(authorities).map_err(fault)? {
                    roots.add(authority).map_err(|error| fault(error.to_string()))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = match client_auth {
                    ClientAuth::Require => verifier,
                    ClientAuth::Request => verifier.allow_unauthenticated(),
                };
                builder.with_client_cert_verifier(
                    verifier.build().map_err(|error| fault(error.to_string()))?,
                )
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| {
            fault(CERT, cert_file, format!("cannot be used with `{KEY}`: {error}"))
        })?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, AccessError> {
    files::read(path).map_err(|source| AccessError::Read { key, path: path.to_owned(), source })
}

fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let chain = chain.map_err(|error| unread("certificate", &error))?;
    if chain.is_empty() { Err("holds no certificate (PEM)".to_owned()) } else { Ok(chain) }
}

/// The text for a file that cannot be parsed. It leaves out the parser's message, which can quote the file, and the file may hold a
/// key.
fn unread(what: &str, error: &pem::Error) -> String {
    if matches!(error, pem::Error::NoItemsFound) {
        format!("holds no {what} (PEM)")
    } else {
        format!("holds no {what} that can be read (PEM)")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_panic_while_certificates_are_read_anew_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let [cert, key] = ["cert", "key"].map(|name| folder.path().join(name));
        let write = || {
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            fs::write(&key, made.signing_key.serialize_pem()).unwrap();
            fs::write(&cert, made.cert.pem()).unwrap();
        };
        write();
        let options = TlsOptions {
            cert_file: Some(cert.clone()),
            key_file: Some(key.clone()),
            reload_interval: Duration::from_millis(10),
            ..TlsOptions::default()
        };
        let vital = Vital::default();
        let tls = Tls::start(&options, |_| panic!("of a test"), &vital).unwrap();
        write();
        assert_eq!(vital.panicked().await, "the certificates");
        drop(tls);
    }
}
