//! Permits that gateways take in blocks from a busy limiter, on a real Redis: the rule holds at the upstream, and pauses and
//! overrides end the blocks of every gateway.

use crate::support::{
    Conn, Gateway, Redis, Reply, Upstream, assert_lawful, eventually, reply, request,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep};

const RATE: u32 = 1000;
/// The default burst, so that an override of the rate replaces it.
const BURST: u32 = RATE;
/// The clients of each gateway.
const CLIENTS: usize = 4;
/// All gateways know of a pause within this time.
const KNOWN: Duration = Duration::from_millis(100);

async fn used(gateway: &Gateway) -> f64 {
    gateway.metric("paceway_store_block_permits_total", &[("fate", "used")]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_keep_the_rule_and_end_with_pauses_and_overrides() {
    let redis = Redis::start();
    let refuses = Arc::new(AtomicBool::new(false));
    let once = refuses.clone();
    let upstream = Upstream::start(move |_| match once.swap(false, SeqCst) {
        true => reply("429 Too Many Requests", &[("Retry-After", "3")], ""),
        false => Reply::ok(),
    })
    .await;
    let yaml = format!(
        "store: {{ url: \"{}\", timeout: 500ms }}\nupstream: {}\nworkers: 1\n\
         limiters: {{ hot: {RATE}/s }}\n\
         routes:\n- {{ name: hot, suffix: /hot, limiters: [hot], max_wait: 0s }}\n",
        redis.url(),
        upstream.url()
    );
    let began = Instant::now();
    let gateways = [Arc::new(Gateway::start(&yaml).await), Arc::new(Gateway::start(&yaml).await)];
    // The pause of each client between two requests, in ms; 0 is more than the limiter allows.
    let pace = Arc::new(AtomicU64::new(10));
    let clients: Vec<_> = (0..2 * CLIENTS)
        .map(|client| {
            let (gateway, pace) = (gateways[client % 2].clone(), pace.clone());
            tokio::spawn(async move {
                let mut conn = gateway.ask("/hot", &[]).await;
                loop {
                    conn.answer().await.expect("an answer");
                    sleep(Duration::from_millis(pace.load(SeqCst))).await;
                    conn.send(request("GET", "/hot", &[])).await.expect("sent");
                }
            })
        })
        .collect();
    for gateway in &gateways {
        eventually("requests are served from blocks", async || {
            (used(gateway).await >= 100.0).then_some(())
        })
        .await;
    }
    let calls = gateways[0].metric("paceway_store_seconds_count", &[]).await;
    let decided = gateways[0].metric("paceway_requests_total", &[("route", "hot")]).await;
    assert!(calls < decided, "{calls} calls of the store for {decided} requests");
    // More requests than the limiter allows, and again fewer.
    let flood = Instant::now();
    for load in [0, 10] {
        pace.store(load, SeqCst);
        sleep(Duration::from_millis(1500)).await;
    }

    // The upstream refuses a call of one of the gateways.
    refuses.store(true, SeqCst);
    eventually("the call is refused", async || (!refuses.load(SeqCst)).then_some(())).await;
    let refused = Instant::now();
    for gateway in &gateways {
        eventually("the limiter is paused", async || {
            (gateway.metric("paceway_limiter_paused", &[("limiter", "hot")]).await > 0.0)
                .then_some(())
        })
        .await;
    }
    let known = Instant::now() + KNOWN;
    sleep(Duration::from_millis(3500)).await;
    let arrivals = upstream.arrivals();
    let end = refused + Duration::from_millis(2500);
    let during = arrivals.iter().filter(|at| (known..end).contains(at)).count();
    assert_eq!(during, 0, "calls in the pause");

    let before: Vec<_> = arrivals.into_iter().filter(|at| *at < refused).collect();
    assert!(before.len() > 200, "{} calls", before.len());
    assert_lawful(began, &before, BURST.into(), RATE.into());
    let flood_of: Vec<_> = before.into_iter().filter(|at| *at >= flood).collect();
    // A request of each client may have been on its way.
    assert_lawful(flood, &flood_of, f64::from(BURST) + 2.0 * CLIENTS as f64, RATE.into());

    // An override holds from the next request on, also where a block is left of the rule before.
    for gateway in &gateways {
        let blocks = used(gateway).await;
        eventually("there are blocks again", async || (used(gateway).await > blocks).then_some(()))
            .await;
    }
    let body = r#"{ "rate": "3/h", "for": "1h", "reason": "a test" }"#;
    let mut admin = Conn::to(gateways[0].admin).await.expect("connect");
    let length = body.len().to_string();
    let head = request("PUT", "/limiters/hot/override", &[("Content-Length", &length)]);
    admin.send(head + body).await.expect("sent");
    assert_eq!(admin.answer().await.expect("an answer").status, 200);
    for gateway in &gateways {
        eventually("every gateway follows", async || {
            (gateway.limiter("hot").await["rate"] == "3/h").then_some(())
        })
        .await;
    }
    let calls = upstream.calls().len();
    sleep(Duration::from_millis(500)).await;
    let more = upstream.calls().len() - calls;
    assert!(more <= 3 + 2 * CLIENTS, "{more} calls where 3 are allowed, and some were under way");
    clients.iter().for_each(tokio::task::JoinHandle::abort);
}
