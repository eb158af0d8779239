//! Sends requests to one endpoint: no redirects, no proxy, no cookies, and bounds for the size of the reply and the time.
//!
//! Errors carry neither headers nor bodies.

use std::error::Error;
use std::io;
use std::iter::successors;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::ext::on_informational;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::address::{EndpointError, read};
use super::connect::{Connector, Lookup, system};

/// A client for one endpoint. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: legacy::Client<Connector, Full<Bytes>>,
    options: ClientOptions,
}

/// The limits of every call.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Whether plain http is allowed.
    pub allow_http: bool,
    /// The most bytes of a reply.
    pub max_reply_bytes: usize,
    /// The longest time for a call, its reply included.
    pub timeout: Duration,
}

/// Why a call has no reply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CallError {
    /// There was no connection.
    Connect,
    /// The call took too long.
    Timeout,
    /// The reply broke off.
    BrokenOff,
    /// The reply is over the limit.
    TooLarge,
    /// The endpoint answered with a redirect.
    Redirect,
    /// The endpoint answered with an error status.
    Status {
        /// The code.
        code: u16,
        /// The time to wait, if the reply names one.
        retry_after: Option<Duration>,
    },
}

impl CallError {
    /// The name as a label value.
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

    /// Whether the same call may succeed later.
    pub fn is_passing(self) -> bool {
        match self {
            Self::Connect | Self::Timeout | Self::BrokenOff => true,
            Self::TooLarge | Self::Redirect => false,
            Self::Status { code, .. } => matches!(code, 408 | 409 | 425 | 429 | 500..),
        }
    }

    /// How long the endpoint asks to wait, if it does.
    pub fn asked_wait(self) -> Option<Duration> {
        if let Self::Status { retry_after, .. } = self { retry_after } else { None }
    }

    /// Whether the endpoint may have done the work all the same, and charge for it.
    pub fn may_cost(self) -> bool {
        match self {
            Self::Timeout | Self::BrokenOff | Self::TooLarge => true,
            Self::Connect | Self::Redirect => false,
            // A gateway gave up waiting, or lost its connection.
            Self::Status { code, .. } => matches!(code, 408 | 502 | 504 | 520..=524),
        }
    }
}

/// The wait after a failed attempt: `first` after the first one, which has the number 0, and doubled with each.
pub fn backoff(first: Duration, attempt: u32) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(attempt.min(16)))
}

impl Client {
    /// A client for the endpoint that the option `key` names.
    ///
    /// # Errors
    ///
    /// Fails if TLS cannot be set up.
    pub fn new(key: &'static str, options: ClientOptions) -> Result<Self, EndpointError> {
        Self::with_names(key, options, Arc::new(system))
    }

    /// [`Client::new`], with names looked up by `names`.
    fn with_names(
        key: &'static str,
        options: ClientOptions,
        names: Arc<Lookup>,
    ) -> Result<Self, EndpointError> {
        let connector = Connector::new(options.allow_http, options.timeout, names)
            .map_err(|why| EndpointError::Client { key, why })?;
        let http = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(MAX_IDLE)
            .http1_max_buf_size(READ_BYTES)
            .build(connector);
        Ok(Self { http, options })
    }

