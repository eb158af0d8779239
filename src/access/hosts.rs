//! The host names that a listener answers to, and the sites whose pages may make changes.
//!
//! Any site can resolve its own name to 127.0.0.1 (DNS rebinding): the browser then takes a daemon on loopback for the site's own
//! server, and lets the site's pages read and write. The browser still sends the site's name as `Host`, so a listener on loopback
//! answers only to its own names. A page can also send to any address without reading the answer: its browser names the site as
//! `Origin`.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::Request;
use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderValue, Method, Uri};

use super::Denied;

/// The host names of a listener.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    loopback: bool,
    named: Arc<[String]>,
}

impl Hosts {
    /// The names of a listener on loopback or on another address. On another address every name is accepted unless some are named.
    pub fn new(loopback: bool, named: &[String]) -> Self {
        Self { loopback, named: named.into() }
    }

    /// Checks that a request is for one of these names and, if it could change something, comes from no other site.
    ///
    /// # Errors
    ///
    /// Returns which of the two checks failed.
    pub(super) fn check(&self, request: &Request) -> Result<(), Denied> {
        let headers = request.headers();
        // HTTP/2 has the host in the address, HTTP/1 may have it in both. Browsers always send it, so a request without one passes.
        let address = request.uri().authority();
        let sent = || headers.get_all(HOST).iter().map(HeaderValue::as_bytes);
        let is_answered = address.is_none_or(|address| self.is_answered(address))
            && sent()
                .all(|sent| Authority::try_from(sent).is_ok_and(|sent| self.is_answered(&sent)));
        if !is_answered {
            return Err(Denied::Host);
        }
        if [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method()) {
            return Ok(());
        }
        let is_asked = |origin: &str| {
            let sent = sent().filter_map(|sent| Authority::try_from(sent).ok());
            let mut hosts = address.cloned().into_iter().chain(sent);
            hosts.any(|host| host.host().eq_ignore_ascii_case(origin))
        };
        let is_own = |origin: &HeaderValue| {
            Uri::try_from(origin.as_bytes()).ok().as_ref().and_then(site).is_some_and(|origin| {
                (self.loopback && is_loopback(origin)) || is_asked(origin) || self.is_named(origin)
            })
        };
        if headers.get_all(ORIGIN).iter().all(is_own) { Ok(()) } else { Err(Denied::Origin) }
    }

    /// Whether a request for this host is answered.
    fn is_answered(&self, sent: &Authority) -> bool {
        // The names of a listener that is not on loopback are known only if they are configured. No other site can own an IP
        // address.
        let is_any = !self.loopback && self.named.is_empty();
        host(sent).is_some_and(|host| {
            is_any
                || is_loopback(host)
                || self.is_named(host)
                || (!self.loopback && address(host).is_some())
        })
    }

    fn is_named(&self, host: &str) -> bool {
        self.named.iter().any(|name| name.eq_ignore_ascii_case(host))
    }
}

/// Whether a text is a host name and nothing else, as `listen.hosts` requires.
pub fn is_host(text: &str) -> bool {
    text.parse::<Authority>().is_ok_and(|authority| authority.host() == text)
}

/// Whether a host is this machine, whatever a resolver says: `localhost`, names below it, and loopback addresses.
fn is_loopback(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host);
    let last = name.rsplit('.').next().unwrap_or(name);
    last.eq_ignore_ascii_case("localhost")
        || address(name).is_some_and(|address| address.to_canonical().is_loopback())
}

/// The IP address in a host; `None` for a name.
fn address(host: &str) -> Option<IpAddr> {
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match v6 {
        Some(v6) => v6.parse().ok().map(IpAddr::V6),
        None => host.parse().ok().map(IpAddr::V4),
    }
}

/// The host of an address, without its port.
fn host(authority: &Authority) -> Option<&str> {
    // An address with a user is refused: no browser sends one.
    (!authority.as_str().contains('@')).then(|| authority.host())
}

