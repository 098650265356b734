//! Tests the changes to headers that operators write, and that no message shows one of their values.

use super::parse;
use crate::config::{Config, ConfigError};
use crate::upstream::headers::{Edits, ReplacedPrefix};
use http::{HeaderMap, HeaderValue};
use rstest::rstest;

/// A file without limiters, which is no warning where nothing is to be limited.
fn with(headers: &str) -> Result<Config, ConfigError> {
    parse(&format!(
        "upstreams: {{ v: {{ url: http://a, headers: {{ {headers} }} }} }}\nroutes: [{{ suffix: \"*\" }}]\nlimiting: off\n"
    ))
}

fn request(edits: &str) -> Edits {
    let config = with(&format!("request: {{ {edits} }}")).expect("a config");
    config.upstreams[0].headers.request.clone()
}

fn pairs(values: &[(http::HeaderName, HeaderValue)]) -> Vec<(&str, &str, bool)> {
    values
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_str().expect("text"), value.is_sensitive()))
        .collect()
}

#[test]
fn reads_names_and_values_of_headers() {
    let edits = request(
        "set: { X-Shop: 7, x-empty: '', x-spaced: ' a b ' }, add: { x-list: [one, 'two, three'], X-One: 1 }, \
         remove: [Cookie, x-internal]",
    );
    let set = [("x-shop", "7", false), ("x-empty", "", false), ("x-spaced", "a b", false)];
    assert_eq!(pairs(&edits.set), set);
    let added = [("x-list", "one", false), ("x-list", "two, three", false), ("x-one", "1", false)];
    assert_eq!(pairs(&edits.add), added);
    assert_eq!(edits.remove, ["cookie", "x-internal"]);
    let mut headers = HeaderMap::new();
    headers.insert("cookie", HeaderValue::from_static("a=b"));
    headers.append("x-one", HeaderValue::from_static("0"));
    edits.apply(&mut headers);
    assert!(!headers.contains_key("cookie"));
    assert_eq!(headers.get_all("x-one").iter().collect::<Vec<_>>(), ["0", "1"]);
}

#[test]
fn reads_header_changes_of_upstreams_and_routes() {
    let config = parse(
        "upstreams:\n  v: { url: http://a, headers: { request: { remove: [a] }, response: { remove: [b] } } }\n\
         routes: [{ suffix: \"*\", headers: { request: { set: { c: 1 } }, response: { add: { d: 2 } } } }]\n",
    );
    let config = config.expect("a config");
    let (upstream, route) = (&config.upstreams[0].headers, &config.routes[0].headers);
    assert_eq!(upstream.request.remove, ["a"]);
    assert_eq!(upstream.response.remove, ["b"]);
    assert_eq!(pairs(&route.request.set), [("c", "1", false)]);
    assert_eq!(pairs(&route.response.add), [("d", "2", false)]);
    for nothing in ["", "request: , response: ~", "request: { set: , add: ~, remove: [] }"] {
        assert_eq!(with(nothing).expect("a config").upstreams[0].headers, Default::default());
    }
}

#[test]
fn substituted_and_secret_values_are_never_shown() {
    let config = with(
        "request: { set: { x-a: '${SECRET}', x-b: 'Bearer ${SECRET}', Authorization: clear-text }, \
         add: { x-c: ['${SECRET}', shown] } }",
    );
    let config = config.expect("a config");
    let edits = &config.upstreams[0].headers.request;
    let set = [
        ("x-a", "hunter2", true),
        ("x-b", "Bearer hunter2", true),
        ("authorization", "clear-text", true),
    ];
    assert_eq!(pairs(&edits.set), set);
    assert_eq!(pairs(&edits.add), [("x-c", "hunter2", true), ("x-c", "shown", false)]);
    let debug = format!("{config:?}");
    assert!(debug.contains("shown"), "{debug}");
    assert!(!debug.contains("hunter2") && !debug.contains("clear-text"), "{debug}");
    let said = config.warnings().join("\n");
    assert!(!said.contains("hunter2") && !said.contains("clear-text"), "{said}");
}

