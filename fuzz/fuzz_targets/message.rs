//! The calls of other proxies: a message of gRPC is read as it is written, and a request that a call describes has a target in
//! origin-form and no field that frames a message.
#![no_main]

use http::{
    HeaderName, HeaderValue, Request,
    header::{CONNECTION, CONTENT_LENGTH, EXPECT, TE, TRANSFER_ENCODING, UPGRADE},
};
use libfuzzer_sys::fuzz_target;
use paceway::{
    config::OriginalRequest,
    services::fuzzing::{FuzzedCheck, read_check, read_rate_limit, restore_original},
};

const FRAMING: [HeaderName; 6] =
    [CONNECTION, CONTENT_LENGTH, EXPECT, TE, TRANSFER_ENCODING, UPGRADE];

// The first byte says which service is called.
fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    match kind {
        b'c' => check(&framed(data)),
        b'r' => rate_limit(&framed(data)),
        b'f' => forward_auth(data),
        // Messages whose length is wrong.
        _ => {
            check(data);
            rate_limit(data);
        }
    }
});

/// A message as gRPC frames it.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a short message");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

fn rate_limit(body: &[u8]) {
    let Some(again) = read_rate_limit(body) else { return };
    assert_eq!(read_rate_limit(&again).as_ref(), Some(&again));
}

fn check(body: &[u8]) {
    let Some(FuzzedCheck { again, described }) = read_check(body) else { return };
    // The headers are a map, whose order is another one each time.
    assert_eq!(read_check(&again).map(|read| read.again.len()), Some(again.len()));
    let Some(request) = described else { return };
    assert_origin_form(&request);
    assert!(FRAMING.iter().all(|name| !request.headers().contains_key(name)));
}

/// The first line is the target of the call, those after it are fields.
fn forward_auth(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let target = lines.next().and_then(|target| std::str::from_utf8(target).ok()?.parse().ok());
    let Some(target) = target else { return };
    let mut request = Request::new(());
    *request.uri_mut() = target;
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            request.headers_mut().append(name, value);
        }
    }
    for original in [
        OriginalRequest::Auto,
        OriginalRequest::Forwarded,
        OriginalRequest::Original,
        OriginalRequest::Target,
    ] {
        let mut call = request.clone();
        if restore_original(&mut call, original, "/own") {
            assert_origin_form(&call);
        }
    }
}

fn assert_origin_form<B>(request: &Request<B>) {
    let uri = request.uri();
    assert!(uri.scheme().is_none() && uri.authority().is_none(), "{uri}");
    let path = uri.path();
    assert!(path.starts_with('/') || path == "*", "{path}");
}