    /// Gets an address; returns the body of the reply.
    ///
    /// # Errors
    ///
    /// Fails if there is no reply, or one without a status of success, or one that is too large.
    pub async fn get(&self, url: &str) -> Result<Vec<u8>, CallError> {
        let mut request = Request::new(Full::default());
        *request.uri_mut() = read(url).map_err(|_| CallError::BrokenOff)?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(OURSELVES));
        let reply = async { self.reply(self.send(request).await?).await };
        timeout(self.options.timeout, reply).await.unwrap_or(Err(CallError::Timeout))
    }

    /// Posts a body; returns the body of the reply.
    ///
    /// # Errors
    ///
    /// Fails if there is no reply, or one without a status of success, or one that is too large.
    pub async fn post(
        &self,
        url: &str,
        headers: &[(&'static str, String)],
        content_type: &'static str,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, CallError> {
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = read(url).map_err(|_| CallError::BrokenOff)?;
        *request.headers_mut() = sensitive(headers);
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("*/*"));
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(OURSELVES));
        let reply = async { self.reply(self.send(request).await?).await };
        timeout(self.options.timeout, reply).await.unwrap_or(Err(CallError::Timeout))
    }

    /// Sends a request, and again if the other side has not read it. Gives up if interim answers do not end.
    async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, CallError> {
        let (many, interim) = (Arc::new(Notify::new()), AtomicUsize::new(0));
        let tell = many.clone();
        on_informational(&mut request, move |_| {
            if interim.fetch_add(1, Ordering::Relaxed) == MAX_INTERIM {
                tell.notify_one();
            }
        });
        let mut attempts = 0;
        loop {
            attempts += 1;
            let response = tokio::select! {
                biased;
                () = many.notified() => return Err(CallError::BrokenOff),
                response = self.http.request(request.clone()) => response,
            };
            match response {
                Err(error) if is_untouched(&error) && attempts < MAX_ATTEMPTS => {}
                response => return response.map_err(|error| failure(&error)),
            }
        }
    }

    async fn reply(&self, mut response: Response<Incoming>) -> Result<Vec<u8>, CallError> {
        let status = response.status();
        if status.is_redirection() {
            return Err(CallError::Redirect);
        }
        if !status.is_success() {
            let retry_after = retry_after(response.headers());
            return Err(CallError::Status { code: status.as_u16(), retry_after });
        }
        let mut reply = Vec::new();
        while let Some(frame) = response.frame().await {
            // Trailers are not used.
            let Ok(chunk) = frame.map_err(|error| failure(&error))?.into_data() else { continue };
            if reply.len() + chunk.len() > self.options.max_reply_bytes {
                return Err(CallError::TooLarge);
            }
            reply.extend_from_slice(&chunk);
        }
        Ok(reply)
    }
}

