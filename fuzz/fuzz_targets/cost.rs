//! Costs and keys: a text is read as it is shown, a cost is never negative, and a key has its bounds, whatever a request holds.
#![no_main]

use http::{HeaderMap, HeaderValue, Method, Uri, header::CONTENT_TYPE};
use libfuzzer_sys::fuzz_target;
use paceway::{
    key::{BodyParts, Cost, MAX_LEN, Parts, SaidCost, Sum, Template, TrueCost},
    path::Paths,
    proxy::json_body,
};
use std::{net::Ipv4Addr, sync::Arc};

// The first line is a cost, a key or a true cost, as its first byte says. The second is a value that the request or the answer has in
// its headers and its target; the rest is a body.
fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    let (text, data) = line(data);
    let (value, body) = line(data);
    let Ok(text) = std::str::from_utf8(text) else { return };
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_bytes(value) {
        headers.append("x-a", value);
    }
    match kind {
        b'a' => answer(text, &headers, body),
        _ => request(text, &headers, value, body, *kind == b'c'),
    }
});

fn line(data: &[u8]) -> (&[u8], &[u8]) {
    match data.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &[]),
    }
}

fn answer(text: &str, headers: &HeaderMap, body: &[u8]) {
    let Ok(cost) = TrueCost::parse_answer(text) else { return };
    assert_eq!(TrueCost::parse_answer(&cost.to_string()), Ok(cost.clone()));
    let mut said = SaidCost::of_head(&Arc::new(cost), headers);
    said.hear(body);
    assert!(said.total().is_none_or(|total| total >= 0));
}

fn request(text: &str, headers: &HeaderMap, value: &[u8], body: &[u8], is_cost: bool) {
    let read = if is_cost {
        Cost::parse(text).map(Read::Cost)
    } else {
        Template::parse(text).map(Read::Key)
    };
    let Ok(read) = read else { return };
    let mut own = headers.clone();
    own.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let body_parts = match &read {
        Read::Cost(cost) => BodyParts::of([].iter(), [cost].into_iter()),
        Read::Key(key) => BodyParts::of([key].into_iter(), [].iter()),
    };
    let body = body_parts.map(|parts| json_body(&own, body, &parts, 1 << 16));
    let Ok(body) = body.transpose() else { return };
    let uri = std::str::from_utf8(value).ok().and_then(|text| format!("/{text}").parse().ok());
    let uri: Uri = uri.unwrap_or_default();
    let parts = Parts {
        client_ip: Ipv4Addr::LOCALHOST.into(),
        host: Some("a"),
        method: &Method::GET,
        uri: &uri,
        headers,
        body: body.as_ref().and_then(Option::as_ref),
        body_length: Some(5),
        paths: Paths::default(),
        template: None,
        descriptor: None,
        account: None,
    };
    match read {
        Read::Cost(cost) if cost.fixed().is_some() => {}
        Read::Cost(cost) => {
            let sum = Sum::parse_request(text).expect("a sum");
            assert_eq!(Sum::parse_request(&sum.to_string()), Ok(sum));
            if let Ok(permits) = cost.of(&parts, 1_000, "a") {
                assert!((cost.least()..=1_000).contains(&permits), "{permits}");
            }
        }
        Read::Key(key) => {
            assert_eq!(Template::parse(&key.to_string()), Ok(key.clone()));
            if let Ok(filled) = key.fill(&parts) {
                assert!(filled.len() <= MAX_LEN, "{}", filled.len());
                assert_eq!(key.canonical(&filled), filled, "a key changes");
            }
        }
    }
}

/// A text of the configuration that says which part of a request counts.
enum Read {
    Cost(Cost),
    Key(Template),
}
