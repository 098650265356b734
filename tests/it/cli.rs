//! The commands as a person or a script runs them: what they print, where, and how they end.

use crate::support::{Gateway, Upstream, eventually, get, paceway, paceway_in};
use rstest::rstest;
use serde_json::Value;
use std::{fs, net::SocketAddr, process::Output, time::Duration};
use tokio::time::Instant;

/// The exit code, stdout and stderr of a command that has ended.
fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Runs a command in a directory with this `gateway.yaml`.
fn with_file(yaml: &str, args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("gateway.yaml"), yaml).expect("a file");
    said(&paceway_in(dir.path(), args, env))
}

const GOOD: &str = "upstream: https://api.vendor.example/v2
limiters:
  account: 500/min
  search: { rate: 5/s, burst: 10 }
routes:
  - { suffix: /search, limiters: [search, account], max_wait: 2s }
  - { name: rest, suffix: \"*\", limiters: [account], max_wait: 0 }
";

#[test]
fn check_sums_a_good_file_up_in_one_line() {
    let (code, out, err) = with_file(GOOD, &["check", "gateway.yaml"], &[]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(out.lines().count(), 1, "{out}");
    assert!(out.starts_with("gateway.yaml: ok: 2 routes, 2 limiters, 1 upstream"), "{out}");
}

#[test]
fn the_examples_of_the_docs_are_good() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |file: &str, text: String| fs::write(dir.path().join(file), text).expect("a file");
    for folder in ["tls", "secrets"] {
        fs::create_dir(dir.path().join(folder)).expect("a folder");
    }
    for (name, key) in
        [("cert", "key.pem"), ("other", "other.key"), ("clients", "-"), ("vendor-ca", "-")]
    {
        let made = rcgen::generate_simple_self_signed([format!("{name}.example")]);
        let made = made.expect("a certificate");
        write(&format!("tls/{name}.pem"), made.cert.pem());
        write(&format!("tls/{key}"), made.signing_key.serialize_pem());
    }
    write("secrets/vendor", "hunter2\n".into());
    let pages = [include_str!("../../docs/http.md"), include_str!("../../README.md")];
    let blocks = pages.iter().flat_map(|page| page.split("```yaml\n").skip(1));
    // A block that is not a whole configuration is a part of a file.
    let whole = blocks.map(|block| block.split("```").next().expect("an end"));
    let whole: Vec<_> = whole.filter(|block| block.contains("upstream")).collect();
    assert!(whole.len() > 12, "the examples are not found: {}", whole.len());
    for example in whole {
        write("gateway.yaml", example.into());
        let (code, out, err) = said(&paceway_in(dir.path(), &["check", "gateway.yaml"], &[]));
        assert_eq!((code, err.as_str()), (Some(0), ""), "{example}{out}");
    }
}

#[test]
fn check_finds_every_mistake_at_once_each_with_place_key_reason_and_hint() {
    let yaml = "upstraem: https://api.vendor.example
limiters:
  account: 0/min
  search: { rate: 5/s, burst: -1, marign: 5ms }
routes:
  - { suffix: /search, limiters: [serach], max_wait: 2 }
  - { suffix: /search, limiters: [account] }
store: { url: redis://a, on_failure: shard }
";
    let (code, out, err) = with_file(yaml, &["check", "gateway.yaml"], &[]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    let expected = [
        ("gateway.yaml:1:1: upstraem: ", "did you mean `upstream`?"),
        ("gateway.yaml:3:12: limiters.account: ", "at least 1"),
        ("gateway.yaml:4:31: limiters.search.burst: ", "negative"),
        ("gateway.yaml:4:35: limiters.search.marign: ", "did you mean `margin`?"),
        ("gateway.yaml:6:35: routes[0].limiters[0]: ", "did you mean `search`?"),
        ("gateway.yaml:6:54: routes[0].max_wait: ", "needs a unit"),
        ("gateway.yaml:8:38: store.on_failure: ", "did you mean `share`?"),
    ];
    for (start, reason) in expected {
        let found = err.lines().any(|line| line.starts_with(start) && line.contains(reason));
        assert!(found, "no line {start}...{reason} in\n{err}");
    }
    // In the order of the file.
    let place = |line: &str| -> (usize, usize) {
        let mut numbers = line.split(':').skip(1).map(|n| n.parse().expect("a number"));
        (numbers.next().expect("a line"), numbers.next().expect("a column"))
    };
    let places: Vec<_> = err.lines().map(place).collect();
    assert!(places.is_sorted(), "{err}");
}

#[rstest]
#[case::no_yaml("upstream: [\n", "gateway.yaml:1:11: ", "not YAML")]
#[case::a_key_twice(
    "upstream: http://a\nupstream: http://b\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:2:1: upstream: ",
    "written twice"
)]
#[case::nothing("", "gateway.yaml:1:1: upstream: ", "is missing")]
#[case::no_routes("upstream: http://a\n", "gateway.yaml:1:1: routes: ", "is missing")]
#[case::a_tie(
    "upstream: http://a\nroutes:\n  - { suffix: /a, name: x }\n  - { suffix: /%61, name: y }\n",
    "gateway.yaml:4:5: routes[1]: ",
    "routes[0] in line 3"
)]
#[case::an_unknown_upstream(
    "upstreams: { vendor: http://a }\nroutes:\n  - { suffix: /a, upstream: vendro }\n",
    "gateway.yaml:3:29: routes[0].upstream: ",
    "did you mean `vendor`?"
)]
#[case::one_period_twice(
    "upstream: http://a\nlimiters: { a: [3/s, 20/1s] }\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:2:22: limiters.a[1]: ",
    "the same period as 3/s"
)]
#[case::a_key_of_another_algorithm(
    "upstream: http://a\nlimiters: { a: { rate: 3/s, margin: 30ms } }\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:2:37: limiters.a.margin: ",
    "belongs to algorithm sliding_window or leaky_bucket"
)]
#[case::a_number_that_overflows(
    "upstream: http://a\nlimiters: { a: 99999999999999999999/s }\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:2:16: limiters.a: ",
    "too large"
)]
#[case::nan(
    "upstream: http://a\nlimiters: { a: { rate: 5/s, burst: .nan } }\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:2:36: limiters.a.burst: ",
    "whole number"
)]
#[case::a_variable_that_is_not_set(
    "upstream: ${PACEWAY_TEST_NOT_SET}\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:1:11: ",
    "`PACEWAY_TEST_NOT_SET` is not set"
)]
#[case::a_file_that_is_not_there(
    "upstream: ${file:nothing.txt}\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:1:11: ",
    "nothing.txt"
)]
#[case::an_odd_store(
    "store: http://a\nupstream: http://a\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:1:8: store: ",
    "not a scheme"
)]
#[case::sentinels_of_nobody(
    "store: redis-sentinel://a\nupstream: http://a\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:1:8: store: ",
    "the name that the Sentinels have"
)]
fn check_names_place_key_and_reason(#[case] yaml: &str, #[case] start: &str, #[case] reason: &str) {
    let (code, out, err) = with_file(yaml, &["check", "gateway.yaml"], &[]);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    let found = err.lines().any(|line| line.starts_with(start) && line.contains(reason));
    assert!(found, "no line {start}...{reason} in\n{err}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    for args in [&["check", "nothing.yaml"][..], &["run", "--config", "nothing.yaml"]] {
        let (code, out, err) = said(&paceway(args));
        assert_eq!((code, out.as_str()), (Some(2), ""));
        assert!(err.starts_with("nothing.yaml: cannot be read: "), "{err}");
    }
}

