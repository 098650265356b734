//! Tests the addresses of upstreams and how the gateway speaks to them; `certificates.rs` tests their certificates.

use super::parse;
use crate::config::Config;
use rstest::rstest;
use std::time::Duration;

fn with(upstream: &str) -> Result<Config, crate::config::ConfigError> {
    parse(&format!("upstreams: {{ v: {{ {upstream} }} }}\nroutes: [{{ suffix: \"*\" }}]\n"))
}

#[test]
fn what_is_not_said_is_the_default() {
    let config = with("url: https://a").expect("a config");
    let upstream = &config.upstreams[0];
    assert_eq!(upstream.timeouts.connect, Duration::from_secs(2));
    assert_eq!(upstream.timeouts.response, Duration::from_secs(30));
    assert_eq!(upstream.timeouts.idle, Duration::from_secs(4));
    assert_eq!(upstream.pool_size, 1024);
    assert!(!upstream.http2 && !upstream.preserve_host && !upstream.forwarded);
    assert_eq!(upstream.headers, Default::default());
    assert_eq!(upstream.tls, Default::default());
    let short = parse("upstreams: { v: https://a }\nroutes: [{ suffix: \"*\" }]\n");
    assert_eq!(short.expect("a config"), config);
}

#[test]
fn how_an_upstream_is_spoken_to() {
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
#[case::no_url("urls: [http://a, @b]", "urls[1]: `b` is no http:// or https:// URL")]
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
#[case::host("url: http://a, preserve_host: @yes", "preserve_host: `yes` is not one of on, off")]
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
fn one_message_for_an_upstream(#[case] text: &str, #[case] message: &str) {
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
