//! How clients are served: time-outs, sizes, proxies, names that no log shows.

use super::{mistakes, parse};
use crate::config::{ClientLimits, Config, Limits};
use rstest::rstest;
use std::{num::NonZeroUsize, time::Duration};

fn good(text: &str) -> Config {
    let text = format!("upstream: http://a\nroutes: [{{ suffix: \"*\" }}]\n{text}\n");
    parse(&text).expect("a config")
}

/// Checks the only message. `@` in the text marks the place that the message names.
fn one_message(text: &str, message: &str) {
    let (line, column) = text
        .lines()
        .enumerate()
        .find_map(|(i, line)| Some((i + 3, line.find('@')? + 1)))
        .expect("a mark");
    assert_eq!(
        mistakes(&text.replacen('@', "", 1)),
        [format!("test.yaml:{line}:{column}: {message}")]
    );
}

#[test]
fn omitted_client_limits_have_defaults() {
    let config = good("");
    let client = ClientLimits {
        header_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(75),
        body_timeout: Duration::from_secs(30),
        max_connections: None,
        max_connections_per_address: None,
    };
    assert_eq!((config.client, config.limits), (client, Limits::default()));
    assert_eq!(config.client.header_timeout, Duration::from_secs(10));
    assert_eq!(config.client.idle_timeout, Duration::from_secs(75));
    assert_eq!(config.client.body_timeout, Duration::from_secs(30));
    assert_eq!(config.client.max_connections, None);
    assert_eq!((config.limits.header_bytes, config.limits.headers), (32 << 10, 100));
    assert_eq!((config.limits.body, config.limits.uri), (None, 8 << 10));
    assert!(config.tls.is_none() && !config.proxy_protocol);
    assert!(config.redact.is_empty() && config.resolver.is_empty());
    // As if nothing was written.
    assert_eq!(good("client:\nlimits: ~\ntls:\nredact:\nresolver:\nproxy_protocol:"), config);
    assert_eq!(good("client: {}\nlimits: {}\nredact: []\nresolver: []"), config);
}

#[test]
fn reads_the_limits_of_clients() {
    let config = good(
        "client: { header_timeout: 1s, idle_timeout: 2min, body_timeout: 3ms, max_connections: 7, max_connections_per_address: 3 }\n\
         limits: { header_bytes: 64KiB, headers: 50, body: 10MB, uri: 16KiB }",
    );
    let (client, limits) = (config.client, config.limits);
    assert_eq!(client.header_timeout, Duration::from_secs(1));
    assert_eq!(client.idle_timeout, Duration::from_secs(120));
    assert_eq!(client.body_timeout, Duration::from_millis(3));
    assert_eq!(client.max_connections, NonZeroUsize::new(7));
    assert_eq!(client.max_connections_per_address, NonZeroUsize::new(3));
    assert_eq!((limits.header_bytes, limits.headers), (64 << 10, 50));
    assert_eq!((limits.body, limits.uri), (Some(10_000_000), 16 << 10));
    assert_eq!(good("client: { max_connections: 0 }").client.max_connections, None);
    assert_eq!(good("limits: { body: none }").limits.body, None);
}

#[rstest]
#[case::bytes("500B", 500)]
#[case::bare("512", 512)]
#[case::spaced("1 KiB", 1024)]
#[case::decimal("4kB", 4_000)]
#[case::capitals("4KB", 4_000)]
#[case::binary("4KiB", 4_096)]
#[case::mega("1MB", 1_000_000)]
#[case::mebi("1MiB", 1 << 20)]
#[case::giga("2GB", 2_000_000_000)]
#[case::gibi("2GiB", 2 << 30)]
fn reads_sizes(#[case] text: &str, #[case] bytes: u64) {
    assert_eq!(good(&format!("limits: {{ body: {text} }}")).limits.body, Some(bytes));
}

#[test]
fn the_request_line_is_a_part_of_the_headers() {
    let limits = good("limits: { header_bytes: 4KiB }").limits;
    assert_eq!(limits.uri, 2 << 10, "no more than half");
    assert_eq!(good("limits: { header_bytes: 4KiB, uri: 4095 }").limits.uri, 4095);
}

