//! Access: who may send requests, what they may do, and the tenant of their data.
//!
//! A connection is plain or TLS, with or without a client certificate ([`tls`]); a request names its sender by that certificate or
//! by a bearer token ([`guard()`]). Both stand for an [`Identity`], which says what the sender may do, and its tenant. The tenant
//! of a span is that of its sender, whatever the span says. Before that, requests that a browser makes for another site are refused
//! ([`Hosts`]).

mod answer;
mod guard;
mod hosts;
mod line;
mod options;
pub mod tls;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use ring::digest::{SHA256, digest};

pub use answer::Answer;
pub use guard::{Insider, guard, needed};
pub use hosts::{Hosts, is_host};
pub use line::Line;
pub use options::{
    AccessOptions, CertificateOptions, ClientAuth, Listener, May, TlsOptions, TokenOptions,
};
pub use tls::PeerNames;

use crate::files;
use crate::secret::Secret;

/// The least bytes of a token; a shorter one could be guessed.
const MIN_TOKEN_BYTES: usize = 16;

/// The most bytes of a file with a token.
const MAX_TOKEN_BYTES: usize = 4096;

/// The known identities, and what is open to everybody.
#[derive(Clone, Debug, Default)]
pub struct Access {
    // By digest, so that the duration of a comparison reveals nothing about the tokens.
    tokens: BTreeMap<[u8; 32], Identity>,
    certificates: BTreeMap<String, Identity>,
    open: Vec<May>,
    // No identity is configured: everybody who reaches a listener may do everything,
    anybody: bool,
    // but must show a certificate of the clients' authority if this is true.
    certified: bool,
}

/// The sender of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    /// Its name in the configuration; empty for everybody else.
    pub name: Arc<str>,
    /// The tenant of what it sends, and the only one that it sees; `None`: it sends for no tenant and sees all.
    pub tenant: Option<Arc<str>>,
    may: Vec<May>,
    // Whether it sees all tenants, and so may send reports about the agents of a tenant that it names.
    sees_all: bool,
}

/// Why a request is denied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Denied {
    /// It has no token or certificate, or an unknown one.
    Unknown,
    /// Its sender may not do that.
    Forbidden,
    /// It is for a host name that the listener does not answer to.
    Host,
    /// It comes from a page of another site and could make changes.
    Origin,
}

