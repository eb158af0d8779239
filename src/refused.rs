//! Errors of HTTP, in the two forms that senders and readers expect.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use prost::Message;
use serde_json::json;
use tonic::Code;

/// An error. As a response it has the form of the API: `{"error": {"code": .., "message": ..}}`.
#[derive(Debug)]
pub struct Refused {
    pub(crate) status: StatusCode,
    /// The code for programs, which does not change.
    pub(crate) code: &'static str,
    /// The message for people.
    pub(crate) message: String,
    /// The scopes to choose from, if several sessions have the id.
    pub(crate) scopes: Vec<String>,
}

impl Refused {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: &str) -> Self {
        Self { status, code, message: message.to_owned(), scopes: Vec::new() }
    }

    /// The answer to a request for `path`: OTLP's paths have a `google.rpc.Status` with this gRPC code, in the request's own
    /// encoding, and so has protobuf at any path; all others have the API's form.
    pub(crate) fn answer(self, path: &str, protobuf: bool, code: Code) -> Response {
        if !protobuf && !path.starts_with("/v1/") {
            return self.into_response();
        }
        let status =
            tonic_types::Status { code: code.into(), message: self.message, details: vec![] };
        if protobuf {
            let content_type = HeaderValue::from_static("application/x-protobuf");
            let headers = [(header::CONTENT_TYPE, content_type)];
            (self.status, headers, status.encode_to_vec()).into_response()
        } else {
            let body = json!({ "code": status.code, "message": status.message });
            (self.status, Json(body)).into_response()
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self { status, code, message, scopes } = self;
        let mut error = json!({ "code": code, "message": message });
        if !scopes.is_empty() {
            error["scopes"] = scopes.into();
        }
        let mut response = (status, Json(json!({ "error": error }))).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        response
    }
}
