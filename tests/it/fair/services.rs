//! Requests that other proxies ask for: they take turns as those on the data plane do.

use super::{Asked, Ordered};
use crate::support::{Conn, request, service_address};
use std::{env, net::SocketAddr, process::Stdio};
use tokio::{process::Command, task::JoinHandle};

const CONFIG: &str = "services: { forward_auth: 127.0.0.1:0, envoy_rate_limit: 127.0.0.1:0 }
limiters:
  vendor: { rate: 1/s, burst: 1, fair: { by: '{header.x-team}' } }
  calls: { rate: 1/s, burst: 1, fair: { by: '{descriptor.team}' } }
routes:
  - { name: low, suffix: /low, limiters: [vendor], priority: low, max_wait: 60s }
  - { name: x, suffix: /x, limiters: [vendor], max_wait: 60s }
descriptors: [{ name: team, match: { team: '*' }, limiters: [calls], max_wait: 60s }]
";

fn forward_auth(address: SocketAddr, target: &'static str, team: &'static str) -> Asked {
    tokio::spawn(async move {
        let fields = [("X-Forwarded-Uri", target), ("X-Forwarded-Method", "GET"), ("X-Team", team)];
        let mut conn = Conn::to(address).await.expect("connect");
        conn.send(request("GET", "/", &fields)).await.expect("send");
        conn.answer().await.expect("a whole answer").status
    })
}

/// 50 requests of a batch wait, fifty seconds of slots. A user is answered in its turn, and one of a low priority is not.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_forward_auth_take_turns() {
    let ordered = Ordered::start(CONFIG).await;
    let address = service_address(&ordered.gateway, "forward_auth");
    let batch: Vec<_> = (0..50).map(|_| forward_auth(address, "/x", "batch")).collect();
    ordered.until_asked(49).await;
    let low = forward_auth(address, "/low", "users");
    ordered.until_asked(50).await;
    assert_eq!(forward_auth(address, "/x", "users").await.expect("a task"), 200);
    assert!(ordered.metric("paceway_waiting", &[]).await >= 30.0, "the batch came before");
    assert!(!low.is_finished(), "a low priority came before");
    batch.iter().chain([&low]).for_each(JoinHandle::abort);
}

/// The tenant of a descriptor is an entry of it.
#[tokio::test(flavor = "multi_thread")]
async fn descriptors_of_envoy_take_turns() {
    let ordered = Ordered::start(CONFIG).await;
    let address = service_address(&ordered.gateway, "envoy_rate_limit").to_string();
    let python = env::current_dir().expect("a directory").join("target/clients/python/bin/python");
    let ask = |calls: &str, pair: &str| {
        let mut command = Command::new(&python);
        command.args(["tests/clients/envoy_rate_limit.py", &address, "60", calls, "1", pair]);
        command.stdout(Stdio::piped()).kill_on_drop(true);
        command
    };
    let _batch = ask("50", "team=batch").spawn().expect("Python");
    ordered.until_asked(49).await;
    let user = ask("1", "team=users").output().await.expect("Python");
    let text = String::from_utf8_lossy(&user.stdout).into_owned();
    assert!(text.contains("\"code\": 1"), "{text}");
    let page = ordered.gateway.page("/limiters/calls/tenants").await.json();
    assert_eq!(page["tenants"][0]["tenant"], "batch");
    assert!(page["waiting"].as_u64() >= Some(20), "the batch came before: {page}");
}
