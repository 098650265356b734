//! Tests the warnings about settings that are allowed and probably not meant.

use super::{Config, limiters::with, parse};
use rstest::rstest;

#[test]
fn warns_of_rates_that_never_bind() {
    let config = with(
        "a: [3/s, 180/min, 179/62s], b: [500/s, 20/min], c: [3/s, 20/min], d: [3/2s, 9/3s, 4/5s]",
        &["limiters: [a, b, c], max_wait: 1s"],
    );
    assert_eq!(
        config.warnings(),
        [
            "the rate 180/min of the limiter `a` never binds: 3/s is always stricter",
            "the rate 500/s of the limiter `b` never binds: 20/min is always stricter",
            "no route and no upstream uses the limiter `d`",
            "the rate 9/3s of the limiter `d` never binds: 3/2s is always stricter",
        ]
    );
    let text = "trusted_proxies: ['::/0']\nupstream: http://a\nroutes: [{ suffix: '*' }]\n";
    let warnings = parse(text).expect("a config").warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert_eq!(warnings[0], "no route has a limiter, so nothing is limited");
    assert!(warnings[1].contains("`trusted_proxies` holds ::/0"), "{warnings:?}");
}

/// A file without limiters at its routes is a mistake, unless services have limiters or nothing is to be limited.
#[rstest]
#[case::nothing("", true)]
#[case::limiting_off("limiting: off\n", false)]
#[case::of_the_upstream("upstreams: { v: { url: http://a, limiters: [a] } }\n", false)]
#[case::descriptors(
    "services: { envoy_rate_limit: 127.0.0.1:1 }\ndescriptors: [{ match: { k: '*' }, limiters: [a] }]\n",
    false
)]
#[case::decisions("services: { decisions: 127.0.0.1:1 }\n", false)]
#[case::rows(
    "limits_from: { url: 'postgres://a/b', query: q }\nupstreams: { v: { url: http://a, limiters: [row] } }\n",
    false
)]
fn warns_that_nothing_is_limited(#[case] more: &str, #[case] is_warned: bool) {
    let upstream = if more.contains("upstreams") { "" } else { "upstream: http://a\n" };
    let text = format!(
        "{upstream}{more}limiters: {{ a: {{ algorithm: concurrency, max: 2 }} }}\nroutes: [{{ suffix: '*' }}]\n"
    );
    let warnings = parse(&text).expect("a config").warnings();
    let is_found = warnings.iter().any(|warning| warning.ends_with("nothing is limited"));
    assert_eq!(is_found, is_warned, "{warnings:?}");
}

#[rstest]
#[case::path(
    "path: /search/:id/b",
    Some("`:id` in the route `r` is read as these characters; a parameter is written `{id}`")
)]
#[case::suffix(
    "suffix: /search/:id",
    Some(
        "`:id` in the route `r` is read as these characters; a parameter of a `path` is written `{id}`"
    )
)]
#[case::a_verb("path: /search:batch", None)]
#[case::a_port("suffix: /a/:80-", None)]
fn warns_of_a_colon_in_place_of_braces(#[case] path: &str, #[case] warning: Option<&str>) {
    let text = format!(
        "upstream: http://a\nlimiters: {{ a: 1/s }}\nroutes: [{{ name: r, {path}, limiters: [a], max_wait: 0 }}]\n"
    );
    let warnings = parse(&text).expect("a config").warnings();
    assert_eq!(warnings, warning.into_iter().collect::<Vec<_>>());
}

