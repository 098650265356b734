use super::*;
use rstest::rstest;

fn headers(of: &[(&'static str, &'static str)]) -> HeaderMap {
    let pairs = of.iter();
    pairs.map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
}

#[test]
fn hop_by_hop_and_nominated_headers_are_removed() {
    let mut got = headers(&[
        ("connection", "close, X-Mine"),
        ("keep-alive", "timeout=5"),
        ("te", "gzip"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("x-mine", "1"),
        ("x-other", "2"),
    ]);
    remove_hop_by_hop(&mut got);
    assert_eq!(got, headers(&[("x-other", "2")]));
}

#[test]
fn a_field_that_only_the_second_connection_field_nominates_is_removed() {
    let mut got =
        headers(&[("connection", "Keep-Alive"), ("connection", "close , x-mine"), ("x-mine", "1")]);
    remove_hop_by_hop(&mut got);
    assert_eq!(got, headers(&[]));
}

#[test]
fn a_length_with_a_transfer_coding_is_removed() {
    let mut got = headers(&[("content-length", "3"), ("transfer-encoding", "chunked")]);
    remove_hop_by_hop(&mut got);
    assert_eq!(got, headers(&[]));
}

#[test]
fn a_nominated_host_or_length_stays() {
    let mut got =
        headers(&[("connection", "host, content-length"), ("host", "a"), ("content-length", "3")]);
    remove_hop_by_hop(&mut got);
    assert_eq!(got, headers(&[("host", "a"), ("content-length", "3")]));
}

fn to_upstream_with(
    sent: &[(&'static str, &'static str)],
    change: impl Fn(&mut ForwardContext<'_>),
) -> HeaderMap {
    let [peer, port, host] = ["10.0.0.1", "80", "up"].map(HeaderValue::from_static);
    let mut way = ForwardContext {
        peer: &peer,
        port: &port,
        is_tls: false,
        is_trusted: false,
        is_unseen: false,
        version: Version::HTTP_11,
        host: None,
        replaces_host: false,
        upstream_host: &host,
        preserve_host: false,
        forwarded: false,
        is_open: false,
        is_options: false,
    };
    let mut got = headers(sent);
    way.host = got.get("host").cloned();
    change(&mut way);
    let seen = HeaderFlags::of(&got);
    let mut added = AddedHeaders::default();
    to_upstream(&mut got, seen, way, &mut added);
    added.merge_into(&mut got);
    got
}

fn all(headers: &HeaderMap, name: &str) -> Vec<String> {
    let values = headers.get_all(name).iter();
    values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
}

#[rstest]
#[case::alone(&["trailers"], true)]
#[case::in_any_case(&["Trailers"], true)]
#[case::among_others(&["gzip;q=0.5, trailers", "deflate"], true)]
#[case::of_several(&["gzip", "trailers"], true)]
#[case::another(&["gzip"], false)]
#[case::weighed(&["trailers;q=1"], false)]
#[case::longer(&["xtrailers"], false)]
fn te_trailers_is_kept(#[case] sent: &[&'static str], #[case] kept: bool) {
    let mut sent: Vec<_> = sent.iter().map(|value| ("te", *value)).collect();
    sent.push(("connection", "te"));
    let got = to_upstream_with(&sent, |_| {});
    let expected = |name| if kept { vec![name] } else { vec![] };
    assert_eq!(all(&got, "te"), expected("trailers"));
    assert_eq!(all(&got, "connection"), expected("te"));
}

#[test]
fn forwarding_headers_cannot_be_nominated() {
    let names = "via, forwarded, x-forwarded-for, x-forwarded-proto, x-forwarded-host";
    let sent = [("connection", names), ("via", "1.1 a"), ("x-forwarded-for", "6.6.6.6")];
    let got = to_upstream_with(&sent, |way| way.is_trusted = true);
    assert_eq!(all(&got, "via"), ["1.1 a", "1.1 paceway"]);
    assert_eq!(all(&got, "x-forwarded-for"), ["6.6.6.6, 10.0.0.1"]);
}

#[test]
fn an_unseen_gateway_keeps_the_headers_of_proxies() {
    let sent = [
        ("via", "1.1 a"),
        ("forwarded", "for=b"),
        ("x-forwarded-for", "6.6.6.6"),
        ("x-forwarded-host", "c"),
        ("x-real-ip", "6.6.6.6"),
        ("x_forwarded_for", "d"),
    ];
    let got = to_upstream_with(&sent, |way| way.is_unseen = true);
    assert_eq!(got, headers(&[&sent[..], &[("host", "up")]].concat()));
}

#[rstest]
#[case::as_usual(false, None, Some("h"), "up")]
#[case::preserved(true, None, Some("h"), "h")]
#[case::the_target_outranks(true, Some("a"), Some("h"), "a")]
#[case::none_to_preserve(true, None, None, "up")]
fn chooses_the_host_header(
    #[case] preserve: bool,
    #[case] asked: Option<&'static str>,
    #[case] host: Option<&'static str>,
    #[case] expected: &str,
) {
    let sent: Vec<_> = host.map(|host| ("host", host)).into_iter().collect();
    let got = to_upstream_with(&sent, |way| {
        way.preserve_host = preserve;
        if let Some(asked) = asked {
            way.host = Some(HeaderValue::from_static(asked));
            way.replaces_host = true;
        }
    });
    assert_eq!(all(&got, "host"), [expected]);
}

#[test]
fn pieces_of_cookies_are_joined() {
    let got = to_upstream_with(&[("cookie", "a=1"), ("cookie", "b=2; c=3")], |_| {});
    assert_eq!(all(&got, "cookie"), ["a=1; b=2; c=3"]);
}

#[test]
fn an_open_body_is_chunked_and_a_length_stays() {
    let open = |way: &mut ForwardContext<'_>| way.is_open = true;
    assert_eq!(all(&to_upstream_with(&[], open), "transfer-encoding"), ["chunked"]);
    let got = to_upstream_with(&[("content-length", "3")], open);
    assert_eq!(all(&got, "transfer-encoding"), [""; 0]);
}

#[rstest]
#[case::old(Version::HTTP_10, "1.0 paceway")]
#[case::usual(Version::HTTP_11, "1.1 paceway")]
#[case::new(Version::HTTP_2, "2.0 paceway")]
fn via_names_the_received_version(#[case] version: Version, #[case] expected: &str) {
    assert_eq!(all(&to_upstream_with(&[], |way| way.version = version), "via"), [expected]);
    let mut response = headers(&[("via", "1.1 cdn")]);
    let seen = HeaderFlags::of(&response);
    to_client(&mut response, seen, version);
    assert_eq!(all(&response, "via"), ["1.1 cdn", expected]);
}

#[test]
fn headers_that_origins_confuse_with_ours_are_removed() {
    let sent = [("x_forwarded-for", "6.6.6.6"), ("content_length", "7"), ("x_other", "1")];
    let got = to_upstream_with(&sent, |_| {});
    assert_eq!((got.get("x_forwarded-for"), got.get("content_length")), (None, None));
    assert_eq!(all(&got, "x_other"), ["1"]);
}

#[rstest]
#[case::counted(true, &["3"], &["2"])]
#[case::of_another_method(false, &["3"], &["3"])]
#[case::zero(true, &["0"], &["0"])]
#[case::no_number(true, &["x"], &["x"])]
#[case::two(true, &["3", "4"], &["3", "4"])]
fn max_forwards_is_counted_down(
    #[case] is_options: bool,
    #[case] sent: &[&'static str],
    #[case] expected: &[&str],
) {
    let sent: Vec<_> = sent.iter().map(|value| ("max-forwards", *value)).collect();
    let got = to_upstream_with(&sent, |way| way.is_options = is_options);
    assert_eq!(all(&got, "max-forwards"), expected);
}

#[test]
fn only_a_trusted_proxy_names_the_client() {
    let mut sent: Vec<_> = CLIENT_ADDRESSES.iter().map(|name| (name.as_str(), "6.6.6.6")).collect();
    sent.extend([("x_real_ip", "6.6.6.6"), ("x-other", "1")]);
    let got = to_upstream_with(&sent, |_| {});
    assert!(got.values().all(|value| value != "6.6.6.6"), "{got:?}");
    assert_eq!(all(&got, "x-other"), ["1"]);
    let got = to_upstream_with(&sent, |way| way.is_trusted = true);
    assert_eq!(all(&got, "x-real-ip"), ["6.6.6.6"]);
    assert_eq!(all(&got, "x_real_ip"), [""; 0]);
}

#[rstest]
#[case::usual(b"128", Some(128))]
#[case::zeros(b"007", Some(7))]
#[case::most(b"18446744073709551615", Some(u64::MAX))]
#[case::more(b"18446744073709551616", None)]
#[case::sign(b"+1", None)]
#[case::list(b"1, 1", None)]
#[case::nothing(b"", None)]
fn reads_lengths(#[case] text: &[u8], #[case] length: Option<u64>) {
    assert_eq!(number(text), length);
}

#[test]
fn names_that_some_programs_read_as_the_header_of_a_key_are_removed() {
    let [shop, mine] = ["x-shop", "x_mine"].map(HeaderName::from_static);
    let names = ["x-shop", "x_shop", "x.shop", "x-shops", "xshop", "x_mine", "x-mine", "accept"];
    let mut headers: HeaderMap = names
        .map(|name| (HeaderName::from_static(name), HeaderValue::from_static("1")))
        .into_iter()
        .collect();
    remove_alike(&mut headers, &[shop, mine]);
    let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
    left.sort_unstable();
    assert_eq!(left, ["accept", "x-shop", "x-shops", "x_mine", "xshop"]);
}