/// The host of an origin of http or https; `None` for others, such as `null`, which can be any page.
fn site(origin: &Uri) -> Option<&str> {
    let is_web = matches!(origin.scheme_str(), Some("http" | "https"));
    origin.authority().filter(|_| is_web).and_then(host)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    const NAMED: &[&str] = &["Gauge.example.org"];

    fn check(loopback: bool, method: &str, headers: &[(&str, &str)]) -> Result<(), Denied> {
        check_of(loopback, NAMED, method, headers)
    }

    fn check_of(
        loopback: bool,
        named: &[&str],
        method: &str,
        headers: &[(&str, &str)],
    ) -> Result<(), Denied> {
        let named: Vec<String> = named.iter().map(|&name| name.to_owned()).collect();
        let mut request = Request::builder().method(method).uri("/v1/traces");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Hosts::new(loopback, &named).check(&request.body(Body::empty()).unwrap())
    }

    #[test]
    fn loopback_answers_to_its_own_names() {
        for host in [
            "localhost",
            "LocalHost:4318",
            "localhost.:80",
            "gauge.localhost:1",
            "127.0.0.1",
            "127.8.9.10:4318",
            "[::1]:4318",
            "[::ffff:127.0.0.1]",
            "gauge.example.org:443",
        ] {
            assert_eq!(check(true, "GET", &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.test",
            "evil.test:4318",
            "localhost.evil.test",
            "127.0.0.1.evil.test",
            "evillocalhost",
            "localhost@evil.test",
            "evil.test@localhost",
            "0.0.0.0:4318",
            "[::]:4318",
            "10.0.0.1",
            "128.0.0.1",
            "www.gauge.example.org",
            "",
            "a b",
        ] {
            assert_eq!(check(true, "GET", &[("host", host)]), Err(Denied::Host), "{host}");
        }
        assert_eq!(check(true, "POST", &[]), Ok(()));
        let both = [("host", "localhost"), ("host", "evil.test")];
        assert_eq!(check(true, "GET", &both), Err(Denied::Host));
    }

    #[test]
    fn elsewhere_any_name_is_answered_until_some_are_named() {
        for (host, expected) in [
            ("gauge:4318", Err(Denied::Host)),
            ("evil.test", Err(Denied::Host)),
            ("10.0.0.1:4318", Ok(())),
            ("[2001:db8::1]", Ok(())),
            ("localhost:4318", Ok(())),
            ("gauge.example.org", Ok(())),
        ] {
            assert_eq!(check(false, "GET", &[("host", host)]), expected, "{host}");
            assert_eq!(check_of(false, &[], "GET", &[("host", host)]), Ok(()), "{host}");
        }
    }

    #[test]
    fn the_name_in_the_address_counts_too() {
        for (uri, expected) in
            [("http://evil.test/", Err(Denied::Host)), ("http://localhost:1/", Ok(()))]
        {
            let request = Request::get(uri).header(HOST, "localhost").body(Body::empty()).unwrap();
            assert_eq!(Hosts::new(true, &[]).check(&request), expected, "{uri}");
        }
    }

    #[test]
    fn no_other_site_changes_anything() {
        for (host, origin, loopback, other) in [
            ("localhost:9464", "http://localhost:9464", true, true),
            ("localhost:4318", "http://127.0.0.1:3000", true, false),
            ("127.0.0.1:4318", "https://gauge.example.org", true, true),
            ("localhost:4318", "http://evil.test", false, false),
            ("localhost:4318", "null", false, false),
            ("localhost:4318", "evil.test", false, false),
            ("localhost:4318", "chrome-extension://localhost", false, false),
            ("localhost:4318", "", false, false),
            ("gauge.example.org", "https://gauge.example.org:8443", true, true),
        ] {
            let headers = [("host", host), ("origin", origin)];
            let expected = |allowed| if allowed { Ok(()) } else { Err(Denied::Origin) };
            for method in ["POST", "PUT", "DELETE", "PATCH"] {
                assert_eq!(check(true, method, &headers), expected(loopback), "{headers:?}");
                assert_eq!(check(false, method, &headers), expected(other), "{headers:?}");
            }
            for method in ["GET", "HEAD", "OPTIONS"] {
                assert_eq!(check(true, method, &headers), Ok(()), "{headers:?}");
            }
        }
        let own = [("host", "a.test"), ("origin", "https://a.test")];
        assert_eq!(check_of(false, &[], "POST", &own), Ok(()));
        let twice = [own[0], own[1], ("origin", "https://b.test")];
        assert_eq!(check_of(false, &[], "POST", &twice), Err(Denied::Origin));
        assert_eq!(check(true, "POST", &[("origin", "http://evil.test")]), Err(Denied::Origin));
    }

    #[test]
    fn an_option_names_hosts() {
        for host in ["localhost", "gauge.example.org", "10.0.0.1", "[::1]"] {
            assert!(is_host(host), "{host}");
        }
        for text in ["", "gauge:80", "http://gauge", "gauge/", "a b", "me@gauge", "::1"] {
            assert!(!is_host(text), "{text}");
        }
    }
}
