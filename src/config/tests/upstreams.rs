//! Tests the addresses of upstreams and how the gateway speaks to them; `certificates.rs` tests their certificates.

use super::parse;
use crate::{
    config::{Config, PausedLimiters, ThrottleConfig},
    throttle::ThrottleRules,
};
use rstest::rstest;
use std::time::Duration;

/// A file without limiters, which is no warning where nothing is to be limited.
fn with(upstream: &str) -> Result<Config, crate::config::ConfigError> {
    parse(&format!(
        "upstreams: {{ v: {{ {upstream} }} }}\nroutes: [{{ suffix: \"*\" }}]\nlimiting: off\n"
    ))
}

#[test]
fn omitted_upstream_keys_have_defaults() {
    let config = with("url: https://a").expect("a config");
    let upstream = &config.upstreams[0];
    assert_eq!(upstream.timeouts.connect, Duration::from_secs(2));
    assert_eq!(upstream.timeouts.response, Duration::from_secs(30));
    assert_eq!(upstream.timeouts.idle, Duration::from_secs(4));
    assert_eq!(upstream.pool_size, 1024);
    assert!(!upstream.http2 && !upstream.preserve_host && !upstream.forwarded);
    assert_eq!(upstream.headers, Default::default());
    assert_eq!((&upstream.tls, &upstream.health), (&Default::default(), &None));
    let short = parse("upstreams: { v: https://a }\nroutes: [{ suffix: \"*\" }]\nlimiting: off\n");
    assert_eq!(short.expect("a config"), config);
}

#[test]
fn reads_protocol_and_connection_keys_of_an_upstream() {
    let config = with(
        "urls: [http://a/v2, 'http://b:81/v2/', 'http://[::1]/v2'], connect_timeout: 1ms, response_timeout: 1d, \
         idle_timeout: 5s, pool_size: 0, http2: true, preserve_host: on, forwarded: on",
    );
    let config = config.expect("a config");
    let upstream = &config.upstreams[0];
    let hosts: Vec<_> =
        upstream.targets.iter().map(|target| target.host.to_str().unwrap()).collect();
    assert_eq!(hosts, ["a", "b:81", "[::1]"]);
    assert!(upstream.targets.iter().all(|target| target.base == "/v2" && !target.is_https()));
    assert_eq!(upstream.timeouts.connect, Duration::from_millis(1));
    assert_eq!(upstream.timeouts.response, Duration::from_secs(86_400));
    assert_eq!((upstream.timeouts.idle, upstream.pool_size), (Duration::from_secs(5), 0));
    assert!(upstream.http2 && upstream.preserve_host && upstream.forwarded);
    let off =
        with("url: http://a, http2: false, preserve_host: off, forwarded: off").expect("a config");
    assert!(
        !off.upstreams[0].http2 && !off.upstreams[0].preserve_host && !off.upstreams[0].forwarded
    );
}

