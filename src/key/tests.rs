use super::{escape::is_hash, *};
use crate::path::tests::disguise;
use http::{HeaderName, HeaderValue, Request};
use ipnet::IpNet;
use proptest::prelude::*;
use rstest::rstest;

mod costs;
mod readings;
mod sums;

/// A request by its target and headers.
fn request(target: &str, headers: &[(&str, &[u8])]) -> Request<()> {
    let mut request = Request::post(target).body(()).expect("a request");
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        request.headers_mut().append(name, HeaderValue::from_bytes(value).expect("a value"));
    }
    request
}

fn parts(request: &Request<()>) -> Parts<'_> {
    Parts {
        client_ip: "2001:db8::1".parse().expect("an address"),
        host: Some("API.Example"),
        method: request.method(),
        uri: request.uri(),
        headers: request.headers(),
        body: None,
        body_length: None,
        paths: Paths::default(),
        template: None,
        descriptor: None,
        account: None,
    }
}

fn template(text: &str) -> Template {
    Template::parse(text).expect("a template")
}

/// A key is found again by the account that filled it, and by no other one.
#[rstest]
#[case::alone("{account}", Some("a.b"))]
#[case::of_the_quota("q:{account.quota}", Some("q:org-a"))]
#[case::both("{account}{account.quota}", Some("a.b|org-a"))]
#[case::escaped("{account}-{account.quota}", Some("a.b-org%2Da"))]
#[case::with_a_header("{account}:{header.x-shop}", None)]
#[case::after_a_header("{header.x-shop}/{account.quota}.", None)]
#[case::before_a_text("{account.quota}:{header.x-shop}.b", None)]
fn an_account_owns_the_keys_that_name_it(#[case] text: &str, #[case] alone: Option<&str>) {
    let template = template(text);
    let own = AccountNames { name: "a.b", quota: "org-a" };
    let request = request("/", &[("x-shop", b"7:.b/b.b")]);
    let of = |account| Parts { account: Some(account), ..parts(&request) };
    let key = template.fill(&of(own)).expect("a key");
    assert_eq!(template.of_account(own).as_deref(), alone);
    assert!(alone.is_none_or(|alone| alone == key), "{key}");
    assert!(template.is_of_account(&key, own), "{key}");
    for (name, quota) in [("a.bc", "org-ab"), ("a", "org"), ("-", "-")] {
        let other = AccountNames { name, quota };
        let other_key = template.fill(&of(other)).expect("a key");
        assert!(!template.is_of_account(&key, other), "{key} {name}");
        assert!(!template.is_of_account(&other_key, own), "{other_key}");
        assert!(template.is_of_account(&other_key, other), "{other_key}");
        assert_eq!(template.of_account(other).is_some(), alone.is_some());
    }
    assert!(!template.is_of_account("#0123456789abcdef0123456789abcdef", own));
}

#[rstest]
#[case::client("{client_ip}", "2001:db8::1")]
#[case::host("{host}", "api.example")]
#[case::method("{method}", "POST")]
#[case::path("{path}", "/v2/a/b%20c/%252f/-70")]
#[case::first_segment("{segment.1}", "v2")]
#[case::another_segment("{segment.3}", "b%20c")]
#[case::no_segment("{segment.6}", "-")]
#[case::no_integer_is_missing("{segment.6:int}", "-")]
#[case::header("{header.X-Shop}", "7")]
#[case::a_list_in_one_field("{header.x-list}", "a,b")]
#[case::network("{client_ip/64}", "2001:db8::/64")]
#[case::network_of_one("{client_ip/128}", "2001:db8::1/128")]
#[case::integer("{segment.5:int}", "-70")]
#[case::no_header("{header.x-none}", "-")]
#[case::a_dash("{header.x-dash}", "%2D")]
#[case::an_empty_header("{header.x-empty}", "")]
#[case::not_ascii("{header.x-latin}", "caf%E9")]
#[case::always_escaped("{header.x-odd}", "%7Ba%7D%25%23%09b|c")]
#[case::query("{query.q}", "a%20b%20c")]
#[case::escaped_name("{query.a b}", "1")]
#[case::empty_query("{query.e}", "")]
#[case::bare_query("{query.f}", "")]
#[case::no_query("{query.nope}", "-")]
#[case::broken_escape("{query.z}", "%25zz%254")]
#[case::text("shop-{header.x-shop}/x", "shop-7/x")]
#[case::delimiter("{client_ip}:{header.x-shop}", "2001%3Adb8%3A%3A1:7")]
#[case::delimiter_in_all("{header.x-shop}:{client_ip}", "7:2001%3Adb8%3A%3A1")]
#[case::touching("{header.x-shop}{header.x-odd}", "7|%7Ba%7D%25%23%09b%7Cc")]
#[case::missing_between_dashes("{header.x-none}-{header.x-dash}", "%2d-%2D")]
fn fills_templates(#[case] text: &str, #[case] key: &str) {
    let request = request(
        "//v2/./a/b%20c;x=1/%2f/-7%30?q=a+b%20c&a%20b=1&e=&f&z=%zz%4",
        &[
            ("x-shop", b"7"),
            ("x-list", b"a,b"),
            ("x-dash", b"-"),
            ("x-empty", b""),
            ("x-latin", b"caf\xe9"),
            ("x-odd", b"{a}%#\tb|c"),
        ],
    );
    assert_eq!(template(text).fill(&parts(&request)).as_deref(), Ok(key));
}

