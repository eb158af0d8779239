//! OTLP/HTTP: protobuf or JSON by POST, as the OTLP specification demands.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, Request};
use axum::response::Response;
use axum::routing::any;
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use http::{HeaderMap, Method, StatusCode, Uri, Version};
use serde::Deserialize;

use super::arrival::Source;
use super::receiver::{Envelope, Receiver};
use super::report::{acceptance_json, deployment_json};
use super::status::{self, Failure};
use super::{Compression, Encoding, Refusal, Signal, Sink};
use crate::access::{Answer, Identity};

const PATHS: [(&str, Signal); 3] =
    [("/v1/traces", Signal::Traces), ("/v1/logs", Signal::Logs), ("/v1/metrics", Signal::Metrics)];

/// Hands requests to `/v1/traces`, `/v1/logs` and `/v1/metrics` to a receiver.
pub fn answers<S: Sink>(receiver: Receiver<S>) -> Answer {
    Answer::by(move |request| {
        let take = Signal::at(request.uri().path(), &PATHS).map(Take::Signal);
        Box::pin(answer(receiver.clone(), take, request))
    })
}

/// Routes reports of agentgauge's own API to a receiver, and requests to accept a level or about a deployment, which become
/// reports.
pub fn reports<S: Sink>(receiver: &Receiver<S>) -> Router {
    let mut router = Router::new();
    for (path, take) in [
        ("/api/v1/reports", Take::Signal(Signal::Reports)),
        ("/api/v1/agents/baseline", Take::Said(("acceptance", acceptance_json))),
        ("/api/v1/deployments", Take::Said(("deployment", deployment_json))),
    ] {
        let receiver = receiver.clone();
        router = router.route(path, any(move |request| answer(receiver, Some(take), request)));
    }
    router
}

/// The name of a kind of request, and the function that turns its body into a request of reports, or returns what is wrong with it.
type Said = (&'static str, fn(&[u8]) -> Result<Bytes, String>);

/// The kind of request at a path.
#[derive(Clone, Copy)]
enum Take {
    Signal(Signal),
    /// One object in JSON, which becomes a report.
    Said(Said),
}

async fn answer<S: Sink>(receiver: Receiver<S>, take: Option<Take>, request: Request) -> Response {
    let (head, mut body) = request.into_parts();
    let encoding = encoding(&head.headers);
    let checked = check(take, &head.method, encoding, &head.headers);
    let identity = head.extensions.get::<Identity>().cloned().unwrap_or_default();
    let checked = checked.and_then(|envelope| {
        let tenant = match identity.tenant.clone() {
            None => named_tenant(take, &head.uri, &identity)?,
            own => own,
        };
        Ok(Envelope { tenant, ..envelope })
    });
    let source = Source::of(&head.extensions);
    let answered = match checked {
        Ok(envelope) => {
            let said = match take {
                Some(Take::Said(said)) => Some(said),
                Some(Take::Signal(_)) | None => None,
            };
            export(&receiver, envelope, said, &mut body, &source).await
        }
        Err(failure) => Err(failure),
    };
    // Errors of requests in neither encoding are for people to read.
    let encoding = encoding.unwrap_or(Encoding::Json);
    match answered {
        Ok(message) => status::response(StatusCode::OK, encoding, message),
        Err(failure) => {
            receiver.note(&failure);
            // HTTP/2 can end one stream; HTTP/1 has to end the connection. A sender that waits for "100 Continue" sends no body.
            let sending = head.version < Version::HTTP_2 && !head.headers.contains_key(EXPECT);
            if sending && failure.leaves_a_body() {
                receiver.discard(body, source);
            }
            failure.http(head.uri.path(), encoding)
        }
    }
}

/// The tenant whose agents an object is about; senders that see more than one tenant may name it, as in queries.
fn named_tenant(
    take: Option<Take>,
    uri: &Uri,
    identity: &Identity,
) -> Result<Option<Arc<str>>, Failure> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Whose {
        tenant: String,
    }
    let Some(Take::Said(_)) = take else { return Ok(None) };
    let Query(Whose { tenant }) = Query::try_from_uri(uri).unwrap_or_default();
    if tenant.is_empty() {
        return Ok(None);
    }
    identity.may_name_tenants().then(|| Some(tenant.into())).ok_or(Failure::OtherTenant)
}