#[rstest]
#[case::leaky(
    "a: { algorithm: leaky_bucket, rate: 5/s }",
    "",
    Some(
        "nothing can wait on the route `/0` for its leaky_bucket `a`, which spaces calls: set its `max_wait`"
    )
)]
#[case::warm_up(
    "a: { algorithm: warm_up, rate: 5/s, warm_up: 4s }",
    "max_wait: 0",
    Some(
        "nothing can wait on the route `/0` for its warm_up `a`, which spaces calls: set its `max_wait`"
    )
)]
#[case::leaky_with_a_wait("a: { algorithm: leaky_bucket, rate: 5/s }", "max_wait: 1s", None)]
#[case::leaky_with_a_cap("a: { algorithm: leaky_bucket, rate: 5/s }", "max_wait_cap: 1s", None)]
#[case::leaky_observed("a: { algorithm: leaky_bucket, rate: 5/s, mode: observe }", "", None)]
#[case::bucket("a: 5/s", "max_wait: 1s", None)]
#[case::daily_window(
    "a: { algorithm: fixed_window, rate: [5/s, 50000/day] }",
    "max_wait: 1s",
    Some(
        "a restart forgets what is used of the windows of the limiter `a` with 50000/d: with `store: memory` states end with the process"
    )
)]
#[case::no_wait(
    "a: 5/s",
    "",
    Some(
        "the route `/0` has limiters and no `max_wait`: a request above the rate is never held, but refused with 429 at once; write how long a request may wait, as in `max_wait: 2s`, or `max_wait: 0` if that is meant"
    )
)]
#[case::no_wait_that_is_meant("a: 5/s", "max_wait: 0", None)]
#[case::no_wait_but_a_cap("a: 5/s", "max_wait_cap: 2s", None)]
#[case::no_wait_of_who_observes("a: { rate: 5/s, mode: observe }", "", None)]
#[case::no_wait_for_places("a: { algorithm: concurrency, max: 2 }", "", None)]
#[case::hourly_window("a: { algorithm: fixed_window, rate: 50000/h }", "max_wait: 1s", None)]
#[case::daily_bucket("a: 50000/day", "max_wait: 1s", None)]
#[case::margin(
    "a: { algorithm: sliding_window, rate: 5/s, margin: 2s }",
    "max_wait: 1s",
    Some("the margin 2s of the limiter `a` leaves 33 % of its quota")
)]
#[case::margin_of_a_list(
    "a: { algorithm: sliding_window, rate: [20/s, 30/10s], margin: 30s }",
    "max_wait: 1s",
    Some("the margin 30s of the limiter `a` leaves 21 % of its quota")
)]
#[case::margin_of_the_slack(
    "a: { algorithm: sliding_window, rate: [20/s, 60/min], margin: 2s }",
    "max_wait: 1s",
    None
)]
#[case::a_header_that_callers_write(
    "a: { rate: 5/s, key: '{host}{header.x-real-ip}' }",
    "max_wait: 1s",
    Some(
        "the key of the limiter `a` is made from `{header.x-real-ip}`, which every caller can write: use `{client_ip}`, and name the proxies that are believed under `trusted_proxies`"
    )
)]
#[case::a_header_of_the_api("a: { rate: 5/s, key: '{header.x-shop}' }", "max_wait: 1s", None)]
#[case::half("a: { algorithm: sliding_window, rate: 5/s, margin: 1s }", "max_wait: 1s", None)]
#[case::margin_of_each(
    "a: { algorithm: leaky_bucket, rate: 50/s, margin: 50ms }",
    "max_wait: 1s",
    Some("the margin 50ms of the limiter `a` leaves 28 % of its quota")
)]
#[case::a_store_that_is_never_away(
    "a: { rate: 5/s, on_failure: allow }",
    "max_wait: 1s",
    Some(
        "`on_failure` of the limiter `a` is for a store that can be away; `store: memory` never is"
    )
)]
fn gives_one_warning_for_a_limiter_and_route(
    #[case] limiters: &str,
    #[case] route: &str,
    #[case] warning: Option<&str>,
) {
    let config = with(limiters, &[&format!("limiters: [a], {route}")]);
    assert_eq!(config.warnings(), warning.into_iter().collect::<Vec<_>>());
}

#[test]
fn a_daily_window_on_redis_needs_no_warning() {
    let text = "upstream: http://a\nstore: { url: 'redis://a', gateways: 1 }\nroutes: [{ suffix: '*', limiters: [a], max_wait: 0 }]\n\
                limiters: { a: { algorithm: fixed_window, rate: 50000/day } }\n";
    assert!(parse(text).expect("a config").warnings().is_empty());
}

#[test]
fn warns_of_a_wait_that_is_longer_than_the_drain() {
    let yaml = |drain, limiting| {
        format!(
            "drain_timeout: {drain}\nlimiting: {limiting}\nupstream: http://a\nlimiters: {{ a: 1/s }}\n\
             routes: [{{ name: r, suffix: /r, limiters: [a], max_wait: 10s, max_wait_cap: 40s }}]\n"
        )
    };
    let warnings = |drain, limiting| parse(&yaml(drain, limiting)).expect("a config").warnings();
    assert_eq!(
        warnings("30s", "on"),
        [
            "requests of the route `r` may wait for 40s, but a gateway that stops serves them for 30s only \
          (`drain_timeout`): those whose slots come later get 503"
        ]
    );
    assert_eq!(warnings("40s", "on"), [""; 0]);
    assert_eq!(warnings("30s", "off"), [""; 0]);
}