#[test]
fn the_root_has_no_segment_and_a_request_may_have_no_host() {
    let request = request("/", &[]);
    let parts = Parts { host: None, ..parts(&request) };
    assert_eq!(template("{host},{segment.1},{path}").fill(&parts).as_deref(), Ok("-,-,/"));
}

#[rstest]
#[case::authorization("{header.Authorization}", true)]
#[case::cookie("{host}:{header.cookie}", true)]
#[case::proxy("{header.proxy-authorization}", true)]
#[case::api_key("{header.x-api-key}", true)]
#[case::key("{query.key}", true)]
#[case::token("{query.Access_Token}", true)]
#[case::vendor("{header.x-vendor-access-token}", true)]
#[case::session("{query.session[id]}", true)]
#[case::shop("{header.x-shop}", false)]
#[case::page("{query.page}", false)]
fn credentials_are_never_shown(#[case] text: &str, #[case] secret: bool) {
    let target = "/?key=hunter2&Access_Token=hunter2&session[id]=hunter2&page=hunter2";
    let names = ["authorization", "cookie", "proxy-authorization", "x-api-key", "x-shop"];
    let names = names.iter().chain(&["x-vendor-access-token"]);
    let headers: Vec<_> = names.map(|name| (*name, &b"hunter2"[..])).collect();
    let request = request(target, &headers);
    let template = template(text);
    let key = template.fill(&parts(&request)).expect("a key");
    assert_eq!(template.is_secret(), secret);
    assert_eq!(key.contains("hunter2"), !secret, "{key}");
    assert_eq!(is_hash(&key), secret, "{key}");
    assert_eq!(template.canonical(&key), key);
}

#[test]
fn a_credential_is_found_by_itself_or_by_its_hash() {
    let request = request("/", &[("authorization", b"Bearer a%2Db")]);
    let template = template("{header.authorization}");
    let key = template.fill(&parts(&request)).expect("a key");
    // A typed text is read as a key, so `%2D` in it is the escape of a dash.
    assert_ne!(key, template.canonical("Bearer a%2Db"));
    assert_eq!(key, template.canonical("Bearer a%252Db"));
    assert_eq!(key, template.canonical("bearer  a%252Db"));
}

/// A hashed key may be pasted as the admin pages show it, as Redis and the log name its state, or as `explain` prints it.
#[test]
fn a_hash_can_be_pasted_in_every_form_in_which_it_is_shown() {
    let request = request("/", &[("authorization", b"Bearer a")]);
    for text in ["{header.authorization}", "{header.x-shop}"] {
        let template = template(text);
        let hash = if template.is_secret() {
            template.fill(&parts(&request)).expect("a key")
        } else {
            canonical(&"a".repeat(MAX_LEN + 1))
        };
        let forms = [hash.clone(), shown(&hash), format!("paceway:{{it.07}}:T:it:{hash}")];
        assert!(forms[1].starts_with("%23"), "{forms:?}");
        for form in forms {
            assert_eq!(template.canonical(&form), hash, "{form}");
        }
        // A text that only resembles a hash is an ordinary key.
        for other in [format!("{hash}0"), format!("a{hash}"), hash[1..].to_owned()] {
            assert_ne!(template.canonical(&other), hash, "{other}");
        }
    }
    assert_eq!(shown("shop-7"), "shop-7");
}

#[test]
fn a_long_key_is_its_hash() {
    let fill = |value: &[u8]| {
        let request = request("/", &[("x", value)]);
        template("{header.x}").fill(&parts(&request)).expect("a key")
    };
    assert_eq!(fill(&[b'a'; MAX_LEN]), "a".repeat(MAX_LEN));
    // printf 'a%.0s' {1..129} | sha256sum | head -c 32
    let hash = "#c12cb024a2e5551cca0e08fce8f1c5e3";
    assert_eq!(fill(&[b'a'; MAX_LEN + 1]), hash);
    assert_eq!(canonical(&"a".repeat(MAX_LEN + 1)), hash);
    assert!(is_hash(&fill(&[0xe9; 43])), "43 escapes are 129 characters");
    assert_eq!(fill(&[0xe9; 42]).len(), 126);
}