/// Why access cannot be set up as configured.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file cannot be read.
    #[error("failed to read {} (`{key}`)", path.display())]
    Read {
        /// The option that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file has the wrong content.
    #[error("{} (`{key}`) {why}", path.display())]
    File {
        /// The option that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong, without any of the content.
        why: String,
    },
    /// An option needs another one.
    #[error("`{key}` needs `{other}`")]
    Alone {
        /// The option.
        key: &'static str,
        /// The other.
        other: &'static str,
    },
    /// A token cannot be used.
    #[error("the token `{name}` (`access.tokens`) {why}")]
    Token {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A certificate cannot be used.
    #[error("the certificate `{name}` (`access.certificates`) {why}")]
    Certificate {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
}

impl Access {
    /// Reads the tokens and certificates of the options; `certified` says whether clients can show certificates.
    ///
    /// # Errors
    ///
    /// Fails if a token is missing, too short or listed twice, and if certificates are named that no client can show.
    pub fn read(options: &AccessOptions, certified: bool) -> Result<Self, AccessError> {
        let (open, anybody) = (options.open.clone(), !options.is_configured());
        let mut access = Self { open, anybody, certified, ..Self::default() };
        for token in &options.tokens {
            let fault =
                |why: &str| AccessError::Token { name: token.name.clone(), why: why.to_owned() };
            let secret = secret(token)?;
            if secret.reveal().len() < MIN_TOKEN_BYTES {
                return Err(fault(&format!("is shorter than {MIN_TOKEN_BYTES} bytes")));
            }
            let identity =
                Identity::new(&token.name, token.tenant.as_deref(), &token.may).map_err(fault)?;
            if access.tokens.insert(digested(secret.reveal()), identity).is_some() {
                return Err(fault("is there twice"));
            }
        }
        for certificate in &options.certificates {
            let CertificateOptions { name, tenant, may } = certificate;
            let fault =
                |why: &str| AccessError::Certificate { name: name.clone(), why: why.to_owned() };
            let identity = Identity::new(name, tenant.as_deref(), may).map_err(fault)?;
            if !certified {
                return Err(fault("cannot be shown: `tls.client_ca_file` is not set"));
            }
            if access.certificates.insert(name.clone(), identity).is_some() {
                return Err(fault("is there twice"));
            }
        }
        Ok(access)
    }

    /// The same access for a listener without TLS, to which no certificate can be shown.
    #[must_use]
    pub fn in_plain_text(self) -> Self {
        Self { certified: false, ..self }
    }

    /// Whether a token can identify a sender.
    pub fn asks_for_tokens(&self) -> bool {
        !self.anybody
    }

    /// The sender of a request with this token or certificate, if it may do what is `needed`.
    ///
    /// # Errors
    ///
    /// Fails if the sender is unknown, or not allowed to do that. An unknown token is denied even with a known certificate.
    pub fn identify(
        &self,
        needed: May,
        token: Option<&str>,
        peer: Option<&PeerNames>,
    ) -> Result<Identity, Denied> {
        if self.anybody {
            let opens = |what| !self.certified || peer.is_some() || self.open.contains(&what);
            let sees_all = opens(May::Read);
            let identity = || Identity { sees_all, ..Identity::default() };
            return opens(needed).then(identity).ok_or(Denied::Unknown);
        }
        let known = match (token, peer) {
            (Some(token), _) => self.tokens.get(&digested(token)),
            (None, Some(peer)) => peer.iter().find_map(|name| self.certificates.get(name)),
            (None, None) => None,
        };
        match known {
            Some(identity) if identity.may.contains(&needed) => Ok(identity.clone()),
            // An identity may also do what is open to everybody, but with its own tenant.
            Some(identity) if self.open.contains(&needed) => Ok(identity.clone()),
            Some(_) => Err(Denied::Forbidden),
            None if token.is_none() && self.open.contains(&needed) => {
                Ok(Identity { sees_all: self.opens_all_tenants(), ..Identity::default() })
            }
            None => Err(Denied::Unknown),
        }
    }

    /// Whether reading is open to everybody, and no tenant has its own sender, for which others should not speak.
    fn opens_all_tenants(&self) -> bool {
        let mut identities = self.tokens.values().chain(self.certificates.values());
        self.open.contains(&May::Read) && identities.all(|identity| identity.tenant.is_none())
    }
}

/// The sender of a request that passed [`guard()`]; without a guard, the default identity.
impl<S: Sync> FromRequestParts<S> for Identity {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

impl Identity {
    fn new(name: &str, tenant: Option<&str>, may: &[May]) -> Result<Self, &'static str> {
        if name.is_empty() {
            return Err("has no name");
        }
        if tenant.is_some_and(|tenant| tenant.trim().is_empty()) {
            return Err("has an empty tenant; leave it out for none");
        }
        if may.is_empty() {
            return Err("may do nothing: `may` takes ingest, read, metrics");
        }
        let sees_all = tenant.is_none() && may.contains(&May::Read);
        Ok(Self { name: name.into(), tenant: tenant.map(Arc::from), may: may.to_vec(), sees_all })
    }

    /// Whether it may name the tenant of the agents that its reports are about.
    pub fn may_name_tenants(&self) -> bool {
        self.sees_all
    }

    /// Whether both have the same name and tenant.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.tenant, &self.name) == (&other.tenant, &other.name)
    }

    /// The tenant to which the view of an identity is limited that asks for one tenant, or for all: its own if it has one.
    pub fn scope(&self, asked: Option<String>) -> Option<String> {
        self.tenant.as_deref().map(str::to_owned).or(asked)
    }

    /// The tenant of one object that an identity asks for: its own if it has one. The empty name stands for no tenant.
    pub fn instead_of<'a>(&'a self, asked: &'a str) -> &'a str {
        self.tenant.as_deref().unwrap_or(asked)
    }

    /// Whether the identity sees data of this tenant; the empty name stands for no tenant.
    pub fn sees(&self, tenant: &str) -> bool {
        self.tenant.as_deref().is_none_or(|own| own == tenant)
    }
}

/// The identity of everybody, when access is not configured.
impl Default for Identity {
    fn default() -> Self {
        Self { name: Arc::default(), tenant: None, may: Vec::new(), sees_all: true }
    }
}

fn secret(token: &TokenOptions) -> Result<Secret, AccessError> {
    let fault = |why: String| AccessError::Token { name: token.name.clone(), why };
    match (&token.file, &token.env) {
        (Some(path), None) => {
            let bytes = files::read(path).map_err(|source| AccessError::Read {
                key: "access.tokens",
                path: path.clone(),
                source,
            })?;
            let text = str::from_utf8(&bytes).ok().filter(|text| text.len() <= MAX_TOKEN_BYTES);
            text.map(Secret::trimmed).ok_or_else(|| fault("is no line of text".to_owned()))
        }
        (None, Some(variable)) => token
            .value
            .clone()
            .ok_or_else(|| fault(format!("is not in the environment: `{variable}` is not set"))),
        (None, None) | (Some(_), Some(_)) => Err(fault("needs either `file` or `env`".to_owned())),
    }
}

fn digested(token: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    bytes
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::slice;

    use super::*;

    const TOKEN: &str = "0123456789abcdef-shop";
    const SHOP: &str = "0123456789abcdef-of-another";

    fn token(name: &str, tenant: Option<&str>, may: &[May]) -> TokenOptions {
        TokenOptions {
            name: name.to_owned(),
            file: None,
            env: Some(name.to_uppercase()),
            tenant: tenant.map(str::to_owned),
            may: may.to_vec(),
            value: None,
        }
    }

    fn read(tokens: Vec<TokenOptions>, value: &str) -> Result<Access, String> {
        let mut options = AccessOptions { tokens, ..AccessOptions::default() };
        options.take_from(&[("SHOP".to_owned(), value.to_owned())]);
        Access::read(&options, false).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_says_who_sends_and_what_it_may_do() {
        let access = read(vec![token("shop", Some("t1"), &[May::Ingest])], TOKEN).unwrap();
        let identity = access.identify(May::Ingest, Some(TOKEN), None).unwrap();
        assert_eq!((&*identity.name, identity.tenant.as_deref()), ("shop", Some("t1")));
        assert!(identity.sees("t1") && !identity.sees("t2") && !identity.sees(""));
        assert_eq!(access.identify(May::Read, Some(TOKEN), None), Err(Denied::Forbidden));
        assert_eq!(
            access.identify(May::Ingest, Some("0123456789abcdef"), None),
            Err(Denied::Unknown)
        );
        assert_eq!(access.identify(May::Ingest, None, None), Err(Denied::Unknown));
    }

    #[test]
    fn what_is_open_needs_no_token_but_no_wrong_one() {
        let mut options = AccessOptions {
            tokens: vec![token("shop", Some("t1"), &[May::Ingest])],
            open: vec![May::Metrics],
            ..AccessOptions::default()
        };
        options.take_from(&[("SHOP".to_owned(), TOKEN.to_owned())]);
        let access = Access::read(&options, false).unwrap();
        let open = access.identify(May::Metrics, None, None).unwrap();
        assert!(open.is_same(&Identity::default()));
        assert!(access.identify(May::Metrics, Some(TOKEN), None).is_ok());
        assert_eq!(access.identify(May::Metrics, Some("wrong"), None), Err(Denied::Unknown));
        assert_eq!(access.identify(May::Read, None, None), Err(Denied::Unknown));
    }

    #[test]
    fn a_tenant_is_named_by_who_sees_all_of_them() {
        let (ingest, read) = (May::Ingest, May::Read);
        let names = |options: &AccessOptions, token| {
            let mut options = options.clone();
            let values = [("IT", TOKEN), ("SHOP", SHOP)];
            options.take_from(&values.map(|(name, value)| (name.to_owned(), value.to_owned())));
            let access = Access::read(&options, false).unwrap();
            access.identify(ingest, token, None).map(|identity| identity.may_name_tenants())
        };
        let of = |tokens: &[TokenOptions], open: &[May]| AccessOptions {
            tokens: tokens.to_vec(),
            open: open.to_vec(),
            ..AccessOptions::default()
        };
        for (tenant, may, expected) in [
            (None, &[ingest, read][..], true),
            (None, &[ingest], false),
            (Some("t"), &[ingest, read], false),
        ] {
            let options = of(&[token("it", tenant, may)], &[]);
            assert_eq!(names(&options, Some(TOKEN)), Ok(expected), "{tenant:?} {may:?}");
        }
        // What it sees because that is open to everybody does not count.
        let options = of(&[token("it", None, &[ingest])], &[read]);
        assert_eq!(names(&options, Some(TOKEN)), Ok(false));

        let (shop, it) = (token("shop", Some("t"), &[ingest]), token("it", None, &[ingest]));
        for (tokens, open, expected) in [
            (slice::from_ref(&it), &[ingest, read][..], true),
            (slice::from_ref(&it), &[ingest], false),
            (&[shop, it.clone()], &[ingest, read], false),
            (&[], &[], true),
        ] {
            assert_eq!(names(&of(tokens, open), None), Ok(expected), "{open:?}");
        }
    }

    #[test]
    fn without_anything_set_anybody_may_do_everything() {
        let access = read(Vec::new(), TOKEN).unwrap();
        assert_eq!(access.identify(May::Read, Some("x"), None), Ok(Identity::default()));
    }

    #[test]
    fn a_token_that_cannot_be_used_is_an_error_without_its_text() {
        let one = |may: &[May]| vec![token("shop", None, may)];
        for (tokens, value, expected) in [
            (
                one(&[May::Read]),
                "short",
                "the token `shop` (`access.tokens`) is shorter than 16 bytes",
            ),
            (one(&[]), TOKEN, "may do nothing"),
            (vec![token("other", None, &[May::Read])], TOKEN, "`OTHER` is not set"),
            ([one(&[May::Read]), one(&[May::Ingest])].concat(), TOKEN, "is there twice"),
            (vec![token("shop", Some(" "), &[May::Read])], TOKEN, "has an empty tenant"),
        ] {
            let error = read(tokens, value).unwrap_err();
            assert!(error.contains(expected) && !error.contains(TOKEN), "{error}");
        }
        let mut shown = token("shop", None, &[May::Read]);
        shown.value = Secret::new(TOKEN);
        assert!(!format!("{shown:?}").contains(TOKEN));
    }

    #[test]
    fn a_token_is_read_from_its_file_without_the_line_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, format!("{TOKEN}\n")).unwrap();
        let mut options = token("shop", None, &[May::Read]);
        (options.env, options.file) = (None, Some(path.clone()));
        let access = read(vec![options.clone()], "").unwrap();
        assert!(access.identify(May::Read, Some(TOKEN), None).is_ok());
        fs::remove_file(path).unwrap();
        assert!(read(vec![options], "").unwrap_err().contains("failed to read"));
    }

    #[test]
    fn with_an_authority_of_clients_anybody_is_who_shows_its_certificate() {
        let access = Access::read(&AccessOptions::default(), true).unwrap();
        let peer: PeerNames = [].into();
        assert!(access.identify(May::Read, None, Some(&peer)).is_ok());
        assert_eq!(access.identify(May::Read, None, None), Err(Denied::Unknown));
        assert!(access.in_plain_text().identify(May::Read, None, None).is_ok());
    }

    #[test]
    fn a_certificate_needs_an_authority() {
        let certificate =
            CertificateOptions { name: "a.test".to_owned(), tenant: None, may: vec![May::Ingest] };
        let options = AccessOptions { certificates: vec![certificate], ..AccessOptions::default() };
        assert!(Access::read(&options, false).unwrap_err().to_string().contains("client_ca_file"));
        let access = Access::read(&options, true).unwrap();
        let peer: PeerNames = ["b.test".to_owned(), "a.test".to_owned()].into();
        assert!(access.identify(May::Ingest, None, Some(&peer)).is_ok());
        assert_eq!(access.identify(May::Ingest, None, Some(&[].into())), Err(Denied::Unknown));
    }
}
