mod certificates;
mod charges;
mod floors;
mod forward;
mod headers;
mod hints;
mod http;
mod key_rates;
mod limiters;
mod newcomers;
mod reads;
mod schema;
mod services;
mod state_names;
mod syntax;
mod turns;
mod upstreams;
mod vendors;
mod warnings;

use super::*;
use crate::store::{OnLoss, redis::RedisUrl};
use rstest::rstest;
use std::{collections::HashMap, fs, time::Duration};

fn parse(text: &str) -> Result<Config, ConfigError> {
    let variables = HashMap::from([
        ("SET", "6380"),
        ("SECRET", "hunter2"),
        ("EMPTY", ""),
        // Quotes of our own, which may not end the hiding.
        ("TICKS", "` hunter2 {{x}} `"),
    ]);
    Config::parse(text, "test.yaml", Path::new("tests"), &|name| {
        variables.get(name).map(|value| (*value).to_owned())
    })
}

/// Returns all messages for a file with a correct beginning, followed by `text`.
fn mistakes(text: &str) -> Vec<String> {
    let text = format!("upstream: http://a\nroutes: [{{ suffix: \"*\" }}]\n{text}\n");
    let error = parse(&text).expect_err("must be refused");
    error.to_string().lines().map(str::to_owned).collect()
}

/// Indices of the limiters of a route.
fn charged(route: &Route) -> Vec<usize> {
    route.limiters.iter().map(|charge| charge.limiter).collect()
}

#[test]
fn the_first_example_of_the_documentation_is_valid() {
    let config = parse(
        "upstream: https://api.vendor.example\nlimiters:\n  account: 500/min\n  search: 5/s\nroutes:\n  \
         - { suffix: /search, limiters: [search, account], max_wait: 2s }\n  \
         - { suffix: \"*\", limiters: [account], max_wait: 2s }\n",
    )
    .expect("a config");
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.admin.listen.to_string(), "127.0.0.1:9090");
    assert_eq!(config.drain_timeout, Duration::from_secs(30));
    assert_eq!(config.store, StoreConfig::Memory);
    assert!(config.limiting && config.watch);
    assert_eq!(config.upstreams[0].name, "default");
    assert_eq!(config.limiters[0].capacity(), 500);
    assert_eq!(config.limiters[1].rates[0].to_string(), "5/s");
    assert_eq!(charged(&config.routes[0]), [1, 0]);
    assert_eq!(config.routes[0].name, "/search");
    assert_eq!(config.routes[0].max_wait, Duration::from_secs(2));
    assert_eq!(config.routes[0].max_wait_cap, Duration::from_secs(2));
    assert_eq!(config.routes[0].max_waiting, 10_000);
    // Only a Cluster needs one tag for limiters that are used together.
    assert_eq!(config.limiters[1].group, "search");
}