#[rstest]
#[case::no_unit(
    "header_timeout: @10",
    "client.header_timeout: `10` needs a unit: 500ms, 10s, 5min, 1h, 1d"
)]
#[case::nothing("header_timeout: @0", "client.header_timeout: `0` must be at least 1ms")]
#[case::too_short("body_timeout: @1us", "client.body_timeout: `1us` must be at least 1ms")]
#[case::too_long("idle_timeout: @2d", "client.idle_timeout: `2d` must be at most 1d")]
#[case::negative("max_connections: @-1", "client.max_connections: `-1` is negative")]
#[case::too_many(
    "max_connections: @10000001",
    "client.max_connections: `10000001` must be at most 10000000"
)]
#[case::thousands(
    "max_connections: @10k",
    "client.max_connections: `10k` is not a whole number; write `10000`"
)]
#[case::timeout(
    "@timeout: 5s",
    "client.timeout: unknown key `timeout`; did you mean `header_timeout` or `body_timeout`?"
)]
#[case::nginx(
    "@keepalive_timeout: 5s",
    "client.keepalive_timeout: unknown key `keepalive_timeout`; did you mean `idle_timeout`?"
)]
#[case::envoy(
    "@request_headers_timeout: 5s",
    "client.request_headers_timeout: unknown key `request_headers_timeout`; did you mean `header_timeout`?"
)]
#[case::haproxy(
    "@maxconn: 5",
    "client.maxconn: unknown key `maxconn`; did you mean `max_connections`?"
)]
#[case::near(
    "@idle_timout: 5s",
    "client.idle_timout: unknown key `idle_timout`; did you mean `idle_timeout`?"
)]
#[case::far(
    "@colour: red",
    "client.colour: unknown key `colour`; known here: header_timeout, idle_timeout, body_timeout, max_connections, max_connections_per_address"
)]
fn reports_one_mistake_in_client(#[case] text: &str, #[case] message: &str) {
    one_message(&format!("client: {{ {text} }}"), message);
}

#[rstest]
#[case::too_small("header_bytes: @1000", "limits.header_bytes: `1000` must be at least 1KiB")]
#[case::too_large("header_bytes: @2MiB", "limits.header_bytes: `2MiB` must be at most 1MiB")]
#[case::nginx_unit(
    "header_bytes: @32k",
    "limits.header_bytes: `32k` has the unknown unit `k`; write `32KiB`"
)]
#[case::kubernetes_unit(
    "body: @10Mi",
    "limits.body: `10Mi` has the unknown unit `Mi`; write `10MiB`"
)]
#[case::small_unit(
    "body: @10mib",
    "limits.body: `10mib` has the unknown unit `mib`; write `10MiB`"
)]
#[case::words(
    "body: @10 bytes",
    "limits.body: `10 bytes` has the unknown unit `bytes`; write `10B`"
)]
#[case::other_unit(
    "body: @10 kilo",
    "limits.body: `10 kilo` has the unknown unit `kilo`; use B, KiB, MiB, GiB, KB, MB or GB"
)]
#[case::fraction("body: @1.5MiB", "limits.body: `1.5MiB` is not a whole number; write `1536KiB`")]
#[case::no_fraction("body: @0.3B", "limits.body: `0.3B` is not a whole number")]
#[case::negative("body: @-1KiB", "limits.body: `-1KiB` is negative")]
#[case::unlimited("body: @unlimited", "limits.body: `unlimited` needs a whole number")]
#[case::nothing("body: @0", "limits.body: `0` would refuse every body; write `none` for any size")]
#[case::overflow("body: @99999999999GiB", "limits.body: `99999999999GiB` is too large")]
#[case::no_headers("headers: @0", "limits.headers: `0` must be at least 1")]
#[case::many_headers("headers: @1001", "limits.headers: `1001` must be at most 1000")]
#[case::small_uri("uri: @63", "limits.uri: `63` must be at least 64B")]
#[case::large_uri("header_bytes: 1MiB, uri: @64001", "limits.uri: `64001` must be at most 64KB")]
#[case::uri_above_headers(
    "uri: @32KiB",
    "limits.uri: must be below `header_bytes`, which is 32KiB and counts it too"
)]
#[case::uri_above_small_headers(
    "header_bytes: 4KiB, uri: @4KiB",
    "limits.uri: must be below `header_bytes`, which is 4KiB and counts it too"
)]
#[case::nginx(
    "@client_max_body_size: 5MiB",
    "limits.client_max_body_size: unknown key `client_max_body_size`; did you mean `body`?"
)]
#[case::max_body(
    "@max_body_size: 5MiB",
    "limits.max_body_size: unknown key `max_body_size`; did you mean `body`?"
)]
#[case::buffers(
    "@large_client_header_buffers: 8KiB",
    "limits.large_client_header_buffers: unknown key `large_client_header_buffers`; did you mean `header_bytes`?"
)]
#[case::far(
    "@colour: red",
    "limits.colour: unknown key `colour`; known here: header_bytes, headers, body, json_body, retry_bodies, uri"
)]
fn reports_one_mistake_in_limits(#[case] text: &str, #[case] message: &str) {
    one_message(&format!("limits: {{ {text} }}"), message);
}