#[test]
fn values_come_from_the_environment_and_from_files_and_no_message_holds_them() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("url"), "redis://:hunter2@redis:6379/0\n").expect("a file");
    let yaml = "store: ${file:url}
upstream: ${VENDOR:-http://fallback.example}
listen: ${LISTEN}
routes: [{ suffix: \"*\" }]
";
    let file = dir.path().join("gateway.yaml");
    fs::write(&file, yaml).expect("a file");
    let env = [("LISTEN", "127.0.0.1:18080")];
    let args = ["explain", "gateway.yaml", "GET", "/x"];
    let (code, out, _) = said(&paceway_in(dir.path(), &args, &env));
    assert_eq!(code, Some(0));
    assert!(out.contains("http://fallback.example/x"), "{out}");
    let check = ["check", "gateway.yaml"];
    let (code, out, err) = said(&paceway_in(dir.path(), &check, &env));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("redis at redis:6379") && out.contains("127.0.0.1:18080"), "{out}");
    assert!(!out.contains("hunter2"), "{out}");

    // Also where it is wrong.
    fs::write(dir.path().join("url"), "postgres://:hunter2@host").expect("a file");
    let env = [("LISTEN", "127.0.0.1"), ("VENDOR", "hunter4")];
    let (code, out, err) = said(&paceway_in(dir.path(), &check, &env));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert_eq!(err.lines().count(), 3, "{err}");
    assert!(
        !err.contains("hunter") && err.contains("`${LISTEN}` (`127.0.0.1`) names no port"),
        "{err}"
    );
}

#[rstest]
#[case::the_longest_suffix(
    &["GET", "/v2/flights/search?q=1"],
    &["route search", "/search", "limiter search: token_bucket 5/s, burst 10", "limiter account: token_bucket 500/min",
      "upstream default: https://api.vendor.example/v2/v2/flights/search?q=1", "waits up to 2s", "not rest"],
)]
#[case::a_disguise(&["GET", "/x/..//%73earch/;y"], &["compared /search ", "route search"])]
#[case::a_whole_url(&["POST", "https://gateway.example/search"], &["route search", "gateway.example"])]
#[case::all_others(&["GET", "/research"], &["route rest", "limiter account", "waits not at all (max_wait)"])]
#[case::less_patience(&["GET", "/search", "-H", "Prefer: wait=1"], &["waits up to 1s", "Prefer"])]
#[case::more_patience(&["GET", "/search", "-H", "Prefer: wait=60"], &["waits up to 2s", "cap"])]
fn explain_says_what_a_request_gets(#[case] request: &[&str], #[case] expected: &[&str]) {
    let yaml = GOOD.replace("suffix: /search", "name: search, suffix: /search");
    let args = [&["explain", "gateway.yaml"], request].concat();
    let (code, out, err) = with_file(&yaml, &args, &[]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in expected {
        assert!(words.contains(part), "no `{part}` in\n{out}");
    }
}

#[rstest]
#[case::default("", &[
    "throttle refusals are: 429 · 503 with retry-after",
    "a refusal pauses a, b as long as it says, 100ms to 600s; if it does not, 1s, doubled with each in a row",
    "retries up to 3 attempts within the wait, if its body has at most 65536 bytes",
])]
#[case::off("throttle: off", &["throttle off: refusals of the upstream are passed on"])]
#[case::github("throttle: { style: github }", &["403 with x-ratelimit-remaining=0", "if it does not, 60s"])]
#[case::one("throttle: { pauses: [b], retry: { attempts: 1 } }", &["a refusal pauses b as", "retries never: one attempt"])]
#[case::an_observer("throttle: { pauses: [c] }", &["a refusal pauses no limiter"])]
fn explain_says_what_a_refusal_of_the_upstream_does(
    #[case] throttle: &str,
    #[case] expected: &[&str],
) {
    let yaml = format!(
        "upstreams:\n  v:\n    url: http://a\n    {throttle}\n\
         limiters: {{ a: 5/s, b: 9/s, c: {{ rate: 9/s, mode: observe }} }}\n\
         routes: [{{ suffix: '*', limiters: [a, b, c], max_wait: 2s }}]\n"
    );
    let (code, out, _) = with_file(&yaml, &["explain", "gateway.yaml", "GET", "/x"], &[]);
    assert_eq!(code, Some(0));
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in expected {
        assert!(words.contains(part), "no `{part}` in\n{out}");
    }
}

