//! The service for other proxies: what a call means. tests/it/other_proxies.rs has what real proxies make of the answers.

use crate::support::{Answer, Conn, Gateway, request, service_address};
use serde_json::json;
use std::net::SocketAddr;

const LIMITED: &str = "upstream: http://127.0.0.1:9\nlimiters: { search: 5/s }\nroutes:\n\
    - { name: search, suffix: /search, limiters: [search], max_wait: 2s }\n- { name: rest, suffix: '*' }\n";

/// A gateway with the service of these settings, and the address of the service.
async fn service(settings: &str, rest: &str) -> (Gateway, SocketAddr) {
    let services = format!("services: {{ forward_auth: {{ listen: 127.0.0.1:0{settings} }} }}\n");
    let gateway = Gateway::start(&(services + rest)).await;
    let address = service_address(&gateway, "forward_auth");
    (gateway, address)
}

async fn call(address: SocketAddr, target: &str, fields: &[(&str, &str)]) -> Answer {
    let mut conn = Conn::to(address).await.expect("connect");
    conn.send(request("GET", target, fields)).await.expect("send");
    conn.answer().await.expect("a whole answer")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_original_request_selects_the_route_and_waits() {
    let (gateway, address) = service("", LIMITED).await;
    let search = [("X-Forwarded-Uri", "/v2/%73earch/?q=1"), ("X-Forwarded-Method", "GET")];
    for _ in 0..5 {
        let answer = call(address, "/", &search).await;
        assert_eq!((answer.status, answer.text()), (200, String::new()), "{answer:?}");
        assert_eq!(answer.field("server-timing"), None);
    }
    let waited = call(address, "/", &search).await;
    assert_eq!(waited.status, 200);
    let timing = waited.field("server-timing").expect("a wait");
    assert!(timing.contains("desc=\"search\""), "{timing}");
    let impatient = [search[0], search[1], ("Prefer", "wait=0")];
    let refused = call(address, "/", &impatient).await;
    assert_eq!((refused.status, refused.problem().as_str()), (429, "quota-exceeded"));
    for name in ["retry-after", "ratelimit", "ratelimit-policy", "x-request-id"] {
        assert!(refused.field(name).is_some(), "{name}: {refused:?}");
    }
    let other = [("X-Original-URI", "/other"), ("X-Original-Method", "POST")];
    assert_eq!(call(address, "/", &other).await.status, 200);
    // The target of the call itself, as Envoy sends it.
    assert_eq!(call(address, "/search", &[("Prefer", "wait=0")]).await.status, 429);
    let both = [search[0], other[0]];
    let refused = call(address, "/", &both).await;
    assert_eq!((refused.status, refused.problem().as_str()), (400, "bad-request"));
    // An OPTIONS that may go no further would be answered with 204, which every proxy takes for a permission.
    let last =
        [search[0], ("X-Forwarded-Method", "OPTIONS"), ("Max-Forwards", "0"), ("Prefer", "wait=0")];
    assert_eq!(call(address, "/", &last).await.status, 429);
    let of = |outcome| [("route", "search"), ("service", "forward_auth"), ("outcome", outcome)];
    for (outcome, count) in [("passed", 5.0), ("waited", 1.0), ("refused", 3.0)] {
        assert_eq!(
            gateway.metric("paceway_requests_total", &of(outcome)).await,
            count,
            "{outcome}"
        );
    }
    let line = gateway.line("/v2/%73earch/").await;
    assert_eq!((&line["service"], &line["route"]), (&json!("forward_auth"), &json!("search")));
    assert_eq!((&line["method"], &line["query"]), (&json!("GET"), &json!("q=1")));
    assert!(line.get("upstream").is_none(), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn host_method_and_client_of_the_original_request_count() {
    let rest = "trusted_proxies: [127.0.0.0/8]\nupstream: http://127.0.0.1:9\n\
        limiters: { each: { rate: 1/h, key: \"{client_ip}\" } }\nroutes:\n\
        - { suffix: '*', host: api.test, methods: [POST], limiters: [each] }\n";
    let (_gateway, address) = service("", rest).await;
    let ask = async |host: &'static str, method: &'static str, client: &'static str| {
        let fields = [
            ("X-Forwarded-Uri", "/a"),
            ("X-Forwarded-Host", host),
            ("X-Forwarded-Method", method),
            ("X-Forwarded-For", client),
        ];
        call(address, "/", &fields).await.status
    };
    assert_eq!(ask("api.test", "POST", "192.0.2.1").await, 200);
    assert_eq!(ask("api.test", "POST", "192.0.2.1").await, 429);
    assert_eq!(ask("api.test", "POST", "192.0.2.2").await, 200);
    assert_eq!(ask("other.test", "POST", "192.0.2.3").await, 404);
    assert_eq!(ask("api.test", "GET", "192.0.2.3").await, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_required_and_denials_have_the_configured_status() {
    let (_gateway, address) = service(", token: hunter2, denied_status: 403", LIMITED).await;
    let search = ("X-Original-URI", "/search");
    let ask = async |tokens: &[&str]| {
        let fields: Vec<_> = tokens.iter().map(|token| ("Paceway-Token", *token)).collect();
        let answer =
            call(address, "/", &[&fields[..], &[search, ("Prefer", "wait=0")]].concat()).await;
        (answer.status, answer.field("paceway-status").map(str::to_owned))
    };
    for wrong in [&[][..], &["hunter"], &["hunter2", "hunter2"]] {
        assert_eq!(ask(wrong).await, (403, Some("401".into())), "{wrong:?}");
    }
    for _ in 0..5 {
        assert_eq!(ask(&["hunter2"]).await, (200, None));
    }
    assert_eq!(ask(&["hunter2"]).await, (403, Some("429".into())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_concurrency_permit_lasts_for_its_lease_or_until_it_is_released() {
    let rest = "upstream: http://127.0.0.1:9\nlimiters:\n\
        \x20 few: { algorithm: concurrency, max: 1, lease: 1h, key: \"{header.x-shop}\" }\n\
        \x20 brief: { algorithm: concurrency, max: 1, lease: 1s }\n\
        \x20 rate: 100/s\nroutes:\n\
        - { suffix: /few, limiters: [few, rate], max_wait: 20s }\n- { suffix: /brief, limiters: [brief], max_wait: 20s }\n";
    let (gateway, address) = service("", rest).await;
    let ask = async |path: &'static str, wait: &'static str| {
        let fields = [("X-Forwarded-Uri", path), ("X-Shop", "acme"), ("Prefer", wait)];
        call(address, "/", &fields).await
    };
    let first = ask("/few", "wait=0").await;
    let lease = first.field("paceway-lease").expect("a lease").to_owned();
    let id = lease.strip_prefix("few; lease=\"").and_then(|rest| rest.split('"').next());
    assert!(lease.ends_with("; key=\"acme\"; expires=3600.000"), "{lease}");
    assert_eq!(ask("/few", "wait=0").await.status, 429);
    let waiting = tokio::spawn(async move {
        call(address, "/", &[("X-Forwarded-Uri", "/few"), ("X-Shop", "acme")]).await
    });
    gateway.until_waiting("/few", 1).await;
    let body = json!({ "lease": id.expect("an id"), "key": "acme" }).to_string();
    let length = body.len().to_string();
    let fields = [("Content-Type", "application/json"), ("Content-Length", &*length)];
    let released = request("POST", "/limiters/few/release", &fields) + &body;
    assert_eq!(gateway.admin_request(released).await.status, 200);
    assert_eq!(waiting.await.expect("a task").status, 200);
    // No program releases this one.
    assert_eq!(ask("/brief", "wait=0").await.status, 200);
    let answer = ask("/brief", "wait=20").await;
    assert_eq!(answer.status, 200);
    assert!(answer.field("server-timing").is_some(), "it waited for the end of the lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_services_needs_a_restart_and_a_drain_ends_the_waits() {
    let rest = "drain_timeout: 2s\nupstream: http://127.0.0.1:9\nlimiters: { slow: 1/h }\n\
        routes: [{ name: slow, suffix: '*', limiters: [slow], max_wait: 1h }]\n";
    let (mut gateway, address) = service("", rest).await;
    gateway.rewrite(&format!("services: {{ forward_auth: 127.0.0.1:1 }}\n{rest}"));
    let reloaded = gateway.reload().await.text();
    assert!(reloaded.contains("\"services\""), "{reloaded}");
    assert_eq!(call(address, "/", &[]).await.status, 200);
    let waiting = tokio::spawn(async move { call(address, "/", &[]).await });
    gateway.until_waiting("slow", 1).await;
    gateway.signal("TERM");
    let answer = waiting.await.expect("a task");
    assert_eq!((answer.status, answer.problem().as_str()), (503, "draining"));
    assert!(gateway.end().await.success());
}
