//! The end of a gateway, by a signal: requests that run or wait finish, up to `drain_timeout`.

use super::{operator, page};
use crate::support::{Conn, Gateway, Redis, Reply, Upstream, eventually, request};
use rstest::rstest;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::Semaphore;

/// An upstream that answers nothing until its gate has permits.
async fn gated() -> (Upstream, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let behind = gate.clone();
    (Upstream::start(move |_| Reply::ok().behind(&behind)).await, gate)
}

async fn until_asked(upstream: &Upstream, count: usize) {
    let what = format!("{count} calls at the upstream");
    eventually(&what, async || (upstream.calls().len() >= count).then_some(())).await;
}

async fn until_draining(operator: &mut Conn) -> Value {
    eventually("it drains", async || {
        let page = page(operator, "/readyz").await;
        (page.status == 503).then(|| page.json())
    })
    .await
}

/// Sends one request after the other on a kept connection, and makes a new one only when an answer announces the close;
/// until the port is closed. Returns the requests that failed although they were sent.
async fn closed_loop(address: std::net::SocketAddr, answered: Arc<AtomicUsize>) -> Vec<String> {
    let mut failed = Vec::new();
    while let Ok(mut conn) = Conn::to(address).await {
        loop {
            let sent = conn.send(request("GET", "/load", &[])).await;
            let answer = match sent {
                Ok(()) => conn.answer().await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(answer) if answer.status == 200 => {
                    answered.fetch_add(1, Relaxed);
                    if answer.field("connection") == Some("close") {
                        break;
                    }
                }
                Ok(answer) => failed.push(format!("{answer:?}")),
                Err(error) => {
                    failed.push(error.to_string());
                    break;
                }
            }
        }
    }
    failed
}

#[rstest]
#[case::sigterm("TERM")]
#[case::sigint("INT")]
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_under_load_fails_no_request(#[case] signal: &str) {
    let upstream = Upstream::start(|_| Reply::ok().after(Duration::from_millis(5))).await;
    // Some are sent at once and some wait.
    let mut gateway = Gateway::before(
        &upstream,
        "limiters: { load: { rate: 500/s, burst: 50 } }
routes: [{ suffix: \"*\", limiters: [load], max_wait: 20s }]
",
    )
    .await;
    let answered = Arc::<AtomicUsize>::default();
    let load = (0..16).map(|_| tokio::spawn(closed_loop(gateway.listen, answered.clone())));
    let load: Vec<_> = load.collect();
    eventually("load", async || (answered.load(Relaxed) > 300).then_some(())).await;
    gateway.signal(signal);
    let mut failed = Vec::new();
    for task in load {
        failed.extend(task.await.expect("task"));
    }
    assert_eq!(failed, [""; 0], "of {}", answered.load(Relaxed));
    assert_eq!(gateway.end().await.code(), Some(0));
    assert_eq!(upstream.calls().len(), answered.load(Relaxed));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_run_or_wait_finish_before_the_end() {
    let (upstream, gate) = gated().await;
    let mut gateway = Gateway::before(
        &upstream,
        "limiters: { search: { rate: 2/s, burst: 1 } }
routes:
  - { suffix: /running }
  - { name: search, suffix: /search, limiters: [search], max_wait: 20s }
",
    )
    .await;
    let mut asked = vec![gateway.ask("/running", &[]).await];
    for _ in 0..4 {
        asked.push(gateway.ask("/search", &[]).await);
    }
    until_asked(&upstream, 2).await;
    let mut operator = operator(&gateway).await;
    gateway.signal("TERM");
    let draining = until_draining(&mut operator).await;
    assert_eq!((&draining["ready"], &draining["reasons"]), (&json!(false), &json!(["draining"])));
    assert_eq!(page(&mut operator, "/healthz").await.status, 200, "it still lives");
    eventually("no new connection is accepted", async || Conn::to(gateway.listen).await.err())
        .await;
    assert!(gateway.is_running());

    gate.add_permits(5);
    for mut conn in asked {
        let answer = conn.answer().await.expect("a whole answer");
        assert_eq!((answer.status, answer.field("connection")), (200, Some("close")));
    }
    assert_eq!(gateway.end().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_do_not_hold_up_the_end() {
    let upstream = Upstream::ok().await;
    let mut gateway = Gateway::start(&format!(
        "drain_timeout: 10min\nupstream: {}\nroutes: [{{ suffix: \"*\" }}]\n",
        upstream.url()
    ))
    .await;
    let mut used = gateway.connect().await;
    used.send(request("GET", "/", &[])).await.expect("send");
    assert_eq!(used.answer().await.expect("an answer").status, 200);
    let unused = gateway.connect().await;
    let admin = Conn::to(gateway.admin).await.expect("connect");
    gateway.signal("TERM");
    assert_eq!(gateway.end().await.code(), Some(0));
    assert_eq!(used.rest().await, b"");
    drop((unused, admin));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_drain_timeout_ends_stuck_requests_and_refunds_waiting_ones() {
    let redis = Redis::start();
    let (upstream, _never) = gated().await;
    let yaml = format!(
        "drain_timeout: 1500ms
store: {{ url: \"{}\", timeout: 2s }}
upstream: {}
limiters: {{ search: {{ rate: 1/hour, burst: 1 }} }}
routes:
  - {{ suffix: /stuck }}
  - {{ name: search, suffix: /search, limiters: [search], max_wait: 1h, max_wait_cap: 1h }}
",
        redis.url(),
        upstream.url()
    );
    let mut gateway = Gateway::start(&yaml).await;
    let mut stuck = gateway.ask("/stuck", &[]).await;
    let _spends = gateway.ask("/search", &[]).await;
    until_asked(&upstream, 2).await;
    let mut waiting = gateway.ask("/search", &[]).await;
    gateway.until_waiting("search", 1).await;
    let hour = 3_600_000.0;
    assert!(gateway.limiter("search").await["next_slot_ms"].as_f64() > Some(hour));

    gateway.signal("TERM");
    assert!(stuck.answer().await.is_err(), "it got no answer, and nothing claims that it did");
    let told = waiting.answer().await.expect("a whole answer");
    assert_eq!((told.status, told.problem().as_str()), (503, "draining"));
    assert_eq!(gateway.end().await.code(), Some(0));
    let next = Gateway::start(&yaml).await;
    let slot = next.limiter("search").await["next_slot_ms"].as_f64().expect("ms");
    assert!(slot > 0.0 && slot <= hour, "the slot of the one that waited is free: {slot} ms");
}

#[rstest]
#[case::twice_the_same("TERM", "TERM")]
#[case::impatient_ctrl_c("INT", "INT")]
#[case::one_of_each("TERM", "INT")]
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_gateway_at_once(#[case] first: &str, #[case] second: &str) {
    let (upstream, _never) = gated().await;
    let mut gateway = Gateway::start(&format!(
        "drain_timeout: 10min\nupstream: {}\nroutes: [{{ suffix: \"*\" }}]\n",
        upstream.url()
    ))
    .await;
    let stuck = gateway.ask("/", &[]).await;
    until_asked(&upstream, 1).await;
    let mut operator = operator(&gateway).await;
    gateway.signal(first);
    until_draining(&mut operator).await;
    assert!(gateway.is_running());
    gateway.signal(second);
    let code = gateway.end().await.code().expect("a code, not the signal itself");
    assert_ne!(code, 0);
    drop(stuck);
}
