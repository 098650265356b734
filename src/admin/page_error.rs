//! The answer of an admin page that is an error: a problem of `application/problem+json`.

use crate::{services::permits::in_plain_words, store::StoreError};
use axum::{
    body::to_bytes,
    extract::rejection::JsonRejection,
    http::{
        StatusCode,
        header::{CONTENT_LENGTH, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
};
use serde_json::json;

/// An answer that is an error: the status, and a sentence that says what to do.
#[derive(Debug)]
pub(crate) struct PageError(pub(crate) StatusCode, pub(crate) String);

/// The answer of a page, or its error.
pub(super) type Result<T> = std::result::Result<T, PageError>;

/// The most bytes of a text that becomes the detail of a problem.
const MOST_DETAIL: usize = 4 << 10;

/// Makes a problem of an error that axum describes in plain text, such as 413 for a body that is too large.
pub(super) async fn as_problem(response: Response) -> Response {
    let is_error = response.status().is_client_error() || response.status().is_server_error();
    let kind = response.headers().get(CONTENT_TYPE);
    if !is_error || kind.is_some_and(|kind| !kind.as_bytes().starts_with(b"text/plain")) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let text = to_bytes(body, MOST_DETAIL).await.unwrap_or_default();
    let detail = in_plain_words(&String::from_utf8_lossy(&text));
    head.headers.remove(CONTENT_TYPE);
    head.headers.remove(CONTENT_LENGTH);
    let mut problem = PageError(head.status, detail).into_response();
    problem.headers_mut().extend(head.headers);
    problem
}

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
