//! The guard of a port: lets requests in by their sender, and answers those that are denied.

use std::future::ready;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, EXPECT, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode, Version};
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::{Access, Answer, Denied, Hosts, Identity, May, PeerNames};
use crate::refused::Refused;

/// The paths of health, which are open to everybody, as machines without a token often request them.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];

/// The beginnings of the paths that accept data; `needed` knows the others.
const INGEST_PATHS: [&str; 6] = [
    "/v1/",
    "/opentelemetry.proto.collector.",
    "/agentgauge.v1.ReportService/",
    "/api/v1/reports",
    "/api/v1/agents/baseline",
    "/api/v1/deployments",
];

/// The most bytes of a denied request's body that are read and discarded, and the longest time for that.
const MAX_DISCARDED_BYTES: usize = 1 << 20;
const MAX_DISCARDING: Duration = Duration::from_secs(5);

/// Marks, at paths that are open to everybody, a request whose sender may read everything.
#[derive(Clone, Copy, Debug)]
pub struct Insider;

/// Admits requests for one of `hosts` whose sender `access` allows; adds its [`Identity`] to their extensions. Calls `denied` with
/// the reason for each request that is not admitted.
pub fn guard(
    answers: Answer,
    hosts: Hosts,
    access: Access,
    denied: impl Fn(&'static str) + Send + Sync + 'static,
) -> Answer {
    Answer::by(move |mut request| {
        let entered = hosts.check(&request).and_then(|()| enter(&access, &mut request));
        match entered {
            Ok(()) => answers.to(request),
            Err(why) => {
                denied(why.reason());
                Box::pin(ready(refuse(why, request)))
            }
        }
    })
}

/// What the sender of a request to this path must be allowed to do; `None`: the path is open to everybody.
pub fn needed(path: &str) -> Option<May> {
    if OPEN_PATHS.contains(&path) {
        None
    } else if path == "/metrics" || path.starts_with("/metrics/") {
        Some(May::Metrics)
    } else if INGEST_PATHS.iter().any(|start| path.starts_with(start)) {
        Some(May::Ingest)
    } else {
        Some(May::Read)
    }
}

/// Notes the sender in a request, if the sender is allowed to make it.
fn enter(access: &Access, request: &mut Request) -> Result<(), Denied> {
    let Some(needed) = needed(request.uri().path()) else {
        let reader = identify(access, May::Read, request);
        // A tenant does not see data about others.
        if reader.is_ok_and(|reader| reader.tenant.is_none()) {
            request.extensions_mut().insert(Insider);
        }
        return Ok(());
    };
    let identity = identify(access, needed, request)?;
    request.extensions_mut().insert(identity);
    Ok(())
}

fn identify(access: &Access, needed: May, request: &Request) -> Result<Identity, Denied> {
    // If everybody may enter, a token meant for another server is no reason to refuse the request.
    let token = if access.asks_for_tokens() { token(request.headers())? } else { None };
    access.identify(needed, token.as_deref(), request.extensions().get::<PeerNames>())
}

/// The token of a request: a bearer token, or the password of any user, as browsers and some scrapers can send only
/// that.
fn token(headers: &HeaderMap) -> Result<Option<String>, Denied> {
    let mut sent = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = sent.next() else { return Ok(None) };
    if sent.next().is_some() {
        return Err(Denied::Unknown);
    }
    let text = value.to_str().map_err(|_| Denied::Unknown)?;
    let (scheme, rest) = text.split_once(' ').ok_or(Denied::Unknown)?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Ok(Some(rest.to_owned()));
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(Denied::Unknown);
    }
    let decoded = BASE64_STANDARD.decode(rest).map_err(|_| Denied::Unknown)?;
    let text = String::from_utf8(decoded).map_err(|_| Denied::Unknown)?;
    let (_, password) = text.split_once(':').ok_or(Denied::Unknown)?;
    Ok(Some(password.to_owned()))
}

