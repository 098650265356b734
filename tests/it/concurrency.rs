//! Three gateways share the permits of one limiter while their redis-server loses its data and freezes at random instants.
//! The upstream counts the calls that run at once: never more than `max`.

use crate::support::{Conn, Gateway, Redis, Upstream, eventually, get, reply};
use parking_lot::Mutex;
use rstest::rstest;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{task::JoinSet, time::sleep};

const MAX: usize = 4;

/// How many calls the upstream runs, and has run at once.
#[derive(Debug, Default)]
struct Running {
    now: usize,
    most: usize,
    arrived: usize,
    /// How many calls found `MAX` or more other calls running when they arrived.
    above: usize,
}

/// Serves each call of a connection for 50 to 300 ms, and counts the calls that run.
async fn serve(mut conn: Conn, running: Arc<Mutex<Running>>) {
    while let Ok(Some(_)) = conn.request().await {
        {
            let mut running = running.lock();
            running.now += 1;
            running.arrived += 1;
            running.most = running.most.max(running.now);
            running.above += usize::from(running.now > MAX);
        }
        sleep(Duration::from_millis(fastrand::u64(50..300))).await;
        // Before the answer: as soon as the gateway has it, another call may come.
        running.lock().now -= 1;
        if conn.send(reply("200 OK", &[], "ok").bytes).await.is_err() {
            return;
        }
    }
}

fn millis(rng: &mut fastrand::Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.u64(range))
}

/// The permits of 1 s, so that no lease of a call of 300 ms ends before the call.
fn config(redis: &Redis, upstream: &Upstream) -> String {
    format!(
        "store: {{ url: \"{}\" }}
workers: 2
upstream: {}
limiters: {{ places: {{ algorithm: concurrency, max: {MAX}, lease: 1s }} }}
routes: [{{ name: it, suffix: /it, limiters: [places], max_wait: 400ms }}]
",
        redis.url(),
        upstream.url()
    )
}

/// Losses alone; and with freezes of 0.1 to 1 s before, at, and after them.
#[rstest]
#[case::losses(1, false)]
#[case::losses_and_freezes(2, true)]
#[tokio::test(flavor = "multi_thread")]
async fn no_more_calls_run_than_there_are_permits(#[case] seed: u64, #[case] freezes: bool) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let running = Arc::<Mutex<Running>>::default();
    let counted = running.clone();
    let upstream = Upstream::raw(move |conn| serve(conn, counted.clone())).await;
    let redis = Redis::start();
    let yaml = config(&redis, &upstream);
    let gateways =
        [Gateway::start(&yaml).await, Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    for gateway in &gateways {
        eventually("all are counted", async || {
            (gateway.metric("paceway_store_gateways", &[]).await == 3.0).then_some(())
        })
        .await;
    }
    let stop = Arc::<AtomicBool>::default();
    let mut clients = JoinSet::new();
    for gateway in &gateways {
        for _ in 0..3 {
            let (stop, listen) = (stop.clone(), gateway.listen);
            clients.spawn(async move {
                while !stop.load(Relaxed) {
                    if get(listen, "/it").await.status != 200 {
                        sleep(Duration::from_millis(20)).await;
                    }
                }
            });
        }
    }
    let mut losses = 0;
    // `PLACES_LOSSES=20` is a longer run.
    let count = std::env::var("PLACES_LOSSES").ok().and_then(|count| count.parse().ok());
    for _ in 0..count.unwrap_or(4) {
        sleep(millis(&mut rng, 1100..2200)).await;
        let order = rng.u8(0..4);
        let span = millis(&mut rng, 100..1000);
        if freezes && order == 0 {
            redis.freeze();
            sleep(span).await;
            redis.thaw();
        }
        redis.command(&["FLUSHALL"]);
        losses += 1;
        if freezes && order > 0 {
            // At once, a moment later, or when the leases from before have ended.
            sleep(millis(&mut rng, 0..[1, 100, 1500][usize::from(order) - 1])).await;
            redis.freeze();
            sleep(span).await;
            redis.thaw();
        }
    }
    let before = running.lock().arrived;
    eventually("calls run again", async || (running.lock().arrived > before).then_some(())).await;
    stop.store(true, Relaxed);
    clients.join_all().await;
    let running = running.lock();
    eprintln!("{running:?}");
    assert!(running.arrived > losses, "{running:?}");
    assert!(running.most <= MAX, "{running:?}");
}
