//! Writes the heads of requests in HTTP/1.1, and parses those of responses. Decides nothing.

use super::names::{self, KnownNames};
use crate::upstream::{
    error::WireError,
    headers::{added::AddedHeaders, flags::HeaderFlags},
    response::AnnouncedLength,
};
use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version};
use httparse::{ParserConfig, Status};
use hyper::ext::ReasonPhrase;
use smallvec::SmallVec;
use std::mem::MaybeUninit;

/// The most bytes of a response's head, 64 KiB. Common servers stop at 8 to 32 KiB.
pub(in crate::upstream) const HEAD_BYTES: usize = 64 << 10;
/// The most fields of a response's head, and of trailers.
pub(super) const FIELDS: usize = 100;
/// The room for fields that the gateway adds for the client, so that the header map need not grow for them.
const OWN_FIELDS: usize = 2;

/// The facts that the parser learns of a response's head beside its fields.
pub(in crate::upstream) struct HeadFacts {
    /// Whether another response may follow on the connection: HTTP/1.1 without `Connection: close`.
    pub(in crate::upstream) stays_open: bool,
    /// The special fields that the response has.
    pub(in crate::upstream) seen: HeaderFlags,
    /// The length that its fields announce.
    pub(in crate::upstream) length: AnnouncedLength,
}

/// Writes the head of a request (RFC 9112 sections 3 and 5), with the fields that the gateway adds.
pub(super) fn write<B>(request: &Request<B>, added: &AddedHeaders<'_>, out: &mut Vec<u8>) {
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    // An absolute target may have a query and no path (RFC 9112 section 3.2.1).
    let slash = if target.starts_with('?') { "/" } else { "" };
    for part in [request.method().as_str(), " ", slash, target, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    write_fields(added.with(request.headers()), out);
}

/// Writes fields, and the empty line that ends a head or trailers.
pub(super) fn write_fields<'a>(
    fields: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>,
    out: &mut Vec<u8>,
) {
    // A loop would ask each part of the chain for each field.
    fields.for_each(|(name, value)| {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    });
    out.extend_from_slice(b"\r\n");
}

/// Takes the head of a response from the front of `input` and puts it into `answer`, which is empty; `None` while its end
/// has not come. `known` are the names of the response before. A head is 120 bytes, which each function that returned it
/// would copy.
///
/// # Errors
///
/// [`WireError::Syntax`] if it is not written as HTTP/1.1 asks, [`WireError::Limit`] if it is too large.
pub(super) fn take(
    input: &mut BytesMut,
    known: &mut KnownNames,
    answer: &mut Response<()>,
) -> Result<Option<HeadFacts>, WireError> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS];
    let mut response = httparse::Response::new(&mut []);
    let parsed = ParserConfig::default().parse_response_with_uninit_headers(
        &mut response,
        input,
        &mut fields,
    )?;
    let length = match parsed {
        Status::Complete(length) if length <= HEAD_BYTES => length,
        Status::Partial if input.len() < HEAD_BYTES => return Ok(None),
        _ => return Err(WireError::Limit("a head this large")),
    };
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
    let Some(status) = status else { return Err(WireError::Syntax(httparse::Error::Status)) };
    *answer.status_mut() = status;
    let version = if response.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
    *answer.version_mut() = version;
    let reason = response.reason.filter(|reason| Some(*reason) != status.canonical_reason());
    if let Some(Ok(reason)) =
        reason.map(|reason| ReasonPhrase::try_from(reason.as_bytes().to_vec()))
    {
        answer.extensions_mut().insert(reason);
    }
    // The values share the octets of the input instead of being copied.
    let start = input.as_ptr() as usize;
    let place = |part: &[u8]| (part.as_ptr() as usize - start, part.len());
    let mut places = SmallVec::<[_; 24]>::new();
    for field in response.headers.iter() {
        places.push((place(field.name.as_bytes()), place(field.value)));
    }
    let octets = input.split_to(length).freeze();
    let headers = answer.headers_mut();
    headers.reserve(places.len() + OWN_FIELDS);
    let mut stays_open = version == Version::HTTP_11;
    let (mut seen, mut announced) = (HeaderFlags::default(), AnnouncedLength::default());
    for (place, &((name_at, name_length), (at, length))) in places.iter().enumerate() {
        let (name, flag) = known.name(place, &octets[name_at..name_at + name_length])?;
        let Ok(value) = HeaderValue::from_maybe_shared(octets.slice(at..at + length)) else {
            return Err(WireError::Syntax(httparse::Error::HeaderValue));
        };
        match flag {
            HeaderFlags::CONNECTION => stays_open &= !has_close(&value),
            HeaderFlags::CONTENT_LENGTH => announced.note(&value),
            _ => {}
        }
        seen.add(flag);
        headers.append(name, value);
    }
    Ok(Some(HeadFacts { stays_open, seen, length: announced }))
}