#[rstest]
#[case::empty("", "is empty; name a part of the request, as in `{client_ip}`")]
#[case::forgotten_braces("client_ip", "names no part of the request; did you mean `{client_ip}`?")]
#[case::text_alone(
    "tenant",
    "names no part of the request; write parts in braces, as in `{client_ip}`"
)]
#[case::unknown("{client-ip}", "has the unknown part `{client-ip}`; did you mean `{client_ip}`?")]
#[case::misspelt_kind(
    "{headers.x-shop}",
    "has the unknown part `{headers.x-shop}`; did you mean `{header.x-shop}`?"
)]
#[case::far(
    "{tenant}",
    "has the unknown part `{tenant}`; there are {client_ip}, {client_ip/BITS}, {host}, {method}, {path}, {path.NAME}, {header.NAME}, {query.NAME}, {segment.N}, {body./POINTER}, {descriptor.NAME}, {account} and {account.quota}"
)]
#[case::nothing(
    "{}",
    "has the unknown part `{}`; there are {client_ip}, {client_ip/BITS}, {host}, {method}, {path}, {path.NAME}, {header.NAME}, {query.NAME}, {segment.N}, {body./POINTER}, {descriptor.NAME}, {account} and {account.quota}"
)]
#[case::open("{host", "has a `{` without its `}`")]
#[case::open_before_another("{host{path}", "has a `{` without its `}`")]
#[case::close("host}", "has a `}` without its `{`")]
#[case::doubled("{{host}}", "has double braces; write parts in single ones: `{host}`")]
#[case::header_without_a_name(
    "{header}",
    "has the part `{header}`, which needs the name of a header, as in `{header.x-shop}`"
)]
#[case::bad_header(
    "{header.x shop}",
    "has the part `{header.x shop}`, which is none: `x shop` is no name of a header"
)]
#[case::query_without_a_name(
    "{query.}",
    "has the part `{query.}`, which needs the name of a query parameter, as in `{query.shop}`"
)]
#[case::segment_zero(
    "{segment.0}",
    "has the part `{segment.0}`, which needs the number of a segment of the path, from 1: `{segment.1}`"
)]
#[case::segment_of_nothing(
    "{segment}",
    "has the part `{segment}`, which needs the number of a segment of the path, from 1: `{segment.1}`"
)]
#[case::no_network(
    "{client_ip/0}",
    "has the part `{client_ip/0}`, which needs the bits of an IPv6 network, 1 to 128: `{client_ip/64}`"
)]
#[case::too_long_a_network(
    "{client_ip/129}",
    "has the part `{client_ip/129}`, which needs the bits of an IPv6 network, 1 to 128: `{client_ip/64}`"
)]
#[case::an_integer_without_a_name(
    "{path.:int}",
    "has the part `{path.:int}`, which needs the name of a parameter of the route's `path`, as in `{path.channel}`"
)]
#[case::name_too_many("{host.a}", "has the part `{host.a}`, which takes no name; write `{host}`")]
#[case::space(
    "a {host}",
    "has ' ' outside of braces, where only visible ASCII characters except % and # are allowed"
)]
#[case::percent(
    "{host}%20{path}",
    "has '%' outside of braces, where only visible ASCII characters except % and # are allowed"
)]
fn refuses_texts_that_are_no_template(#[case] text: &str, #[case] reason: &str) {
    assert_eq!(Template::parse(text), Err(reason.to_owned()));
}

#[rstest]
#[case::plain("shop-7", "shop-7")]
#[case::space("a b", "a%20b")]
#[case::escape("a%2Fb%zz%4", "a%2Fb%25zz%254")]
#[case::braces("{a}", "%7Ba%7D")]
#[case::hash("#0123#", "#0123%23")]
#[case::utf8("é", "%C3%A9")]
#[case::missing("-", "-")]
fn a_typed_key_has_its_canonical_form(#[case] text: &str, #[case] key: &str) {
    assert_eq!(canonical(text), key);
}