fn check(
    take: Option<Take>,
    method: &Method,
    encoding: Option<Encoding>,
    headers: &HeaderMap,
) -> Result<Envelope, Failure> {
    let take = take.ok_or(Failure::Path)?;
    if method != Method::POST {
        return Err(Failure::Method);
    }
    let encoding = encoding.ok_or(Failure::MediaType)?;
    let compression = compression(headers).ok_or(Failure::ContentEncoding)?;
    let signal = match take {
        Take::Signal(signal) => signal,
        Take::Said(_) if encoding != Encoding::Json => return Err(Failure::MediaType),
        Take::Said(_) if compression != Compression::None => {
            return Err(Failure::ContentEncoding);
        }
        Take::Said(_) => Signal::Reports,
    };
    Ok(Envelope { transport: "http", signal, encoding, compression, tenant: None })
}

async fn export<S: Sink>(
    receiver: &Receiver<S>,
    envelope: Envelope,
    said: Option<Said>,
    body: &mut Body,
    source: &Source,
) -> Result<Bytes, Failure> {
    let mut received = receiver.read(body, 0, envelope.compression, source).await?;
    if let Some((what, as_reports)) = said {
        received.body =
            as_reports(&received.body).map_err(|why| Refusal::Malformed { what, why })?;
    }
    let Envelope { signal, encoding, .. } = envelope;
    let tally = receiver.apply(envelope, received).await?;
    // One object, one outcome: what a batch would list among its rejected reports is an error here.
    if let (Some((what, _)), Some((_, why))) = (said, tally.rejected_reports.first()) {
        return Err(Refusal::Malformed { what, why: why.clone() }.into());
    }
    Ok(status::success(signal, encoding, &tally))
}

/// The encoding that the content type names, whatever its parameters.
fn encoding(headers: &HeaderMap) -> Option<Encoding> {
    let content_type = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/x-protobuf") {
        Some(Encoding::Protobuf)
    } else if essence.eq_ignore_ascii_case("application/json") {
        Some(Encoding::Json)
    } else {
        None
    }
}

/// The compression of the body; `None` for an unknown one, and for several in a row.
fn compression(headers: &HeaderMap) -> Option<Compression> {
    let mut named = headers.get_all(CONTENT_ENCODING).iter();
    let Some(first) = named.next() else { return Some(Compression::None) };
    if named.next().is_some() {
        return None;
    }
    let name = first.to_str().ok()?;
    if name.trim().is_empty() { Some(Compression::None) } else { Compression::named(name) }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn header(name: http::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn a_content_type_may_have_parameters_and_any_case() {
        for (text, expected) in [
            ("application/x-protobuf", Some(Encoding::Protobuf)),
            ("Application/JSON; charset=utf-8", Some(Encoding::Json)),
            ("application/json;odata=\"a;b\"", Some(Encoding::Json)),
            ("text/plain", None),
            ("application/jsonl", None),
            ("", None),
        ] {
            assert_eq!(encoding(&header(CONTENT_TYPE, text)), expected, "{text}");
        }
        assert_eq!(encoding(&HeaderMap::new()), None);
    }

    #[test]
    fn a_compression_is_one_of_ours_or_none_at_all() {
        for (text, expected) in [
            ("", Some(Compression::None)),
            ("identity", Some(Compression::None)),
            ("GZIP", Some(Compression::Gzip)),
            (" zstd ", Some(Compression::Zstd)),
            ("br", None),
            ("gzip, gzip", None),
        ] {
            assert_eq!(compression(&header(CONTENT_ENCODING, text)), expected, "{text}");
        }
        let mut twice = header(CONTENT_ENCODING, "gzip");
        twice.append(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(compression(&twice), None);
        assert_eq!(compression(&HeaderMap::new()), Some(Compression::None));
    }
}