#[rstest]
#[case::the_peer(&[], "key 127.0.0.1:-, kept as paceway:{account}:T:shop:127.0.0.1:-,", "cost 1 ({header.x-cost})")]
#[case::parts(
    &["--client-ip", "10.0.0.1", "-H", "X-Forwarded-For: 203.0.113.9", "-H", "X-Shop: a b", "-H", "X-Cost: 3"],
    "key 203.0.113.9:a%20b, kept as paceway:{account}:T:shop:203.0.113.9:a%20b, paceway:{account}:T:shop/1:203.0.113.9:a%20b",
    "cost 3 ({header.x-cost})"
)]
fn explain_shows_keys_and_costs(#[case] more: &[&str], #[case] key: &str, #[case] cost: &str) {
    let yaml = "upstream: http://a\ntrusted_proxies: [10.0.0.0/8]\n\
                limiters:\n  shop: { rate: [3/s, 20/min], key: '{client_ip}:{header.x-shop}' }\n  \
                account: { algorithm: concurrency, max: 4, mode: observe, scope: instance }\n\
                routes: [{ suffix: '*', limiters: [{ limiter: shop, cost: '{header.x-cost}' }, account] }]\n";
    let args = [&["explain", "gateway.yaml", "GET", "/"], more].concat();
    let (code, out, err) = with_file(yaml, &args, &[]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        key,
        cost,
        "limiter shop: token_bucket [3/s, 20/min], burst 3,",
        "limiter account: concurrency, at most 4 held, lease 60s, cost 1, only observes, of the route",
        "one bucket for all, kept as paceway:{account}:C:account@INSTANCE, one for each gateway",
    ] {
        assert!(words.contains(part), "no `{part}` in\n{out}");
    }
}

