//! Pauses that an upstream asks for: each gateway of a store keeps them, with the requests that wait in it.

use crate::support::{
    Answer, Cluster, Gateway, Redis, Reply, Said, Sentinels, Upstream, assert_lawful,
    connected_store, eventually, reply, request,
};
use paceway::{
    algorithm::{Algorithm, TokenBucket},
    store::{Check, Entry, Pause, redis::RedisUrl},
};
use rstest::rstest;
use std::{sync::Arc, time::Duration};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

/// All gateways know of a pause within this time.
const KNOWN: Duration = Duration::from_millis(100);
/// Permits a second of the limiter `vendor`; its burst is 1.
const RATE: i64 = 20;

/// A pause, as a test has begun it.
struct Begun {
    /// The store had not received it before this instant.
    sent: Instant,
    /// The store has answered by this instant.
    known: Instant,
    span: Duration,
}

type Requests = Vec<JoinHandle<(Answer, Instant)>>;

fn config(store: &str, upstream: &Upstream, more: &str) -> String {
    format!(
        "store: {{ url: \"{store}\", timeout: 500ms }}
upstream: {}
limiters: {{ vendor: {{ rate: {RATE}/s, burst: 1 }} }}
routes:
- {{ name: search, suffix: /search, limiters: [vendor], max_wait: 30s }}
- {{ name: short, suffix: /short, limiters: [vendor], max_wait: 3s }}
- {{ name: never, suffix: /never, limiters: [vendor], max_wait: 0s }}
{more}",
        upstream.url()
    )
}

async fn start(yaml: &str) -> Arc<Gateway> {
    Arc::new(Gateway::start(yaml).await)
}

fn requests(gateway: &Arc<Gateway>, path: &'static str, count: usize) -> Requests {
    let one = |_| {
        let gateway = gateway.clone();
        tokio::spawn(async move { (gateway.get(path).await, Instant::now()) })
    };
    (0..count).map(one).collect()
}

/// Pauses the limiter as a gateway does that has received a refusal. This one is a process of its own, which ends then.
async fn pause(store: &str, span: Duration) -> Begun {
    let url = RedisUrl::parse(store).expect("a URL");
    let store = connected_store(&url).await;
    let rule = TokenBucket::new(RATE, 1_000_000, 1).expect("a rule");
    let check = Check::new("paceway:{vendor}:T:vendor", Algorithm::TokenBucket(rule));
    let micros = i64::try_from(span.as_micros()).expect("short");
    let pause = Pause::for_micros(micros, 429);
    let sent = Instant::now();
    store.run_at(None, &[Entry::Pause { check, pause }]).await.expect("a reply");
    Begun { sent, known: Instant::now(), span }
}

impl Begun {
    fn end(&self) -> Instant {
        self.sent + self.span
    }

    /// Nothing arrives at the upstream from 100 ms after the store has the pause until its end. Then it is the limiter's pace.
    fn assert_kept(&self, upstream: &Upstream) {
        let during = |at: &Instant| (self.known + KNOWN..self.end()).contains(at);
        let arrivals = upstream.arrivals();
        let wrong: Vec<_> =
            arrivals.iter().filter(|at| during(at)).map(|at| *at - self.known).collect();
        assert!(wrong.is_empty(), "arrivals so long after the pause began: {wrong:?}");
        let after: Vec<_> = arrivals.into_iter().filter(|at| *at >= self.end()).collect();
        assert_lawful(self.end(), &after, 1.0, RATE as f64);
    }
}

async fn all_pass(requests: Requests) {
    for request in requests {
        assert_eq!(request.await.expect("no panic").0.status, 200);
    }
}

enum Servers {
    One(Redis),
    Sentinels(Sentinels),
    Cluster(Cluster),
}

impl Servers {
    async fn start(kind: &str) -> Self {
        match kind {
            "one" => Self::One(Redis::start()),
            "sentinels" => Self::Sentinels(Sentinels::start().await),
            _ => Self::Cluster(Cluster::start(3, 0).await),
        }
    }

