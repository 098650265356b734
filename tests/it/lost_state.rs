//! A server that loses states, as it restarts, is emptied or fails over, and what the gateways that use it make of it: one
//! of them finds out, all go on as if everything that can have been granted had been.

use crate::{
    support::{Conn, Gateway, Redis, Reply, Said, Upstream, assert_lawful, eventually, get},
    twins::{T0, connect_as},
};
use paceway::{
    algorithm::{Algorithm, TokenBucket},
    store::{Check, Entry, Reply as Answer, redis::RedisStore},
};
use rstest::rstest;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep},
};

const HOUR: i64 = 3_600_000_000;
const MARKER: &str = "p:marker";
const KEY: &str = "p:{k}:T:k";

// ------------------------------------------------------------------------------------------ the marker

/// Three permits, one more each hour.
fn bucket() -> Check {
    let algorithm = Algorithm::TokenBucket(TokenBucket::new(1, HOUR, 3).expect("a rule"));
    let hidden = algorithm.hidden(0, 1);
    Check { key: KEY.into(), algorithm, cost: 1, enforce: true, hidden, overflow: None }
}

/// What is left at `now`, as a store sees it that has its own idea of the marker.
async fn left(store: &RedisStore, now: i64) -> i64 {
    let replies = store.run_at(Some(now), &[Entry::Look { check: bucket() }]).await;
    let Ok([Answer::Level(level)]) = replies.as_deref() else { panic!("{replies:?}") };
    level.remaining
}

async fn gateway(redis: &Redis) -> RedisStore {
    connect_as(redis, "p").await
}

fn marker(redis: &Redis) -> String {
    String::from_utf8(redis.bytes(MARKER)).expect("text")
}

#[tokio::test]
async fn a_server_that_nobody_has_used_has_lost_nothing() {
    let redis = Redis::start();
    let (one, other) = (gateway(&redis).await, gateway(&redis).await);
    assert_eq!((left(&one, T0).await, left(&other, T0 + 1).await), (3, 3));
    assert_eq!(marker(&redis), format!("N{T0}"));
    let Said::Number(millis) = redis.command(&["PTTL", MARKER]) else { panic!("no TTL") };
    assert!(millis > 366 * 24 * 3_600_000, "longer than any limiter remembers: {millis} ms");
}

#[tokio::test]
async fn who_meets_a_loss_tells_the_others_and_what_is_gone_was_used_up_then() {
    let redis = Redis::start();
    let (one, other) = (gateway(&redis).await, gateway(&redis).await);
    assert_eq!((left(&one, T0).await, left(&other, T0).await), (3, 3));
    redis.command(&["FLUSHALL"]);
    redis.command(&["SCRIPT", "FLUSH"]);
    let lost = T0 + 1_000;
    assert_eq!(left(&one, lost).await, 0);
    assert_eq!(left(&other, lost + HOUR - 1).await, 0);
    assert_eq!(left(&other, lost + HOUR).await, 1);
    assert_eq!(marker(&redis), format!("L{lost}"), "it was lost once");
    assert_eq!(left(&gateway(&redis).await, lost + 2 * HOUR).await, 2, "who is new learns of it");
    assert_eq!(left(&one, lost + 3 * HOUR).await, 3, "and then it is over");
}

#[tokio::test]
async fn a_newcomer_that_comes_first_behind_a_loss_hides_it_from_nobody() {
    let redis = Redis::start();
    let old = gateway(&redis).await;
    assert_eq!(left(&old, T0).await, 3);
    redis.command(&["FLUSHALL"]);
    let new = gateway(&redis).await;
    assert_eq!(left(&new, T0 + 10).await, 3, "nothing tells it of a loss");
    assert_eq!(left(&old, T0 + 20).await, 0);
    assert_eq!(left(&new, T0 + 30).await, 0);
    assert_eq!(marker(&redis), format!("L{}", T0 + 20));
}

/// What a replica had that lags behind: an older marker, and older states.
#[rstest]
#[case::of_the_first_use(format!("N{}", T0 - 5))]
#[case::of_a_loss_before(format!("L{}", T0 - 5))]
#[tokio::test]
async fn an_older_marker_is_a_loss(#[case] older: String) {
    let redis = Redis::start();
    let store = gateway(&redis).await;
    let take = Entry::Decide { checks: Arc::new([bucket()]), budget: 0, ticket: None };
    store.run_at(Some(T0), &[take]).await.expect("a permit");
    redis.command(&["SET", MARKER, &older]);
    assert_eq!(left(&store, T0 + 9).await, 0, "the state is there, and too old to be believed");
    assert_eq!(marker(&redis), format!("L{}", T0 + 9));
}

