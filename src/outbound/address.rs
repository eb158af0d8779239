//! Addresses of endpoints: those that may be configured, and those that are refused wherever they occur.
//!
//! The address must be https unless plain http is allowed. Link-local addresses, where clouds keep their credentials, are refused
//! in every notation of a host.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use form_urlencoded::parse;
use http::Uri;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::secret::Secret;

/// Why an endpoint cannot be used at all.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum EndpointError {
    /// The text is no address.
    #[error("`{key}` must be an address like https://host/v1: {why}")]
    NoUrl {
        /// The option.
        key: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The address is plain http, which is not allowed.
    #[error("`{key}` is not https; set `{allow}` to true if that is intended")]
    NotHttps {
        /// The option.
        key: &'static str,
        /// The option that allows it.
        allow: &'static str,
    },
    /// The address has a name or a password in it.
    #[error(
        "`{key}` must not carry a name or a password: keys come from the environment or a file"
    )]
    Credentials {
        /// The option.
        key: &'static str,
    },
    /// The query of the address has a key in it.
    #[error("`{key}` must not carry a key (`{name}=`): keys come from the environment or a file")]
    KeyInQuery {
        /// The option.
        key: &'static str,
        /// The parameter that looks like a key.
        name: String,
    },
    /// The address is link-local, or one where a cloud keeps its credentials.
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

/// Checks the address in the option `key`.
///
/// # Errors
///
/// Fails if the text is no address, or the address is http and not allowed to be, has credentials in it, or is refused.
pub fn check(
    key: &'static str,
    allow: &'static str,
    url: &str,
    http: bool,
) -> Result<Uri, EndpointError> {
    let no_url = |why: String| EndpointError::NoUrl { key, why };
    let uri = read(url).map_err(no_url)?;
    let unfinished = || no_url("it does not begin with https:// and a host".to_owned());
    match uri.scheme_str().ok_or_else(unfinished)? {
        "https" => {}
        "http" if http => {}
        "http" => return Err(EndpointError::NotHttps { key, allow }),
        other => return Err(no_url(format!("`{other}` is neither https nor http"))),
    }
    let authority = uri.authority().ok_or_else(unfinished)?;
    if authority.as_str().contains('@') {
        return Err(EndpointError::Credentials { key });
    }
    let host = authority.host();
    if host.is_empty() {
        return Err(no_url("it names no host".to_owned()));
    }
    let port = authority.as_str().get(host.len()..).unwrap_or_default();
    // An invalid port would be taken for the default one.
    if !matches!(port, "" | ":") && authority.port_u16().is_none() {
        return Err(no_url("its port is none".to_owned()));
    }
    if is_refused_host(host) {
        return Err(EndpointError::LinkLocal { key });
    }
    Ok(uri)
}

/// Checks that the address of the option `key` has no key in its query: the address is shown wherever the configuration is.
///
/// # Errors
///
/// Fails if a non-empty parameter of the query is named like a key.
pub fn check_keyless(key: &'static str, uri: &Uri) -> Result<(), EndpointError> {
    let named = |(name, value): (Cow<'_, str>, Cow<'_, str>)| {
        let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        let plain = plain.to_ascii_lowercase();
        let is_key = ["key", "token", "secret", "password"].iter().any(|end| plain.ends_with(end));
        (is_key && !value.is_empty()).then(|| name.into_owned())
    };
    let found = parse(uri.query().unwrap_or_default().as_bytes()).find_map(named);
    found.map_or(Ok(()), |name| Err(EndpointError::KeyInQuery { key, name }))
}

/// Reads an address. Characters that are not allowed in a path, such as a space in the name of a model, are escaped.
///
/// # Errors
///
/// Fails with what is wrong with the address, without its text.
pub(super) fn read(url: &str) -> Result<Uri, String> {
    let escaped = utf8_percent_encode(url.trim(), ESCAPED).to_string();
    escaped.parse().map_err(|error: http::uri::InvalidUri| {
        // A path may have any letters, so the host must be wrong.
        let why = if url.is_ascii() { "" } else { " (a host beyond ASCII is written as xn--...)" };
        format!("{error}{why}")
    })
}

/// Whether the host of an address is itself an address that is refused.
pub(super) fn is_refused_host(host: &str) -> bool {
    let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match in_brackets {
        Some(host) => host.parse().is_ok_and(|address| is_refused(IpAddr::V6(address))),
        None => written(host).is_some_and(|address| is_refused(IpAddr::V4(address))),
    }
}

/// Whether an address is refused: `169.254.0.0/16`, `fe80::/10` and the metadata addresses of clouds; IPv4 also within IPv6.
pub(super) fn is_refused(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local() || METADATA_V4.contains(&address),
        IpAddr::V6(address) => {
            let inner = address.to_ipv4().or_else(|| translated(address));
            let mapped = inner.is_some_and(|address| is_refused(IpAddr::V4(address)));
            mapped || address.is_unicast_link_local() || METADATA_V6.contains(&address)
        }
    }
}

