//! OTLP/gRPC, on the raw frame.
//!
//! A gRPC library would inflate and decode a message before agentgauge could check its bytes, and answer a message that is too
//! large with the retryable OUT_OF_RANGE. One unary method with one message each way needs no library: a body is a byte that says
//! whether the message is compressed, four bytes of length, and the message; an answer is the same plus a trailer.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderName};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Version};
use http_body_util::{BodyExt, Full};
use tokio::time::timeout;

use super::arrival::Source;
use super::receiver::{Envelope, Received, Receiver};
use super::status::{self, Failure};
use super::{Compression, Encoding, Refusal, Signal, Sink};
use crate::access::{Answer, Identity};

const PATHS: [(&str, Signal); 4] = [
    ("/opentelemetry.proto.collector.trace.v1.TraceService/Export", Signal::Traces),
    ("/opentelemetry.proto.collector.logs.v1.LogsService/Export", Signal::Logs),
    ("/opentelemetry.proto.collector.metrics.v1.MetricsService/Export", Signal::Metrics),
    ("/agentgauge.v1.ReportService/Report", Signal::Reports),
];

const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const ACCEPTED: HeaderValue = HeaderValue::from_static("identity,gzip,zstd");

/// The flag and the length before a message.
const PREFIX_BYTES: usize = 5;

/// Hands the requests of the `Export` methods of OTLP's trace, logs and metrics services, and of agentgauge's `Report`, to a
/// receiver. A client that sends OTLP over HTTP is given the port of `otlp_http`.
pub fn answers<S: Sink>(receiver: Receiver<S>, otlp_http: Option<SocketAddr>) -> Answer {
    let http_port = otlp_http.map(|address| address.port());
    Answer::by(move |request| {
        let signal = Signal::at(request.uri().path(), &PATHS);
        Box::pin(answer(receiver.clone(), signal, http_port, request))
    })
}

async fn answer<S: Sink>(
    receiver: Receiver<S>,
    signal: Option<Signal>,
    http_port: Option<u16>,
    request: Request,
) -> Response {
    let (head, mut body) = request.into_parts();
    let spoken = protocol(&head.method, head.version, &head.headers, http_port);
    if let Err(failure) = spoken {
        // The sender speaks plain HTTP and would not understand a gRPC status.
        receiver.note(&failure);
        if head.version < Version::HTTP_2 {
            receiver.discard(body, Source::of(&head.extensions));
        }
        return (failure.status(), failure.grpc().message().to_owned()).into_response();
    }
    // Pinned once, so that both ways to wait below share the future.
    let exported = pin!(export(&receiver, signal, &head, &mut body));
    let result = match deadline(&head.headers) {
        Some(wait) => timeout(wait, exported).await.unwrap_or(Err(Failure::Deadline)),
        None => exported.await,
    };
    let mut response = match result {
        Ok(message) => answered(&message),
        Err(failure) => {
            receiver.note(&failure);
            failure.grpc().into_http()
        }
    };
    response.headers_mut().insert(GRPC_ACCEPT_ENCODING, ACCEPTED);
    response
}

async fn export<S: Sink>(
    receiver: &Receiver<S>,
    signal: Option<Signal>,
    head: &Parts,
    body: &mut Body,
) -> Result<Bytes, Failure> {
    let signal = signal.ok_or(Failure::Path)?;
    let compression = compression(&head.headers).ok_or(Failure::ContentEncoding)?;
    let source = Source::of(&head.extensions);
    let received = receiver.read(body, PREFIX_BYTES, compression, &source).await?;
    let Received { body, permit, turn } = received;
    let (flag, body) = unframed(body, receiver)?;
    let compression = compressed(flag, compression)?;
    let encoding = Encoding::Protobuf;
    let tenant = head.extensions.get::<Identity>().and_then(|identity| identity.tenant.clone());
    let envelope = Envelope { transport: "grpc", signal, encoding, compression, tenant };
    let tally = receiver.apply(envelope, Received { body, permit, turn }).await?;
    Ok(status::success(signal, encoding, &tally))
}