    fn url(&self) -> String {
        match self {
            Self::One(redis) => redis.url(),
            Self::Sentinels(sentinels) => sentinels.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_reaches_the_waiting_requests_of_all_gateways(
    #[values("one", "sentinels", "cluster")] kind: &str,
) {
    let (servers, upstream) = (Servers::start(kind).await, Upstream::ok().await);
    let (url, mut gateways) = (servers.url(), Vec::new());
    for _ in 0..3 {
        gateways.push(start(&config(&url, &upstream, "")).await);
    }
    let waiting: Requests =
        gateways.iter().flat_map(|gateway| requests(gateway, "/search", 20)).collect();
    eventually("some have been sent", async || (upstream.calls().len() >= 8).then_some(())).await;
    let pause = pause(&url, Duration::from_secs(3)).await;
    assert!(upstream.calls().len() < 40, "many wait when the pause begins");
    all_pass(waiting).await;
    pause.assert_kept(&upstream);
    assert_eq!(upstream.calls().len(), 60);
}

/// A request whose budget ends before the pause learns so at once, and not at the end of its budget.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_cannot_wait_for_the_end_are_refused() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = config(&redis.url(), &upstream, "");
    let gateways = [start(&yaml).await, start(&yaml).await];
    let asked = Instant::now();
    let mut waiting: Requests =
        gateways.iter().flat_map(|gateway| requests(gateway, "/short", 25)).collect();
    eventually("some have been sent", async || (upstream.calls().len() >= 3).then_some(())).await;
    let pause = pause(&redis.url(), Duration::from_secs(60)).await;
    waiting.extend(requests(&gateways[0], "/never", 1));
    let mut refused = 0;
    for request in waiting {
        let (answer, at) = request.await.expect("no panic");
        if answer.status == 429 {
            refused += 1;
            assert!(at < asked + Duration::from_secs(3), "it waited for the end of its budget");
            let seconds: u64 = answer.field("retry-after").expect("a time").parse().expect("s");
            assert!((50..=64).contains(&seconds), "{seconds}");
        }
    }
    pause.assert_kept(&upstream);
    assert_eq!(upstream.calls().len() + refused, 51);
    assert!(refused > 30, "{refused}");
}

/// A gateway that starts during a pause learns it from the answer to its first request.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_gateway_keeps_the_pause() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let pause = pause(&redis.url(), Duration::from_secs(4)).await;
    let gateway = start(&config(&redis.url(), &upstream, "")).await;
    let waiting = requests(&gateway, "/search", 10);
    assert_eq!(gateway.get("/never").await.status, 429);
    all_pass(waiting).await;
    pause.assert_kept(&upstream);
}

/// While the store is away each gateway keeps the pauses that it knows, whatever `on_failure` says. The store comes back
/// without its data, and has the pause again before that ends.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_survives_an_outage_of_the_store(#[values("share", "allow")] on_failure: &str) {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = config(&redis.url(), &upstream, "");
    let yaml = yaml.replace("timeout: 500ms", &format!("timeout: 100ms, on_failure: {on_failure}"));
    let yaml = yaml.replace("max_wait: 30s", "max_wait: 9s");
    let gateways = [start(&yaml).await, start(&yaml).await];
    let mut waiting: Requests =
        gateways.iter().flat_map(|gateway| requests(gateway, "/search", 20)).collect();
    eventually("some have been sent", async || (upstream.calls().len() >= 3).then_some(())).await;
    let pause = pause(&redis.url(), Duration::from_secs(6)).await;
    sleep_until(pause.known + KNOWN).await;
    redis.kill();
    for _ in 0..10 {
        waiting.extend(gateways.iter().flat_map(|gateway| requests(gateway, "/search", 1)));
        sleep(Duration::from_millis(200)).await;
    }
    redis.start_again();
    eventually("the store has the pause again", async || is_paused(&redis).then_some(())).await;
    let written = Instant::now();
    for request in waiting {
        let (answer, _) = request.await.expect("no panic");
        // After a loss of states the store grants nothing for as long as requests wait.
        assert!(matches!(answer.status, 200 | 429), "{answer:?}");
    }
    assert!(written < pause.end(), "it was written again after {:?}", written - pause.sent);
    let during = |at: &&Instant| (pause.known + KNOWN..pause.end()).contains(*at);
    assert_eq!(upstream.arrivals().iter().filter(during).count(), 0);
}