#[rstest]
#[case::nowhere("@http2: on", "url: is missing")]
#[case::both(
    "url: http://a, urls: @[http://b]",
    "urls: cannot be combined with `url`; keep one of them"
)]
#[case::empty("urls: @[]", "urls: must hold 1 to 100 URLs")]
#[case::no_list("urls: @http://a", "urls: must be a list: `[http://a]`")]
#[case::list("url: @[http://a, http://b]", "url: must be a single value; a list is written `urls`")]
#[case::no_url("urls: [http://a, @b]", "urls[1]: `b` is no URL, as in https://api.example/v2")]
#[case::scheme(
    "urls: [http://a, @https://b]",
    "urls[1]: has another scheme than the first; all are http:// or all https://"
)]
#[case::base(
    "urls: [http://a/v1, @http://b/v2]",
    "urls[1]: has another base path than the first; they are addresses of one API"
)]
#[case::twice("urls: [http://a, http://b, @http://a]", "urls[2]: named twice")]
#[case::twice_in_capitals("urls: [http://a/, @'http://A:80']", "urls[1]: named twice")]
#[case::short_idle("url: http://a, idle_timeout: @0", "idle_timeout: `0` must be at least 1ms")]
#[case::long_connect(
    "url: http://a, connect_timeout: @2d",
    "connect_timeout: `2d` must be at most 1d"
)]
#[case::large_pool(
    "url: http://a, pool_size: @100001",
    "pool_size: `100001` must be at most 100000"
)]
#[case::negative_pool("url: http://a, pool_size: @-1", "pool_size: `-1` is negative")]
#[case::version("url: http://a, http2: @h2c", "http2: `h2c` is not one of on, off")]
#[case::host(
    "url: http://a, preserve_host: @yes",
    "preserve_host: `yes` is not one of on, off; did you mean `on`?"
)]
#[case::forwarded("url: http://a, forwarded: @[on]", "forwarded: must be a single value")]
#[case::timeout(
    "url: http://a, @timeout: 5s",
    "timeout: unknown key `timeout`; did you mean `response_timeout`?"
)]
#[case::nginx(
    "url: http://a, @proxy_read_timeout: 5s",
    "proxy_read_timeout: unknown key `proxy_read_timeout`; did you mean `response_timeout`?"
)]
#[case::keepalive_timeout(
    "url: http://a, @keepalive_timeout: 5s",
    "keepalive_timeout: unknown key `keepalive_timeout`; did you mean `idle_timeout`?"
)]
#[case::servers("@servers: [http://a]", "servers: unknown key `servers`; did you mean `urls`?")]
#[case::host_header(
    "url: http://a, @host: b",
    "host: unknown key `host`; it gets the host of its URL, or the client's with `preserve_host: true`"
)]
#[case::request_headers(
    "url: http://a, @request_headers: { a: b }",
    "request_headers: unknown key `request_headers`; it is written `headers: { request: { set: { NAME: VALUE } } }`, or `response`"
)]
#[case::hide(
    "url: http://a, @proxy_hide_header: b",
    "proxy_hide_header: unknown key `proxy_hide_header`; it is written `headers: { response: { remove: [NAME] } }`, or `request`"
)]
#[case::throttle(
    "url: http://a, throttle: @offf",
    "throttle: `offf` is not one of on, off; did you mean `off`?"
)]
#[case::conditions(
    "url: http://a, throttle: @[429]",
    "throttle: must be `on`, `off` or a map; conditions are written `when: [429]`"
)]
#[case::one_condition(
    "url: http://a, throttle: { when: @429 }",
    "throttle.when: must be a list: `[429]`"
)]
#[case::no_condition(
    "url: http://a, throttle: { when: @[] }",
    "throttle.when: must hold 1 to 32 conditions; to pass refusals on, write `throttle: off`"
)]
#[case::condition(
    "url: http://a, throttle: { when: [429, @503 if retry-after] }",
    "throttle.when[1]: `503 if retry-after` has `if` after the status; did you mean `with`?"
)]
#[case::same_condition(
    "url: http://a, throttle: { when: [429, @'429'] }",
    "throttle.when[1]: named twice"
)]
#[case::condition_key(
    "url: http://a, throttle: { @status: [429] }",
    "throttle.status: unknown key `status`; did you mean `when`?"
)]
#[case::paused(
    "url: http://a, throttle: { pauses: [@a] }",
    "throttle.pauses[0]: `a` is no limiter; there is no limiter"
)]
#[case::paused_word(
    "url: http://a, throttle: { pauses: @every }",
    "throttle.pauses: `every` is neither `all` nor a list of limiters"
)]
#[case::free_refusal(
    "url: http://a, throttle: { free: [304, @429] }",
    "throttle.free[1]: `429` is a refusal by `when`, whose permits count as spent"
)]
#[case::free_word(
    "url: http://a, throttle: { free: [@unchanged] }",
    "throttle.free[0]: `unchanged` is no status of an answer; write one from 200 to 599, as in `[304]`"
)]
#[case::free_interim(
    "url: http://a, throttle: { free: [@103] }",
    "throttle.free[0]: `103` is no status of an answer; write one from 200 to 599, as in `[304]`"
)]
#[case::short_pause(
    "url: http://a, throttle: { default_pause: @50ms }",
    "throttle.default_pause: `50ms` must be at least 100ms"
)]
#[case::pauses_in_the_wrong_order(
    "url: http://a, throttle: { default_pause: @2min, max_pause: 1min }",
    "throttle.default_pause: is above `max_pause`, which is 1min"
)]
#[case::long_pause(
    "url: http://a, throttle: { max_pause: @2d }",
    "throttle.max_pause: `2d` must be at most 1d"
)]
#[case::attempts(
    "url: http://a, throttle: { @attempts: 3 }",
    "throttle.attempts: unknown key `attempts`; attempts are written `retry: { attempts: 3 }`"
)]
#[case::retry(
    "url: http://a, throttle: { retry: @3 }",
    "throttle.retry: must be a map, as in `{ attempts: 3, max_body: 64KiB }`"
)]
#[case::no_attempts(
    "url: http://a, throttle: { retry: { attempts: @0 } }",
    "throttle.retry.attempts: `0` must be at least 1"
)]
#[case::large_body(
    "url: http://a, throttle: { retry: { max_body: @1GiB } }",
    "throttle.retry.max_body: `1GiB` must be at most 16MiB"
)]
fn a_mistake_at_an_upstream_gets_one_message_with_the_cure(
    #[case] text: &str,
    #[case] message: &str,
) {
    let written = format!("upstreams: {{ v: {{ {text} }} }}");
    // The message for a missing key names the place where the map begins.
    let column = match message.ends_with("is missing") {
        true => 17,
        false => written.find('@').expect("a mark") + 1,
    };
    let error = with(&text.replacen('@', "", 1)).expect_err("must be refused").to_string();
    assert_eq!(error, format!("test.yaml:1:{column}: upstreams.v.{message}"));
}