#[rstest]
#[case::peer("203.0.113.9", &["1.1.1.1"], "203.0.113.9")]
#[case::mapped_peer("::ffff:203.0.113.9", &[], "203.0.113.9")]
#[case::one_proxy("10.0.0.1", &["1.1.1.1"], "1.1.1.1")]
#[case::mapped_proxy("::ffff:10.0.0.1", &["1.1.1.1"], "1.1.1.1")]
#[case::a_lie_before_it("10.0.0.1", &["9.9.9.9, 1.1.1.1"], "1.1.1.1")]
#[case::a_chain("10.0.0.1", &["9.9.9.9, 1.1.1.1,10.0.0.3 , 10.0.0.2"], "1.1.1.1")]
#[case::many_lines("10.0.0.1", &["9.9.9.9", "1.1.1.1", "10.0.0.2"], "1.1.1.1")]
#[case::all_trusted("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3")]
#[case::none_named("10.0.0.1", &[], "10.0.0.1")]
#[case::garbage("10.0.0.1", &["1.1.1.1, unknown, 10.0.0.2"], "10.0.0.2")]
#[case::garbage_at_once("10.0.0.1", &["1.1.1.1, x"], "10.0.0.1")]
#[case::empty_elements("10.0.0.1", &["1.1.1.1,, ,"], "1.1.1.1")]
#[case::port("10.0.0.1", &["1.1.1.1:443"], "1.1.1.1")]
#[case::bad_port("10.0.0.1", &["1.1.1.1:99999"], "10.0.0.1")]
#[case::v6("fd00::1", &["2001:db8::1"], "2001:db8::1")]
#[case::bracketed("fd00::1", &["[2001:db8::1]"], "2001:db8::1")]
#[case::bracketed_port("fd00::1", &["[2001:db8::1]:443"], "2001:db8::1")]
#[case::mapped("10.0.0.1", &["::ffff:1.1.1.1"], "1.1.1.1")]
#[case::not_text("10.0.0.1", &["1.1.1.1\u{e9}"], "10.0.0.1")]
fn finds_the_address_of_the_client(
    #[case] peer: &str,
    #[case] lines: &[&str],
    #[case] expected: &str,
) {
    let trusted: [IpNet; 2] = ["10.0.0.0/8", "fd00::/8"].map(|net| net.parse().expect("a network"));
    let lines: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", line.as_bytes())).collect();
    let request = request("/", &lines);
    let client = client_ip(peer.parse().expect("an address"), request.headers(), &trusted);
    assert_eq!(client.to_string(), expected);
}

/// A value of a header, or none.
fn value() -> impl Strategy<Value = Option<Vec<u8>>> {
    let alphabet = prop::sample::select(b"ab%2Dd-:|#{} \xe9".to_vec());
    prop::option::of(prop::collection::vec(alphabet, 0..5))
}

proptest! {
    /// Texts that could be mistaken for values, escapes and missing parts.
    #[test]
    fn different_requests_have_different_keys(
        before in "[a2D:|-]{0,2}",
        between in prop::collection::vec("[a2D:|-]{0,2}", 2),
        after in "[a2D:|-]{0,2}",
        one in prop::collection::vec(value(), 3),
        other in prop::collection::vec(value(), 3),
    ) {
        let template = template(&format!(
            "{before}{{header.h0}}{}{{header.h1}}{}{{header.h2}}{after}", between[0], between[1]
        ));
        let fill = |values: &[Option<Vec<u8>>]| {
            let names = ["h0", "h1", "h2"];
            let held: Vec<_> = names.into_iter().zip(values)
                .filter_map(|(name, value)| Some((name, value.as_deref()?)))
                .collect();
            template.fill(&parts(&request("/", &held)))
        };
        prop_assert_eq!(fill(&one) == fill(&other), one == other);
    }

    #[test]
    fn a_key_is_short_visible_and_its_own_canonical_form(
        value in prop::collection::vec(0x20..=0xff_u8, 0..200),
        query in "[a-z%0-9+=]{0,60}",
    ) {
        let value: Vec<u8> = value.into_iter().filter(|byte| *byte != 0x7f).collect();
        let request = request(&format!("/{query}?q={query}"), &[("x", &value)]);
        for text in ["{header.x}", "{header.x}:{query.q}", "{path}{header.x}-{host}", "{query.token}"] {
            let template = template(text);
            let key = template.fill(&parts(&request)).expect("a key");
            prop_assert!(key.len() <= MAX_LEN);
            let good = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
            prop_assert!(key.bytes().all(good));
            prop_assert_eq!(template.canonical(&key), key.clone());
        }
    }

    #[test]
    fn no_spelling_of_a_path_has_its_own_key(
        segments in prop::collection::vec("[a-z]{1,4}", 1..5),
        disguises in prop::collection::vec(0..6_u8, 5),
    ) {
        let plain: String = segments.iter().map(|segment| format!("/{segment}")).collect();
        let disguised = disguise(&segments, &disguises);
        let fill = |path: &str| {
            let keys = ["{path}", "{segment.1}", "{segment.2}", "{segment.4}"].map(template);
            keys.map(|template| template.fill(&parts(&request(path, &[]))))
        };
        prop_assert_eq!(fill(&disguised), fill(&plain));
    }
}
