//! Changes requests of HTTP/1.1 into those of HTTP/2, and back. Sends nothing.

use crate::upstream::{
    headers,
    target::Target,
    upload::{Upload, UploadControl},
};
use http::{
    HeaderName, HeaderValue, Request, Uri, Version,
    header::{CONNECTION, EXPECT, HOST, TE, TRANSFER_ENCODING, UPGRADE},
};
use http_body::Body as _;

/// Fields that are meant for one HTTP/1.1 connection and are an error in HTTP/2 (RFC 9113 section 8.2.2).
static CONNECTION_SPECIFIC: [HeaderName; 5] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Changes a request of HTTP/1.1 into one of HTTP/2: its target becomes absolute with the `Host` in it, and fields of the
/// connection are removed (RFC 9113 sections 8.2.2 and 8.3.1).
pub(super) fn to_h2(mut request: Request<Upload>, target: &Target) -> Request<Upload> {
    if request.headers_mut().remove(EXPECT).is_some() {
        // hyper does not report the `100 Continue` of an HTTP/2 upstream, so the body is sent at once.
        request.body().control().as_ref().map(UploadControl::go_on);
    }
    let headers = request.headers_mut();
    let host = headers.remove(HOST);
    for name in &CONNECTION_SPECIFIC {
        headers.remove(name);
    }
    let is_trailers = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"trailers");
    if headers.contains_key(TE) && !headers.get_all(TE).iter().all(is_trailers) {
        headers.remove(TE);
    }
    let host = host.as_ref().unwrap_or(&target.host);
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = target.origin.scheme().cloned();
    parts.authority =
        host.as_bytes().try_into().ok().or_else(|| target.origin.authority().cloned());
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_else(|_| target.origin.clone());
    *request.version_mut() = Version::HTTP_2;
    request
}

/// Changes the request back into one of HTTP/1.1. It was not sent, and the next connection may speak HTTP/1.1.
pub(super) fn to_h1(mut request: Request<Upload>) -> Request<Upload> {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = None;
    let authority = parts.authority.take();
    let host = authority.and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host);
    }
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    *request.version_mut() = Version::HTTP_11;
    let (has_te, is_open) = (request.headers().contains_key(TE), !request.body().is_end_stream());
    headers::for_connection(request.headers_mut(), has_te, is_open);
    request
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;
    use rstest::rstest;

    fn target() -> Target {
        Target::parse("https://api.example:8443/v2").expect("a target")
    }

    fn asked(method: Method, uri: &str) -> Request<Upload> {
        let request = Request::builder().method(method).uri(uri).header("host", "other.example");
        request.body(Upload::default()).expect("a request")
    }

    #[rstest]
    #[case::path("/a//b?c=d", "https://other.example/a//b?c=d")]
    #[case::root("/", "https://other.example/")]
    #[case::asterisk("*", "https://other.example*")]
    fn a_target_becomes_absolute_and_relative_again(#[case] uri: &str, #[case] whole: &str) {
        let request = to_h2(asked(Method::OPTIONS, uri), &target());
        assert_eq!(request.uri().to_string(), whole);
        assert_eq!((request.version(), request.headers().get(HOST)), (Version::HTTP_2, None));
        let request = to_h1(request);
        assert_eq!(request.uri().to_string(), uri);
        assert_eq!(request.version(), Version::HTTP_11);
        assert_eq!(request.headers()[HOST], "other.example");
    }

    #[test]
    fn connection_headers_are_removed_and_restored() {
        let mut request = asked(Method::GET, "/");
        for (name, value) in [(TE, "trailers"), (CONNECTION, "te")] {
            request.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        let request = to_h2(request, &target());
        assert_eq!(request.headers().get(CONNECTION), None);
        assert_eq!(to_h1(request).headers()[CONNECTION], "te");
    }

    #[rstest]
    #[case::trailers("trailers", true)]
    #[case::in_capitals("Trailers", true)]
    #[case::more("trailers, gzip", false)]
    #[case::other("gzip", false)]
    fn only_te_trailers_is_kept(#[case] te: &str, #[case] stays: bool) {
        let mut request = asked(Method::POST, "/");
        request.headers_mut().insert(TE, HeaderValue::from_str(te).expect("a value"));
        request.headers_mut().insert(UPGRADE, HeaderValue::from_static("x"));
        let request = to_h2(request, &target());
        assert_eq!(request.headers().contains_key(TE), stays);
        assert!(!request.headers().contains_key(UPGRADE));
    }

    #[test]
    fn a_request_without_a_host_gets_the_target() {
        let mut request = asked(Method::GET, "/");
        request.headers_mut().remove(HOST);
        let request = to_h2(request, &target());
        assert_eq!(request.uri().to_string(), "https://api.example:8443/");
    }
}
