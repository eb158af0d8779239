//! Posts requests to one endpoint: no redirects, no proxy, no cookies, a bound on what comes back and on how long it takes.
//!
//! The address must be https unless plain http was asked for. Link-local addresses, where clouds keep their credentials,
//! are refused as they stand and after every lookup of a name. Errors carry neither headers nor bodies.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;

/// A client for one endpoint. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    max_reply_bytes: usize,
}

/// What every call keeps to.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Plain http is fine.
    pub allow_http: bool,
    /// Bytes of a reply.
    pub max_reply_bytes: usize,
    /// How long a call may take, its reply included.
    pub timeout: Duration,
}

/// Why an endpoint cannot be used at all.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum EndpointError {
    /// It is no address.
    #[error("`{key}` must be an address like https://host/v1: {why}")]
    NoUrl {
        /// The option.
        key: &'static str,
        /// What is wrong.
        why: String,
    },
    /// It is plain http, and nobody said that this is fine.
    #[error("`{key}` is not https; set `{allow}` to true if that is meant")]
    NotHttps {
        /// The option.
        key: &'static str,
        /// The option that allows it.
        allow: &'static str,
    },
    /// It carries a name and a password.
    #[error(
        "`{key}` must not carry a name or a password: keys come from the environment or a file"
    )]
    Credentials {
        /// The option.
        key: &'static str,
    },
    /// It carries a key.
    #[error("`{key}` must not carry a key (`{name}=`): keys come from the environment or a file")]
    KeyInQuery {
        /// The option.
        key: &'static str,
        /// The part of the query that looks like one.
        name: String,
    },
    /// It is link-local, or where a cloud keeps its credentials.
    #[error("`{key}` is a link-local or metadata address, which is refused")]
    LinkLocal {
        /// The option.
        key: &'static str,
    },
    /// The client cannot be set up.
    #[error("cannot set up the client of `{key}`: {why}")]
    Client {
        /// The option.
        key: &'static str,
        /// What is wrong.
        why: String,
    },
}

/// Why a call has no reply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CallError {
    /// Nobody is there.
    Connect,
    /// It took too long.
    Timeout,
    /// The reply broke off.
    BrokenOff,
    /// The reply is over the limit.
    TooLarge,
    /// The endpoint points elsewhere.
    Redirect,
    /// An error status, and when to come back if it says.
    Status {
        /// The code.
        code: u16,
        /// When to come back.
        retry_after: Option<Duration>,
    },
}

impl CallError {
    /// As counters carry it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::BrokenOff => "broken_off",
            Self::TooLarge => "too_large",
            Self::Redirect => "redirect",
            Self::Status { code: 429, .. } => "rate_limited",
            Self::Status { code: 401 | 403, .. } => "unauthorized",
            Self::Status { code: 500.., .. } => "server_error",
            Self::Status { .. } => "client_error",
        }
    }

    /// Whether the same call may go well later.
    pub fn is_passing(self) -> bool {
        match self {
            Self::Connect | Self::Timeout | Self::BrokenOff => true,
            Self::TooLarge | Self::Redirect => false,
            Self::Status { code, .. } => matches!(code, 408 | 409 | 425 | 429 | 500..),
        }
    }

    /// Whether the endpoint may have done the work all the same, and want to be paid.
    pub fn may_cost(self) -> bool {
        match self {
            Self::Timeout | Self::BrokenOff | Self::TooLarge => true,
            Self::Connect | Self::Redirect => false,
            // A gateway that lost patience, or lost whom it had asked.
            Self::Status { code, .. } => matches!(code, 408 | 502 | 504 | 520..=524),
        }
    }
}

/// Checks an address that the option `key` gives.
///
/// # Errors
///
/// Fails if it is none, not https without leave, with credentials, or link-local.
pub fn check(
    key: &'static str,
    allow: &'static str,
    url: &str,
    http: bool,
) -> Result<Url, EndpointError> {
    let no_url = |why: String| EndpointError::NoUrl { key, why };
    let url = Url::parse(url).map_err(|error| no_url(error.to_string()))?;
    match url.scheme() {
        "https" => {}
        "http" if http => {}
        "http" => return Err(EndpointError::NotHttps { key, allow }),
        other => return Err(no_url(format!("`{other}` is neither https nor http"))),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(EndpointError::Credentials { key });
    }
    let host = url.host_str().ok_or_else(|| no_url("it names no host".to_owned()))?;
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    if address.is_ok_and(is_refused) {
        return Err(EndpointError::LinkLocal { key });
    }
    Ok(url)
}