#[test]
fn reads_the_long_forms() {
    let config = parse(
        "listen: 0.0.0.0:80\nadmin: '[::1]:81'\nworkers: 3\naccess_log: off\nwatch: off\ndrain_timeout: 0\n\
         store: { url: 'redis://:${SECRET}@r:${SET}/2', prefix: p, timeout: 20ms, gateways: 3, on_failure: allow, on_loss: trust, functions: off }\nlimiting: off\n\
         upstreams:\n  v: { url: 'https://v.example:444/v2/', connect_timeout: 1s, response_timeout: 5s, limiters: [a] }\n\
         limiters:\n  a: { algorithm: token_bucket, rate: 10/250ms, burst: 3, mode: observe, on_failure: reject, on_loss: close }\n  b: 1/day\n\
         routes:\n  - { name: n, suffix: .json, methods: [GET], host: H.example, upstream: v, limiters: [b, a],\n      \
         max_wait: 1s, max_wait_cap: 1min, max_waiting: 7 }\n",
    )
    .expect("a config");
    assert_eq!((config.workers.get(), config.access_log), (3, Some(AccessLog::Off)));
    assert!(!config.limiting && !config.watch);
    let StoreConfig::Redis { url, prefix, timeout, gateways, on_failure, on_loss } = &config.store
    else {
        panic!("not Redis")
    };
    assert_eq!((*gateways, *on_failure, *on_loss), (3, FailurePolicy::Allow, OnLoss::Trust));
    let trusts: Vec<_> = config.limiters.iter().map(|limiter| limiter.on_loss).collect();
    assert_eq!(trusts, [OnLoss::Close, OnLoss::Trust]);
    let policies: Vec<_> = config.limiters.iter().map(|limiter| limiter.on_failure).collect();
    assert_eq!(policies, [FailurePolicy::Reject, FailurePolicy::Allow]);
    assert_eq!((url.to_string().as_str(), prefix.as_str()), ("r:6380", "p"));
    let same = RedisUrl::parse("redis://:hunter2@r:6380/2").expect("a URL");
    assert!(*url != same && *url == same.without_functions());
    assert_eq!(*timeout, Duration::from_millis(20));
    assert!(!format!("{config:?}").contains("hunter2"), "a secret in Debug");
    let upstream = &config.upstreams[0];
    assert_eq!((upstream.targets[0].base.as_str(), upstream.targets[0].is_https()), ("/v2", true));
    assert_eq!(upstream.timeouts.response, Duration::from_secs(5));
    assert_eq!(config.limiters[0].mode, Mode::Observe);
    assert_eq!(config.limiters[0].capacity(), 3);
    let route = &config.routes[0];
    assert_eq!(route.host.as_deref(), Some("h.example"));
    assert_eq!(charged(route), [1, 0], "the upstream's limiter is charged once");
    assert_eq!(route.max_wait_cap, Duration::from_secs(60));
}

