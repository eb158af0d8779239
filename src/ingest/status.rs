//! The answers to senders, as in OTLP: success, partial success, and errors that say whether to retry.
//!
//! The table of statuses is that of the OTLP specification ("Failures" and "OTLP/HTTP Response").

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceResponse,
};
use prost::Message;
use tonic::Code;
use tonic_types::{ErrorDetails, StatusExt};

use super::admission::{self, NoRoom};
use super::{Encoding, Overloaded, Refusal, RequestCounts, Signal, report};
use crate::refused::Refused;

/// Why a request was not applied.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Failure {
    /// It is refused for good.
    Refused(Refusal),
    /// There is no room for it at the moment.
    Overloaded(Overloaded),
    /// Its content type is not one of OTLP's.
    MediaType,
    /// It is no gRPC, and arrived at the gRPC port; OTLP over HTTP has this port.
    NotGrpc(Option<u16>),
    /// Its compression is not supported.
    ContentEncoding,
    /// It names a tenant, which its sender may not do.
    OtherTenant,
    /// Its method is not POST.
    Method,
    /// Nothing is served at its path.
    Path,
    /// It is gRPC over a version of HTTP that cannot carry it.
    Version,
    /// Its body arrived too slowly.
    Slow,
    /// Its body was slow and large, and its sender held most of the room that others needed.
    Displaced,
    /// Its body broke off; probably nobody reads the answer.
    Broken,
    /// The sender's own deadline is over.
    Deadline,
    /// The daemon failed: a bug.
    Internal,
}

/// Longest text of an error or a partial success, in bytes.
const MAX_MESSAGE_BYTES: usize = 256;

impl Failure {
    /// The reason under which the failure is counted, and its statuses over HTTP and gRPC. Over HTTP, 429, 502, 503 and 504 mean
    /// "retry", and all others "never".
    #[rustfmt::skip] // A row is one failure.
    fn row(&self) -> (&'static str, StatusCode, Code) {
        match self {
            Self::Refused(Refusal::TooLarge { .. }) => ("too_large", StatusCode::PAYLOAD_TOO_LARGE, Code::ResourceExhausted),
            Self::Refused(Refusal::Malformed { .. }) => ("malformed", StatusCode::BAD_REQUEST, Code::InvalidArgument),
            Self::Overloaded(overloaded) => (overloaded.lacks.reason(), StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable),
            Self::MediaType | Self::NotGrpc(_) => ("unsupported_content_type", StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::InvalidArgument),
            Self::ContentEncoding => ("unsupported_encoding", StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::Unimplemented),
            Self::OtherTenant => ("forbidden", StatusCode::FORBIDDEN, Code::PermissionDenied),
            Self::Method => ("method_not_allowed", StatusCode::METHOD_NOT_ALLOWED, Code::Unimplemented),
            Self::Path => ("unknown_path", StatusCode::NOT_FOUND, Code::Unimplemented),
            Self::Version => ("unsupported_http_version", StatusCode::HTTP_VERSION_NOT_SUPPORTED, Code::Unimplemented),
            // 408 would be exact, but the sender would drop its data.
            Self::Slow => ("slow", StatusCode::GATEWAY_TIMEOUT, Code::DeadlineExceeded),
            Self::Displaced => ("displaced", StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable),
            Self::Broken => ("broken", StatusCode::BAD_REQUEST, Code::Cancelled),
            Self::Deadline => ("deadline_exceeded", StatusCode::GATEWAY_TIMEOUT, Code::DeadlineExceeded),
            Self::Internal => ("internal", StatusCode::INTERNAL_SERVER_ERROR, Code::Internal),
        }
    }