/// Headers that are marked as sensitive, so that libraries do not log them.
fn sensitive(headers: &[(&'static str, String)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        // A key with a line break is no valid header, so it is left out, and the endpoint reports that it is missing.
        if let Ok(mut value) = HeaderValue::from_str(value) {
            value.set_sensitive(true);
            map.insert(HeaderName::from_static(name), value);
        }
    }
    map
}

fn failure(error: &(dyn Error + 'static)) -> CallError {
    let is_timeout = |error: &(dyn Error + 'static)| {
        let late = error.downcast_ref().map(io::Error::kind) == Some(io::ErrorKind::TimedOut);
        late || error.downcast_ref().is_some_and(hyper::Error::is_timeout)
    };
    if causes(error).any(is_timeout) {
        CallError::Timeout
    } else if causes(error).any(|error| error.downcast_ref().is_some_and(legacy::Error::is_connect))
    {
        CallError::Connect
    } else {
        CallError::BrokenOff
    }
}

/// An error and the chain of its causes.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| error.source())
}

/// Whether the other side closed the HTTP/2 connection, or the stream, before it read the request.
fn is_untouched(error: &(dyn Error + 'static)) -> bool {
    let told = causes(error).find_map(|error| error.downcast_ref::<h2::Error>());
    let Some(error) = told else { return false };
    let closed = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (closed || refused)
}

/// The time to wait according to a reply: in seconds, or until a date, counted from the date of the reply.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let said = text(RETRY_AFTER)?;
    if let Ok(seconds) = said.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = |text| httpdate::parse_http_date(text).ok();
    // A date that has passed means no wait.
    Some(date(said)?.duration_since(date(text(DATE)?)?).unwrap_or_default())
}

/// The user agent of agentgauge's requests.
const OURSELVES: &str = concat!("agentgauge/", env!("CARGO_PKG_VERSION"));

/// The most bytes that are read at a time from an HTTP/1 connection, and of the head of a reply.
const READ_BYTES: usize = 64 << 10;

/// The longest time that an idle connection is kept.
const MAX_IDLE: Duration = Duration::from_secs(90);

/// The most interim answers (1xx) to a request over HTTP/1, which hyper reads without a limit.
const MAX_INTERIM: usize = 100;

/// The most attempts at a request that the other side has not read.
const MAX_ATTEMPTS: usize = 3;

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const OPTIONS: ClientOptions =
        ClientOptions { allow_http: true, max_reply_bytes: 9, timeout: Duration::from_secs(20) };

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

    #[tokio::test]
    async fn an_endpoint_that_sends_interim_answers_without_end_is_given_up() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Anything sent before the request would be no answer to it.
            let _ = io::Read::read(&mut stream, &mut [0; 1_024]).unwrap();
            let answers = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1_000);
            while io::Write::write_all(&mut stream, answers.as_bytes()).is_ok() {}
        });
        let client = Client::new("judge.url", OPTIONS).unwrap();
        assert_eq!(client.get(&url).await, Err(CallError::BrokenOff));
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

    /// A name that resolves to loopback at the first lookup, and to a cloud's metadata address from then on.
    fn changing() -> Arc<Lookup> {
        let lookups = AtomicUsize::new(0);
        Arc::new(move |_| {
            let at = match lookups.fetch_add(1, Ordering::SeqCst) {
                0 => Ipv4Addr::LOCALHOST,
                _ => Ipv4Addr::new(169, 254, 169, 254),
            };
            Box::pin(async move { Ok(vec![SocketAddr::new(IpAddr::V4(at), 0)]) })
        })
    }

    #[tokio::test]
    async fn a_name_is_looked_up_by_the_guard_at_every_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://judge.invalid:{}/", listener.local_addr().unwrap().port());
        let client = Client::with_names("judge.url", OPTIONS, changing()).unwrap();
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
        // Refused by the guard, and not because nothing listens there.
        let error = client.http.get(url.parse().unwrap()).await.unwrap_err();
        let said: String = causes(&error).map(ToString::to_string).collect();
        assert!(said.contains("no address that may be used"), "{said}");
    }

    #[tokio::test]
    async fn a_connection_is_used_again() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let accepted = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&accepted);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let mut head = [0; 1_024];
                    while stream.read(&mut head).await.is_ok_and(|bytes| bytes > 0) {
                        let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                        stream.write_all(reply).await.unwrap();
                    }
                });
            }
        });
        let client = Client::new("judge.url", OPTIONS).unwrap();
        for _ in 0..20 {
            let reply = client.post(&url, &[], "text/plain", Vec::new()).await;
            assert_eq!(reply, Ok(b"ok".to_vec()));
        }
        // Not always: the next request may come before a connection is known to be free.
        let accepted = accepted.load(Ordering::SeqCst);
        assert!(accepted < 20, "{accepted}");
    }

    #[tokio::test]
    async fn an_address_that_is_refused_is_not_connected_to() {
        let client = Client::new("judge.url", OPTIONS).unwrap();
        for host in ["169.254.169.254", "2852039166", "[fe80::1]", "[::ffff:169.254.169.254]"] {
            let post = client.http.get(format!("http://{host}:1/").parse().unwrap());
            let error = post.await.unwrap_err();
            let said: String = causes(&error).map(ToString::to_string).collect();
            assert!(said.contains("may not be used"), "{host}: {said}");
            assert_eq!(failure(&error), CallError::Connect, "{host}");
        }
    }

    #[tokio::test]
    async fn a_request_that_was_not_looked_at_is_known() {
        for (reason, expected) in
            [(h2::Reason::REFUSED_STREAM, true), (h2::Reason::INTERNAL_ERROR, false)]
        {
            let (here, there) = tokio::io::duplex(4_096);
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(there).await.unwrap();
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    respond.send_reset(reason);
                }
            });
            let (mut sender, connection) = h2::client::handshake(here).await.unwrap();
            tokio::spawn(connection);
            let request = Request::post("http://judge.invalid/").body(()).unwrap();
            let (response, _) = sender.send_request(request, true).unwrap();
            assert_eq!(is_untouched(&response.await.unwrap_err()), expected, "{reason:?}");
        }
    }
}