/// Takes the trailers of a chunked body, and the empty line that ends them; `None` while that has not come.
///
/// # Errors
///
/// [`WireError::Syntax`] if it is not written as HTTP/1.1 asks, [`WireError::Limit`] if it is too large.
pub(super) fn take_trailers(input: &mut BytesMut) -> Result<Option<HeaderMap>, WireError> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let (length, trailers) = match httparse::parse_headers(input, &mut fields)? {
        Status::Complete((length, fields)) if length <= HEAD_BYTES => {
            let mut trailers = HeaderMap::with_capacity(fields.len());
            for field in fields {
                let value = HeaderValue::from_bytes(field.value);
                let value = value.map_err(|_| WireError::Syntax(httparse::Error::HeaderValue))?;
                trailers.append(names::parsed(field.name.as_bytes())?, value);
            }
            (length, trailers)
        }
        Status::Partial if input.len() < HEAD_BYTES => return Ok(None),
        _ => return Err(WireError::Limit("trailers this large")),
    };
    let _ = input.split_to(length);
    Ok(Some(trailers))
}

fn has_close(value: &HeaderValue) -> bool {
    let mut options = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    options.any(|option| option.eq_ignore_ascii_case(b"close"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn taken(text: &str) -> Result<Option<HeadFacts>, WireError> {
        take(&mut BytesMut::from(text), &mut KnownNames::default(), &mut Response::new(()))
    }

    #[test]
    fn a_request_is_written_unchanged() {
        let request = Request::post("/a?b=c").header("host", "x").header("a", "1").header("a", "2");
        let request = request.body(()).expect("a request");
        let mut out = Vec::new();
        write(&request, &AddedHeaders::default(), &mut out);
        assert_eq!(out, b"POST /a?b=c HTTP/1.1\r\nhost: x\r\na: 1\r\na: 2\r\n\r\n");
    }

    #[test]
    fn a_query_alone_gets_a_path() {
        let request = Request::get("http://a?b").body(()).expect("a request");
        let mut out = Vec::new();
        write(&request, &AddedHeaders::default(), &mut out);
        assert_eq!(out, b"GET /?b HTTP/1.1\r\n\r\n");
    }

    #[test]
    fn reading_a_response_leaves_the_following_bytes() {
        let mut input = BytesMut::from("HTTP/1.1 200 Fine\r\nA: 1\r\nb:2\r\na: 3\r\n\r\nrest");
        let mut response = Response::new(());
        let facts = take(&mut input, &mut KnownNames::default(), &mut response)
            .expect("a head")
            .expect("whole");
        assert_eq!((response.status(), facts.stays_open), (StatusCode::OK, true));
        let all: Vec<_> = response.headers().get_all("a").iter().collect();
        assert_eq!(all, ["1", "3"]);
        assert_eq!(response.headers()["b"], "2");
        let reason = response.extensions().get::<ReasonPhrase>().expect("its own");
        assert_eq!(reason.as_bytes(), b"Fine");
        assert_eq!(input, "rest");
    }

    #[rstest]
    #[case::current("HTTP/1.1 204 No Content\r\n\r\n", true)]
    #[case::old("HTTP/1.0 204 No Content\r\n\r\n", false)]
    #[case::closing("HTTP/1.1 204 No Content\r\nConnection: x, Close\r\n\r\n", false)]
    #[case::twice("HTTP/1.1 204 X\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n", false)]
    fn recognises_connections_that_stay_open(#[case] text: &str, #[case] stays: bool) {
        assert_eq!(taken(text).expect("a head").expect("whole").stays_open, stays);
    }

    #[rstest]
    #[case::no_http("SSH-2.0-x\r\n")]
    #[case::other_version("HTTP/2.0 200 OK\r\n\r\n")]
    #[case::no_status("HTTP/1.1 20 OK\r\n\r\n")]
    #[case::low_status("HTTP/1.1 099 OK\r\n\r\n")]
    #[case::no_colon("HTTP/1.1 200 OK\r\nA\r\n\r\n")]
    #[case::space_before_colon("HTTP/1.1 200 OK\r\nA : b\r\n\r\n")]
    #[case::folded("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n")]
    #[case::nul("HTTP/1.1 200 OK\r\nA: \0\r\n\r\n")]
    fn refuses_bytes_that_are_no_response(#[case] text: &str) {
        assert!(matches!(taken(text), Err(WireError::Syntax(_))), "{text:?}");
    }

    #[test]
    fn heads_are_bounded() {
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(FIELDS + 1));
        assert!(taken(&many).is_err());
        let endless = format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(HEAD_BYTES));
        assert!(matches!(taken(&endless), Err(WireError::Limit(_))));
        assert!(taken("HTTP/1.1 200 OK\r\na: b\r\n").expect("no error").is_none());
    }
}