#[rstest]
#[case::authorization("Authorization", true)]
#[case::api_key("x-api-key", true)]
#[case::token("X_Auth_Token", true)]
#[case::cookie("cookie", true)]
#[case::plain("x-shop", false)]
#[case::author("x-author", false)]
fn a_secret_in_clear_text_is_a_warning(#[case] name: &str, #[case] warned: bool) {
    let warnings = |value: &str| {
        with(&format!("request: {{ set: {{ {name}: '{value}' }} }}")).expect("a config").warnings()
    };
    let expected = format!(
        "`upstreams.v.headers.request.set.{name}` looks secret and is written in the file in clear text: take it from \
         outside, as in `${{file:/run/secrets/NAME}}`"
    );
    assert_eq!(warnings("Bearer abc"), Vec::from_iter(warned.then_some(expected)));
    assert!(warnings("Bearer ${SECRET}").is_empty());
    assert!(warnings("").is_empty());
}

#[test]
fn the_last_newline_of_a_secret_file_is_dropped() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("key"), "hunter2\n").expect("written");
    std::fs::write(directory.path().join("lines"), "hunter2\nhunter3\n").expect("written");
    let parse = |file: &str| {
        let text = format!(
            "upstream: http://a\nroutes: [{{ suffix: \"*\", headers: {{ request: {{ set: {{ x-api-key: 'Bearer ${{file:{file}}}' }} }} }} }}]\nlimiting: off\n"
        );
        Config::parse(&text, "test.yaml", directory.path(), &|_| None)
    };
    let config = parse("key").expect("a config");
    assert_eq!(
        pairs(&config.routes[0].headers.request.set),
        [("x-api-key", "Bearer hunter2", true)]
    );
    assert!(config.warnings().is_empty());
    let error = parse("lines").expect_err("must be refused").to_string();
    assert_eq!(
        error,
        "test.yaml:2:65: routes[0].headers.request.set.x-api-key: holds a line break or another control character, \
         which no header may"
    );
}

#[test]
fn a_file_of_a_secret_is_bounded() {
    let error = with("request: { set: { x-a: '${file:/dev/zero}' } }")
        .expect_err("must be refused")
        .to_string();
    assert_eq!(
        error,
        "test.yaml:1:68: upstreams.v.headers.request.set.x-a: `${file:...}`: cannot read /dev/zero: it is larger than 1MiB"
    );
}

