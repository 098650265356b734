//! One table of requests, each shown to `paceway explain` and sent through a gateway with the same configuration. The
//! origin sees which route took it, and the levels show which limiters were charged, and how much.

use crate::support::{Conn, Gateway, Upstream, paceway_in, request};
use serde_json::Value;
use std::fs;

/// Buckets so slow that no permit comes back during the test.
const CONFIG: &str = "trusted_proxies: [127.0.0.0/8]
upstreams:
  first: { url: URL, limiters: [account] }
  second: { url: URL }
limiters:
  account: 1000/day
  shop: { rate: 1000/day, key: '{header.x-shop}' }
  caller: { rate: [1000/day, 9000/7d], key: '{client_ip}:{query.user}' }
  place: { rate: 1000/day, key: '{host}{path}', mode: observe }
  secret: { rate: 1000/day, key: '{header.authorization}' }
  method: { rate: 1000/day, key: '{method}-{segment.1}' }
  none: { rate: 1/day, mode: 'off' }
routes:
  - ROUTE{ name: search, suffix: /search, upstream: first, limiters: [shop, none] }
  - ROUTE{ name: search-post, suffix: /search, methods: [POST], upstream: first, limiters: [{ limiter: caller, cost: '{header.x-cost}' }] }
  - ROUTE{ name: internal, suffix: /search, host: api.internal, upstream: second, limiters: [place, account] }
  - ROUTE{ name: flights, suffix: /flights/search, upstream: second, limiters: [shop, { limiter: account, cost: 3 }] }
  - ROUTE{ name: json, suffix: .json, upstream: second, limiters: [secret] }
  - ROUTE{ name: methods, suffix: /any, methods: [GET, PUT, DELETE], upstream: second, limiters: [method] }
  - ROUTE{ name: free, suffix: /free, upstream: second }
";

/// Method, target, and fields.
type Row = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const TABLE: &[Row] = &[
    ("GET", "/search", &[]),
    ("GET", "/search", &[("X-Shop", "acme")]),
    ("GET", "/search?q=1", &[("X-Shop", "a b/%")]),
    ("GET", "/search", &[("X-Shop", "one"), ("X-Shop", "two")]),
    ("GET", "/search", &[("X-Shop", "acme"), ("Connection", "x-shop")]),
    ("HEAD", "/v2/search/", &[("X-Shop", "acme")]),
    ("GET", "//x/..//%73earch/", &[("X-Shop", "acme")]),
    ("GET", "/search;v=1", &[]),
    ("GET", "/SEARCH", &[]),
    ("GET", "/x%2fsearch", &[]),
    ("GET", "/research", &[]),
    ("POST", "/search?user=7", &[("X-Cost", "5")]),
    ("POST", "/search?user=7", &[("X-Cost", "0")]),
    ("POST", "/search?user=7&user=8", &[]),
    ("POST", "/search", &[("X-Cost", "1001")]),
    ("POST", "/search", &[("X-Cost", "many")]),
    ("POST", "/search?user=", &[("X-Forwarded-For", "203.0.113.9, 127.0.0.2")]),
    ("POST", "/search", &[("X-Forwarded-For", "203.0.113.9, unknown")]),
    ("POST", "/search", &[("X-Forwarded-For", "2001:DB8::1")]),
    ("GET", "/search", &[("Host", "api.internal")]),
    ("GET", "/search", &[("Host", "API.Internal:8080")]),
    ("POST", "/a/search", &[("Host", "api.internal")]),
    ("GET", "/flights/search", &[("X-Shop", "acme"), ("Host", "api.internal")]),
    ("GET", "/v2/flights/search", &[("X-Shop", "acme")]),
    ("GET", "http://api.internal/search", &[("X-Shop", "acme")]),
    ("GET", "/list.json", &[("Authorization", "Bearer hunter2")]),
    ("GET", "/list.json", &[]),
    ("GET", "/list.JSON", &[]),
    ("PUT", "/a/any", &[]),
    ("DELETE", "/%61/any?x", &[]),
    ("POST", "/any", &[]),
    ("HEAD", "/any", &[]),
    ("OPTIONS", "/free", &[]),
    ("OPTIONS", "/free", &[("Max-Forwards", "0")]),
    ("GET", "/free", &[("Expect", "soon")]),
    ("TRACE", "/free", &[]),
    ("get", "/free", &[]),
    ("GET", "/nothing", &[]),
    ("GET", "/free", &[("Host", "a,b")]),
];