#[test]
fn quotas_under_limits_are_one_mistake() {
    let text = "upstream: http://a\nlimits: { a: 5/s, b: { rate: 5/s } }\n\
                routes: [{ suffix: /a, limiters: [a, b], max_wait: 50% }]\n";
    let error = parse(text).expect_err("must be refused").to_string();
    let message =
        "test.yaml:2:9: limits: holds quotas, which belong under `limiters`; did you mean that?";
    assert_eq!(error, message);
}

#[test]
fn reads_redacted_names_and_dns_servers() {
    let config = good(
        "redact: [X-Shop-Secret, sig, 'a[b]']\nresolver: [10.0.0.2, '10.0.0.3:5353', 'fd00::1', '[fd00::2]', '[fd00::3]:54']",
    );
    assert_eq!(config.redact, ["x-shop-secret", "sig", "a[b]"]);
    let servers: Vec<_> = config.resolver.iter().map(ToString::to_string).collect();
    let expected = ["10.0.0.2:53", "10.0.0.3:5353", "[fd00::1]:53", "[fd00::2]:53", "[fd00::3]:54"];
    assert_eq!(servers, expected);
}

#[rstest]
#[case::no_list("redact: @sig", "redact: must be a list: `[sig]`")]
#[case::empty("redact: [@'']", "redact[0]: `` is no name of a query parameter or a header")]
#[case::spaced("redact: [@a b]", "redact[0]: `a b` is no name of a query parameter or a header")]
#[case::twice("redact: [sig, @SIG]", "redact[1]: named twice")]
#[case::name(
    "resolver: [@dns.internal]",
    "resolver[0]: `dns.internal` is no address; write IP or IP:PORT, as in 10.0.0.2 or \"[fd00::1]:53\""
)]
#[case::no_port(
    "resolver: [@'10.0.0.2:0']",
    "resolver[0]: `10.0.0.2:0` names the port 0, on which no server listens"
)]
#[case::same_server("resolver: [10.0.0.2, @'10.0.0.2:53']", "resolver[1]: named twice")]
#[case::many_servers(
    "resolver: @[1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4, 1.1.1.5, 1.1.1.6, 1.1.1.7, 1.1.1.8, 1.1.1.9]",
    "resolver: must hold at most 8"
)]
#[case::same_proxy("trusted_proxies: [10.0.0.1, @10.0.0.1/32]", "trusted_proxies[1]: named twice")]
#[case::nobody(
    "proxy_protocol: @on",
    "proxy_protocol: is on, and no proxy may use it; name the proxies before the gateway, as in `trusted_proxies: [10.0.0.0/8]`"
)]
#[case::nobody_named(
    "trusted_proxies: []\nproxy_protocol: @on",
    "proxy_protocol: is on, and no proxy may use it; name the proxies before the gateway, as in `trusted_proxies: [10.0.0.0/8]`"
)]
#[case::no_network(
    "trusted_proxies: [@proxy]\nproxy_protocol: on",
    "trusted_proxies[0]: `proxy` is no network; write ADDRESS/BITS, as in 10.0.0.0/8 or fd00::/8, or an address"
)]
#[case::no_switch("proxy_protocol: @v2", "proxy_protocol: `v2` is not one of on, off")]
#[case::ssl("@ssl: on", "ssl: unknown key `ssl`; did you mean `tls`?")]
#[case::timeout(
    "@timeout: 5s",
    "timeout: unknown key `timeout`; time-outs of clients are written under `client`, those of an upstream under `upstreams.NAME`"
)]
#[case::keepalive(
    "@keepalive_timeout: 5s",
    "keepalive_timeout: unknown key `keepalive_timeout`; what clients may take is written `client: { header_timeout, idle_timeout, body_timeout, max_connections }`"
)]
#[case::body_size(
    "@client_max_body_size: 5MiB",
    "client_max_body_size: unknown key `client_max_body_size`; the size of a body is written `limits: { body: 10MiB }`"
)]
#[case::headers(
    "@add_headers: { a: b }",
    "add_headers: unknown key `add_headers`; changes of headers belong to an upstream or a route"
)]
#[case::cert(
    "@cert: a",
    "cert: unknown key `cert`; certificates are written `tls: { cert: FILE, key: FILE }`"
)]
#[case::resolvers(
    "@resolvers: [10.0.0.2]",
    "resolvers: unknown key `resolvers`; did you mean `resolver`?"
)]
fn reports_one_mistake_in_keys_of_the_process(#[case] text: &str, #[case] message: &str) {
    // A misspelt section is one mistake, whatever it contains.
    one_message(text, message);
}

#[test]
fn reads_the_switch_of_the_proxy_protocol() {
    let config = good("trusted_proxies: [10.0.0.0/8]\nproxy_protocol: on");
    assert!(config.proxy_protocol);
    assert!(good("trusted_proxies: [10.0.0.0/8]\nproxy_protocol: true").proxy_protocol);
    assert!(!good("proxy_protocol: off").proxy_protocol);
}
