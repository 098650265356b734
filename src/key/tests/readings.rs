//! Parts of requests that upstreams may read as other values: refused, or one key for all spellings.

use super::*;

#[rstest]
#[case::a_header("{header.x-shop}", "/", &["x-shop", "7", "X-Shop", "8"], "the header `x-shop` comes more than once")]
#[case::equal_headers("{header.x-shop}", "/", &["x-shop", "7", "x-shop", "7"], "the header `x-shop` comes more than once")]
#[case::a_parameter("{query.q}", "/?q=1&a=2&%71=3", &[], "the query parameter `q` comes more than once")]
#[case::zeros("{segment.1:int}", "/05", &[], "a number in the path")]
#[case::many_zeros("{segment.1:int}", "/00", &[], "a number in the path")]
#[case::a_plus("{segment.1:int}", "/+5", &[], "a number in the path")]
#[case::a_fraction("{segment.1:int}", "/5.0", &[], "a number in the path")]
#[case::a_space("{segment.1:int}", "/%205", &[], "a number in the path")]
#[case::minus_zero("{segment.1:int}", "/-0", &[], "a number in the path")]
#[case::minus_zeros("{segment.1:int}", "/-05", &[], "a number in the path")]
#[case::two_signs("{segment.1:int}", "/-+5", &[], "a number in the path")]
#[case::wide_digits("{segment.1:int}", "/%EF%BC%95", &[], "a number in the path")]
#[case::too_large("{segment.1:int}", "/18446744073709551616", &[], "a number in the path")]
#[case::no_padding("{header.authorization}", "/", &["authorization", "Basic dTpwYQ"], "the credentials of the scheme Basic")]
#[case::bits_at_the_end("{header.authorization}", "/", &["authorization", "basic dTpwYR=="], "the credentials of the scheme Basic")]
#[case::a_space_inside("{header.authorization}", "/", &["authorization", "Basic dTpw YQ=="], "the credentials of the scheme Basic")]
fn refuses_a_value_that_an_upstream_may_read_as_another_one(
    #[case] text: &str,
    #[case] target: &str,
    #[case] headers: &[&str],
    #[case] reason: &str,
) {
    let headers: Vec<_> = headers.chunks(2).map(|pair| (pair[0], pair[1].as_bytes())).collect();
    let request = request(target, &headers);
    let refused = template(text).fill(&parts(&request)).expect_err("a refusal");
    assert!(refused.starts_with(reason), "{refused}");
}

#[rstest]
#[case::bearer("Bearer a.b", &["bearer a.b", "BEARER a.b", "Bearer   a.b", "bearer \ta.b", "bEARER\ta.b"])]
#[case::basic("Basic dTpwYQ==", &["basic dTpwYQ==", "BASIC  dTpwYQ=="])]
fn the_spellings_of_one_credential_have_one_key(#[case] usual: &str, #[case] others: &[&str]) {
    for text in ["{header.authorization}", "{host}:{header.authorization}"] {
        let fill = |value: &str| {
            let request = request("/", &[("authorization", value.as_bytes())]);
            template(text).fill(&parts(&request)).expect("a key")
        };
        others.iter().for_each(|other| assert_eq!(fill(other), fill(usual), "{other}"));
        assert_ne!(fill(usual), fill(&usual.replace('a', "A").replace('d', "D")));
        assert_ne!(fill("key"), fill("KEY"), "a value without a scheme");
    }
}

#[test]
fn cookies_in_several_fields_are_one_header() {
    let [one, two] =
        [&[("cookie", &b"a=1; b=2"[..])][..], &[("cookie", b"a=1"), ("cookie", b"b=2")]];
    let [one, two] = [one, two].map(|fields| {
        template("{header.cookie}").fill(&parts(&request("/", fields))).expect("a key")
    });
    assert_eq!(one, two);
}

#[rstest]
#[case::v6("2001:db8:1:2:3::4", "2001:db8:1:2::/64")]
#[case::v4("192.0.2.7", "192.0.2.7")]
#[case::mapped("::ffff:192.0.2.7", "192.0.2.7")]
fn a_network_key_is_the_prefix_of_an_ipv6_address(#[case] ip: &str, #[case] key: &str) {
    let request = request("/", &[]);
    let parts = Parts { client_ip: ip.parse().expect("an address"), ..parts(&request) };
    assert_eq!(template("{client_ip/64}").fill(&parts).as_deref(), Ok(key));
}