/// An operator has deleted all data of the store during a pause.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_survives_the_loss_of_the_stores_data() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = config(&redis.url(), &upstream, "").replace("max_wait: 30s", "max_wait: 9s");
    let gateways = [start(&yaml).await, start(&yaml).await];
    let pause = pause(&redis.url(), Duration::from_secs(4)).await;
    sleep_until(pause.known + KNOWN).await;
    redis.command(&["FLUSHALL"]);
    let until = pause.end() - Duration::from_millis(500);
    let mut waiting = Requests::new();
    while Instant::now() < until {
        waiting.extend(gateways.iter().flat_map(|gateway| requests(gateway, "/search", 1)));
        sleep(Duration::from_millis(100)).await;
    }
    for request in waiting {
        request.await.expect("no panic");
    }
    pause.assert_kept(&upstream);
}

/// An operator ends a pause through one gateway, and the requests that wait in both are sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_of_the_limiter_ends_the_pause_everywhere() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = config(&redis.url(), &upstream, "");
    let gateways = [start(&yaml).await, start(&yaml).await];
    let pause = pause(&redis.url(), Duration::from_secs(600)).await;
    answer(&gateways, 429).await;
    let reset = request("DELETE", "/limiters/vendor", &[]);
    assert_eq!(gateways[0].admin_request(reset).await.status, 200);
    answer(&gateways, 200).await;
    assert!(Instant::now() < pause.end());
}

/// Waits until one gateway after the other answers with this status: 429 if it knows of a pause.
async fn answer(gateways: &[Arc<Gateway>], status: u16) {
    for gateway in gateways {
        eventually("it learns of the pause, or of its end", async || {
            (gateway.get("/never").await.status == status).then_some(())
        })
        .await;
    }
}

/// The message of a reset reaches neither gateway. The one that did not make the reset does not bring the pause back.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_missed_a_reset_does_not_write_the_pause_again() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = config(&redis.url(), &upstream, "");
    let mut gateways = [start(&yaml).await, start(&yaml).await];
    let pause = pause(&redis.url(), Duration::from_secs(600)).await;
    answer(&gateways, 429).await;
    // They subscribe again 200 ms later.
    redis.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let reset = request("DELETE", "/limiters/vendor", &[]);
    assert_eq!(gateways[0].admin_request(reset).await.status, 200);
    gateways.reverse();
    answer(&gateways, 200).await;
    assert!(!is_paused(&redis) && Instant::now() < pause.end());
}

/// The gateway whose call was refused dies. The others keep the pause, and so does one that starts then.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_survives_the_gateway_that_began_it() {
    let redis = Redis::start();
    let upstream = Upstream::start(|call| match call.target.as_str() {
        "/never" => reply("429 Too Many Requests", &[("retry-after", "4")], "slow down"),
        _ => Reply::ok(),
    })
    .await;
    let yaml = config(&redis.url(), &upstream, "");
    let mut dies = Gateway::start(&yaml).await;
    let lives = start(&yaml).await;
    let refused = eventually("the upstream refuses a call", async || {
        let sent = Instant::now();
        let answer = dies.get("/never").await;
        let is_its_own = answer.field("paceway-origin") == Some("upstream");
        (answer.status == 429 && is_its_own).then_some(sent)
    });
    let sent = refused.await;
    let mut waiting = requests(&lives, "/search", 20);
    eventually("the store has the pause", async || is_paused(&redis).then_some(())).await;
    let pause = Begun { sent, known: Instant::now(), span: Duration::from_secs(4) };
    dies.signal("KILL");
    dies.end().await;
    waiting.extend(requests(&start(&yaml).await, "/search", 10));
    all_pass(waiting).await;
    pause.assert_kept(&upstream);
}

/// Whether the state of the limiter has a gate.
fn is_paused(redis: &Redis) -> bool {
    let said = redis.try_command(&["GET", "paceway:{vendor}:T:vendor"]);
    matches!(said, Ok(Said::Bytes(Some(state))) if state.first() == Some(&b'V'))
}
