//! Recognizes two things in the bytes of a connection: the parser's own refusals, and heads that are framed twice. Never
//! parses a head.

use crate::{answer::Failure, config::Limits};
use bytes::Bytes;
use http::{Response, StatusCode};

/// The bytes that follow the status line in every answer that hyper makes by itself.
const MARK: &[u8] = b"\r\nconnection: close\r\ncontent-length: 0\r\ndate: ";
/// The length of a request line without its target: the longest registered method, two spaces, the version.
const AROUND_TARGET: usize = 32;

/// Returns the problem document that replaces `buf`, if `buf` is a bare refusal of hyper, and its status. `read` is the input
/// that was refused.
pub(super) fn problem(buf: &[u8], read: &[u8], limits: &Limits) -> Option<(StatusCode, Vec<u8>)> {
    // Almost all responses end here: they are not bare refusals.
    let line = buf.strip_prefix(b"HTTP/1.1 4")?;
    let end = line.iter().position(|byte| *byte == b'\r')?;
    let date = line[end..].strip_prefix(MARK)?.strip_suffix(b"\r\n\r\n")?;
    let failure = match StatusCode::from_bytes(&buf[9..12]).ok()? {
        StatusCode::BAD_REQUEST => {
            Failure::BadRequest("this is not a request as HTTP/1.1 writes it".into())
        }
        StatusCode::URI_TOO_LONG => long_target(limits),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE if has_long_target(read, limits) => {
            long_target(limits)
        }
        status @ StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            let (headers, bytes) = (limits.headers, limits.header_bytes);
            let why = format!(
                "there are more than {headers} headers, or more than {bytes} bytes of them"
            );
            Failure::TooLarge(status, why.into())
        }
        _ => return None,
    };
    let response = failure.response();
    Some((response.status(), serialized(&response, Some(date))))
}

fn long_target(limits: &Limits) -> Failure {
    let why = format!("the target of the request is longer than {} bytes", limits.uri);
    Failure::TooLarge(StatusCode::URI_TOO_LONG, why.into())
}

/// Whether the request line is too long. It differs from a header in that its first space precedes any colon.
fn has_long_target(read: &[u8], limits: &Limits) -> bool {
    let is_long = |line: &&[u8]| line.len() > limits.uri + AROUND_TARGET;
    read.split(|byte| *byte == b'\n').filter(is_long).any(begins_request)
}

/// Whether a line may be a request line. In a head that the parser accepts no other line has a space before its colon.
fn begins_request(line: &[u8]) -> bool {
    line.iter().find(|byte| b" :".contains(byte)) == Some(&b' ')
}

