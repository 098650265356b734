//! Reads the head of a CONNECT, as strictly as the requests inside the tunnel are read. Answers nothing.

use crate::{answer::Failure, config::Limits, upstream::UrlOrigin};
use http::StatusCode;
use std::io;
use tokio::{io::AsyncReadExt, net::TcpStream};

const METHOD: &[u8] = b"CONNECT ";

/// Whether a client begins with a CONNECT. Reads on while its first bytes, which are in `early`, may be the method.
pub(super) async fn is_connect(tcp: &mut TcpStream, early: &mut Vec<u8>) -> io::Result<bool> {
    while early.len() < METHOD.len() && METHOD.starts_with(early) {
        if tcp.read_buf(early).await? == 0 {
            return Ok(false);
        }
    }
    Ok(early.starts_with(METHOD))
}

/// Reads the rest of the head that begins with `head`. Returns the host and port that it names, or the failure to answer with.
/// The scheme is not known yet.
pub(super) async fn read(
    tcp: &mut TcpStream,
    mut head: Vec<u8>,
    limits: &Limits,
) -> io::Result<Result<UrlOrigin, Failure>> {
    loop {
        match parse(&head, limits) {
            Ok(None) => {}
            Ok(Some(origin)) => return Ok(Ok(origin)),
            Err(failure) => return Ok(Err(failure)),
        }
        if tcp.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Reads a head; `None` if it is not complete.
fn parse(head: &[u8], limits: &Limits) -> Result<Option<UrlOrigin>, Failure> {
    let mut fields = vec![httparse::EMPTY_HEADER; limits.headers];
    let mut request = httparse::Request::new(&mut fields);
    let too_large = || {
        let (headers, bytes) = (limits.headers, limits.header_bytes);
        let why =
            format!("there are more than {headers} headers, or more than {bytes} bytes of them");
        Failure::TooLarge(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, why.into())
    };
    let end = match request.parse(head) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) if head.len() < limits.header_bytes => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(too_large());
        }
        Err(_) => return malformed("this is not a request as HTTP/1.1 writes it"),
    };
    if end > limits.header_bytes {
        return Err(too_large());
    }
    if head.len() > end {
        // They would be read as the tunnel's by one program and as a request by another.
        return malformed("a client waits for the answer to CONNECT before it sends more");
    }
    let target = request.path.unwrap_or_default();
    let origin = origin_of(target)?;
    let named = |name: &str| {
        let fields = request.headers.iter();
        fields
            .filter(|field| field.name.eq_ignore_ascii_case(name))
            .map(|field| field.value)
            .collect::<Vec<_>>()
    };
    if !named("transfer-encoding").is_empty()
        || named("content-length").iter().any(|length| *length != b"0")
    {
        return malformed("a CONNECT has no body (RFC 9110 section 9.3.6)");
    }
    match &named("host")[..] {
        [] if request.version == Some(0) => {}
        [] => return malformed("a request names its host (RFC 9112 section 3.2)"),
        [host] if is_same(host, &origin) => {}
        [_] => return malformed("CONNECT and `Host` name different hosts"),
        _ => return malformed("a request names its host once (RFC 9112 section 3.2)"),
    }
    Ok(Some(origin))
}

/// Reads `host:port`, the only form of a CONNECT's target (RFC 9112 section 3.2.3).
fn origin_of(target: &str) -> Result<UrlOrigin, Failure> {
    let port = target.rsplit_once(':').map(|(_, port)| port);
    let has_port =
        port.is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    let origin = UrlOrigin::of(true, target).filter(|_| has_port);
    let why = "the target of CONNECT is `host:port` (RFC 9112 section 3.2.3)";
    origin.ok_or(Failure::Malformed(why.into()))
}

/// Whether a `Host` names the same host, with the same port or none.
fn is_same(host: &[u8], origin: &UrlOrigin) -> bool {
    let host = str::from_utf8(host).unwrap_or_default();
    let named = UrlOrigin::of(true, host);
    named.is_some_and(|named| {
        let has_port = host.ends_with(&format!(":{}", named.port));
        named.host == origin.host && (named.port == origin.port || !has_port)
    })
}

fn malformed<T>(why: &'static str) -> Result<T, Failure> {
    Err(Failure::Malformed(why.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::as_curl(
        "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\nUser-Agent: curl\r\nProxy-Connection: Keep-Alive\r\n\r\n"
    )]
    #[case::as_old_python("CONNECT A.example:443 HTTP/1.0\r\n\r\n")]
    #[case::host_without_port("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n")]
    #[case::empty_body(
        "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\nContent-Length: 0\r\n\r\n"
    )]
    fn a_connect_names_its_host(#[case] head: &str) {
        let limits = Limits::default();
        assert!(matches!(parse(&head.as_bytes()[..head.len() - 1], &limits), Ok(None)));
        let origin = parse(head.as_bytes(), &limits).unwrap().unwrap();
        assert_eq!(origin.to_string(), "https://a.example");
    }

    #[rstest]
    #[case::no_port("CONNECT a.example HTTP/1.1\r\nHost: a.example\r\n\r\n")]
    #[case::empty_port("CONNECT a.example: HTTP/1.1\r\nHost: a.example\r\n\r\n")]
    #[case::url("CONNECT https://a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n")]
    #[case::path("CONNECT a.example:443/x HTTP/1.1\r\nHost: a.example\r\n\r\n")]
    #[case::credentials("CONNECT u@a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n")]
    #[case::no_host("CONNECT a.example:443 HTTP/1.1\r\n\r\n")]
    #[case::two_hosts(
        "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n"
    )]
    #[case::another_host("CONNECT a.example:443 HTTP/1.1\r\nHost: b.example\r\n\r\n")]
    #[case::another_port("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:80\r\n\r\n")]
    #[case::body("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\n")]
    #[case::two_lengths(
        "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n"
    )]
    #[case::coding(
        "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    )]
    #[case::bytes_after_the_head(
        "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\nGET / HTTP/1.1\r\n"
    )]
    #[case::no_http("CONNECT a.example:443\r\nHost: a.example\r\n\r\n")]
    fn a_doubtful_connect_is_malformed(#[case] head: &str) {
        assert!(matches!(parse(head.as_bytes(), &Limits::default()), Err(Failure::Malformed(_))));
    }

    #[test]
    fn a_head_has_a_bound() {
        let limits = Limits { header_bytes: 100, headers: 3, ..Limits::default() };
        let long = format!("CONNECT a.example:443 HTTP/1.1\r\nHost: {}", "a".repeat(100));
        let many = "CONNECT a.example:443 HTTP/1.1\r\nA:\r\nB:\r\nC:\r\nD:\r\n";
        for head in [long.as_str(), many] {
            assert!(
                matches!(parse(head.as_bytes(), &limits), Err(Failure::TooLarge(..))),
                "{head}"
            );
        }
    }
}
