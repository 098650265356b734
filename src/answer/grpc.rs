//! The gateway's own responses in the form that gRPC clients read: trailers alone, in the head of a response without a body
//! (gRPC over HTTP2, "Responses"). They say the same as the responses for other clients.

use super::Failure;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Version, header::CONTENT_TYPE};

/// The type of a gRPC message.
pub(crate) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// The time that a client waits before it retries by itself, ms (gRFC A6).
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Whether `request` is a gRPC call by a client that can read trailers.
pub fn is_call<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    // Clients of application/grpc-web read plain HTTP.
    request.version() == Version::HTTP_2
        && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

// === impl Failure ===

impl Failure {
    /// Returns the response to a gRPC call. Its HTTP status is 200, and `grpc-status` holds the result, such as 8 for a 429;
    /// the other headers are the same as in [`Self::response`].
    pub fn grpc_response(&self) -> Response<Bytes> {
        let (mut head, _) = self.response().into_parts();
        let code = code(head.status);
        head.status = StatusCode::OK;
        head.headers.insert(CONTENT_TYPE, GRPC);
        head.headers.insert(GRPC_STATUS, HeaderValue::from(code));
        if let Ok(message) = HeaderValue::from_str(&encoded(&self.detail())) {
            head.headers.insert(GRPC_MESSAGE, message);
        }
        if let Some(millis) = self.retry_after_ms() {
            head.headers.insert(PUSHBACK, HeaderValue::from(millis));
        }
        Response::from_parts(head, Bytes::new())
    }
}

/// Maps an HTTP status to that of gRPC ("HTTP to gRPC Status Code Mapping"). 413, 414, 431 and 408 are mapped more exactly
/// than there, because the gateway knows their reason.
pub(crate) fn code(status: StatusCode) -> u16 {
    match status.as_u16() {
        // INTERNAL
        400 => 13,
        // INVALID_ARGUMENT
        413 | 414 | 431 => 3,
        // UNIMPLEMENTED
        404 | 501 => 12,
        // DEADLINE_EXCEEDED
        408 | 504 => 4,
        // UNAUTHENTICATED
        401 => 16,
        // RESOURCE_EXHAUSTED
        429 => 8,
        // UNAVAILABLE
        502 | 503 => 14,
        // UNKNOWN
        _ => 2,
    }
}

/// Encodes a Status-Message: printable ASCII except `%` stays, all other bytes are percent-encoded.
fn encoded(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => {
                let digits = [byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]);
                out.extend(['%', char::from(digits[0]), char::from(digits[1])]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain("application/grpc", true)]
    #[case::with_a_codec("application/grpc+proto", true)]
    #[case::with_a_parameter("application/grpc; charset=utf-8", true)]
    #[case::web("application/grpc-web", false)]
    #[case::json("application/json", false)]
    fn recognises_grpc_calls_by_content_type(#[case] kind: &str, #[case] is: bool) {
        let request = |version| {
            let request = Request::post("/").version(version).header(CONTENT_TYPE, kind);
            request.body(()).expect("a request")
        };
        assert_eq!(is_call(&request(Version::HTTP_2)), is);
        assert!(!is_call(&request(Version::HTTP_11)), "clients of HTTP/1.1 read no trailers");
    }

    #[test]
    fn a_full_queue_is_unavailable_with_retry_after() {
        let response = Failure::QueueFull { retry_after: 1_234_567 }.grpc_response();
        let headers = response.headers();
        assert_eq!(response.status(), 200);
        assert_eq!(headers["content-type"], "application/grpc");
        assert_eq!(headers["grpc-status"], "14");
        assert_eq!(headers["grpc-retry-pushback-ms"], "1235");
        assert_eq!(headers["retry-after"], "2");
        assert_eq!(headers["paceway-origin"], "gateway");
        assert!(response.body().is_empty());
    }

    #[test]
    fn messages_are_printable_ascii() {
        assert_eq!(encoded("100 % Zürich\n"), "100 %25 Z%C3%BCrich%0A");
    }
}