#[rstest]
#[case::misspelt_key(
    "listne: 1",
    "test.yaml:3:1: listne: unknown key `listne`; did you mean `listen`?"
)]
#[case::unknown_key(
    "store: { flavour: x, url: redis://a }",
    "test.yaml:3:10: store.flavour: unknown key `flavour`; known here: url, prefix, timeout, gateways, tls, on_failure"
)]
#[case::double_key(
    "listen: 1.1.1.1:1\nlisten: 1.1.1.1:2",
    "test.yaml:4:1: listen: written twice; line 3 has it already"
)]
#[case::double_key_within(
    "limiters: { a: { rate: 5/s, rate: 6/s } }",
    "test.yaml:3:29: limiters.a.rate: written twice; line 3 has it already"
)]
#[case::unknown_policy(
    "store: { url: redis://a, on_failure: shard }",
    "test.yaml:3:38: store.on_failure: `shard` is not one of share, allow, reject; did you mean `share`?"
)]
#[case::unknown_functions(
    "store: { url: redis://a, functions: library }",
    "test.yaml:3:37: store.functions: `library` is not one of auto, off"
)]
#[case::unknown_policy_of_a_limiter(
    "limiters: { a: { rate: 5/s, on_failure: open } }",
    "test.yaml:3:41: limiters.a.on_failure: `open` is not one of share, allow, reject"
)]
#[case::policy_of_others(
    "store: { url: redis://a, failure_mode: allow }",
    "test.yaml:3:26: store.failure_mode: unknown key `failure_mode`; did you mean `on_failure`?"
)]
#[case::misspelt_algorithm(
    "limiters: { a: { rate: 5/s, algorithm: token_buckte } }",
    "test.yaml:3:40: limiters.a.algorithm: `token_buckte` is no algorithm; did you mean `token_bucket`?"
)]
#[case::no_rate(
    "limiters: { a: { burst: 5 } }",
    "test.yaml:3:16: limiters.a.rate: is missing, as in `rate: 5/s`"
)]
#[case::zero_rate(
    "limiters: { a: 0/s }",
    "test.yaml:3:16: limiters.a: `0/s` allows nothing; the count must be at least 1"
)]
#[case::negative_rate(
    "limiters: { a: -5/s }",
    "test.yaml:3:16: limiters.a: `-5/s` is negative; the count must be at least 1"
)]
#[case::nan_rate(
    "limiters: { a: NaN/s }",
    "test.yaml:3:16: limiters.a: `NaN/s` is not a whole number"
)]
#[case::huge_rate(
    "limiters: { a: 99999999999999999999/s }",
    "test.yaml:3:16: limiters.a: `99999999999999999999/s` is too large"
)]
#[case::bad_unit(
    "limiters: { a: 5/fortnight }",
    "test.yaml:3:16: limiters.a: `5/fortnight` has the unknown unit `fortnight`; use ms, s, min, h (hour) or d (day)"
)]
#[case::bare_rate(
    "limiters: { a: 5 }",
    "test.yaml:3:16: limiters.a: `5` is not a rate; write COUNT/PERIOD, as in 5/s, 300/min or 10/250ms"
)]
#[case::zero_burst(
    "limiters: { a: { rate: 5/s, burst: 0 } }",
    "test.yaml:3:36: limiters.a.burst: `0` must be at least 1"
)]
#[case::fractional_burst(
    "limiters: { a: { rate: 5/s, burst: 1.5 } }",
    "test.yaml:3:36: limiters.a.burst: `1.5` is not a whole number"
)]
#[case::bad_name(
    "limiters: { 'a b': 5/s }",
    "test.yaml:3:13: limiters.a b: a name holds letters, digits, `_`, `-` and `.`, at most 64"
)]
#[case::no_unit(
    "drain_timeout: 10",
    "test.yaml:3:16: drain_timeout: `10` needs a unit: 500ms, 10s, 5min, 1h, 1d"
)]
#[case::no_address(
    "listen: :80",
    "test.yaml:3:9: listen: `:80` names no IP; write `0.0.0.0:80` for all addresses of this machine, `127.0.0.1:80` for itself alone"
)]
#[case::same_address(
    "listen: 1.1.1.1:1\nadmin: 1.1.1.1:1",
    "test.yaml:4:8: admin: the same address as `listen`; the admin side needs its own"
)]
#[case::same_address_in_the_long_form(
    "listen: 1.1.1.1:1\nadmin: { listen: 1.1.1.1:1 }",
    "test.yaml:4:8: admin: the same address as `listen`; the admin side needs its own"
)]
#[case::read_without_a_token(
    "admin: { read: token }",
    "test.yaml:3:16: admin.read: needs a `token`, as in `token: \"${file:/run/secrets/admin}\"`"
)]
#[case::empty_token(
    "admin: { token: '${EMPTY}' }",
    "test.yaml:3:17: admin.token: is empty; without a token, leave the key out"
)]
#[case::not_a_choice("limiting: maybe", "test.yaml:3:11: limiting: `maybe` is not one of on, off")]
#[case::not_a_map("limiters: 5", "test.yaml:3:11: limiters: must be a map of `key: value` lines")]
#[case::not_a_scalar("listen: [1]", "test.yaml:3:9: listen: must be a single value")]
#[case::unset_variable(
    "listen: ${NOPE}",
    "test.yaml:3:9: listen: the environment variable `NOPE` is not set; set it, or write `${NOPE:-default}`"
)]
#[case::open_variable(
    "listen: ${NOPE",
    "test.yaml:3:9: listen: `${` without its `}`; write `$${` for the characters themselves"
)]
#[case::bad_store(
    "store: mongodb://a",
    "test.yaml:3:8: store: is not a store URL: `mongodb://` is not a scheme for a store; use `redis://`, `rediss://`, `redis-sentinel://`, `redis-cluster://` or `unix:`"
)]
#[case::cluster_with_a_database(
    "store: redis-cluster://a/1",
    "test.yaml:3:8: store: is not a store URL: a Redis Cluster has no databases but 0; end the URL after its hosts"
)]
#[case::tls_of_clear_text(
    "store: { url: redis://a, tls: { server_name: a } }",
    "test.yaml:3:31: store.tls: needs `rediss://`, `rediss-sentinel://` or `rediss-cluster://`"
)]
#[case::no_name_of_the_store(
    "store: { url: rediss://a, tls: { server_name: 'a:1' } }",
    "test.yaml:3:47: store.tls.server_name: `a:1` is no host name; write it without scheme and port"
)]
#[case::store_password_as_a_key(
    "store: { url: redis://a, password: p }",
    "test.yaml:3:26: store.password: unknown key `password`; it is a part of the URL, as in redis://USER:PASSWORD@HOST:PORT/DATABASE or redis-sentinel://HOST:PORT,HOST:PORT/MASTER"
)]
#[case::no_yaml("a: [", "test.yaml:3:4: this is not YAML: unclosed bracket")]
fn reports_one_mistake_with_its_place(#[case] text: &str, #[case] message: &str) {
    let all = mistakes(text);
    assert!(all.iter().any(|line| line.starts_with(message)), "{all:#?}");
    assert_eq!(all.len(), 1, "{all:#?}");
}