/// Checks that this is gRPC with protobuf over HTTP/2.
fn protocol(
    method: &Method,
    version: Version,
    headers: &HeaderMap,
    http_port: Option<u16>,
) -> Result<(), Failure> {
    if method != Method::POST {
        return Err(Failure::Method);
    }
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.and_then(|text| text.split(';').next()).unwrap_or_default().trim();
    let known = ["application/grpc", "application/grpc+proto"];
    if !known.iter().any(|known| essence.eq_ignore_ascii_case(known)) {
        return Err(Failure::NotGrpc(http_port));
    }
    if version < Version::HTTP_2 { Err(Failure::Version) } else { Ok(()) }
}

/// Separates the one message from its prefix.
fn unframed<S: Sink>(mut body: Bytes, receiver: &Receiver<S>) -> Result<(u8, Bytes), Failure> {
    let Some((&[flag, ref length @ ..], _)) = body.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(malformed("the prefix is missing"));
    };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > receiver.max_request_bytes() {
        return Err(receiver.too_large());
    }
    let message = body.split_off(PREFIX_BYTES);
    match message.len() {
        actual if actual < length => Err(malformed("the message is shorter than its length")),
        actual if actual > length => Err(malformed("there is more than one message")),
        _ => Ok((flag, message)),
    }
}

/// The compression of a message by its flag and what the headers announce.
fn compressed(flag: u8, announced: Compression) -> Result<Compression, Failure> {
    match flag {
        0 => Ok(Compression::None),
        1 if announced == Compression::None => Err(malformed("compressed by nothing")),
        1 => Ok(announced),
        _ => Err(malformed("the flag is neither 0 nor 1")),
    }
}

/// The compression that the headers announce.
fn compression(headers: &HeaderMap) -> Option<Compression> {
    headers
        .get(GRPC_ENCODING)
        .map_or(Some(Compression::None), |name| Compression::named(name.to_str().ok()?))
}

/// How long the sender waits: up to eight digits and a unit; `None` for anything else.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let plain = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| plain)?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// A successful answer: a frame with the message, and a trailer with status 0.
fn answered(message: &[u8]) -> Response {
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    frame.put_u8(0);
    // The answers have at most a few hundred bytes.
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.extend_from_slice(message);
    let trailers = HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static("0"))]);
    let body = Full::new(frame.freeze())
        .with_trailers(std::future::ready(Some(Ok::<_, Infallible>(trailers))));
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

fn malformed(why: &str) -> Failure {
    Refusal::Malformed { what: "gRPC frame", why: why.to_owned() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_up_to_eight_digits_and_a_unit() {
        let wait = |text: &'static str| {
            deadline(&HeaderMap::from_iter([(GRPC_TIMEOUT, HeaderValue::from_static(text))]))
        };
        assert_eq!(wait("10S"), Some(Duration::from_secs(10)));
        assert_eq!(wait("99999999H"), Some(Duration::from_secs(99_999_999 * 3_600)));
        assert_eq!(wait("250m"), Some(Duration::from_millis(250)));
        for text in ["", "S", "10", "10x", "123456789S", "-1S", "+1S", "1.5S"] {
            assert_eq!(wait(text), None, "{text}");
        }
    }

    #[test]
    fn only_post_with_grpc_over_http2_is_grpc() {
        let headers = |text: &'static str| {
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(text))])
        };
        let post = |text| protocol(&Method::POST, Version::HTTP_2, &headers(text), None);
        assert_eq!(post("application/grpc"), Ok(()));
        assert_eq!(post("application/grpc+proto; a=b"), Ok(()));
        assert_eq!(post("application/grpc+json"), Err(Failure::NotGrpc(None)));
        assert_eq!(post("application/x-protobuf"), Err(Failure::NotGrpc(None)));
        let grpc = headers("application/grpc");
        assert_eq!(protocol(&Method::GET, Version::HTTP_2, &grpc, None), Err(Failure::Method));
        assert_eq!(protocol(&Method::POST, Version::HTTP_11, &grpc, None), Err(Failure::Version));
    }

    #[test]
    fn a_compressed_message_needs_a_compression() {
        assert_eq!(compressed(0, Compression::Gzip), Ok(Compression::None));
        assert_eq!(compressed(1, Compression::Gzip), Ok(Compression::Gzip));
        assert!(compressed(1, Compression::None).is_err());
        assert!(compressed(2, Compression::Gzip).is_err());
    }
}