#[rstest]
#[case::direction(
    "@set: { a: b }",
    "set: unknown key `set`; `request`, `response` or `own` comes first, as in `headers: { request: { set: { NAME: VALUE } } }`"
)]
#[case::near("@reqest: { set: { a: b } }", "reqest: unknown key `reqest`; did you mean `request`?")]
#[case::append(
    "request: { @append: { a: b } }",
    "request.append: unknown key `append`; did you mean `add`?"
)]
#[case::hide(
    "response: { @hide: [a] }",
    "response.hide: unknown key `hide`; did you mean `remove`?"
)]
#[case::far(
    "response: { @colour: [a] }",
    "response.colour: unknown key `colour`; write `set: { colour: ... }`, or `add`"
)]
#[case::list("request: { set: @[{ a: b }] }", "request.set: must be a map, as in `{ x-shop: 7 }`")]
#[case::text("request: { set: @'a: b' }", "request.set: must be a map of `key: value` lines")]
#[case::map("request: { remove: @{ a: b } }", "request.remove: must be a list: [one, two]")]
#[case::one("request: { remove: @a }", "request.remove: must be a list: `[a]`")]
#[case::name("request: { set: { @'a b': c } }", "request.set.a b: `a b` is no name of a header")]
#[case::no_name("request: { add: { @'': c } }", "request.add.: `` is no name of a header")]
#[case::colon(
    "request: { set: { @'x-a:': c } }",
    "request.set.x-a:: `x-a:` is no name of a header"
)]
#[case::pseudo(
    "request: { set: { @':path': c } }",
    "request.set.:path: `:path` is a part of the request line, no header"
)]
#[case::host(
    "request: { set: { @Host: c } }",
    "request.set.Host: `Host` is not changed here; the upstream gets the host of its URL, or the client's with `preserve_host: true`"
)]
#[case::origin(
    "response: { remove: [@Paceway-Origin] }",
    "response.remove[0]: `Paceway-Origin` is set by the gateway alone"
)]
#[case::value_list(
    "request: { set: { a: @[b, c] } }",
    "request.set.a: must be a single value; a list of them needs `add`"
)]
#[case::value_map("request: { add: { a: @{ b: c } } }", "request.add.a: must be a single value")]
#[case::value_of_a_list(
    "request: { add: { a: [b, @[c]] } }",
    "request.add.a[1]: must be a single value"
)]
#[case::no_value(
    "request: { set: { a: @~ } }",
    "request.set.a: has no value; write '' for an empty one, or list it under `remove`"
)]
#[case::line_break(
    "request: { set: { a: @\"hunter2\\r\\nb: c\" } }",
    "request.set.a: holds a line break or another control character, which no header may"
)]
#[case::nul(
    "request: { set: { a: @\"hunter2\\0\" } }",
    "request.set.a: holds a line break or another control character, which no header may"
)]
#[case::twice(
    "request: { set: { x-a: 1, @X-A: 2 } }",
    "request.set.X-A: named twice; upper and lower case are one name"
)]
#[case::removed_twice("request: { remove: [a, @A] }", "request.remove[1]: named twice")]
#[case::set_and_removed(
    "request: { remove: [@X-A], set: { x-a: 1 } }",
    "request.remove[0]: `x-a` is removed and set; `set` alone replaces what was there"
)]
#[case::replaced_list(
    "response: { replace: @[location] }",
    "response.replace: must be a map, as in `{ location: auto }`"
)]
#[case::replaced_word(
    "response: { replace: { location: @on } }",
    "response.replace.location: must be `auto`, or a map of beginnings and what replaces them, as in `{ \"https://api.vendor.example/\": \"https://gateway.example/\" }`"
)]
#[case::replaced_in_requests(
    "request: { replace: { location: @auto } }",
    "request.replace.location: `auto` is for responses; write the texts to replace"
)]
#[case::nothing_to_replace(
    "response: { replace: { location: @{} } }",
    "response.replace.location: is empty; it needs a beginning and what replaces it"
)]
#[case::no_beginning(
    "response: { replace: { location: { @'': a } } }",
    "response.replace.location.: a beginning has 1 to 8192 characters"
)]
#[case::replaced_twice(
    "response: { replace: { a: auto, @A: auto } }",
    "response.replace.A: named twice; upper and lower case are one name"
)]
#[case::replaced_and_removed(
    "response: { replace: @{ a: auto }, remove: [A] }",
    "response.replace: `a` is also removed or set, which leaves nothing to replace"
)]
#[case::replaced_by_a_line_break(
    "response: { replace: { a: { b: @\"c\\r\\nd: e\" } } }",
    "response.replace.a.b: holds a line break or another control character, which no header may"
)]
#[case::unset(
    "request: { set: { a: @'${UNSET}' } }",
    "request.set.a: the environment variable `UNSET` is not set; set it, or write `${UNSET:-default}`"
)]
fn reports_one_mistake_in_headers(#[case] text: &str, #[case] message: &str) {
    let column =
        "upstreams: { v: { url: http://a, headers: { ".len() + text.find('@').expect("a mark") + 1;
    let error = with(&text.replacen('@', "", 1)).expect_err("must be refused").to_string();
    assert_eq!(error, format!("test.yaml:1:{column}: upstreams.v.headers.{message}"));
}