/// `explain` prints the refusal in the gateway's own words and exits with 1.
#[rstest]
#[case::no_route(&["GET", "/nothing"], "route none: 404 no-route")]
#[case::small_letters(&["get", "/"], "refused 400 bad-request: a method is written in capitals")]
#[case::connect(&["CONNECT", "/"], "refused 405 method-not-allowed: CONNECT and TRACE are not forwarded")]
#[case::trace(&["TRACE", "/"], "refused 405 method-not-allowed: CONNECT and TRACE are not forwarded")]
#[case::scheme(&["GET", "ftp://a/"], "refused 400 bad-request: the target is no http or https URL")]
#[case::star(&["GET", "*"], "refused 400 bad-request: the target `*` is for OPTIONS alone")]
#[case::two_hosts(&["GET", "/", "-H", "Host: a,b"], "refused 400 bad-request: `Host` is no host")]
#[case::expectation(&["GET", "/", "-H", "Expect: x"], "refused 417 expectation-failed")]
#[case::last_hop(&["OPTIONS", "/", "-H", "Max-Forwards: 0"], "refused 204 last-hop: `Max-Forwards` is 0")]
#[case::cost(&["GET", "/", "-H", "X-Cost: 4"], "400: the cost `4` in `{header.x-cost}` is not between 0 and 3, the most that the limiter `a` gives at once")]
fn explain_refuses_what_the_gateway_refuses(#[case] request: &[&str], #[case] expected: &str) {
    let yaml = "upstream: http://a\nlimiters: { a: 3/s }\nroutes:\n\
                - { suffix: /, limiters: [{ limiter: a, cost: '{header.x-cost}' }], max_wait: 1s }\n";
    let args = [&["explain", "gateway.yaml"], request].concat();
    let (code, out, err) = with_file(yaml, &args, &[]);
    assert_eq!((code, err.trim()), (Some(1), "the gateway does not forward this request"), "{out}");
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(expected), "{out}");
}