/// Checks that the address that the option `key` gives carries no key in its query: it is shown wherever the configuration is.
///
/// # Errors
///
/// Fails if a part of the query is named like one.
pub fn check_keyless(key: &'static str, url: &Url) -> Result<(), EndpointError> {
    let named = |(name, value): (Cow<'_, str>, Cow<'_, str>)| {
        let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        let plain = plain.to_ascii_lowercase();
        let is_key = ["key", "token", "secret", "password"].iter().any(|end| plain.ends_with(end));
        (is_key && !value.is_empty()).then(|| name.into_owned())
    };
    let found = url.query_pairs().find_map(named);
    found.map_or(Ok(()), |name| Err(EndpointError::KeyInQuery { key, name }))
}

impl Client {
    /// A client for the endpoint that the option `key` names.
    ///
    /// # Errors
    ///
    /// Fails if TLS cannot be set up.
    pub fn new(key: &'static str, options: ClientOptions) -> Result<Self, EndpointError> {
        Self::with_names(key, options, System)
    }

    /// The same, with names looked up there.
    fn with_names(
        key: &'static str,
        options: ClientOptions,
        names: impl Resolve + 'static,
    ) -> Result<Self, EndpointError> {
        let http = reqwest::Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .https_only(!options.allow_http)
            .dns_resolver(Guarded(names))
            .connect_timeout(options.timeout)
            .timeout(options.timeout)
            .user_agent(concat!("agentgauge/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| EndpointError::Client { key, why: error.to_string() })?;
        Ok(Self { http, max_reply_bytes: options.max_reply_bytes })
    }

    /// Posts a body; the reply's.
    ///
    /// # Errors
    ///
    /// Fails if no reply came, or none with a status of success, or one that is too large.
    pub async fn post(
        &self,
        url: &str,
        headers: &[(&'static str, String)],
        content_type: &'static str,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, CallError> {
        let request = self
            .http
            .post(url)
            .headers(sensitive(headers))
            .header(CONTENT_TYPE, content_type)
            .body(body);
        let mut response = request.send().await.map_err(|error| failure(&error))?;
        let status = response.status();
        if status.is_redirection() {
            return Err(CallError::Redirect);
        }
        if !status.is_success() {
            let retry_after = retry_after(response.headers());
            return Err(CallError::Status { code: status.as_u16(), retry_after });
        }
        let mut reply = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| failure(&error))? {
            if reply.len() + chunk.len() > self.max_reply_bytes {
                return Err(CallError::TooLarge);
            }
            reply.extend_from_slice(&chunk);
        }
        Ok(reply)
    }
}

/// Headers that no log of a library shows.
fn sensitive(headers: &[(&'static str, String)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        // A key with a line break in it is no header; without it the endpoint says that it is missing.
        if let Ok(mut value) = HeaderValue::from_str(value) {
            value.set_sensitive(true);
            map.insert(HeaderName::from_static(name), value);
        }
    }
    map
}

fn failure(error: &reqwest::Error) -> CallError {
    if error.is_timeout() {
        CallError::Timeout
    } else if error.is_connect() {
        CallError::Connect
    } else {
        CallError::BrokenOff
    }
}

/// How long to wait, as the reply says: in seconds, or until a date, which is later than its own by as much.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let said = text(RETRY_AFTER)?;
    if let Ok(seconds) = said.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = |text| httpdate::parse_http_date(text).ok();
    // A date that has passed says: at once.
    Some(date(said)?.duration_since(date(text(DATE)?)?).unwrap_or_default())
}

/// Looks names up as the system does.
struct System;

impl Resolve for System {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<_> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Passes refused addresses over. What it gives is what is connected to: nothing is looked up a second time.
struct Guarded<R>(R);

impl<R: Resolve> Resolve for Guarded<R> {
    fn resolve(&self, name: Name) -> Resolving {
        let found = self.0.resolve(name);
        Box::pin(async move {
            let usable = usable(found.await?);
            if usable.is_empty() {
                return Err("the name has no address that may be used".into());
            }
            Ok(Box::new(usable.into_iter()) as Addrs)
        })
    }
}

/// The addresses of a name that may be used.
fn usable(found: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    found.filter(|at| !is_refused(at.ip())).collect()
}

/// `169.254.0.0/16`, `fe80::/10` and where clouds keep their credentials; of IPv4 also where it is written as IPv6.
fn is_refused(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local() || METADATA_V4.contains(&address),
        IpAddr::V6(address) => {
            let inner = address.to_ipv4().or_else(|| translated(address));
            let mapped = inner.is_some_and(|address| is_refused(IpAddr::V4(address)));
            mapped || address.is_unicast_link_local() || METADATA_V6.contains(&address)
        }
    }
}

/// The IPv4 address that a translator (NAT64, `64:ff9b::/96`) or a relay (6to4, `2002::/16`) is to be asked for.
fn translated(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let ([0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..]) = address.segments()
    else {
        return None;
    };
    let [a, b] = high.to_be_bytes();
    let [c, d] = low.to_be_bytes();
    Some(Ipv4Addr::new(a, b, c, d))
}

/// Where Alibaba, Oracle and Azure answer beside the link-local address.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(168, 63, 129, 16),
];

/// Where AWS and Google answer over IPv6.
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn why(url: &str, http: bool) -> Result<(), String> {
        check("judge.url", "judge.allow_http", url, http)
            .map(|_| ())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn only_addresses_that_are_meant_are_used() {
        assert_eq!(why("https://api.example.com/v1", false), Ok(()));
        assert_eq!(why("http://127.0.0.1:11434/v1", true), Ok(()));
        for (url, http, part) in [
            ("http://127.0.0.1:11434/v1", false, "judge.allow_http"),
            ("", false, "must be an address"),
            ("ftp://a/b", true, "neither https nor http"),
            ("https://user:pass@a/v1", false, "name or a password"),
            ("http://169.254.169.254/latest", true, "link-local"),
            ("https://[fe80::1]/v1", false, "link-local"),
            ("https://[::ffff:169.254.169.254]/v1", false, "link-local"),
            ("https://[fd00:ec2::254]/v1", false, "link-local"),
            ("http://2852039166/", true, "link-local"),
            ("http://0xa9.0xfe.0xa9.0xfe/", true, "link-local"),
            ("http://169.254.169.254./", true, "link-local"),
            ("https://[64:ff9b::a9fe:a9fe]/v1", false, "link-local"),
            ("https://[2002:a9fe:a9fe::1]/v1", false, "link-local"),
            ("https://100.100.100.200/v1", false, "metadata"),
            ("https://[::ffff:168.63.129.16]/v1", false, "metadata"),
            ("https://[fd20:ce::254]/v1", false, "metadata"),
        ] {
            let error = why(url, http).unwrap_err();
            assert!(error.contains(part), "{url}: {error}");
            assert!(!error.contains("pass@"), "{error}");
        }
    }

    #[test]
    fn a_key_in_the_address_is_refused_and_not_repeated() {
        let check = |query: &str| {
            let url = Url::parse(&format!("https://a/v1?{query}")).unwrap();
            check_keyless("judge.url", &url).map_err(|error| error.to_string())
        };
        for query in ["key=AIza-1", "x=1&api_key=AIza-1", "Api-Key=AIza-1", "access%5Ftoken=AIza-1"]
        {
            let error = check(query).unwrap_err();
            assert!(error.contains("judge.url") && !error.contains("AIza"), "{error}");
        }
        for query in ["api-version=2024-10-21", "key=", "keys=2", ""] {
            assert_eq!(check(query), Ok(()), "{query}");
        }
    }

    #[test]
    fn when_to_come_back_is_said_in_seconds_or_as_a_date() {
        let said = |pairs: &[(HeaderName, &'static str)]| {
            let value = |(name, value): &(HeaderName, &'static str)| {
                (name.clone(), HeaderValue::from_static(value))
            };
            retry_after(&pairs.iter().map(value).collect())
        };
        let now = (DATE, "Sun, 06 Nov 1994 08:49:37 GMT");
        for (text, seconds) in [
            ("7", Some(7)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            ("Sunday, 06-Nov-94 08:50:07 GMT", Some(30)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
        ] {
            let told = said(&[now.clone(), (RETRY_AFTER, text)]);
            assert_eq!(told, seconds.map(Duration::from_secs), "{text}");
        }
        assert_eq!(said(&[(RETRY_AFTER, "Sun, 06 Nov 1994 08:50:07 GMT")]), None);
        assert_eq!(said(&[now]), None);
    }

    #[test]
    fn what_may_have_been_done_may_cost() {
        let status = |code| CallError::Status { code, retry_after: None };
        for (error, costs) in [
            (CallError::Connect, false),
            (CallError::Redirect, false),
            (CallError::Timeout, true),
            (CallError::BrokenOff, true),
            (CallError::TooLarge, true),
            (status(429), false),
            (status(500), false),
            (status(529), false),
            (status(504), true),
            (status(524), true),
        ] {
            assert_eq!(error.may_cost(), costs, "{error:?}");
        }
    }

    #[test]
    fn a_name_leads_to_no_address_that_is_refused() {
        let at = |address: &str| SocketAddr::new(address.parse().unwrap(), 443);
        let refused = ["169.254.169.254", "fe80::1", "::ffff:169.254.1.1", "fd00:ec2::254"].map(at);
        assert!(usable(refused.into_iter()).is_empty());
        let good = [at("127.0.0.1"), at("2001:db8::1"), at("10.0.0.1"), at("64:ff9b::a00:1")];
        assert_eq!(usable(refused.into_iter().chain(good)), good);
    }

    /// A name that is at home the first time that it is looked up, and where a cloud keeps its credentials from then on.
    #[derive(Default)]
    struct Changing(AtomicUsize);

    impl Resolve for Changing {
        fn resolve(&self, _: Name) -> Resolving {
            let at = match self.0.fetch_add(1, Ordering::SeqCst) {
                0 => Ipv4Addr::LOCALHOST,
                _ => Ipv4Addr::new(169, 254, 169, 254),
            };
            let found = [SocketAddr::new(IpAddr::V4(at), 0)];
            Box::pin(async move { Ok(Box::new(found.into_iter()) as Addrs) })
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_up_by_the_guard_at_every_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://judge.invalid:{}/", listener.local_addr().unwrap().port());
        let options = ClientOptions {
            allow_http: true,
            max_reply_bytes: 9,
            timeout: Duration::from_secs(20),
        };
        let client = Client::with_names("judge.url", options, Changing::default()).unwrap();
        let post = || client.post(&url, &[], "text/plain", Vec::new());
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 1_024];
            let _ = stream.read(&mut head).await.unwrap();
            let reply = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
            stream.write_all(reply).await.unwrap();
        };
        let (reply, ()) = tokio::join!(post(), serve);
        assert_eq!(reply, Ok(b"ok".to_vec()));
        assert_eq!(post().await, Err(CallError::Connect));
        // By the guard, and not because nobody was there.
        let error = client.http.post(&url).send().await.unwrap_err();
        let mut source = std::error::Error::source(&error);
        let mut said = String::new();
        while let Some(error) = source {
            said.push_str(&error.to_string());
            source = error.source();
        }
        assert!(said.contains("no address that may be used"), "{said}");
    }

    #[tokio::test]
    async fn names_go_through_the_guard() {
        let found = |name: &str| Guarded(System).resolve(name.parse().unwrap());
        // The resolver of the system knows this form of an address, which a URL never lets through.
        assert!(found("169.254.169.254").await.is_err());
        assert!(found("localhost").await.unwrap().all(|at| at.ip().is_loopback()));
    }
}