/// The configuration, in which each route tells the origin its name.
fn config(upstream: &Upstream) -> String {
    let lines = CONFIG.lines().map(|line| match line.split_once("ROUTE{ name: ") {
        Some((before, rest)) => {
            let name = rest.split(',').next().expect("a name");
            let headers = format!("headers: {{ request: {{ set: {{ x-route: {name} }} }} }}");
            format!("{before}{{ {headers}, name: {rest}\n")
        }
        None => format!("{line}\n"),
    });
    lines.collect::<String>().replace("URL", &upstream.url())
}

/// The head of a request with one `Host`.
fn head(method: &str, target: &str, fields: &[(&str, &str)]) -> String {
    let head = request(method, target, fields);
    match fields.iter().any(|(name, _)| *name == "Host") {
        true => head.replacen("Host: localhost\r\n", "", 1),
        false => head,
    }
}

/// The free permits of the bucket that a limiter of an explanation names.
async fn level(gateway: &Gateway, limiter: &Value) -> i64 {
    let name = limiter["name"].as_str().expect("a name");
    let page = match limiter["key"].as_str() {
        Some(key) => {
            let key = key.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
            format!("/limiters/{name}/keys/{key}")
        }
        None => format!("/limiters/{name}"),
    };
    let state = gateway.page(&page).await.json();
    state["level"].as_i64().unwrap_or_else(|| panic!("no level on {page}: {state}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_and_the_gateway_agree_on_every_request() {
    let upstream = Upstream::ok().await;
    let yaml = config(&upstream);
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("gateway.yaml"), &yaml).expect("a file");
    let gateway = Gateway::start(&yaml).await;
    let account = serde_json::json!({ "name": "account", "key": null });
    let mut routes = Vec::new();
    for (method, target, fields) in TABLE {
        let row = format!("{method} {target} {fields:?}");
        let mut args = vec!["explain", "gateway.yaml", method, target, "--json"];
        let headers: Vec<_> =
            fields.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        headers.iter().for_each(|header| args.extend(["-H", header]));
        let output = paceway_in(dir.path(), &args, &[]);
        let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let is_forwarded = said["forwarded"] == true;
        assert_eq!(output.status.code(), Some(i32::from(!is_forwarded)), "{row}");
        assert_eq!(output.stderr, b"", "{row}");

        let limiters = said["limiters"].as_array().expect("a list");
        let is_asked = |limiter: &&Value| is_forwarded && limiter["asked"] == true;
        let mut expected = Vec::new();
        for limiter in limiters.iter().filter(is_asked) {
            let cost = limiter["cost"].as_i64().expect("a cost");
            expected.push((limiter, level(&gateway, limiter).await - cost));
        }
        let names_account = expected.iter().any(|(limiter, _)| limiter["name"] == "account");
        if !names_account {
            expected.push((&account, level(&gateway, &account).await));
        }
        let calls = upstream.calls().len();
        let mut conn = Conn::to(gateway.listen).await.expect("connect");
        conn.send(head(method, target, fields)).await.expect("send");
        let answer = conn.answer_to(method).await.expect("an answer");
        for (limiter, expected) in expected {
            assert_eq!(level(&gateway, limiter).await, expected, "{row}: {limiter}");
        }
        let calls = upstream.calls().split_off(calls);
        let refused = match said["refused"].as_str() {
            Some(refused) => Some(refused),
            None => limiters.iter().find_map(|limiter| limiter["refused"].as_str().map(|_| "400")),
        };
        match refused {
            None => {
                let took: Vec<_> = calls.iter().map(|call| call.head.get("x-route")).collect();
                assert_eq!(
                    (answer.status, took),
                    (200, vec![said["route"]["name"].as_str()]),
                    "{row}"
                );
                routes.push(said["route"]["name"].as_str().expect("a name").to_owned());
            }
            Some(refused) => {
                assert!(
                    refused.starts_with(&answer.status.to_string()),
                    "{row}: {refused}, {answer:?}"
                );
                assert_eq!(calls.len(), 0, "{row}");
            }
        }
    }
    routes.sort();
    routes.dedup();
    assert_eq!(routes.len(), 7, "a route that no request of the table took: {routes:?}");
}
