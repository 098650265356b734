use super::*;
use http::Version;
use proptest::prelude::*;
use rstest::rstest;

fn headers(of: &[(&'static str, &'static str)]) -> HeaderMap {
    let pairs = of.iter();
    pairs.map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
}

/// A request of `peer` on port 8080 in clear text.
fn way<'a>(
    peer: &'a HeaderValue,
    port: &'a HeaderValue,
    host: &'a HeaderValue,
) -> ForwardContext<'a> {
    ForwardContext {
        peer,
        port,
        is_tls: false,
        is_trusted: false,
        is_unseen: false,
        version: Version::HTTP_11,
        host: None,
        replaces_host: false,
        upstream_host: host,
        preserve_host: false,
        forwarded: false,
        is_open: false,
        is_options: false,
    }
}

fn told(
    peer: &'static str,
    change: impl Fn(&mut ForwardContext<'_>),
    sent: &[(&'static str, &'static str)],
) -> HeaderMap {
    let [peer, port, host] = [peer, "8080", "up"].map(HeaderValue::from_static);
    let mut way = way(&peer, &port, &host);
    let mut got = headers(sent);
    way.host = got.get("host").cloned();
    change(&mut way);
    let (seen, mut own) = (HeaderFlags::of(&got), AddedHeaders::default());
    add_fields(&mut got, seen, &mut way, &mut own);
    own.merge_into(&mut got);
    got
}

#[test]
fn forwarding_headers_of_a_client_are_replaced() {
    let sent = [
        ("host", "api.internal:8080"),
        ("x-forwarded-for", "6.6.6.6"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil"),
        ("x-forwarded-port", "1"),
        ("forwarded", "for=6.6.6.6"),
    ];
    let said = [
        ("host", "api.internal:8080"),
        ("x-forwarded-for", "10.0.0.1"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", "api.internal:8080"),
        ("x-forwarded-port", "8080"),
    ];
    assert_eq!(told("10.0.0.1", |_| {}, &sent), headers(&said));
    let with = [("forwarded", "for=10.0.0.1;host=\"api.internal:8080\";proto=http")];
    let with = said.iter().chain(&with).copied().collect::<Vec<_>>();
    assert_eq!(told("10.0.0.1", |way| way.forwarded = true, &sent), headers(&with));
}

#[test]
fn forwarding_headers_of_a_trusted_proxy_are_extended() {
    let sent = [
        ("host", "api.internal"),
        ("x-forwarded-for", "6.6.6.6, 203.0.113.9"),
        ("x-forwarded-for", "10.0.0.2"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-port", "8443"),
        ("forwarded", "for=6.6.6.6, for=203.0.113.9;proto=https"),
    ];
    let mut said = vec![
        ("host", "api.internal"),
        ("x-forwarded-for", "6.6.6.6, 203.0.113.9, 10.0.0.2, 10.0.0.1"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "api.internal"),
        ("x-forwarded-port", "8443"),
    ];
    assert_eq!(told("10.0.0.1", |way| way.is_trusted = true, &sent), headers(&said));
    said.push(sent[5]);
    said.push(("forwarded", "for=10.0.0.1;host=api.internal;proto=http"));
    let both = |way: &mut ForwardContext<'_>| (way.is_trusted, way.forwarded) = (true, true);
    assert_eq!(told("10.0.0.1", both, &sent), headers(&said));
}

#[test]
fn a_scheme_without_a_port_implies_its_default_port() {
    let got = told("10.0.0.1", |way| way.is_trusted = true, &[("x-forwarded-proto", "https")]);
    assert_eq!(
        (got.get("x-forwarded-port"), &got["x-forwarded-proto"]),
        (None, &"https".parse().unwrap())
    );
}

#[test]
fn an_open_quote_does_not_swallow_the_appended_element() {
    let both = |way: &mut ForwardContext<'_>| (way.is_trusted, way.forwarded) = (true, true);
    let got = told("2001:db8::1", both, &[("forwarded", "for=\"6.6.6.6"), ("host", "h")]);
    let all: Vec<_> = got.get_all(FORWARDED).iter().collect();
    assert_eq!(all, ["for=\"[2001:db8::1]\";host=h;proto=http"]);
}

#[rstest]
#[case::empty("", true)]
#[case::one("for=192.0.2.60;proto=http;by=203.0.113.43", true)]
#[case::two("for=192.0.2.43, for=\"[2001:db8:cafe::17]:4711\"", true)]
#[case::any_case("For=\"_gazonk\"", true)]
#[case::spaces("for=a ; proto=https ,\tfor=b", true)]
#[case::empty_elements(", ,for=a,;,", true)]
#[case::a_delimiter_in_quotes("for=\"a,b;c\"", true)]
#[case::an_escaped_quote("host=\"a\\\"b\"", true)]
#[case::a_port_without_quotes("for=192.0.2.1:80", true)]
#[case::an_address_without_quotes("for=[2001:db8::1]:80", true)]
#[case::open_quote("for=\"a", false)]
#[case::open_quote_behind_an_escape("for=\"a\\\"", false)]
#[case::ends_in_an_escape("for=\"a\\", false)]
#[case::quote_within("for=a\"b\"", false)]
#[case::text_behind_quotes("for=\"a\"b", false)]
#[case::no_value("for=", false)]
#[case::no_name("=a", false)]
#[case::no_pair("a", false)]
#[case::spaces_around_equals("for = a", false)]
#[case::two_in_one("for=a for=b", false)]
#[case::obs_text("for=\u{e9}", false)]
fn recognises_forwarded_lists(#[case] value: &str, #[case] is: bool) {
    assert_eq!(is_list(value.as_bytes()), is);
}

/// The places where elements end, found by a parser that knows nothing but quotes.
fn elements(list: &[u8]) -> Vec<Vec<u8>> {
    let (mut all, mut quoted, mut escaped) = (vec![Vec::new()], false, false);
    for &byte in list {
        if byte == b',' && !quoted {
            all.push(Vec::new());
            continue;
        }
        all.last_mut().unwrap().push(byte);
        quoted ^= byte == b'"' && !escaped;
        escaped = quoted && byte == b'\\' && !escaped;
    }
    all.into_iter().map(|element| element.trim_ascii().to_vec()).collect()
}

proptest! {
    #[test]
    fn an_appended_element_stays_separate(
        pieces in prop::collection::vec(
            prop::sample::select(&["a=a", "a=\"", "\"", ",", ";", "\\", "\\\"", " ", "b=\"c,\"", ", "][..]),
            0..8,
        ),
    ) {
        let list = pieces.concat();
        if !is_list(list.as_bytes()) {
            return Ok(());
        }
        let longer = format!("{list}, for=own");
        prop_assert!(is_list(longer.as_bytes()));
        let elements = elements(longer.as_bytes());
        prop_assert_eq!(elements.last().unwrap(), b"for=own");
    }

    #[test]
    fn every_element_of_ours_is_a_list(host in "[ -~\u{e9}]{0,12}", six: bool) {
        let peer = HeaderValue::from_static(if six { "2001:db8::1" } else { "192.0.2.1" });
        let (port, up) = (HeaderValue::from_static("80"), HeaderValue::from_static("up"));
        let host = HeaderValue::from_bytes(host.as_bytes()).unwrap();
        let element = element(&ForwardContext { host: Some(host), ..way(&peer, &port, &up) });
        prop_assert!(is_list(&element));
        prop_assert_eq!(elements(&element).len(), 1);
    }

    #[test]
    fn any_bytes_are_checked_without_panic(value: Vec<u8>) {
        is_list(&value);
    }
}