#[rstest]
#[case::margin(
    "{ algorithm: sliding_window, rate: 5/s, margin: 30ms }",
    "sliding_window 5/s, margin 30ms,"
)]
#[case::queue(
    "{ algorithm: leaky_bucket, rate: 5/s, capacity: 10 }",
    "leaky_bucket 5/s, a queue of 2s,"
)]
#[case::observing("{ rate: 5/s, mode: observe }", "waits never: no limiter enforces")]
fn explain_shows_the_rule(#[case] limiter: &str, #[case] expected: &str) {
    let yaml = format!(
        "upstream: http://a\nlimiters: {{ it: {limiter} }}\nroutes: [{{ suffix: '*', limiters: [it] }}]\n"
    );
    let (_, out, _) = with_file(&yaml, &["explain", "gateway.yaml", "GET", "/"], &[]);
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(expected), "{out}");
}

#[rstest]
#[case::share(
    "{ rate: 5/s }",
    "on_failure share: without the store each gateway enforces its share"
)]
#[case::whole(
    "{ rate: 5/s, scope: instance }",
    "on_failure share: without the store each gateway continues with the whole rule"
)]
#[case::allow("{ rate: 5/s, on_failure: allow }", "on_failure allow: without the store it lets")]
#[case::reject("{ rate: 5/s, on_failure: reject }", "on_failure reject: without the store 503")]
fn explain_shows_what_is_done_without_the_store(#[case] limiter: &str, #[case] expected: &str) {
    let yaml = format!(
        "upstream: http://a\nlimiters: {{ it: {limiter} }}\nroutes: [{{ suffix: '*', limiters: [it] }}]\n"
    );
    let args = ["explain", "gateway.yaml", "GET", "/"];
    let (_, out, _) = with_file(&format!("store: redis://a\n{yaml}"), &args, &[]);
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(expected), "{out}");
    let (_, out, _) = with_file(&yaml, &args, &[]);
    assert!(!out.contains("on_failure"), "the memory store is never away: {out}");
}

#[test]
fn explain_shows_changes_of_headers_but_no_secret() {
    let yaml = "upstreams:\n  v:\n    urls: [http://a, http://b]\n    headers:\n      \
                request: { set: { x-api-key: '${PACEWAY_TEST_KEY}', x-tenant: us }, remove: [cookie] }\n      \
                response: { set: { authorization: in-clear } }\n\
                routes: [{ suffix: '*', headers: { response: { add: { x-by: [a, b] } } } }]\n";
    let args = ["explain", "gateway.yaml", "GET", "/x"];
    let (code, out, _) = with_file(yaml, &args, &[("PACEWAY_TEST_KEY", "hunter2")]);
    assert_eq!(code, Some(0));
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "upstream v: http://a/x (one of 2 addresses)",
        "headers request removes cookie, of upstream v headers request sets x-api-key: ***, of upstream v",
        "headers request sets x-tenant: us, of upstream v",
        "headers response sets authorization: ***, of upstream v",
        "headers response adds x-by: a, of the route headers response adds x-by: b, of the route",
    ] {
        assert!(words.contains(part), "no `{part}` in\n{out}");
    }
    assert!(!out.contains("hunter2") && !out.contains("in-clear"), "{out}");
}