/// The IPv4 address that resolvers take a host for: one to four numbers, decimal, octal (`0`) or hexadecimal (`0x`); the last one
/// fills the remaining bits.
fn written(host: &str) -> Option<Ipv4Addr> {
    let host = host.strip_suffix('.').unwrap_or(host);
    let numbers: Vec<u32> = host.split('.').map(number).collect::<Option<_>>()?;
    let (last, firsts) = numbers.split_last()?;
    let (address, room) = firsts.iter().try_fold((0_u32, 32_u32), |(address, room), first| {
        let room = room.checked_sub(8).filter(|room| *room > 0 && *first < 256)?;
        Some((address | first << room, room))
    })?;
    (u64::from(*last) < 1 << room).then(|| Ipv4Addr::from(address | last))
}

fn number(text: &str) -> Option<u32> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    match (hex, text.strip_prefix('0')) {
        (Some(""), _) | (None, Some("")) => Some(0),
        (Some(hex), _) => u32::from_str_radix(hex, 16).ok(),
        (None, Some(octal)) => u32::from_str_radix(octal, 8).ok(),
        (None, None) => text.parse().ok(),
    }
}

/// The IPv4 address in the address of a translator (NAT64, `64:ff9b::/96`) or a relay (6to4, `2002::/16`).
fn translated(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let ([0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..]) = address.segments()
    else {
        return None;
    };
    let [a, b] = high.to_be_bytes();
    let [c, d] = low.to_be_bytes();
    Some(Ipv4Addr::new(a, b, c, d))
}

/// The characters that are escaped in an address, as browsers do; a `%` is taken as the beginning of an escape.
const ESCAPED: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'`').add(b'{').add(b'}');

/// The metadata addresses of Alibaba, Oracle and Azure besides the link-local one.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(168, 63, 129, 16),
];

/// The metadata addresses of AWS and Google in IPv6.
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// The address of a call: the configured one, with the call's path appended unless it ends with that already.
pub fn with_path(url: &str, call: &str) -> String {
    let (path, query) =
        url.split_once('?').map_or((url, None), |(path, query)| (path, Some(query)));
    let path = path.trim_end_matches('/');
    let whole = if path.ends_with(call) { path.to_owned() } else { format!("{path}/{call}") };
    query.map_or_else(|| whole.clone(), |query| format!("{whole}?{query}"))
}

/// The header with the key: as bearer, or `api-key` where the address is Azure's.
pub fn bearer(url: &str, key: &Secret) -> (&'static str, String) {
    if is_azure(url) {
        ("api-key", key.reveal().to_owned())
    } else {
        ("authorization", format!("Bearer {}", key.reveal()))
    }
}

fn is_azure(url: &str) -> bool {
    let host = url.split("://").nth(1).and_then(|rest| rest.split(['/', ':', '?']).next());
    let host = host.unwrap_or_default().to_ascii_lowercase();
    [".azure.com", ".azure.us", ".azure.cn"].iter().any(|clouds| host.ends_with(clouds))
}

#[cfg(test)]
mod tests {
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
        assert_eq!(why(" HTTPS://[::1]:8443/v1/my model/\u{fc}?a={b}#c\n", false), Ok(()));
        for (url, http, part) in [
            ("http://127.0.0.1:11434/v1", false, "judge.allow_http"),
            ("", false, "must be an address"),
            ("api.example.com/v1", false, "must be an address"),
            ("/v1", false, "does not begin with https://"),
            ("ftp://a/b", true, "neither https nor http"),
            ("https:///v1", false, "must be an address"),
            ("https://a:99999/v1", false, "port"),
            ("https://a b/v1", false, "must be an address"),
            ("https://\u{fc}ber.example/v1", false, "xn--"),
            ("https://user:pass@a/v1", false, "name or a password"),
            ("http://169.254.169.254/latest", true, "link-local"),
            ("https://[fe80::1]/v1", false, "link-local"),
            ("https://[::ffff:169.254.169.254]/v1", false, "link-local"),
            ("https://[fd00:ec2::254]/v1", false, "link-local"),
            ("http://2852039166/", true, "link-local"),
            ("http://0xa9.0xfe.0xa9.0xfe/", true, "link-local"),
            ("http://0251.0xfe.43518/", true, "link-local"),
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
            let uri = read(&format!("https://a/v1?{query}")).unwrap();
            check_keyless("judge.url", &uri).map_err(|error| error.to_string())
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
    fn a_host_is_read_as_resolvers_read_it() {
        for (host, expected) in [
            ("127.1", Some([127, 0, 0, 1])),
            ("10.0.258", Some([10, 0, 1, 2])),
            ("0x7f000001", Some([127, 0, 0, 1])),
            ("017700000001", Some([127, 0, 0, 1])),
            ("4294967295", Some([255, 255, 255, 255])),
            ("0.0X.0x0.0", Some([0, 0, 0, 0])),
            ("4294967296", None),
            ("256.1", None),
            ("1.2.3.256", None),
            ("1.2.3.4.5", None),
            ("1..2", None),
            ("08", None),
            ("a.example", None),
            ("", None),
        ] {
            assert_eq!(written(host), expected.map(Ipv4Addr::from), "{host}");
        }
    }
}
