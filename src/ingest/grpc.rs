//! OTLP over gRPC, on the raw frame: the body is read under our own limits before anything inflates or decodes it.

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use axum::routing::post;
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::http::response_message;
use super::receiver::{Envelope, Problem, Receiver};
use super::{Compression, Encoding, Refusal, Signal, Sink, Tally};

/// A message starts with a flag for compression and its length.
const PREFIX: usize = 5;

/// What we can read.
const ACCEPTED: (HeaderName, HeaderValue) = (
    HeaderName::from_static("grpc-accept-encoding"),
    HeaderValue::from_static("identity,gzip,zstd"),
);

/// The routes of OTLP over gRPC.
pub fn router<S: Sink>(receiver: Receiver<S>) -> Router {
    let traces = |State(receiver): State<Receiver<S>>, request: Request<Body>| async move {
        answer(&receiver, Signal::Traces, request).await
    };
    let logs = |State(receiver): State<Receiver<S>>, request: Request<Body>| async move {
        answer(&receiver, Signal::Logs, request).await
    };
    let metrics = |State(receiver): State<Receiver<S>>, request: Request<Body>| async move {
        answer(&receiver, Signal::Metrics, request).await
    };
    Router::new()
        .route("/opentelemetry.proto.collector.trace.v1.TraceService/Export", post(traces))
        .route("/opentelemetry.proto.collector.logs.v1.LogsService/Export", post(logs))
        .route("/opentelemetry.proto.collector.metrics.v1.MetricsService/Export", post(metrics))
        .fallback(|| async { failure(Status::unimplemented("there is no such method")) })
        .with_state(receiver)
}

async fn answer<S: Sink>(
    receiver: &Receiver<S>,
    signal: Signal,
    request: Request<Body>,
) -> Response<Body> {
    match export(receiver, signal, request).await {
        Ok(tally) => success(&response_message(signal, &tally)),
        Err(status) => failure(status),
    }
}

async fn export<S: Sink>(
    receiver: &Receiver<S>,
    signal: Signal,
    request: Request<Body>,
) -> Result<Tally, Status> {
    let headers = request.headers();
    if !is_grpc(headers) {
        return Err(Status::invalid_argument("the content type must be application/grpc"));
    }
    let encoding = header_text(headers, "grpc-encoding").unwrap_or("identity").to_owned();
    let note = |problem| status(&receiver.note(problem));
    let (body, share) = receiver.read(request.into_body(), PREFIX).await.map_err(note)?;
    let (compressed, message) = message(&body).map_err(|refusal| note(refusal.into()))?;
    let compression = match (compressed, encoding.as_str()) {
        (false, _) => Compression::None,
        (true, "gzip") => Compression::Gzip,
        (true, "zstd") => Compression::Zstd,
        (true, _) => {
            return Err(Status::unimplemented(
                "the message encoding must be identity, gzip or zstd",
            ));
        }
    };
    let envelope = Envelope { transport: "grpc", signal, encoding: Encoding::Protobuf };
    receiver.apply(envelope, compression, message, share).await.map_err(note)
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = header_text(headers, header::CONTENT_TYPE.as_str()).unwrap_or_default();
    ["application/grpc", "application/grpc+proto"].contains(&content_type)
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The one message of a call.
fn message(body: &Bytes) -> Result<(bool, Bytes), Refusal> {
    let malformed = |why: &str| Refusal::Malformed { what: "gRPC message", why: why.to_owned() };
    let Some((flag, rest)) = body.split_first() else { return Err(malformed("there is none")) };
    let Some((length, rest)) = rest.split_first_chunk::<4>() else {
        return Err(malformed("a truncated prefix"));
    };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    match (flag, rest.len().cmp(&length)) {
        (0 | 1, std::cmp::Ordering::Equal) => Ok((*flag == 1, body.slice(PREFIX..))),
        (0 | 1, std::cmp::Ordering::Less) => Err(malformed("it is shorter than it says")),
        (0 | 1, std::cmp::Ordering::Greater) => Err(malformed("a call takes one message")),
        (_, _) => Err(malformed("an unknown flag")),
    }
}

/// The status of a problem; only an overload says when to come back, which is what makes it worth it.
fn status(problem: &Problem) -> Status {
    let message = problem.message();
    let message = &message[..message.floor_char_boundary(256)];
    match problem {
        Problem::Refused(Refusal::TooLarge { .. }) => Status::resource_exhausted(message),
        Problem::Refused(Refusal::Malformed { .. }) => Status::invalid_argument(message),
        Problem::Overloaded(overloaded) => {
            let details = ErrorDetails::with_retry_info(Some(overloaded.retry_after));
            Status::with_error_details(Code::Unavailable, message, details)
        }
        Problem::Slow => Status::deadline_exceeded(message),
        Problem::Broken => Status::cancelled(message),
        Problem::Internal => Status::internal(message),
    }
}

fn success(message: &[u8]) -> Response<Body> {
    let mut frame = BytesMut::with_capacity(PREFIX + message.len());
    frame.put_u8(0);
    // Our answers are a few hundred bytes at most.
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(frame.freeze()).with_trailers(async move { Some(Ok(trailers)) });
    let mut response = Response::new(Body::new(body));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response.headers_mut().insert(ACCEPTED.0, ACCEPTED.1);
    response
}

fn failure(status: Status) -> Response<Body> {
    let mut response: Response<Body> = status.into_http();
    response.headers_mut().insert(ACCEPTED.0, ACCEPTED.1);
    response
}