/// Writes a response as HTTP/1.1, with `Connection: close`.
pub(in crate::server) fn serialized(response: &Response<Bytes>, date: Option<&[u8]>) -> Vec<u8> {
    let (status, body) = (response.status(), response.body());
    let reason = status.canonical_reason().unwrap_or_default();
    let mut out = format!("HTTP/1.1 {} {reason}\r\n", status.as_u16()).into_bytes();
    for (name, value) in response.headers() {
        out.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    out.extend(format!("connection: close\r\ncontent-length: {}\r\n", body.len()).bytes());
    if let Some(date) = date {
        out.extend([b"date: ", date, b"\r\n"].concat());
    }
    out.extend([b"\r\n", &body[..]].concat());
    out
}

/// Whether one message in `read` has both Content-Length and Transfer-Encoding. hyper drops the first of them, which hides an
/// attempt at request smuggling (RFC 9112 section 6.1). If `read` begins or ends within a message, or holds the body of
/// another, the answer may be a false yes, never a false no.
pub(super) fn has_both_framings(read: &[u8]) -> bool {
    let (mut length, mut coding) = (false, false);
    for line in read.split(|byte| *byte == b'\n') {
        if matches!(line, b"" | b"\r") || begins_request(line) {
            (length, coding) = (false, false);
            continue;
        }
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        length |= name.eq_ignore_ascii_case(b"content-length");
        coding |= name.eq_ignore_ascii_case(b"transfer-encoding");
        if length && coding {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn bare(status: &str) -> Vec<u8> {
        let rest = "connection: close\r\ncontent-length: 0\r\ndate: Sat, 21 Nov 2026 10:13:15 GMT";
        format!("HTTP/1.1 {status}\r\n{rest}\r\n\r\n").into_bytes()
    }

    #[test]
    fn a_bare_refusal_becomes_a_problem_that_names_the_limits() {
        let limits =
            Limits { headers: 7, header_bytes: 1234, uri: 100, body: None, ..Limits::default() };
        let bare = bare("431 Request Header Fields Too Large");
        let (status, problem) = problem(&bare, b"GET / HTTP/1.1\r\n", &limits).unwrap();
        let text = String::from_utf8(problem).unwrap();
        assert_eq!(status, 431);
        assert!(text.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{text}");
        assert!(text.contains("\r\npaceway-origin: gateway\r\n"), "{text}");
        assert!(text.contains("\r\ndate: Sat, 21 Nov 2026 10:13:15 GMT\r\n\r\n{"), "{text}");
        assert!(text.contains("more than 7 headers, or more than 1234 bytes"), "{text}");
    }

    #[test]
    fn a_too_long_target_is_reported_as_414() {
        let limits = Limits { uri: 100, ..Limits::default() };
        let bare = bare("431 Request Header Fields Too Large");
        for (start, expected) in
            [("GET /", 414), ("GET http://a/", 414), ("GET / HTTP/1.1\r\nCookie: ", 431)]
        {
            let read = format!("\r\n{start}{}", "a".repeat(140));
            let (status, problem) = problem(&bare, read.as_bytes(), &limits).unwrap();
            assert_eq!(status, expected);
            assert!(problem.starts_with(format!("HTTP/1.1 {expected} ").as_bytes()));
        }
    }

    #[test]
    fn other_answers_are_unchanged() {
        let answers: [&[u8]; 3] = [
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n",
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\ndate: x\r\n\r\n",
            b"HTTP/1.1 404 Not Found\r\nserver: x\r\n\r\n",
        ];
        let limits = Limits::default();
        assert_eq!(answers.map(|answer| problem(answer, b"", &limits)), [None, None, None]);
    }

    #[rstest]
    #[case::length_first("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", true)]
    #[case::coding_first("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", true)]
    #[case::odd_case("tRANSFER-eNCODING: chunked\r\ncONTENT-lENGTH: 5\r\n\r\n", true)]
    #[case::tabs("Content-Length:\t5\r\nTransfer-Encoding:\tchunked\r\n\r\n", true)]
    #[case::bare_line_feeds("Content-Length:5\nTransfer-Encoding:chunked\n\n", true)]
    #[case::others_between(
        "Content-Length: 5\r\nX: HTTP/1.1\r\nTransfer-Encoding: a\r\n\r\n",
        true
    )]
    #[case::one_only("Transfer-Encoding: chunked\r\nX-Content-Length: 5\r\n\r\n", false)]
    #[case::another_message(
        "Content-Length: 0\r\n\r\nPOST / HTTP/1.1\r\nTransfer-Encoding: a\r\n\r\n",
        false
    )]
    #[case::its_body(
        "Transfer-Encoding: chunked\r\n\r\n11\r\nContent-Length: 5\r\n0\r\n\r\n",
        false
    )]
    #[case::behind_a_body_that_ends_like_a_header(
        "X: y\r\n\r\nContent-Length: 5\nPOST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        false
    )]
    fn recognises_two_framings_of_one_message(#[case] fields: &str, #[case] both: bool) {
        assert_eq!(has_both_framings(format!("POST / HTTP/1.1\r\n{fields}").as_bytes()), both);
    }
}
