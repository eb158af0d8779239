//! OTLP over HTTP: `/v1/traces`, `/v1/logs`, `/v1/metrics`; protobuf and JSON.

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceResponse,
};
use prost::Message;
use serde_json::json;
use tonic::Code;

use super::receiver::{Envelope, Problem, Receiver, rejected};
use super::{Compression, Encoding, Refusal, Signal, Sink, Tally};

/// `google.rpc.Status`, as far as OTLP wants it.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// The routes of OTLP over HTTP.
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
        .route("/v1/traces", post(traces))
        .route("/v1/logs", post(logs))
        .route("/v1/metrics", post(metrics))
        .with_state(receiver)
}

async fn answer<S: Sink>(
    receiver: &Receiver<S>,
    signal: Signal,
    request: Request<Body>,
) -> Response {
    let Some(encoding) = encoding(request.headers()) else {
        let message = "the content type must be application/x-protobuf or application/json";
        return failure(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::InvalidArgument,
            message,
            Encoding::Protobuf,
        );
    };
    let Some(compression) = compression(request.headers()) else {
        let message = "the content encoding must be identity, gzip or zstd";
        return failure(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::InvalidArgument,
            message,
            encoding,
        );
    };
    let envelope = Envelope { transport: "http", signal, encoding };
    let outcome = match receiver.read(request.into_body(), 0).await {
        Ok((body, share)) => receiver.apply(envelope, compression, body, share).await,
        Err(problem) => Err(problem),
    };
    match outcome {
        Ok(tally) => success(signal, encoding, &tally),
        Err(problem) => problem_response(&receiver.note(problem), encoding),
    }
}

fn encoding(headers: &HeaderMap) -> Option<Encoding> {
    let content_type = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    match content_type.split(';').next()?.trim().to_ascii_lowercase().as_str() {
        "application/x-protobuf" => Some(Encoding::Protobuf),
        "application/json" => Some(Encoding::Json),
        _ => None,
    }
}

fn compression(headers: &HeaderMap) -> Option<Compression> {
    let Some(encoding) = headers.get(header::CONTENT_ENCODING) else {
        return Some(Compression::None);
    };
    match encoding.to_str().ok()?.trim().to_ascii_lowercase().as_str() {
        "" | "identity" => Some(Compression::None),
        "gzip" => Some(Compression::Gzip),
        "zstd" => Some(Compression::Zstd),
        _ => None,
    }
}

fn success(signal: Signal, encoding: Encoding, tally: &Tally) -> Response {
    let body = match encoding {
        Encoding::Protobuf => response_message(signal, tally),
        Encoding::Json => {
            let count = if signal == Signal::Logs { "rejectedLogRecords" } else { "rejectedSpans" };
            let answer = rejected(tally).map_or_else(
                || json!({}),
                // A 64-bit integer is a string in JSON.
                |(rejected, message)| json!({"partialSuccess": {count: rejected.to_string(), "errorMessage": message}}),
            );
            answer.to_string().into_bytes()
        }
    };
    ([(header::CONTENT_TYPE, content_type(encoding))], body).into_response()
}

/// The response message of a signal, encoded; shared with gRPC.
pub(super) fn response_message(signal: Signal, tally: &Tally) -> Vec<u8> {
    let rejected = rejected(tally);
    match signal {
        Signal::Traces => {
            let partial = |(rejected_spans, error_message)| ExportTracePartialSuccess {
                rejected_spans,
                error_message,
            };
            ExportTraceServiceResponse { partial_success: rejected.map(partial) }.encode_to_vec()
        }
        Signal::Logs => {
            let partial = |(rejected_log_records, error_message)| ExportLogsPartialSuccess {
                rejected_log_records,
                error_message,
            };
            ExportLogsServiceResponse { partial_success: rejected.map(partial) }.encode_to_vec()
        }
        Signal::Metrics => ExportMetricsServiceResponse::default().encode_to_vec(),
    }
}

fn problem_response(problem: &Problem, encoding: Encoding) -> Response {
    let (status, code) = match problem {
        Problem::Refused(Refusal::TooLarge { .. }) => {
            (StatusCode::PAYLOAD_TOO_LARGE, Code::ResourceExhausted)
        }
        Problem::Refused(Refusal::Malformed { .. }) | Problem::Broken => {
            (StatusCode::BAD_REQUEST, Code::InvalidArgument)
        }
        Problem::Overloaded(_) => (StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable),
        Problem::Slow => (StatusCode::REQUEST_TIMEOUT, Code::DeadlineExceeded),
        Problem::Internal => (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal),
    };
    let mut response = failure(status, code, &problem.message(), encoding);
    if let Problem::Overloaded(overloaded) = problem {
        let seconds = HeaderValue::from(overloaded.retry_after.as_secs().max(1));
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}

fn failure(status: StatusCode, code: Code, message: &str, encoding: Encoding) -> Response {
    let message = message[..message.floor_char_boundary(256)].to_owned();
    let code = i32::from(code);
    let body = match encoding {
        Encoding::Protobuf => RpcStatus { code, message }.encode_to_vec(),
        Encoding::Json => json!({"code": code, "message": message}).to_string().into_bytes(),
    };
    (status, [(header::CONTENT_TYPE, content_type(encoding))], body).into_response()
}

fn content_type(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Protobuf => "application/x-protobuf",
        Encoding::Json => "application/json",
    }
}
