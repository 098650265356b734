//! `paceway explain`: what it says about a request, a limiter, and a refusal.

use super::{GOOD, with_file};
use rstest::rstest;

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
fn explain_shows_the_route_and_wait_of_a_request(
    #[case] request: &[&str],
    #[case] expected: &[&str],
) {
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
    "an upstream's refusal pauses a, b as long as it says, 100ms to 600s; if it does not, 1s, doubled with each in a row",
    "retries up to 100 attempts within the wait, if its body has at most 65536 bytes",
])]
#[case::off("throttle: off", &["throttle off: refusals of the upstream are passed on"])]
#[case::github("throttle: { style: github }", &["403 with x-ratelimit-remaining=0", "if it does not, 60s"])]
#[case::one("throttle: { pauses: [b], retry: { attempts: 1 } }", &["an upstream's refusal pauses b as", "retries never: one attempt"])]
#[case::an_observer("throttle: { pauses: [c] }", &[
    "an upstream's refusal pauses no limiter",
    "retries never: no limiter of the request is paused, so there is no slot to wait for",
])]
fn explain_shows_the_effect_of_an_upstream_refusal(
    #[case] throttle: &str,
    #[case] expected: &[&str],
) {
    let yaml = format!(
        "upstreams:\n  v:\n    url: http://a\n    {throttle}\n\
         limiters: {{ a: 5/s, b: 9/s, free: 9/s, c: {{ rate: 9/s, mode: observe }} }}\n\
         routes: [{{ suffix: '*', limiters: [a, b, c, {{ limiter: free, cost: '{{header.x-cost}}' }}], max_wait: 2s }}]\n"
    );
    // A limiter that the request costs nothing is not paused by its refusal.
    let request = ["explain", "gateway.yaml", "GET", "/x", "-H", "X-Cost: 0"];
    let (code, out, _) = with_file(&yaml, &request, &[]);
    assert_eq!(code, Some(0));
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in expected {
        assert!(words.contains(part), "no `{part}` in\n{out}");
    }
}

#[rstest]
#[case::the_peer(&[], "key 127.0.0.1:-, kept as paceway:{shop}:T:shop:127.0.0.1:-,", "cost 1 ({header.x-cost})")]
#[case::parts(
    &["--client-ip", "10.0.0.1", "-H", "X-Forwarded-For: 203.0.113.9", "-H", "X-Shop: a b", "-H", "X-Cost: 3"],
    "key 203.0.113.9:a%20b, kept as paceway:{shop}:T:shop:203.0.113.9:a%20b, paceway:{shop}:T:shop/1min:203.0.113.9:a%20b",
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

#[rstest]
#[case::of_the_request("'1 + 2*{query.n}'", "cost 15 (1 + 2*{query.n})")]
#[case::of_the_answer(
    "{ reserve: '{query.n}+{query.m}', default: 9, settle: '3*{response.header.x} + {response.body./n}' }",
    "cost 16 (reserved from {query.n} + {query.m}, default 9, settled by 3*{response.header.x} + {response.body./n})"
)]
fn explain_shows_sums(#[case] cost: &str, #[case] expected: &str) {
    let yaml = format!(
        "upstream: http://a\nlimiters: {{ a: 20/s }}\nroutes:\n\
         - {{ suffix: '*', limiters: [{{ limiter: a, cost: {cost} }}], max_wait: 1s }}\n"
    );
    let (code, out, err) = with_file(&yaml, &["explain", "gateway.yaml", "GET", "/?n=7"], &[]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(expected), "{out}");
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
fn explain_refuses_the_requests_that_the_gateway_refuses(
    #[case] request: &[&str],
    #[case] expected: &str,
) {
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
fn explain_shows_the_policy_without_the_store(#[case] limiter: &str, #[case] expected: &str) {
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
fn explain_reports_a_request_without_a_route() {
    let yaml = "upstream: http://a\nroutes: [{ suffix: /search, methods: [POST] }]\n";
    let (code, out, _) = with_file(yaml, &["explain", "gateway.yaml", "GET", "/search"], &[]);
    assert_eq!(code, Some(1));
    assert!(out.contains("404 no-route"), "{out}");
}

#[rstest]
#[case::no_method(&["GE T", "/"], "method")]
#[case::no_url(&["GET", "search"], "/")]
#[case::no_header(&["GET", "/", "-H", "nothing"], "no header")]
fn explain_refuses_arguments_that_are_no_request(#[case] request: &[&str], #[case] reason: &str) {
    let args = [&["explain", "gateway.yaml"], request].concat();
    let (code, out, err) = with_file(GOOD, &args, &[]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.starts_with("error: ") && err.contains(reason), "{err}");
}

/// Other readings of a path count where they are limited otherwise.
#[rstest]
#[case::one_covers_the_other(
    "a, b",
    "route /search (routes[0]): servers read this path in several ways; it has the limiters of all"
)]
#[case::none_does("a", "route none: 400, servers read this path in several ways")]
fn explain_reports_an_ambiguous_path(#[case] search: &str, #[case] expected: &str) {
    let yaml = format!(
        "upstream: http://a\nlimiters: {{ a: 1/s, b: 1/s }}\nroutes:\n- {{ suffix: /search, limiters: [{search}] }}\n\
         - {{ suffix: \"*\", limiters: [b] }}\n"
    );
    let (_, out, _) = with_file(&yaml, &["explain", "gateway.yaml", "GET", "/search//.."], &[]);
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(expected), "{out}");
}