/// Answers a denied request in the protocol of the request.
fn refuse(denied: Denied, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or_default().to_ascii_lowercase();
    if content_type.starts_with("application/grpc") && head.version >= Version::HTTP_2 {
        return tonic::Status::new(denied.code(), denied.message()).into_http();
    }
    // HTTP/1 has to end the connection if the body is not read, and then its sender may not see the answer that arrives meanwhile.
    if head.version < Version::HTTP_2 && !head.headers.contains_key(EXPECT) {
        tokio::spawn(timeout(MAX_DISCARDING, discard(body)));
    }
    let protobuf = content_type.starts_with("application/x-protobuf");
    let refused = Refused::new(denied.status(), denied.reason(), denied.message());
    let mut response = refused.answer(head.uri.path(), protobuf, denied.code());
    if denied == Denied::Unknown {
        for scheme in ["Bearer realm=\"agentgauge\"", "Basic realm=\"agentgauge\""] {
            response.headers_mut().append(WWW_AUTHENTICATE, HeaderValue::from_static(scheme));
        }
    }
    response
}

/// Discards the rest of a body while its sender is answered.
async fn discard(mut body: Body) {
    let mut left = MAX_DISCARDED_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let Some(less) = left.checked_sub(bytes) else { break };
        left = less;
    }
}

impl Denied {
    /// The reason under which the denial is counted.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Unknown => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::Host => "unknown_host",
            Self::Origin => "other_site",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::Unknown => StatusCode::UNAUTHORIZED,
            Self::Forbidden | Self::Origin => StatusCode::FORBIDDEN,
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
        }
    }

    fn code(self) -> tonic::Code {
        match self {
            Self::Unknown => tonic::Code::Unauthenticated,
            Self::Forbidden | Self::Host | Self::Origin => tonic::Code::PermissionDenied,
        }
    }

    /// The message to the sender; the same for every wrong token, so that it does not show which tokens exist.
    fn message(self) -> &'static str {
        match self {
            Self::Unknown => "a token or a client certificate that is known here is needed",
            Self::Forbidden => "this token or certificate is not good for that",
            Self::Host => {
                "nothing is answered under this name: on loopback there are localhost and its addresses, and what `listen.hosts` names"
            }
            Self::Origin => {
                "pages of other sites change nothing here; name hosts whose pages may in `listen.hosts`"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(values: &[&'static str]) -> Result<Option<String>, Denied> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_static(value));
        }
        token(&headers)
    }

    #[test]
    fn a_token_comes_as_bearer_or_as_a_password() {
        assert_eq!(sent(&[]), Ok(None));
        assert_eq!(sent(&["Bearer abc"]), Ok(Some("abc".to_owned())));
        assert_eq!(sent(&["bearer  abc "]), Ok(Some("abc".to_owned())));
        // any:a:b
        assert_eq!(sent(&["Basic YW55OmE6Yg=="]), Ok(Some("a:b".to_owned())));
        for wrong in ["abc", "Digest abc", "Basic ???", "Basic YWJj"] {
            assert_eq!(sent(&[wrong]), Err(Denied::Unknown), "{wrong}");
        }
        assert_eq!(sent(&["Bearer a", "Bearer b"]), Err(Denied::Unknown));
    }

    #[test]
    fn a_path_says_what_is_done() {
        for (path, expected) in [
            ("/healthz", None),
            ("/healthz/", Some(May::Read)),
            ("/metrics", Some(May::Metrics)),
            ("/metrics/sessions", Some(May::Metrics)),
            ("/metricsx", Some(May::Read)),
            ("/v1/traces", Some(May::Ingest)),
            ("/opentelemetry.proto.collector.logs.v1.LogsService/Export", Some(May::Ingest)),
            ("/agentgauge.v1.ReportService/Report", Some(May::Ingest)),
            ("/agentgauge.v1.QueryService/Agents", Some(May::Read)),
            ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Some(May::Read)),
            ("/api/v1/reports", Some(May::Ingest)),
            ("/api/v1/agents/baseline", Some(May::Ingest)),
            ("/api/v1/deployments", Some(May::Ingest)),
            ("/api/v1/agents", Some(May::Read)),
            ("/", Some(May::Read)),
        ] {
            assert_eq!(needed(path), expected, "{path}");
        }
    }
}