#[rstest]
#[case::tie(
    "- { suffix: /a, methods: [GET, PUT] }\n- { suffix: /a/, methods: [PUT, POST], name: b }",
    "test.yaml:4:3: routes[1]: matches the same requests as routes[0] in line 3, and neither is more specific; change its suffix, host or methods"
)]
#[case::same_name(
    "- { suffix: /a, methods: [GET] }\n- { suffix: /a }",
    "test.yaml:4:3: routes[1]: has the name `/a` of routes[0] in line 3; give it a `name`, which labels metrics and logs"
)]
#[case::no_suffix(
    "- { name: a }",
    "test.yaml:3:3: routes[0].suffix: is missing; \"*\" matches every path, and `path` a whole one"
)]
#[case::suffix_and_path(
    "- { suffix: /a, path: /a }",
    "test.yaml:3:23: routes[0].path: is beside `suffix`; a route has one of the two"
)]
#[case::no_template(
    "- { path: '/a/{b' }",
    "test.yaml:3:11: routes[0].path: `/a/{b` has a `{` without its `}` in one segment; `{{` is the character itself"
)]
#[case::template_without_quotes(
    "- { path: /a/{b} }",
    "test.yaml:3:14: this is not YAML: while parsing a flow mapping, did not find expected ',' or '}'; it needs quotes: `\"/a/{b}\"`"
)]
#[case::same_template(
    "- { path: '/a/{b}' }\n- { path: '/a/{c}' }",
    "test.yaml:4:3: routes[1]: matches the same requests as routes[0] in line 3, and neither is more specific; change its path, host or methods"
)]
#[case::crossing(
    "- { path: '/a/{b}' }\n- { path: '/{a}/b', methods: [GET] }",
    "test.yaml:4:3: routes[1]: has a path that crosses that of routes[0] in line 3: some paths match both, and neither is more literal; add a route for the paths that match both, or change one of them"
)]
#[case::crossing_decided_for_another_method(
    "- { path: '/a/{b}' }\n- { path: '/{a}/b' }\n- { path: '/a/b', methods: [GET] }",
    "test.yaml:4:3: routes[1]: has a path that crosses that of routes[0] in line 3: some paths match both, and neither is more literal; add a route for the paths that match both, or change one of them"
)]
#[case::star_within(
    "- { suffix: '/a/*' }",
    "test.yaml:3:13: routes[0].suffix: `/a/*` may not hold `*`: a suffix is compared as written, and only \"*\" alone matches all; all paths below it: `path: \"/a/{*rest}\"`"
)]
#[case::star_in_a_path(
    "- { path: '/a/**' }",
    "test.yaml:3:11: routes[0].path: `/a/**` may not hold `*`: a path is compared as written; all paths below it: `path: \"/a/{*rest}\"`"
)]
#[case::star_in_the_middle_of_a_path(
    "- { path: '/a/*/b' }",
    "test.yaml:3:11: routes[0].path: `/a/*/b` may not hold `*`: a path is compared as written; one segment: `path: \"/a/{name}/b\"`"
)]
#[case::unknown_limiter(
    "- { suffix: /a, limiters: [serach] }",
    "test.yaml:3:28: routes[0].limiters[0]: `serach` is no limiter; there is no limiter"
)]
#[case::unknown_upstream(
    "- { suffix: /a, upstream: b }",
    "test.yaml:3:27: routes[0].upstream: `b` is no upstream; there are: default"
)]
#[case::percentage_of_nothing(
    "- { suffix: /a, max_wait: 50% }",
    "test.yaml:3:27: routes[0].max_wait: is a percentage of a limiter's period, and no limiter with a rate is enforced here; write a duration"
)]
#[case::no_percentage(
    "- { suffix: /a, max_wait: 0% }",
    "test.yaml:3:27: routes[0].max_wait: `0%` must be 1% to 10000%"
)]
#[case::too_long(
    "- { suffix: /a, max_wait: 2h }",
    "test.yaml:3:27: routes[0].max_wait: `2h` must be at most 1h"
)]
#[case::cap(
    "- { suffix: /a, max_wait: 2s, max_wait_cap: 1s }",
    "test.yaml:3:45: routes[0].max_wait_cap: is below max_wait; no request may wait longer than the cap"
)]
#[case::small_method(
    "- { suffix: /a, methods: [get] }",
    "test.yaml:3:27: routes[0].methods[0]: `get` must be written in capitals: `GET`"
)]
#[case::host(
    "- { suffix: /a, host: 'http://a' }",
    "test.yaml:3:23: routes[0].host: `http://a` is no host name; write it without scheme and port"
)]
#[case::no_queue(
    "- { suffix: /a, max_waiting: 0 }",
    "test.yaml:3:30: routes[0].max_waiting: `0` must be at least 1"
)]
fn reports_one_mistake_in_a_route(#[case] routes: &str, #[case] message: &str) {
    let error =
        parse(&format!("upstream: http://a\nroutes:\n{routes}\n")).expect_err("must be refused");
    assert_eq!(error.to_string(), message);
}