#[test]
fn check_reads_the_files_of_tls() {
    let yaml =
        "upstream: http://a\ntls: { cert: none.pem, key: none.key }\nroutes: [{ suffix: '*' }]\n";
    let (code, out, err) = with_file(yaml, &["check", "gateway.yaml"], &[]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    let lines: Vec<_> = err.lines().collect();
    assert_eq!(lines.len(), 2, "{err}");
    assert!(
        lines[0].starts_with("gateway.yaml:2:14: tls.cert: `none.pem` cannot be read"),
        "{err}"
    );
    assert!(lines[1].starts_with("gateway.yaml:2:29: tls.key: `none.key` cannot be read"), "{err}");
}

#[test]
fn explain_says_when_no_route_matches() {
    let yaml = "upstream: http://a\nroutes: [{ suffix: /search, methods: [POST] }]\n";
    let (code, out, _) = with_file(yaml, &["explain", "gateway.yaml", "GET", "/search"], &[]);
    assert_eq!(code, Some(1));
    assert!(out.contains("404 no-route"), "{out}");
}

#[rstest]
#[case::no_method(&["GE T", "/"], "method")]
#[case::no_url(&["GET", "search"], "/")]
#[case::no_header(&["GET", "/", "-H", "nothing"], "no header")]
fn explain_refuses_what_is_no_request(#[case] request: &[&str], #[case] reason: &str) {
    let args = [&["explain", "gateway.yaml"], request].concat();
    let (code, out, err) = with_file(GOOD, &args, &[]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.starts_with("error: ") && err.contains(reason), "{err}");
}

#[test]
fn schema_prints_a_json_schema() {
    let (code, out, err) = said(&paceway(&["schema"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let schema: Value = serde_json::from_str(&out).expect("JSON");
    assert!(schema["$schema"].as_str().is_some_and(|url| url.contains("json-schema.org")));
    let keys = schema["properties"].as_object().expect("properties");
    for key in ["listen", "admin", "store", "upstream", "upstreams", "limiters", "routes"] {
        assert!(keys.contains_key(key), "no {key}");
    }
    let validator = jsonschema::validator_for(&schema).expect("a valid schema");
    // A configuration in JSON is one in YAML.
    let good = serde_json::json!({
        "upstream": "https://api.vendor.example",
        "limiters": { "account": "500/min", "search": { "rate": "5/s", "burst": 10 } },
        "routes": [{ "suffix": "*", "limiters": ["account"], "max_wait": "2s" }],
    });
    assert!(validator.is_valid(&good));
    let (code, _, err) = with_file(&good.to_string(), &["check", "gateway.yaml"], &[]);
    assert_eq!(code, Some(0), "{err}");
    let mut bad = good.clone();
    bad["upstraem"] = true.into();
    assert!(!validator.is_valid(&bad));
}

#[rstest]
#[case::nothing(&[])]
#[case::an_unknown_command(&["walk"])]
#[case::an_unknown_option(&["run", "--fast"])]
#[case::a_missing_argument(&["check"])]
#[case::a_port_that_is_none(&["demo", "--port", "x"])]
fn a_wrong_usage_ends_with_2_and_says_so_on_stderr(#[case] args: &[&str]) {
    let (code, out, err) = said(&paceway(args));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.contains("Usage: paceway") || err.contains("try '--help'"), "{err}");
}

#[test]
fn help_and_version_are_no_errors() {
    let (code, out, _) = said(&paceway(&["--help"]));
    assert_eq!(code, Some(0));
    for command in ["run", "check", "explain", "schema", "demo"] {
        assert!(out.contains(&format!("\n  {command} ")), "no {command} in\n{out}");
    }
    let (code, out, _) = said(&paceway(&["--version"]));
    assert_eq!((code, out.trim()), (Some(0), concat!("paceway ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn run_without_a_configuration_says_where_it_looked() {
    let dir = tempfile::tempdir().expect("a directory");
    let (code, out, err) = said(&paceway_in(dir.path(), &["run"], &[]));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    for part in ["paceway.yaml", "config/paceway.yaml", "--config"] {
        assert!(err.contains(part), "{err}");
    }
}

#[test]
fn run_with_a_wrong_configuration_says_what_check_says() {
    let yaml = "upstraem: http://a\nroutes: [{ suffix: \"*\" }]\n";
    let run = with_file(yaml, &["run", "--config", "gateway.yaml"], &[]);
    assert_eq!(run.0, Some(2));
    assert_eq!(run, with_file(yaml, &["check", "gateway.yaml"], &[]));
}

#[tokio::test(flavor = "multi_thread")]
async fn health_asks_a_running_gateway_whether_it_is_ready() {
    let upstream = Upstream::ok().await;
    let mut gateway =
        Gateway::start(&format!("upstream: {}\nroutes: [{{ suffix: \"*\" }}]\n", upstream.url()))
            .await;
    let admin = gateway.admin.to_string();
    let (code, out, err) = said(&paceway(&["health", "--admin", &admin]));
    assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "", ""));
    // Neither the data port nor another server is taken for it, and no call is forwarded for the question.
    for (port, why) in [
        (gateway.listen, "is the address for calls (`listen`)"),
        (upstream.address(), "is not the admin side of Paceway"),
    ] {
        let (code, out, err) = said(&paceway(&["health", "--admin", &port.to_string()]));
        assert_eq!((code, out.as_str()), (Some(1), ""));
        assert!(err.contains(why), "{err}");
        let calls = upstream.calls().len();
        assert_eq!(calls, usize::from(port == upstream.address()), "{port}");
    }
    gateway.signal("TERM");
    gateway.end().await;
    let (code, out, err) = said(&paceway(&["health", "--admin", &admin]));
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.starts_with("error: ") && err.contains(&admin), "{err}");
}

/// The address that `demo` prints in the line that begins with `start`.
fn address(out: &str, start: &str) -> SocketAddr {
    let line = out.lines().find(|line| line.starts_with(start)).expect("a line");
    let url = line.split("http://").nth(1).expect("an address");
    url.split(['/', ' ']).next().expect("an address").parse().expect("an address")
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_demo_the_vendor_refuses_nobody_who_comes_through_the_gateway() {
    let demo = Gateway::demo(&["--port", "0", "--admin-port", "0", "--vendor-port", "0"]).await;
    let out = eventually("all is printed", async || {
        let out = demo.output().0.join("\n");
        out.contains("Ctrl-C").then_some(out)
    })
    .await;
    let vendor = address(&out, "# A pretend vendor");
    let gateway = address(&out, "# The gateway before it");
    assert_eq!(gateway, demo.listen);
    assert!(out.starts_with("# The dashboard"), "{out}");
    for line in ["# The dashboard", "# The state and the metrics"] {
        assert_eq!(address(&out, line), demo.admin);
    }
    for address in [vendor, gateway] {
        let line = |line: &str| line.contains("; do curl ") && line.contains(&address.to_string());
        let printed = out.lines().any(line);
        assert!(printed, "a line to try with {address} in\n{out}");
    }

    // The vendor counts arrivals. A slot is a window and the margin, 1.1 s, after that of the call five before, or it is
    // the instant of asking. When the machine stalls and a call comes more than the margin after its slot, the vendor may
    // refuse the fifth call after it: that says nothing about the gateway, and the test tries again.
    let mut slots: Vec<Instant> = Vec::new();
    let mut latest = Duration::ZERO;
    for attempt in 1.. {
        assert!(attempt <= 10, "the machine stalled ten times");
        let mut statuses = Vec::new();
        for _ in 0..20 {
            let asked = Instant::now();
            let before = slots.len().checked_sub(5).map(|i| slots[i]);
            let slot = before.map_or(asked, |slot| asked.max(slot + Duration::from_millis(1100)));
            statuses.push(get(gateway, "/search").await.status);
            latest = latest.max(slot.elapsed());
            slots.push(slot);
        }
        if statuses == [200; 20] {
            break;
        }
        assert!(latest > Duration::from_millis(100), "{statuses:?}, at most {latest:?} late");
    }

    let refused = eventually("the vendor refuses who comes straight to it", async || {
        let answer = get(vendor, "/search").await;
        (answer.status == 429).then_some(answer)
    })
    .await;
    assert_eq!(refused.field("paceway-origin"), None);
    let metrics = get(demo.admin, "/metrics").await.text();
    assert!(metrics.contains("paceway_requests_total"), "{metrics}");
    eventually("the dashboard has something to show", async || {
        let said = get(demo.admin, "/requests").await.json();
        let all = said["requests"].as_array().expect("requests");
        all.iter().any(|one| one["decision"] == "held" && one["key"] == "acme").then_some(())
    })
    .await;
}

/// Runs the commands that `demo` printed, as a user pastes them into a terminal; returns each line of statuses, and how
/// long all took.
fn pasted(text: &str) -> (Vec<Vec<u16>>, Duration) {
    let started = Instant::now();
    let ran = std::process::Command::new("sh").args(["-c", text]).output().expect("a shell");
    let (out, err) =
        [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).into();
    assert_eq!(err.lines().find(|line| line.contains("not found")), None, "{err}");
    let statuses = |line: &str| -> Option<Vec<u16>> {
        line.split_whitespace().map(|word| word.parse().ok()).collect()
    };
    let lines: Vec<_> = out.lines().filter_map(statuses).filter(|all| !all.is_empty()).collect();
    (lines, started.elapsed())
}

/// All that is printed, and then its loops in the other order, without a pause anywhere.
#[tokio::test(flavor = "multi_thread")]
async fn the_demo_tells_its_story_in_whatever_order_it_is_pasted() {
    let demo = Gateway::demo(&["--port", "0", "--admin-port", "0", "--vendor-port", "0"]).await;
    let out = eventually("all is printed", async || {
        let out = demo.output().0.join("\n");
        out.contains("Ctrl-C").then_some(out)
    })
    .await;
    let loops: Vec<_> = out.lines().filter(|line| line.starts_with("for ")).collect();
    let [direct, paced] = loops[..] else { panic!("two loops in {out}") };
    let turned = [paced, direct].join("\n");
    // Where the machine stalls for over 100 ms the vendor may count a paced call with later ones.
    for attempt in 1.. {
        let mut stories = Vec::new();
        for (text, order) in [(&out, [0, 1]), (&turned, [1, 0])] {
            let (lines, took) = tokio::task::block_in_place(|| pasted(text));
            assert_eq!(lines.len(), 2, "{lines:?}");
            let [direct, paced] = order.map(|i| lines[i].clone());
            // Five in each second that has begun.
            let passed = direct.iter().filter(|status| **status == 200).count();
            let most = 5 * (took.as_secs() as usize + 1);
            assert!((5..=most).contains(&passed), "{passed} in {took:?}: {direct:?}");
            assert!(direct.iter().all(|status| [200, 429].contains(status)), "{direct:?}");
            assert_eq!(direct.len(), 20);
            stories.push(paced);
        }
        if stories == [[200; 20]; 2] {
            break;
        }
        assert!(attempt < 5, "the gateway does not pace them: {stories:?}");
    }
    // The call that shows headers is among what was pasted.
    let passed = demo.count("all", "passed").await + demo.count("all", "waited").await;
    assert!(passed >= 41.0, "{passed}");
}

#[test]
fn the_demo_says_which_port_is_taken() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port().to_string();
    for (option, others) in [
        ("--port", ["--admin-port", "--vendor-port"]),
        ("--admin-port", ["--port", "--vendor-port"]),
        ("--vendor-port", ["--port", "--admin-port"]),
    ] {
        let args = ["demo", option, &port, others[0], "0", others[1], "0"];
        let (code, _, err) = said(&paceway(&args));
        assert_eq!(code, Some(1), "{err}");
        assert!(err.lines().last().is_some_and(|line| line.contains(&port)), "{err}");
    }
}

/// Other readings of a path count where they are limited otherwise.
#[rstest]
#[case::one_covers_the_other(
    "a, b",
    "route /search (routes[0]): servers read this path in several ways; it has the limiters of all"
)]
#[case::none_does("a", "route none: 400, servers read this path in several ways")]
fn explain_says_when_a_path_is_read_in_several_ways(#[case] search: &str, #[case] expected: &str) {
    let yaml = format!(
        "upstream: http://a\nlimiters: {{ a: 1/s, b: 1/s }}\nroutes:\n- {{ suffix: /search, limiters: [{search}] }}\n\
         - {{ suffix: \"*\", limiters: [b] }}\n"
    );
    let (_, out, _) = with_file(&yaml, &["explain", "gateway.yaml", "GET", "/search//.."], &[]);
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(expected), "{out}");
}