/// The warnings that hold `words`, of a file with the limiter `a` at its route.
fn warned(top: &str, words: &str) -> usize {
    let text = format!(
        "upstream: http://v\n{top}\nlimiters: {{ a: 5/s }}\nroutes: [{{ suffix: '*', limiters: [a], max_wait: 1s }}]\n"
    );
    let warnings = parse(&text).expect("a config").warnings();
    warnings.iter().filter(|warning| warning.contains(words)).count()
}

#[rstest]
#[case::an_address("admin: 0.0.0.0:9090", 1)]
#[case::every_address_of_ipv6("admin: { listen: '[::]:9090' }", 1)]
#[case::one_of_a_network("admin: 10.0.0.1:9090", 1)]
#[case::this_host("admin: '[::1]:9090'", 0)]
#[case::nothing("", 0)]
#[case::a_token("admin: { listen: 0.0.0.0:9090, token: '${SECRET}' }", 0)]
#[case::meant("admin: { listen: 0.0.0.0:9090, read: open }", 0)]
fn warns_of_an_admin_side_that_other_hosts_can_read(#[case] top: &str, #[case] warnings: usize) {
    assert_eq!(warned(top, "other hosts can read"), warnings);
}

#[rstest]
#[case::a_url("store: redis://a", 1)]
#[case::of_sentinels("store: { url: 'redis-sentinel://a/m', prefix: p }", 1)]
#[case::of_a_cluster("store: redis-cluster://a", 1)]
#[case::a_number("store: { url: redis://a, gateways: 1 }", 0)]
#[case::no_share("store: { url: redis://a, on_failure: reject }", 0)]
#[case::memory("store: memory", 0)]
fn warns_of_a_shared_store_without_a_number_of_gateways(
    #[case] top: &str,
    #[case] warnings: usize,
) {
    assert_eq!(warned(top, "has no `gateways`"), warnings);
}

/// The warning that requests of a route get nothing while those of another one wait.
#[rstest]
#[case::no_wait("a: 30/s", "max_wait: 0", "max_wait: 60s", true)]
#[case::a_short_wait("a: 30/s", "max_wait: 100ms", "max_wait: 60s", true)]
#[case::a_short_queue("a: 30/s", "max_wait: 100ms", "max_wait: 500ms", false)]
#[case::of_a_window(
    "a: { algorithm: sliding_window, rate: 30/s }",
    "max_wait: 0",
    "max_wait: 60s",
    true
)]
#[case::a_cap("a: 30/s", "max_wait: 0", "max_wait_cap: 60s", true)]
#[case::an_order_does_not_help(
    "a: { rate: 30/s, fair: { by: '{host}' } }",
    "max_wait: 0",
    "max_wait: 60s, priority: low",
    true
)]
#[case::less_than_its_turn("a: 10/s", "max_wait: 200ms", "max_wait: 60s, priority: low", true)]
#[case::a_turn("a: 10/s", "max_wait: 300ms", "max_wait: 60s, priority: low", false)]
#[case::a_wait("a: 30/s", "max_wait: 1s", "max_wait: 60s", false)]
#[case::no_waits("a: 30/s", "max_wait: 0", "max_wait: 0", false)]
#[case::observed("a: { rate: 30/s, mode: observe }", "max_wait: 0", "max_wait: 60s", false)]
#[case::concurrency("a: { algorithm: concurrency, max: 3 }", "max_wait: 0", "max_wait: 9s", false)]
fn warns_of_requests_that_cannot_wait_on_a_limiter_with_a_queue(
    #[case] limiter: &str,
    #[case] users: &str,
    #[case] batch: &str,
    #[case] is_warned: bool,
) {
    let text = format!(
        "upstream: http://v\ndrain_timeout: 60s\nlimiters: {{ {limiter} }}\nroutes:\n\
         - {{ name: users, suffix: /u, limiters: [a], {users} }}\n- {{ name: batch, suffix: /b, limiters: [a], {batch} }}\n"
    );
    let warnings = parse(&text).expect("a config").warnings();
    let starts = "requests of the route `users` get nothing from the limiter `a` while requests of the route `batch` wait";
    let found = warnings.iter().any(|warning| warning.starts_with(starts));
    assert_eq!(found, is_warned, "{warnings:?}");
}

