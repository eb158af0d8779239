//! The errors of the HTTP endpoints.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use serde_json::json;

/// An error, as all endpoints answer it.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    /// The code for programs, which does not change.
    pub(super) code: &'static str,
    /// The message for people.
    pub(super) message: String,
    /// The scopes to choose from, if several sessions have the id.
    pub(super) scopes: Vec<String>,
}

impl Refused {
    pub(super) fn new(status: StatusCode, code: &'static str, message: &str) -> Self {
        Self { status, code, message: message.to_owned(), scopes: Vec::new() }
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
