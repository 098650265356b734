//! Envoy's filter `ext_authz` over gRPC, asked by the official gRPC library. tests/it/other_proxies.rs has Envoy itself.

use crate::support::{Gateway, eventually, service_address};
use serde_json::{Value, json};
use std::{env, net::SocketAddr, process::Stdio};
use tokio::process::{Child, Command};

const CONFIG: &str = "services: { ext_authz: { listen: 127.0.0.1:0, token: hunter2 } }\n\
    trusted_proxies: [127.0.0.0/8]\nupstream: http://127.0.0.1:9\nlimiters:\n\
    \x20 search: 5/s\n  slow: { rate: 1/min, burst: 1 }\n  each: { rate: 1/h, key: \"{client_ip}\" }\n\
    \x20 few: { algorithm: concurrency, max: 1, lease: 1h }\nroutes:\n\
    - { name: search, suffix: /search, host: api.test, limiters: [search], max_wait: 2s, ratelimit_headers: all }\n\
    - { name: slow, suffix: /slow, methods: [POST], limiters: [slow], max_wait: 5min }\n\
    - { suffix: /each, limiters: [each] }\n- { suffix: /few, limiters: [few] }\n";

/// Starts calls about one request: their deadline and number, and the method, path, host and source of the request.
fn client(address: SocketAddr, asked: [&str; 6], headers: &[&str]) -> Command {
    let python = env::current_dir().expect("a directory").join("target/clients/python/bin/python");
    let mut command = Command::new(python);
    command.args(["tests/clients/ext_authz.py", &address.to_string()]).args(asked).args(headers);
    command.stderr(Stdio::inherit());
    command
}