#[rstest]
fn refuses_changes_to_framing_headers(
    #[values(
        "Connection",
        "Content-Length",
        "Keep-Alive",
        "Proxy-Connection",
        "TE",
        "Trailer",
        "Transfer-Encoding",
        "Upgrade"
    )]
    name: &str,
    #[values("set: { NAME: 1 }", "add: { NAME: [1] }", "remove: [NAME]")] edit: &str,
    #[values("request", "response")] way: &str,
) {
    let text = format!("{way}: {{ {} }}", edit.replace("NAME", name));
    let error = with(&text).expect_err("must be refused").to_string();
    let reason = "is for one connection or marks the end of a message, so only the gateway sets it";
    assert!(error.ends_with(&format!("`{name}` {reason}")), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[rstest]
fn refuses_changes_to_the_headers_of_a_refusal(
    #[values(
        "Retry-After",
        "RateLimit",
        "ratelimit-policy",
        "Content-Type",
        "X-Request-Id",
        "grpc-status",
        "paceway-attempts"
    )]
    name: &str,
    #[values(
        "set: { NAME: 1 }",
        "add: { NAME: [1] }",
        "remove: [NAME]",
        "replace: { NAME: { a: b } }"
    )]
    edit: &str,
) {
    let text = format!("own: {{ {} }}", edit.replace("NAME", name));
    let error = with(&text).expect_err("must be refused").to_string();
    assert!(error.ends_with("is a part of the gateway's answers that stays as it is"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    let response = format!("response: {{ {} }}", edit.replace("NAME", name));
    assert!(with(&response).is_ok(), "the upstream's answers are the operator's to change");
}

#[test]
fn reads_header_changes_for_answers_of_the_gateway() {
    let config =
        with("own: { set: { Access-Control-Allow-Origin: \"*\" }, add: { vary: Origin } }");
    let config = config.expect("a config");
    let headers = &config.upstreams[0].headers;
    assert_eq!(pairs(&headers.own.set), [("access-control-allow-origin", "*", false)]);
    assert_eq!(pairs(&headers.own.add), [("vary", "Origin", false)]);
    assert!(headers.request.is_empty() && headers.response.is_empty() && !headers.is_empty());
}

#[test]
fn changes_and_values_are_bounded() {
    let many: Vec<_> = (0..101).map(|i| format!("x-{i}")).collect();
    let pairs: Vec<_> = many.iter().map(|name| format!("{name}: 1")).collect();
    for text in [
        format!("request: {{ remove: [{}] }}", many.join(", ")),
        format!("request: {{ set: {{ {} }} }}", pairs.join(", ")),
        format!("request: {{ add: {{ a: [{}] }} }}", many.join(", ")),
    ] {
        let error = with(&text).expect_err("must be refused").to_string();
        assert!(error.ends_with("must hold at most 100"), "{error}");
    }
    let long = format!("response: {{ set: {{ a: {} }} }}", "b".repeat((8 << 10) + 1));
    let error = with(&long).expect_err("must be refused").to_string();
    assert!(error.ends_with("headers.response.set.a: is longer than 8KiB"), "{error}");
}

#[test]
fn mistakes_in_headers_of_a_route_name_their_place() {
    let text = "upstream: http://a\nroutes:\n- suffix: /a\n  headers: { request: { set: { te: a } } }\n- suffix: /b\n  \
                add_headers: { a: b }\n";
    let error = parse(text).expect_err("must be refused").to_string();
    let lines: Vec<_> = error.lines().collect();
    assert_eq!(lines.len(), 2, "{error}");
    assert!(lines[0].starts_with(
        "test.yaml:4:32: routes[0].headers.request.set.te: `te` is for one connection"
    ));
    assert!(lines[1].starts_with(
        "test.yaml:6:3: routes[1].add_headers: unknown key `add_headers`; it is written"
    ));
}

#[test]
fn reads_replacements_of_prefixes() {
    let config = parse(
        "upstreams:\n  a: { url: http://a, headers: { response: { replace: { Location: auto } } } }\n  \
         b: http://b:81/v2\nroutes:\n- suffix: \"*\"\n  upstream: b\n  headers:\n    \
         request: { replace: { destination: { 'https://gw/': 'http://b:81/v2', 'https://gw/dav/': '${SECRET}' } } }\n    \
         response: { replace: { link: auto } }\n",
    );
    let config = config.expect("a config");
    let shown = |edits: &Edits| {
        let all = edits.replace.iter().flat_map(|(name, replacement)| {
            let to = |value: &HeaderValue| match value.is_sensitive() {
                true => "***".to_owned(),
                false => value.to_str().expect("text").to_owned(),
            };
            let one =
                move |prefix: &ReplacedPrefix| format!("{name} {} {}", prefix.from, to(&prefix.to));
            replacement.prefixes.iter().map(one)
        });
        all.collect::<Vec<_>>()
    };
    assert_eq!(
        shown(&config.upstreams[0].headers.response),
        ["location http://a:80 /", "location http://a /", "location //a:80 /", "location //a /"]
    );
    let rules = &config.routes[0].headers;
    assert_eq!(shown(&rules.response), ["link http://b:81/v2 /", "link //b:81/v2 /", "link /v2 /"]);
    assert_eq!(
        shown(&rules.request),
        ["destination https://gw/dav/ ***", "destination https://gw/ http://b:81/v2"]
    );
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[rstest]
#[case::auto("{ location: auto }", true)]
#[case::map("{ location: { 'http://a/': / }, link: { a: '' } }", true)]
#[case::nothing("", true)]
#[case::other_word("{ location: on }", false)]
#[case::list("{ location: [a] }", false)]
#[case::empty_map("{ location: {} }", false)]
#[case::empty_beginning("{ location: { '': a } }", false)]
#[case::list_of_names("[location]", false)]
#[case::framing("{ content-length: auto }", false)]
#[case::list_of_texts("{ location: { a: [b] } }", false)]
fn the_schema_knows_replacements(#[case] replace: &str, #[case] is_right: bool) {
    let text = format!(
        "upstream: http://a\nroutes: [{{ suffix: \"*\", headers: {{ response: {{ replace: {replace} }} }} }}]\n"
    );
    assert_eq!(super::schema::verdicts(&text), (is_right, is_right), "{replace}");
}