    /// The reason under which the failure is counted.
    pub(super) fn reason(&self) -> &'static str {
        self.row().0
    }

    /// The status over HTTP.
    pub(super) fn status(&self) -> StatusCode {
        self.row().1
    }

    fn code(&self) -> Code {
        self.row().2
    }

    /// Whether reading the rest of the body could help the sender to receive the answer.
    pub(super) fn leaves_a_body(&self) -> bool {
        !matches!(self, Self::Slow | Self::Broken | Self::Deadline)
    }

    /// The answer over HTTP to a request for `path` in this encoding.
    pub(super) fn http(&self, path: &str, encoding: Encoding) -> Response {
        let refused = Refused::new(self.status(), self.reason(), &self.message());
        let mut response = refused.answer(path, encoding == Encoding::Protobuf, self.code());
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after() {
            headers.insert(RETRY_AFTER, seconds(after).into());
        }
        if matches!(self, Self::ContentEncoding) {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, zstd, identity"));
        }
        if matches!(self, Self::Method) {
            headers.insert(ALLOW, HeaderValue::from_static("POST"));
        }
        response
    }

    /// The answer over gRPC. Only a lack of room carries `RetryInfo`: without it RESOURCE_EXHAUSTED is final.
    pub(super) fn grpc(&self) -> tonic::Status {
        let Some(after) = self.retry_after() else {
            return tonic::Status::new(self.code(), self.message());
        };
        let details = ErrorDetails::with_retry_info(Some(after));
        tonic::Status::with_error_details(self.code(), self.message(), details)
    }

    /// When the sender should retry, if there is no room now.
    fn retry_after(&self) -> Option<Duration> {
        if let Self::Overloaded(overloaded) = self {
            return Some(overloaded.retry_after);
        }
        matches!(self, Self::Displaced).then_some(admission::RETRY_AFTER)
    }

    fn message(&self) -> String {
        let text = match self {
            Self::Refused(refusal) => refusal.to_string(),
            Self::Overloaded(overloaded) => format!("{}; retry later", overloaded.lacks),
            Self::MediaType => {
                "the content type must be application/x-protobuf or application/json; OTLP over gRPC \
                 goes to another port (`listen.otlp_grpc`)"
                    .to_owned()
            }
            Self::NotGrpc(port) => {
                let port = port.map_or_else(|| "another port".to_owned(), |port| format!("port {port}"));
                format!(
                    "this port takes OTLP over gRPC (application/grpc); OTLP over HTTP goes to {port} (`listen.otlp_http`)"
                )
            }
            Self::ContentEncoding => "the compression must be gzip, zstd or none".to_owned(),
            Self::OtherTenant => {
                "to name a tenant (`?tenant=`) takes a token or certificate without one that may `read`, too (`access`); \
                 or send with one of that tenant, and name none"
                    .to_owned()
            }
            Self::Method => "only POST is answered here".to_owned(),
            Self::Path => "nothing is here; OTLP has traces, logs and metrics".to_owned(),
            Self::Version => "gRPC needs HTTP/2".to_owned(),
            Self::Slow => "the body arrived too slowly (`ingest.body_progress`)".to_owned(),
            Self::Displaced => {
                "the room of this slow body was needed for others; retry later".to_owned()
            }
            Self::Broken => "the body was cut off".to_owned(),
            Self::Deadline => "the deadline of the request is over".to_owned(),
            Self::Internal => "the daemon failed on this request".to_owned(),
        };
        cut(text)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Overloaded> for Failure {
    fn from(overloaded: Overloaded) -> Self {
        Self::Overloaded(overloaded)
    }
}

impl From<NoRoom> for Failure {
    fn from(no_room: NoRoom) -> Self {
        match no_room {
            NoRoom::Ever(refusal) => Self::Refused(refusal),
            NoRoom::Yet(overloaded) => Self::Overloaded(overloaded),
        }
    }
}

/// The `Export*ServiceResponse` of a request that was applied; it names what was rejected, and is empty if nothing was.
pub(super) fn success(signal: Signal, encoding: Encoding, tally: &RequestCounts) -> Bytes {
    if signal == Signal::Reports {
        return match encoding {
            Encoding::Protobuf => {
                report::response(tally.reports, &tally.rejected_reports).encode_to_vec().into()
            }
            Encoding::Json => report::response_json(tally.reports, &tally.rejected_reports).into(),
        };
    }
    let rejected = tally.rejected.values().fold(0, |sum: u64, count| sum.saturating_add(*count));
    let rejected = i64::try_from(rejected).unwrap_or(i64::MAX);
    let partial = (rejected > 0).then(|| (rejected, explanation(tally)));
    match encoding {
        Encoding::Protobuf => protobuf(partial).into(),
        Encoding::Json => json(signal, partial).into(),
    }
}

/// An answer over HTTP.
pub(super) fn response(status: StatusCode, encoding: Encoding, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let content_type = match encoding {
        Encoding::Protobuf => HeaderValue::from_static("application/x-protobuf"),
        Encoding::Json => HeaderValue::from_static("application/json"),
    };
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// The `Export*ServiceResponse` in protobuf, where it is the same message for every signal.
fn protobuf(partial: Option<(i64, String)>) -> Vec<u8> {
    let partial_success = partial.map(|(rejected_spans, error_message)| {
        ExportTracePartialSuccess { rejected_spans, error_message }
    });
    ExportTraceServiceResponse { partial_success }.encode_to_vec()
}

/// The `Export*ServiceResponse` in OTLP's JSON, where 64-bit integers are strings.
fn json(signal: Signal, partial: Option<(i64, String)>) -> String {
    let Some((rejected, message)) = partial else { return "{}".to_owned() };
    let field = match signal {
        Signal::Traces => "rejectedSpans",
        Signal::Logs => "rejectedLogRecords",
        Signal::Metrics => "rejectedDataPoints",
        Signal::Reports => "rejectedReports",
    };
    serde_json::json!({
        "partialSuccess": { field: rejected.to_string(), "errorMessage": message }
    })
    .to_string()
}

/// The counts of rejected records by reason, as in `rejected: 2 invalid_span_id, 1 invalid_trace_id`.
fn explanation(tally: &RequestCounts) -> String {
    let reasons: Vec<_> =
        tally.rejected.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    cut(format!("rejected: {}", reasons.join(", ")))
}

/// A wait in whole seconds, rounded up, at least one: zero would mean "at once".
fn seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_MESSAGE_BYTES));
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn tally(rejected: &[(&'static str, u64)]) -> RequestCounts {
        RequestCounts { rejected: rejected.iter().copied().collect(), ..RequestCounts::default() }
    }

    #[test]
    fn success_is_empty_when_nothing_was_rejected() {
        for signal in [Signal::Traces, Signal::Logs, Signal::Metrics] {
            assert!(success(signal, Encoding::Protobuf, &RequestCounts::default()).is_empty());
            assert_eq!(success(signal, Encoding::Json, &RequestCounts::default()), "{}");
        }
    }

    #[test]
    fn partial_success_counts_and_names_the_reasons() {
        let tally = tally(&[("invalid_trace_id", 1), ("invalid_span_id", 2)]);
        let json = success(Signal::Logs, Encoding::Json, &tally);
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(
            json["partialSuccess"],
            serde_json::json!({
                "rejectedLogRecords": "3",
                "errorMessage": "rejected: 2 invalid_span_id, 1 invalid_trace_id",
            })
        );
        let protobuf = success(Signal::Traces, Encoding::Protobuf, &tally);
        let response = ExportTraceServiceResponse::decode(protobuf).unwrap();
        assert_eq!(response.partial_success.unwrap().rejected_spans, 3);
    }

    #[test]
    fn only_an_overload_asks_to_come_back() {
        let overloaded = Failure::Overloaded(Overloaded::after(Duration::from_millis(1_200)));
        assert_eq!(overloaded.http("/v1/traces", Encoding::Json).headers()[RETRY_AFTER], "2");
        assert!(overloaded.grpc().get_details_retry_info().is_some());
        let too_large = Failure::Refused(Refusal::TooLarge { what: "it", max: 1, key: "key" });
        assert_eq!(too_large.grpc().code(), Code::ResourceExhausted);
        assert!(too_large.grpc().get_details_retry_info().is_none());
        assert!(too_large.http("/v1/traces", Encoding::Json).headers().get(RETRY_AFTER).is_none());
    }

    #[test]
    fn no_text_is_longer_than_its_limit() {
        let why = "é".repeat(400);
        let failure = Failure::Refused(Refusal::Malformed { what: "request", why });
        assert!(failure.grpc().message().len() <= MAX_MESSAGE_BYTES);
        const NAME: &str = "a_reason_with_a_rather_long_name";
        let rejected: BTreeMap<_, _> = (1..NAME.len()).map(|to| (&NAME[..to], 1)).collect();
        let tally = RequestCounts { rejected, ..RequestCounts::default() };
        assert!(explanation(&tally).len() <= MAX_MESSAGE_BYTES);
    }

    #[test]
    fn a_wait_is_told_in_whole_seconds() {
        assert_eq!(seconds(Duration::ZERO), 1);
        assert_eq!(seconds(Duration::from_millis(1_000)), 1);
        assert_eq!(seconds(Duration::from_millis(1_001)), 2);
    }
}