#[rstest]
#[case::text(&["SET", MARKER, "x"])]
#[case::empty(&["SET", MARKER, ""])]
#[case::binary(&["SET", MARKER, "L\u{0}\u{1}"])]
#[case::of_the_far_future(&["SET", MARKER, "L9999999999999999"])]
#[case::with_a_sign(&["SET", MARKER, "L1700000000000000?"])]
#[case::list(&["RPUSH", MARKER, "L1700000000000000"])]
#[tokio::test]
async fn a_marker_that_is_none_is_a_loss_for_everybody(
    #[case] command: &[&str],
    #[values(false, true)] is_known: bool,
    #[values(false, true)] in_a_group: bool,
) {
    let redis = Redis::start();
    let store = gateway(&redis).await;
    if is_known {
        assert_eq!(left(&store, T0).await, 3);
    }
    redis.command(&["DEL", MARKER]);
    redis.command(command);
    let lost = T0 + 7;
    if in_a_group {
        let ask = Entry::Decide { checks: Arc::new([bucket()]), budget: 0, ticket: None };
        let replies = store.run_at(Some(lost), &[ask]).await;
        let Ok([Answer::Decision(decision)]) = replies.as_deref() else { panic!("{replies:?}") };
        assert!(!decision.admitted);
    }
    assert_eq!(left(&store, lost).await, 0);
    assert_eq!(left(&store, lost + HOUR).await, 1);
    assert_eq!(marker(&redis), format!("L{lost}"));
}

#[tokio::test]
async fn without_the_right_to_ask_who_the_server_is_a_loss_is_met_by_the_marker() {
    let redis = Redis::start();
    redis.command(&["ACL", "SETUSER", "default", "-info"]);
    let store = gateway(&redis).await;
    assert_eq!(left(&store, T0).await, 3);
    redis.command(&["FLUSHALL"]);
    assert_eq!(left(&store, T0 + 1).await, 0);
}

#[tokio::test]
async fn a_limiter_that_is_reset_behind_a_loss_is_open_at_once() {
    let redis = Redis::start();
    let store = gateway(&redis).await;
    assert_eq!(left(&store, T0).await, 3);
    redis.command(&["FLUSHALL"]);
    assert_eq!(left(&store, T0 + 1).await, 0);
    let reset = store.run_at(Some(T0 + 2), &[Entry::Forget { check: bucket() }]).await;
    assert_eq!(reset, Ok(vec![Answer::Done(true)]));
    assert_eq!(left(&store, T0 + 3).await, 3);
    let Said::Number(millis) = redis.command(&["PTTL", KEY]) else { panic!("no TTL") };
    assert!((1..=4 * 3_600_000).contains(&millis), "as long as the loss matters: {millis} ms");
}

/// One that has names and values of its own, with the same prefix.
#[tokio::test]
async fn another_version_on_the_server_neither_disturbs_nor_is_disturbed() {
    let redis = Redis::start();
    let store = gateway(&redis).await;
    let theirs = ["p:marker2", "p:{k}:T2:k", "p:{k}:marker2"];
    for key in theirs {
        redis.command(&["SET", key, "of version 2"]);
    }
    let take = Entry::Decide { checks: Arc::new([bucket()]), budget: 0, ticket: None };
    for now in [T0, T0 + 1] {
        store.run_at(Some(now), std::slice::from_ref(&take)).await.expect("a permit");
    }
    redis.command(&["DEL", "p:marker2"]);
    assert_eq!(left(&store, T0 + 2).await, 1);
    for key in &theirs[1..] {
        assert_eq!(redis.bytes(key), b"of version 2");
    }
}

// ------------------------------------------------------------------------------------- gateways on load

const RATE: f64 = 40.0;

fn config(redis: &Redis, upstream: &Upstream) -> String {
    format!(
        "store: {{ url: \"{}\", timeout: 2s }}
workers: 2
upstream: {}
limiters: {{ it: {{ rate: 40/s, burst: 40 }} }}
routes: [{{ name: it, suffix: /it, limiters: [it], max_wait: 400ms }}]
",
        redis.url(),
        upstream.url()
    )
}

/// Clients that ask without a pause for as long as it lives, and what they were answered.
struct Load {
    stop: Arc<AtomicBool>,
    clients: JoinSet<Vec<u16>>,
}

impl Load {
    fn new() -> Self {
        Self { stop: Arc::default(), clients: JoinSet::new() }
    }

    fn on(&mut self, gateway: SocketAddr) {
        for _ in 0..6 {
            let stop = self.stop.clone();
            self.clients.spawn(async move {
                let mut statuses = Vec::new();
                while !stop.load(Relaxed) {
                    let status = get(gateway, "/it").await.status;
                    statuses.push(status);
                    if status != 200 {
                        sleep(Duration::from_millis(10)).await;
                    }
                }
                statuses
            });
        }
    }

    async fn end(self) -> Vec<u16> {
        self.stop.store(true, Relaxed);
        self.clients.join_all().await.concat()
    }
}