#[rstest]
#[case::list("[http://a]")]
#[case::map("{ url: http://a }")]
fn the_short_form_is_a_url(#[case] upstream: &str) {
    let text = format!("upstream: {upstream}\nroutes: [{{ suffix: \"*\" }}]\n");
    let error = parse(&text).expect_err("must be refused").to_string();
    let message = "must be a URL; more than that is written `upstreams: { NAME: { url: ... } }`";
    assert_eq!(error, format!("test.yaml:1:11: upstream: {message}"));
}

#[test]
fn connections_that_the_upstream_closes_first_are_a_warning() {
    let warnings = |idle: &str| {
        with(&format!("url: http://a, idle_timeout: {idle}")).expect("a config").warnings()
    };
    assert!(warnings("60s").is_empty());
    assert_eq!(
        warnings("61s"),
        [
            "the idle_timeout 61s of the upstream `v` is longer than most servers keep a connection: the gateway \
             should close it first"
        ]
    );
}

#[test]
fn an_upstream_throttles_by_default() {
    for text in [
        "url: http://a",
        "url: http://a, throttle: on",
        "url: http://a, throttle: {}",
        "url: http://a, throttle: { learn: on }",
        "url: http://a, throttle: { learn: remaining }",
    ] {
        let throttle = &with(text).expect("a config").upstreams[0].throttle;
        let expected = ThrottleConfig {
            is_on: true,
            rules: ThrottleRules::default(),
            pauses: PausedLimiters::All,
            retry: throttle.retry,
        };
        assert_eq!(*throttle, expected, "{text}");
        let when: Vec<_> = throttle.rules.when.iter().map(ToString::to_string).collect();
        assert_eq!(when, ["429", "503 with retry-after"]);
        assert_eq!((throttle.retry.attempts.get(), throttle.retry.max_body), (100, 65_536));
        assert!(throttle.retries() && throttle.rules.learns);
    }
    let off = &with("url: http://a, throttle: off").expect("a config").upstreams[0].throttle;
    assert!(!off.is_on && !off.retries());
}

