//! Upstreams that accept no connection for longer than a restart takes: each of their callers loses the time that it may wait,
//! and no more.

use super::{full_listener, level, serve};
use crate::support::{Gateway, Reply, Upstream, eventually, free_port};
use std::time::Duration;
use tokio::time::Instant;

/// Each of its callers would wait for `connect_timeout`, however little time it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_upstream_delays_a_caller_at_most_by_max_wait() {
    let (address, queue) = full_listener().await;
    let timeout = Duration::from_secs(3);
    let gateway = Gateway::start(&format!(
        "upstreams: {{ vendor: {{ url: \"http://{address}\", connect_timeout: 3s }} }}
limiters: {{ search: 100/day }}
routes:
- {{ name: now, suffix: /now, limiters: [search] }}
- {{ name: patient, suffix: /patient, limiters: [search], max_wait: 500ms }}
- {{ name: free, suffix: \"*\" }}
"
    ))
    .await;
    let ask = async |target: &str| {
        let asked = Instant::now();
        let answer = gateway.get(target).await;
        assert_eq!((answer.status, answer.problem().as_str()), (504, "upstream-timeout"));
        asked.elapsed()
    };
    assert!(ask("/now").await >= timeout, "nothing is known about it yet");
    for target in ["/now", "/free", "/now", "/patient"] {
        let took = ask(target).await;
        assert!(took < timeout, "{target}: {took:?}");
        assert!(target != "/patient" || took >= Duration::from_millis(450), "{took:?}");
    }
    let line = gateway.line("/patient").await;
    assert_eq!(line["wait_ms"], 0.0, "{line}");
    assert!(line["connect_ms"].as_f64().is_some_and(|millis| millis >= 450.0), "{line}");
    assert_eq!(level(&gateway).await, 100);
    let (listener, conns) = queue;
    drop(conns);
    serve(listener);
    eventually("it is used again", async || {
        (gateway.get("/now").await.status == 200).then_some(())
    })
    .await;
}

/// An upstream that refuses connections may restart, which loses no call. One that refuses for longer is away.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_without_a_wait_gets_an_error_of_a_dead_upstream_at_once() {
    let port = free_port();
    let gateway = Gateway::start(&format!(
        "upstreams: {{ vendor: {{ url: \"http://127.0.0.1:{port}\", connect_timeout: 2s }} }}
routes: [{{ name: all, suffix: \"*\" }}]
"
    ))
    .await;
    let ask = async || {
        let asked = Instant::now();
        assert_eq!(gateway.get("/").await.problem(), "upstream-unreachable");
        asked.elapsed()
    };
    assert!(ask().await >= Duration::from_secs(1), "it may be a restart");
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Not one pause of a restart is waited for.
    for _ in 0..3 {
        assert!(ask().await < Duration::from_secs(1));
    }
    let _upstream = Upstream::on(port, |_| Reply::ok()).await;
    assert_eq!(gateway.get("/").await.status, 200, "a try is made for each request");
}