async fn until_passed(upstream: &Upstream, more: usize) {
    let count = upstream.calls().len() + more;
    eventually("more requests pass", async || (upstream.calls().len() >= count).then_some(()))
        .await;
}

async fn losses(gateways: &[Gateway]) -> Vec<f64> {
    let mut all = Vec::new();
    for gateway in gateways {
        all.push(gateway.metric("paceway_store_losses_total", &[]).await);
    }
    all
}

fn warnings(gateway: &Gateway) -> usize {
    let is_one = |event: &serde_json::Value| {
        event["level"] == "WARN" && event.to_string().contains("the store has lost states")
    };
    gateway.events().iter().filter(|event| is_one(event)).count()
}

#[derive(Debug, Clone, Copy)]
enum What {
    Flushes,
    RestartsEmpty,
    RestartsWithItsData,
    ForgetsScripts,
    Reloads,
}

#[rstest]
#[case::flushed(What::Flushes, 1.0)]
#[case::restarted_empty(What::RestartsEmpty, 1.0)]
#[case::restarted_with_its_data(What::RestartsWithItsData, 1.0)]
#[case::without_scripts(What::ForgetsScripts, 0.0)]
#[case::reloaded_and_stuck(What::Reloads, 0.0)]
#[tokio::test(flavor = "multi_thread")]
async fn the_law_holds_across_what_a_server_does(#[case] what: What, #[case] lost: f64) {
    let mut redis = match what {
        What::RestartsWithItsData => {
            Redis::with(&["--appendonly", "yes", "--appendfsync", "always"])
        }
        What::Reloads => Redis::with(&["--enable-debug-command", "yes"]),
        _ => Redis::start(),
    };
    let upstream = Upstream::ok().await;
    let yaml = config(&redis, &upstream);
    let start = Instant::now();
    let mut gateways = vec![Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    let mut load = Load::new();
    gateways.iter().for_each(|gateway| load.on(gateway.listen));
    until_passed(&upstream, 60).await;
    match what {
        What::Flushes => drop(redis.command(&["FLUSHALL"])),
        What::RestartsEmpty | What::RestartsWithItsData => {
            redis.kill();
            redis.start_again();
        }
        What::ForgetsScripts => {
            for _ in 0..20 {
                redis.command(&["SCRIPT", "FLUSH"]);
                until_passed(&upstream, 1).await;
            }
        }
        What::Reloads => {
            redis.command(&["DEBUG", "RELOAD"]);
            redis.command(&["DEBUG", "SLEEP", "0.3"]);
        }
    }
    // A newcomer that is the first to come behind a loss cannot know of it.
    eventually("it is met", async || (losses(&gateways).await == [lost; 2]).then_some(())).await;
    gateways.push(Gateway::start(&yaml).await);
    load.on(gateways[2].listen);
    until_passed(&upstream, 60).await;
    let statuses = load.end().await;
    assert_lawful(start, &upstream.arrivals(), RATE, RATE);
    // While it starts or loads it decides nothing.
    let is_away = !matches!(what, What::Flushes | What::ForgetsScripts);
    let expected: &[u16] = if is_away { &[200, 429, 503] } else { &[200, 429] };
    assert_eq!(statuses.iter().find(|status| !expected.contains(status)), None);
    assert_eq!(losses(&gateways[..2]).await, [lost; 2]);
    for gateway in &gateways[..2] {
        assert_eq!(warnings(gateway) as f64, lost, "{:?}", gateway.events());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_a_place_keeps_it_and_nobody_gets_another() {
    let (redis, gate) = (Redis::start(), Arc::new(Semaphore::new(0)));
    let behind = gate.clone();
    let upstream = Upstream::start(move |_| Reply::ok().behind(&behind)).await;
    let yaml = format!(
        "store: {{ url: \"{}\", timeout: 2s }}
upstream: {}
limiters: {{ places: {{ algorithm: concurrency, max: 1, lease: 3s }} }}
routes: [{{ name: it, suffix: /it, limiters: [places], max_wait: 5min }}]
",
        redis.url(),
        upstream.url()
    );
    let [one, other] = [Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    let mut holder: Conn = one.ask("/it", &[]).await;
    eventually("it is held", async || (upstream.calls().len() == 1).then_some(())).await;
    assert_eq!(other.limiter("places").await["level"], 0, "the other has asked once, too");
    redis.command(&["FLUSHALL"]);
    let lost = Instant::now();
    let mut waiter = other.ask("/it", &[]).await;
    other.until_waiting("it", 1).await;
    // Two leases later the holder's is still renewed.
    sleep(Duration::from_secs(6).saturating_sub(lost.elapsed())).await;
    assert_eq!(upstream.calls().len(), 1, "one place, one call");
    gate.add_permits(2);
    assert_eq!(holder.answer().await.expect("an answer").status, 200);
    assert_eq!(waiter.answer().await.expect("an answer").status, 200);
    assert_eq!(warnings(&one), 1, "{:?}", one.events());
}