async fn ask(address: SocketAddr, asked: [&str; 6], headers: &[&str]) -> Vec<Value> {
    let output = client(address, asked, headers).output().await.expect("Python");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_attributes_select_the_route_and_the_answer_waits_for_the_slot() {
    let gateway = Gateway::start(CONFIG).await;
    let address = service_address(&gateway, "ext_authz");
    let search = ["20", "20", "GET", "/v2/search?q=1", "api.test", "192.0.2.1"];
    let all = ask(address, search, &["x-request-id:mine", ":path:/slow", "content-length:9"]).await;
    let of = |status: u64| all.iter().filter(move |answer| answer["status"] == status);
    assert!((15..=16).contains(&of(200).count()), "{all:?}");
    assert_eq!(of(200).count() + of(429).count(), 20, "{all:?}");
    assert!(of(200).any(|answer| answer["headers"]["server-timing"].is_string()), "{all:?}");
    for passed in of(200) {
        assert_eq!(
            (&passed["code"], &passed["headers"]["x-request-id"]),
            (&json!(0), &json!("mine"))
        );
        assert!(passed["headers"]["ratelimit"].is_string(), "{passed}");
    }
    for refused in of(429) {
        assert_eq!(refused["code"], 8);
        for name in ["retry-after", "ratelimit", "ratelimit-policy", "content-type"] {
            assert!(refused["headers"][name].is_string(), "{name}: {refused}");
        }
        assert!(refused["body"].as_str().is_some_and(|body| body.contains("quota-exceeded")));
    }
    let waited = [("route", "search"), ("service", "ext_authz"), ("outcome", "waited")];
    assert!(gateway.metric("paceway_requests_total", &waited).await >= 10.0);
    let line = gateway.line("/v2/search").await;
    assert_eq!((&line["service"], &line["client"]), (&json!("ext_authz"), &json!("192.0.2.1")));
    // Host, method and path select the route, as on the data plane.
    let status = async |asked| ask(address, asked, &["prefer:wait=0"]).await[0]["status"].clone();
    assert_eq!(status(["9", "1", "GET", "/search", "other.test", "192.0.2.1"]).await, 404);
    assert_eq!(status(["9", "1", "GET", "/slow", "other.test", "192.0.2.1"]).await, 404);
    assert_eq!(status(["9", "1", "TRACE", "/each", "other.test", "192.0.2.1"]).await, 405);
    // The source that Envoy names is the caller.
    assert_eq!(status(["9", "1", "GET", "/each", "a.test", "192.0.2.1"]).await, 200);
    assert_eq!(status(["9", "1", "GET", "/each", "a.test", "192.0.2.1"]).await, 429);
    assert_eq!(status(["9", "1", "GET", "/each", "a.test", "192.0.2.2"]).await, 200);
    let held = &ask(address, ["9", "1", "GET", "/few", "a.test", "192.0.2.1"], &[]).await[0];
    let lease = held["to_application"]["paceway-lease"].as_str();
    assert!(lease.is_some_and(|lease| lease.starts_with("few; lease=")), "{held}");
    let nothing = &ask(address, ["9", "1", "", "", "", ""], &[]).await[0];
    assert!(nothing["error"].is_string(), "{nothing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_check_returns_its_slot_and_its_deadline_bounds_the_wait() {
    let gateway = Gateway::start(CONFIG).await;
    let address = service_address(&gateway, "ext_authz");
    let slow = |timeout, count| [timeout, count, "POST", "/slow", "api.test", "192.0.2.1"];
    assert_eq!(ask(address, slow("20", "1"), &[]).await[0]["status"], 200);
    // The deadline of the call is shorter than the wait for the slot: refused at once.
    let refused = &ask(address, slow("10", "1"), &[]).await[0];
    assert_eq!(refused["status"], 429, "{refused}");
    let mut waiting: Child =
        client(address, slow("600", "3"), &[]).stdout(Stdio::null()).spawn().expect("Python");
    gateway.until_waiting("slow", 3).await;
    waiting.kill().await.expect("its end");
    gateway.until_waiting("slow", 0).await;
    eventually("the slots return", async || {
        let state = gateway.limiter("slow").await;
        state["next_slot_ms"].as_f64().filter(|next| *next <= 60_000.0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_without_an_ip_address_sets_no_client_address() {
    let gateway = Gateway::start(CONFIG).await;
    let address = service_address(&gateway, "ext_authz");
    let status = async |source, forwarded: &str| {
        let header = format!("x-forwarded-for:{forwarded}");
        let asked = ["9", "1", "GET", "/each", "a.test", source];
        ask(address, asked, &[&header]).await[0]["status"].clone()
    };
    // A trusted proxy before Envoy is believed, a client of a UNIX socket or without an address is not.
    assert_eq!(status("127.0.0.9", "192.0.2.1").await, 200);
    assert_eq!(status("127.0.0.9", "192.0.2.2").await, 200);
    assert_eq!(status("/run/app.sock", "192.0.2.3").await, 200);
    assert_eq!(status("/run/app.sock", "192.0.2.4").await, 429, "it is Envoy's own bucket");
    assert_eq!(status("", "192.0.2.5").await, 429);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_cut_by_envoy_is_denied_if_a_limiter_reads_it() {
    let gateway = Gateway::start(
        "services: { ext_authz: { listen: 127.0.0.1:0, token: hunter2 } }\nupstream: http://127.0.0.1:9\n\
         limiters: { each: { rate: 9/h, key: \"{body./n}\" } }\n\
         routes: [{ suffix: /read, limiters: [each] }, { suffix: /unread }]\n",
    )
    .await;
    let address = service_address(&gateway, "ext_authz");
    let status = async |path, partial: &[&str]| {
        let mut headers = vec!["content-type:application/json", ":body:{\"n\":1}   "];
        headers.extend(partial);
        ask(address, ["9", "1", "POST", path, "a.test", ""], &headers).await[0]["status"].clone()
    };
    let (cut, whole) =
        (&["x-envoy-auth-partial-body:true"][..], &["x-envoy-auth-partial-body:false"]);
    assert_eq!(status("/read", &[]).await, 200);
    assert_eq!(status("/read", whole).await, 200);
    assert_eq!(status("/read", cut).await, 413);
    assert_eq!(status("/unread", cut).await, 200);
}