#[test]
fn all_mistakes_are_reported_in_the_order_of_the_file() {
    let all = mistakes("workers: 0\nlimiters: { a: 5/x, b: -1/s }\nstroe: memory");
    let places: Vec<_> = all.iter().map(|line| &line[..line.find(": ").unwrap()]).collect();
    assert_eq!(places, ["test.yaml:3:10", "test.yaml:4:16", "test.yaml:4:24", "test.yaml:5:1"]);
}

#[test]
fn no_message_quotes_a_substituted_value() {
    for text in [
        "store: 'redis://:hunter2@'",
        "store: '${SECRET}redis://a'",
        "store: 'redis-sentinel://a/m?sentinel_user=hunter2'",
        "store: 'unix:hunter2'",
        "upstreams: { v: '${SECRET}' }",
        "upstreams: { v: { url: 'ftp://a:${SECRET}@b' } }",
        "upstreams: { v: 'https://user:hunter2@b?key=hunter2' }",
        "upstreams: { v: { url: 'https://hunter2@b' } }",
        "upstreams: { v: { urls: ['https://b/?key=hunter2'] } }",
        "upstreams: { v: { urls: 'https://a:hunter2@b' } }",
        "listen: 'http://a:hunter2@b'",
        "redact: ['${TICKS}']",
        "resolver: ['${TICKS}']",
        "limiters: { a: { rate: 5/s, key: '${TICKS}' } }",
        "tls: { cert: '${SECRET}', key: '${SECRET}' }",
        "admin: { token: 'hunter2 hunter2' }",
    ] {
        let all = mistakes(text).join("\n");
        assert!(!all.contains("hunter2"), "{all}");
    }
    let named = "{ name: '${SECRET}', suffix: ";
    let text = format!("upstream: http://a\nroutes: [{named} /a }}, {named} /b }}]\n");
    let error = parse(&text).expect_err("must be refused").to_string();
    assert!(error.contains("has the name of routes[0] in line 2"), "{error}");
}

#[test]
fn substitutes_variables_defaults_files_and_escapes() {
    let config = |listen: &str| {
        parse(&format!("upstream: http://a\nroutes: [{{ suffix: \"*\" }}]\nlisten: {listen}\n"))
            .map(|config| config.listen.port())
    };
    assert_eq!(config("127.0.0.1:${SET}"), Ok(6380));
    assert_eq!(config("127.0.0.1:${UNSET:-7}"), Ok(7));
    assert_eq!(config("127.0.0.1:${EMPTY:-8}"), Ok(8));
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(&file, "127.0.0.1:9\n").expect("written");
    assert_eq!(config(&format!("${{file:{}}}", file.path().display())), Ok(9));
    assert!(
        !parse("upstream: http://a\nroutes: [{ suffix: \"*\" }]\nlimiting: false\n")
            .expect("a config")
            .limiting
    );
    let unset = parse("upstream: ${UNSET}\nroutes: [{ suffix: \"*\" }]\n").expect_err("unset");
    assert_eq!(unset.mistakes.len(), 1, "{unset}");
    let missing = config("${file:no/such/file}").expect_err("no file").to_string();
    assert!(missing.contains("cannot read tests/no/such/file"), "{missing}");
}