/// Warnings about accounts of the upstream `v`, on a route with `limiters`.
fn account_warnings(accounts: &str, limiters: &str) -> Vec<String> {
    let text = format!(
        "limiters: {{ all: 5/s, each: {{ rate: 5/s, key: '{{account.quota}}' }}, seen: {{ rate: 5/s, key: '{{account}}', mode: observe }}, off: {{ rate: 5/s, key: '{{account}}', mode: off }} }}\n\
         upstreams: {{ v: {{ url: 'http://a', accounts: [{accounts}] }} }}\n\
         routes:\n- {{ name: r, suffix: '*', max_wait: 1s, limiters: [{limiters}] }}\n\
         - {{ suffix: /all, max_wait: 1s, limiters: [all, each, seen, off] }}\n"
    );
    parse(&text).expect("a config").warnings()
}

#[rstest]
#[case::two("{ name: a, headers: { k: '1' } }, { name: b, headers: { k: '2' } }", "each", None)]
#[case::addresses("{ name: a }, { name: b, url: 'http://b', after: 2s }", "all, each", None)]
#[case::only_observed(
    "{ name: a, headers: { k: '1' } }, { name: b, headers: { k: '2' } }",
    "seen",
    None
)]
#[case::one("{ name: a, headers: { k: '1' } }", "all", None)]
#[case::for_failures("{ name: a }, { name: b, url: 'http://b', on: [5xx] }", "all", None)]
#[case::one_for_all(
    "{ name: a, after: 1s, headers: { k: '1' } }, { name: b, headers: { k: '2' } }",
    "all",
    Some(
        "the route `r` has no limiter for each account of the upstream `v`, so that the account `b` gets all of its calls: \
         give it a limiter with `key: \"{account.quota}\"`"
    )
)]
#[case::off(
    "{ name: a, headers: { k: '1' } }, { name: b, headers: { k: '2' } }",
    "off",
    Some("the route `r` has no limiter for each account")
)]
#[case::bare(
    "{ name: a, headers: { k: '1' } }, { name: b }, { name: c, url: 'http://c' }",
    "each",
    Some(
        "the account `b` of the upstream `v` has no `headers` and others have: its calls leave without credentials, also \
         without those of the caller; give it `headers`, or a `url` of its own"
    )
)]
#[case::none_first(
    "{ name: a, after: 1s, headers: { k: '1' } }, { name: b, after: 2s, headers: { k: '2' } }",
    "each",
    Some(
        "all accounts of the upstream `v` have `after`, so that none is used first: leave it out where the calls begin"
    )
)]
#[case::alike(
    "{ name: a, headers: { k: '1', l: '2' } }, { name: b, headers: { l: '2' , k: '1' } }",
    "each",
    Some(
        "the accounts `a` and `b` of the upstream `v` have the same headers and URL, so that they are one account of the \
         vendor, with one quota: give one of them another credential, or leave it out"
    )
)]
#[case::alike_elsewhere(
    "{ name: a, url: 'http://b/x' }, { name: b, url: 'http://b/x' }",
    "each",
    Some("the accounts `a` and `b` of the upstream `v` have the same headers and URL")
)]
fn warns_of_accounts_that_do_less_than_they_seem_to(
    #[case] accounts: &str,
    #[case] limiters: &str,
    #[case] expected: Option<&str>,
) {
    let warnings = account_warnings(accounts, limiters);
    assert_eq!(warnings.len(), usize::from(expected.is_some()), "{warnings:?}");
    assert!(expected.is_none_or(|expected| warnings[0].starts_with(expected)), "{warnings:?}");
}

/// `check --offline` reads no credentials, and knows those of one variable as the same.
#[rstest]
#[case::two_variables("B", 0)]
#[case::one_variable("A", 1)]
fn placeholders_of_two_variables_are_two_credentials(#[case] other: &str, #[case] count: usize) {
    let text = format!(
        "limiters: {{ each: {{ rate: 5/s, key: '{{account}}' }} }}\n\
         upstreams:\n  v:\n    url: http://a\n    accounts:\n\
         \x20   - {{ name: a, headers: {{ k: '${{A}}' }} }}\n\
         \x20   - {{ name: b, headers: {{ k: '${{{other}}}' }} }}\n\
         routes: [{{ suffix: '*', limiters: [each], max_wait: 1s }}]\n"
    );
    let (config, _) = Config::parse_offline(&text, "test.yaml").expect("a config");
    assert_eq!(config.warnings().len(), count, "{:?}", config.warnings());
}
