//! One table of requests, each shown to `paceway explain` and sent through a gateway with the same configuration. The
//! origin sees which route took it, and the levels show which limiters were charged, and how much.

use crate::support::{Gateway, Upstream, paceway_in, request};
use serde_json::Value;
use std::{fs, path::Path};

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
  order: { rate: 1000/day, key: '{path.shop}' }
  model: { rate: 1000/day, key: '{body./model}' }
routes:
  - ROUTE{ name: search, suffix: /search, upstream: first, limiters: [shop, none] }
  - ROUTE{ name: search-post, suffix: /search, methods: [POST], upstream: first, limiters: [{ limiter: caller, cost: '{header.x-cost}' }] }
  - ROUTE{ name: internal, suffix: /search, host: api.internal, upstream: second, limiters: [place, account] }
  - ROUTE{ name: flights, suffix: /flights/search, upstream: second, limiters: [shop, { limiter: account, cost: 3 }] }
  - ROUTE{ name: json, suffix: .json, upstream: second, limiters: [secret] }
  - ROUTE{ name: methods, suffix: /any, methods: [GET, PUT, DELETE], upstream: second, limiters: [method] }
  - ROUTE{ name: orders, path: '/shops/{shop}/orders/{*rest}', upstream: second, limiters: [order] }
  - ROUTE{ name: chat, suffix: /chat, methods: [POST], upstream: second, limiters: [{ limiter: model, cost: '{body./n}' }] }
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
    ("GET", "/shops/7/orders/1/2", &[]),
    ("GET", "//shops/%37/./orders/1", &[]),
    ("GET", "/shops/7;a=b/orders/1", &[]),
    ("GET", "/shops/ACME/orders/1", &[]),
    ("GET", "/shops/7%20/orders/1", &[]),
    ("GET", "/shops/%20/orders/1", &[]),
    ("GET", "/shops/%20;/orders/1", &[]),
    ("GET", "/shops/a%2fb/orders/1", &[]),
    ("GET", "/shops/a%2f..%2fb/orders/1", &[]),
    ("GET", "/shops/7/orders", &[]),
    ("GET", "/shops/7/orders/../orders/1", &[]),
    ("GET", "/shops/7/x/../orders/1", &[]),
];

/// Fields and bodies of requests whose key and cost are parts of the body.
const BODIES: &[(&[(&str, &str)], &str)] = &[
    (&[("Content-Type", "application/json")], r#"{"model":"large","n":3}"#),
    (&[], r#"{"model":"large"}"#),
    (&[("Content-Type", "application/vnd.api+json; v=1")], r#"{"model":"small","n":"2"}"#),
    (&[("Content-Type", "text/plain")], r#"{"model":"large","n":3}"#),
    (&[("Content-Type", "application/json"), ("Content-Encoding", "gzip")], r#"{"model":"x"}"#),
    (&[("Content-Type", "application/json")], "no json"),
    (&[("Content-Type", "application/json")], r#"{"model":"large","n":0}"#),
    (&[("Content-Type", "application/json")], r#"{"model":"large","n":1001}"#),
    (&[("Content-Type", "application/json")], r#"{"model":["large"],"n":1}"#),
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
    let long = format!(r#"{{"model":"large","n":1,"text":"{}"}}"#, "x".repeat(64 << 10));
    let bodies = BODIES.iter().copied().chain([(&[][..], &*long)]);
    let bodies = bodies.map(|(fields, body)| ("POST", "/chat", fields, body));
    let plain = TABLE.iter().map(|(method, target, fields)| (*method, *target, *fields, ""));
    for (method, target, fields, body) in plain.chain(bodies) {
        let length = body.len().to_string();
        let mut sent = fields.to_vec();
        if !body.is_empty() {
            sent.push(("Content-Length", &length));
        }
        let row = format!("{method} {target} {fields:?} {}", &body[..body.len().min(40)]);
        let mut args = vec!["explain", "gateway.yaml", method, target, "--json", "-d", body];
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
        let mut conn = gateway.connect().await;
        conn.send(head(method, target, &sent) + body).await.expect("send");
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
    assert_eq!(routes.len(), 9, "a route that no request of the table took: {routes:?}");
}

/// `Prefer` and its cap, as both read them: a request with half an hour or more waits for its slot, any other is refused.
#[tokio::test(flavor = "multi_thread")]
async fn explain_and_the_gateway_read_one_budget() {
    let upstream = Upstream::ok().await;
    let yaml = format!(
        "upstream: {}\nlimiters: {{ slow: {{ rate: 2/h, burst: 1 }} }}\n\
         routes: [{{ name: slow, suffix: /slow, limiters: [slow], max_wait: 5s, max_wait_cap: 1h }}]\n",
        upstream.url()
    );
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("gateway.yaml"), &yaml).expect("a file");
    let gateway = Gateway::start(&yaml).await;
    assert_eq!(gateway.get("/slow").await.status, 200);
    let rows: &[&[(&str, &str)]] = &[
        &[],
        &[("Prefer", "wait=0")],
        &[("Prefer", "wait=60")],
        &[("Prefer", "wait=3600")],
        &[("Prefer", "wait=99999")],
        &[("Prefer", "respond-async, Wait=3600")],
        &[("Prefer", "wait=\"3600\"")],
        &[("Prefer", "wait=60"), ("Prefer", "wait=3600")],
        &[("Prefer", "wait=3600, wait=60")],
        &[("Prefer", "wait=-1")],
        &[("Prefer", "wait=soon")],
        &[("Prefer", "wait=3600; foreign=1")],
    ];
    let mut waited = 0;
    for fields in rows {
        let mut args = vec!["explain", "gateway.yaml", "GET", "/slow", "--json"];
        let headers: Vec<_> =
            fields.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        headers.iter().for_each(|header| args.extend(["-H", header]));
        let output = paceway_in(dir.path(), &args, &[]);
        let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let budget_ms = said["max_wait_ms"].as_f64().expect("a budget");
        let mut conn = gateway.ask("/slow", fields).await;
        match budget_ms >= 1_800_000.0 {
            true => {
                gateway.until_waiting("slow", 1).await;
                waited += 1;
                drop(conn);
                gateway.until_waiting("slow", 0).await;
            }
            false => {
                let answer = conn.answer().await.expect("an answer");
                assert_eq!(answer.status, 429, "{fields:?}: {budget_ms}");
            }
        }
    }
    assert!(waited >= 4, "{waited}");
}

#[test]
fn explain_prints_the_sample_of_the_page() {
    let (page, root) = (include_str!("../../docs/cli.md"), Path::new(env!("CARGO_MANIFEST_DIR")));
    let (_, sample) = page.split_once("$ paceway explain config/paceway.yaml").expect("a sample");
    let (_, printed) = sample.split_once('\n').expect("what it prints");
    let (printed, _) = printed.split_once("```").expect("its end");
    let target = "https://api.internal/flights/%73earch/?q=1";
    let args = ["explain", "config/paceway.yaml", "GET", target, "-H", "x-shop: 7"];
    let output = paceway_in(root, &args, &[]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), printed);
}