#[test]
fn a_throttle_has_the_values_of_the_file() {
    let text = "url: http://a, throttle: { when: [403], default_pause: 5s, max_pause: 1min, \
                retry: { attempts: 1, max_body: 0 }, learn: off }";
    let throttle = &with(text).expect("a config").upstreams[0].throttle;
    let seconds =
        [throttle.rules.default_pause, throttle.rules.max_pause].map(|span| span.as_secs());
    assert_eq!(seconds, [5, 60]);
    assert_eq!((throttle.retry.attempts.get(), throttle.retry.max_body), (1, 0));
    assert!(throttle.is_on && !throttle.retries() && !throttle.rules.learns);
    // A short bound shortens the default with it.
    let text = "url: http://a, throttle: { max_pause: 500ms }";
    let rules = &with(text).expect("a config").upstreams[0].throttle.rules;
    assert_eq!(rules.default_pause, rules.max_pause);
}

#[test]
fn an_upstream_with_body_conditions_gets_no_accept_encoding() {
    let edits = |more: &str| {
        let text = format!("url: http://a, throttle: {{ when: ['200 with json /e=A'] }}{more}");
        let request = &with(&text).expect("a config").upstreams[0].headers.request;
        (request.set.len(), request.remove.len())
    };
    assert_eq!(edits(""), (1, 0));
    assert_eq!(edits(", headers: { request: { remove: [accept-encoding] } }"), (0, 1));
}

#[test]
fn conditions_without_effect_are_warnings() {
    let text = "url: http://a, throttle: { when: [429, 429 with a, 204 with json /e, 503 with retry_after] }";
    let warnings = with(text).expect("a config").warnings();
    let found = ["decides nothing: `429` is met", "has no body", "did you mean `retry-after`?"];
    assert_eq!(warnings.len(), found.len(), "{warnings:?}");
    for (warning, found) in warnings.iter().zip(found) {
        assert!(warning.contains(found), "{warning}");
    }
    let text = "upstreams: { v: { url: http://a, throttle: { pauses: [b] } } }\n\
                limiters: { a: 5/s, b: 5/s }\n\
                routes: [{ suffix: '*', limiters: [a], max_wait: 1s }]\n";
    let warnings = parse(text).expect("a config").warnings();
    assert!(warnings.iter().any(|warning| warning.contains("which no route to it uses")));
}

#[test]
fn reads_health_checks() {
    let health = |text: &str| {
        let config =
            with(&format!("url: http://a, health: {text}")).map_err(|error| error.to_string())?;
        Ok::<_, String>(config.upstreams[0].health.clone())
    };
    let check = health("{ path: '/up?deep' }").expect("a config").expect("checks");
    assert_eq!((check.path.as_str(), check.every), ("/up?deep", Duration::from_secs(5)));
    assert_eq!((check.healthy, check.unhealthy), (2, 3));
    let check = health("{ path: /, every: 100ms, healthy: 1, unhealthy: 100 }").expect("a config");
    let check = check.expect("checks");
    assert_eq!((check.every, check.healthy, check.unhealthy), (Duration::from_millis(100), 1, 100));
    for (text, mistake) in [
        ("{ every: 5s }", "v.health.path: is missing, as in `path: /healthz`"),
        ("{ path: up }", "v.health.path: `up` is no path, as in /healthz"),
        ("{ path: /, every: 99ms }", "v.health.every: `99ms` must be at least 100ms"),
        ("{ path: /, healthy: 0 }", "v.health.healthy: `0` must be at least 1"),
        ("{ path: /, unhealthy: 101 }", "v.health.unhealthy: `101` must be at most 100"),
        ("{ path: /, rise: 1 }", "v.health.rise: unknown key `rise`; did you mean `healthy`?"),
    ] {
        let error = health(text).expect_err(text);
        assert!(error.contains(mistake), "{text}: {error}");
    }
}
