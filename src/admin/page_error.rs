//! The answer of an admin page that is an error: a problem of `application/problem+json`.

use crate::{decision::in_plain_words, store::StoreError};
use axum::{
    extract::rejection::JsonRejection,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde_json::json;

/// An answer that is an error: the status, and a sentence that says what to do.
#[derive(Debug)]
pub(super) struct PageError(pub(super) StatusCode, pub(super) String);

/// The answer of a page, or its error.
pub(super) type Result<T> = std::result::Result<T, PageError>;

/// Refuses a request whose path or body is wrong, with 400.
pub(super) fn bad(why: impl Into<String>) -> PageError {
    PageError(StatusCode::BAD_REQUEST, why.into())
}

// === impl PageError ===

impl From<StoreError> for PageError {
    fn from(error: StoreError) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl From<JsonRejection> for PageError {
    fn from(rejection: JsonRejection) -> Self {
        Self(rejection.status(), in_plain_words(&rejection.body_text()))
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let Self(status, detail) = self;
        let title = status.canonical_reason().unwrap_or_default();
        let problem = json!({ "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail });
        (status, [(CONTENT_TYPE, "application/problem+json")], problem.to_string()).into_response()
    }
}
