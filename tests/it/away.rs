//! A store that stalls, dies and comes back: what each policy does meanwhile, what all gateways let through in sum, and
//! what the store knows of it afterwards.

use crate::support::{
    Answer, Chaos, Conn, Gateway, Redis, Reply, Said, Upstream, eventually, reached, request,
};
use parking_lot::Mutex;
use rstest::rstest;
use serde_json::Value;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

/// The value of `paceway_store_breaker_state` while the breaker is closed.
const CLOSED: f64 = 0.0;
const OPEN: f64 = 2.0;

fn config(url: &str, store: &str, upstream: &Upstream, rest: &str) -> String {
    format!("store: {{ url: \"{url}\", {store} }}\nupstream: {}\n{rest}", upstream.url())
}

/// A server that forgets nothing when it is killed.
fn durable() -> Redis {
    Redis::with(&["--appendonly", "yes", "--appendfsync", "always"])
}

async fn until_breaker(gateway: &Gateway, state: f64) {
    eventually(&format!("the breaker is at {state}"), async || {
        (gateway.metric("paceway_store_breaker_state", &[]).await == state).then_some(())
    })
    .await;
}

async fn until_gateways(gateway: &Gateway, count: f64) {
    eventually(&format!("{count} gateways are counted"), async || {
        (gateway.metric("paceway_store_gateways", &[]).await == count).then_some(())
    })
    .await;
}

async fn statuses(gateway: &Gateway, target: &str, count: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..count {
        statuses.push(gateway.get(target).await.status);
    }
    statuses
}

async fn decided_by(gateway: &Gateway, source: &str) -> f64 {
    gateway.metric("paceway_decisions_total", &[("source", source)]).await
}

fn assert_unavailable(answer: &Answer) {
    assert_eq!((answer.status, answer.problem().as_str()), (503, "store-unavailable"));
    let seconds: u64 = answer.field("retry-after").expect("it").parse().expect("seconds");
    assert!(seconds >= 1);
}

fn events(gateway: &Gateway, message: &str) -> usize {
    gateway.events().iter().filter(|event| event.to_string().contains(message)).count()
}

// ------------------------------------------------------------------------------------- the policies

const FIVE: &str = "limiters: { search: { rate: 1/hour, burst: 5 } }
routes: [{ name: search, suffix: /search, limiters: [search] }]
";

/// From the level that was known, not from a full bucket; and what was taken meanwhile is not forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_share_goes_on_where_the_store_was_and_the_store_where_the_share_was() {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = Gateway::start(&config(&redis.url(), "timeout: 200ms", &upstream, FIVE)).await;
    assert_eq!(statuses(&gateway, "/search", 2).await, [200; 2]);
    redis.freeze();
    until_breaker(&gateway, OPEN).await;
    assert_eq!(statuses(&gateway, "/search", 2).await, [200; 2]);
    assert_eq!(
        (decided_by(&gateway, "shared").await, decided_by(&gateway, "local").await),
        (2.0, 2.0)
    );
    redis.thaw();
    until_breaker(&gateway, CLOSED).await;
    eventually("what was taken is charged", async || {
        (gateway.limiter("search").await["level"] == 1).then_some(())
    })
    .await;
    assert_eq!(statuses(&gateway, "/search", 3).await, [200, 429, 429]);
    assert_eq!(decided_by(&gateway, "shared").await, 5.0);
    // A second time, from a bucket that is empty.
    redis.kill();
    until_breaker(&gateway, OPEN).await;
    let refused = gateway.get("/search").await;
    assert_eq!(refused.status, 429);
    let seconds: u64 = refused.field("retry-after").expect("it").parse().expect("seconds");
    assert!((3000..=3600).contains(&seconds), "{seconds} s until there is a permit");
    assert_eq!(upstream.calls().len(), 5);
}

#[rstest]
#[case::share("share", &[200, 200, 200, 429, 429], "local")]
#[case::allow("allow", &[200, 200, 200, 200, 200], "none")]
#[tokio::test(flavor = "multi_thread")]
async fn each_policy_does_what_it_says(
    #[case] policy: &str,
    #[case] expected: &[u16],
    #[case] source: &str,
) {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    let store = format!("timeout: 2s, on_failure: {policy}");
    let gateway = Gateway::start(&config(&redis.url(), &store, &upstream, FIVE)).await;
    assert_eq!(statuses(&gateway, "/search", 2).await, [200; 2]);
    redis.kill();
    until_breaker(&gateway, OPEN).await;
    assert_eq!(gateway.metric("paceway_store_up", &[]).await, 0.0);
    assert_eq!(statuses(&gateway, "/search", 5).await, expected);
    assert_eq!(decided_by(&gateway, source).await, 5.0);
    let ready = gateway.page("/readyz").await;
    assert_eq!((ready.status, &ready.json()["store"]["breaker"]), (200, &"open".into()));
}

/// A server that answers each call with an error decides as little as one that is dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_every_call_is_told_by_readyz() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let store = "timeout: 2s, on_failure: reject";
    let gateway = Gateway::start(&config(&redis.url(), store, &upstream, FIVE)).await;
    assert_eq!(gateway.get("/search").await.status, 200);
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_unavailable(&gateway.until_answered("/search", 503).await);
    eventually("it is not ready", async || {
        assert_unavailable(&gateway.get("/search").await);
        (gateway.page("/readyz").await.status == 503).then_some(())
    })
    .await;
    // No decision is asked for: a call that only reads works, and proves nothing.
    for _ in 0..3 {
        sleep(Duration::from_secs(1)).await;
        let ready = gateway.page("/readyz").await;
        assert_eq!(ready.status, 503);
        let store = &ready.json()["store"];
        assert_eq!(
            (&store["breaker"], &store["decided_by"]),
            (&"closed".into(), &"this gateway, by `on_failure`".into())
        );
        assert!(store["no_decisions"][0]["why"].to_string().contains("OOM"), "{store}");
        assert!(gateway.limiter("search").await["error"].to_string().contains("OOM"));
        assert_eq!(gateway.metric("paceway_store_up", &[]).await, 0.0);
    }
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    eventually("it is ready", async || (gateway.page("/readyz").await.status == 200).then_some(()))
        .await;
    assert_eq!(gateway.metric("paceway_store_up", &[]).await, 1.0);
    assert_eq!(gateway.get("/search").await.status, 200);
    for message in ["the store gives no decisions", "the store gives decisions again"] {
        assert_eq!(events(&gateway, message), 1, "{message}");
    }
}

/// The server runs but rejects our password after a change: the pages report that and name the server, not only that no
/// connection exists.
#[tokio::test(flavor = "multi_thread")]
async fn why_the_store_is_away_is_told() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    redis.command(&["ACL", "SETUSER", "ann", "on", ">right", "~*", "&*", "+@all"]);
    let url = redis.url().replace("//", "//ann:right@");
    let gateway = Gateway::start(&config(&url, "timeout: 2s", &upstream, FIVE)).await;
    assert_eq!(gateway.get("/search").await.status, 200);
    redis.command(&["ACL", "SETUSER", "ann", "resetpass", ">other"]);
    redis.command(&["CLIENT", "KILL", "USER", "ann"]);
    let told = format!("127.0.0.1:{} says: WRONGPASS", redis.port());
    eventually("the reason is reported", async || {
        let why = gateway.page("/readyz").await.json()["store"]["why"].to_string();
        (why.contains(&told) && why.contains("are wrong")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_that_rejects_without_the_store_says_so() {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    let store = "timeout: 2s, on_failure: reject";
    let gateway = Gateway::start(&config(&redis.url(), store, &upstream, FIVE)).await;
    assert_eq!(gateway.page("/readyz").await.status, 200);
    redis.kill();
    until_breaker(&gateway, OPEN).await;
    assert_unavailable(&gateway.get("/search").await);
    let ready = gateway.page("/readyz").await;
    assert_eq!((ready.status, &ready.json()["ready"]), (503, &false.into()));
    assert_eq!(upstream.calls().len(), 0);
}

/// The strictest policy of a request's limiters applies, and limiters that only observe do not count.
#[tokio::test(flavor = "multi_thread")]
async fn limiters_have_policies_of_their_own() {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = "limiters:
  lax: { rate: 1/hour, on_failure: allow }
  two: { rate: 1/hour, burst: 2 }
  strict: { rate: 100/hour, on_failure: reject }
  seen: { rate: 100/hour, on_failure: reject, mode: observe }
routes:
  - { suffix: /lax, limiters: [lax] }
  - { suffix: /two, limiters: [lax, two] }
  - { suffix: /strict, limiters: [lax, strict] }
  - { suffix: /seen, limiters: [lax, seen] }
";
    let gateway = Gateway::start(&config(&redis.url(), "timeout: 2s", &upstream, rest)).await;
    redis.kill();
    until_breaker(&gateway, OPEN).await;
    assert_eq!(statuses(&gateway, "/lax", 4).await, [200; 4]);
    assert_eq!(statuses(&gateway, "/two", 3).await, [200, 200, 429]);
    assert_eq!(statuses(&gateway, "/seen", 3).await, [200; 3]);
    assert_unavailable(&gateway.get("/strict").await);
    let page = gateway.page("/readyz").await;
    assert_eq!(page.status, 200, "others are served: {}", page.text());
}

/// A limiter of one instance keeps its whole rule, however many gateways are alive, because no other gateway uses it.
#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_of_one_instance_keeps_all_of_its_rule() {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = "limiters:
  own: { rate: 1/hour, burst: 4, scope: instance }
  all: { rate: 1/hour, burst: 4 }
routes:
  - { suffix: /own, limiters: [own] }
  - { suffix: /all, limiters: [all] }
";
    let yaml = config(&redis.url(), "timeout: 2s", &upstream, rest);
    let (gateway, other) = (Gateway::start(&yaml).await, Gateway::start(&yaml).await);
    until_gateways(&gateway, 2.0).await;
    until_gateways(&other, 2.0).await;
    redis.kill();
    until_breaker(&gateway, OPEN).await;
    assert_eq!(statuses(&gateway, "/own", 5).await, [200, 200, 200, 200, 429]);
    assert_eq!(statuses(&gateway, "/all", 3).await, [200, 200, 429]);
}

/// A right that is missing is an answer: the store is asked each time, and the policy decides.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_is_no_reason_to_refuse() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    redis.command(&["ACL", "SETUSER", "paceway", "on", ">secret", "~*", "&*", "+@all"]);
    let url = redis.url().replace("redis://", "redis://paceway:secret@");
    let gateway = Gateway::start(&config(&url, "timeout: 2s", &upstream, FIVE)).await;
    // At the start it would be an error.
    redis.command(&["ACL", "SETUSER", "paceway", "-eval", "-evalsha"]);
    assert_eq!(statuses(&gateway, "/search", 6).await, [200, 200, 200, 200, 200, 429]);
    assert_eq!(decided_by(&gateway, "local").await, 6.0);
    until_breaker(&gateway, CLOSED).await;
    assert!(gateway.metric("paceway_store_errors_total", &[("kind", "refused")]).await >= 6.0);
    redis.command(&["ACL", "SETUSER", "paceway", "+eval", "+evalsha"]);
    eventually("what was taken is charged", async || {
        (gateway.limiter("search").await["level"] == 0).then_some(())
    })
    .await;
}

/// The pages tell what a gateway grants by itself, and how full that is.
#[tokio::test(flavor = "multi_thread")]
async fn a_share_is_shown_while_it_is_in_use() {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = "limiters:
  flowing: { rate: 5/hour, burst: 9 }
  windows: { algorithm: fixed_window, rate: [5/day, 100/7d] }
  places: { algorithm: concurrency, max: 4 }
  keyed: { rate: 6/hour, key: '{query.k}' }
  own: { rate: 5/hour, scope: instance }
  lax: { rate: 5/hour, on_failure: allow }
routes: [{ suffix: /search, limiters: [flowing] }, { suffix: '*', limiters: [windows, places, keyed, own, lax] }]
";
    let yaml = config(&redis.url(), "timeout: 2s", &upstream, rest);
    let (gateway, other) = (Gateway::start(&yaml).await, Gateway::start(&yaml).await);
    until_gateways(&gateway, 2.0).await;
    until_gateways(&other, 2.0).await;
    let before = gateway.limiter("flowing").await;
    assert_eq!((&before["on_failure"], &before["share"]), (&"share".into(), &Value::Null));
    redis.kill();
    until_breaker(&gateway, OPEN).await;
    let mut shares = Vec::new();
    for name in ["flowing", "windows", "places", "keyed", "own", "lax"] {
        let share = gateway.limiter(name).await["share"].clone();
        shares.push((
            share["gateways"].clone(),
            share["limit"].clone(),
            share["rate"].clone(),
            share["level"].clone(),
        ));
    }
    let rates = serde_json::json!(["2/d", "50/7d"]);
    let expected = [
        (2.into(), 4.into(), "5/2h".into(), 4.into()),
        (2.into(), 2.into(), rates, 2.into()),
        // It held no permit when the store went, and the other gateway may hold all of them.
        (2.into(), 0.into(), Value::Null, 0.into()),
        (2.into(), 3.into(), "3/h".into(), Value::Null),
        (1.into(), 5.into(), "5/h".into(), 5.into()),
        (Value::Null, Value::Null, Value::Null, Value::Null),
    ];
    assert_eq!(shares, expected);
    assert_eq!(statuses(&gateway, "/search", 3).await, [200; 3]);
    assert_eq!(gateway.limiter("flowing").await["share"]["level"], 1);
    assert_eq!(gateway.limiter("lax").await["on_failure"], "allow");
    let one = gateway.page("/limiters/keyed/keys/a").await.json();
    assert_eq!(one["share"]["level"], 3, "{one}");
}

// ------------------------------------------------------------------------------------- time

/// The fault that silences a store, and how it ends.
#[derive(Debug, Clone, Copy)]
enum Silence {
    Frozen,
    Paused,
    /// The store answers, but later than the time-out of the gateway allows.
    Slow,
}

/// Only the first requests wait for it, and no longer than its time-out; all are decided.
#[rstest]
#[case::frozen(Silence::Frozen)]
#[case::paused(Silence::Paused)]
#[case::slow(Silence::Slow)]
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_store_costs_a_few_requests_its_timeout(#[case] silence: Silence) {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let proxy = Chaos::before(&redis).await;
    let rest = "workers: 2
limiters: { search: 1000000/hour }
routes: [{ name: search, suffix: /search, limiters: [search] }]
";
    let limit = Duration::from_millis(500);
    let gateway = Gateway::start(&config(&proxy.url(), "timeout: 500ms", &upstream, rest)).await;
    assert_eq!(gateway.get("/search").await.status, 200);
    match silence {
        Silence::Frozen => redis.freeze(),
        Silence::Paused => drop(redis.command(&["CLIENT", "PAUSE", "600000", "WRITE"])),
        Silence::Slow => proxy.delay(Duration::from_millis(1500)),
    }
    let mut slow = 0;
    for _ in 0..60 {
        let asked = Instant::now();
        assert_eq!(gateway.get("/search").await.status, 200);
        slow += usize::from(asked.elapsed() >= limit);
    }
    // Three of each worker, and those that meet a busy machine.
    assert!(slow <= 12, "{slow} of 60 requests took as long as the store's time-out");
    until_breaker(&gateway, OPEN).await;
    match silence {
        Silence::Frozen => redis.thaw(),
        Silence::Paused => drop(redis.command(&["CLIENT", "UNPAUSE"])),
        Silence::Slow => proxy.delay(Duration::ZERO),
    }
    until_breaker(&gateway, CLOSED).await;
    eventually("the reason is reported", async || {
        (events(&gateway, "the store answers again") == 1).then_some(())
    })
    .await;
    assert_eq!(events(&gateway, "the store is away"), 1, "{:?}", gateway.events());
    let before = decided_by(&gateway, "shared").await;
    assert_eq!(statuses(&gateway, "/search", 5).await, [200; 5]);
    assert_eq!(decided_by(&gateway, "shared").await, before + 5.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_not_there_at_the_start_is_the_policy() {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    redis.kill();
    let gateway = Gateway::start(&config(&redis.url(), "timeout: 2s", &upstream, FIVE)).await;
    assert_eq!(statuses(&gateway, "/search", 6).await, [200, 200, 200, 200, 200, 429]);
    redis.start_again();
    until_breaker(&gateway, CLOSED).await;
    eventually("what was taken is charged", async || {
        (gateway.limiter("search").await["level"] == 0).then_some(())
    })
    .await;
    assert_eq!(gateway.get("/search").await.status, 429);
}

// ------------------------------------------------------------------------------------- several gateways

/// Clients of all gateways that ask without a pause, until it is dropped.
struct Load {
    ends: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<Vec<u16>>>,
}

impl Load {
    fn on(gateways: &[Gateway], clients: usize) -> Self {
        let ends = Arc::<AtomicBool>::default();
        let load = gateways.iter().flat_map(|gateway| {
            let (ends, address) = (ends.clone(), gateway.listen);
            (0..clients).map(move |_| tokio::spawn(ask_on(address, ends.clone())))
        });
        Self { tasks: load.collect(), ends: ends.clone() }
    }

    /// Ends the load, and returns the statuses of all answers in their order.
    async fn end(self) -> Vec<u16> {
        self.ends.store(true, Relaxed);
        let mut all = Vec::new();
        for task in self.tasks {
            all.extend(task.await.expect("a client"));
        }
        all
    }
}

async fn ask_on(address: std::net::SocketAddr, ends: Arc<AtomicBool>) -> Vec<u16> {
    let mut statuses = Vec::new();
    while !ends.load(Relaxed) {
        let Ok(mut conn) = Conn::to(address).await else { break };
        while !ends.load(Relaxed) {
            if conn.send(request("GET", "/search", &[])).await.is_err() {
                break;
            }
            let Ok(answer) = conn.answer().await else { break };
            statuses.push(answer.status);
            if answer.status != 200 {
                sleep(Duration::from_millis(20)).await;
            }
        }
    }
    statuses
}

fn between(arrivals: &[Instant], from: Instant, to: Instant) -> usize {
    arrivals.iter().filter(|at| (from..to).contains(at)).count()
}

const FORTY: &str = "limiters: { search: { rate: 40/s, burst: 10 } }
routes: [{ name: search, suffix: /search, limiters: [search], max_wait: 500ms }]
";

/// The moments in which this machine ran no thread of ours: a thread that sleeps for a few ms notes each longer sleep.
struct Stalls {
    seen: Arc<Mutex<Vec<(Instant, Instant)>>>,
}

impl Stalls {
    const LEAST: Duration = Duration::from_millis(50);

    /// For as long as it lives.
    fn watch() -> Self {
        let seen = Arc::<Mutex<Vec<_>>>::default();
        let noted = Arc::downgrade(&seen);
        std::thread::spawn(move || {
            let mut last = Instant::now();
            while let Some(noted) = noted.upgrade() {
                std::thread::sleep(Duration::from_millis(5));
                let now = Instant::now();
                if now - last > Self::LEAST {
                    noted.lock().push((last, now));
                }
                last = now;
            }
        });
        Self { seen }
    }

    /// The length of those that had a part in that time.
    fn within(&self, from: Instant, to: Instant) -> Duration {
        let seen = self.seen.lock();
        seen.iter()
            .filter(|stall| stall.0 < to && from < stall.1)
            .map(|stall| stall.1 - stall.0)
            .sum()
    }
}

/// The event that ends an outage.
#[derive(Debug, Clone, Copy)]
enum Outage {
    Frozen,
    Killed,
}

/// The law holds before, during and after an outage, and the gateways together use the rate that is left.
#[rstest]
#[case::frozen(Outage::Frozen)]
#[case::killed(Outage::Killed)]
#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_share_a_rate_without_their_store(#[case] outage: Outage) {
    let (mut redis, upstream) = (durable(), Upstream::ok().await);
    let yaml = config(&redis.url(), "timeout: 100ms", &upstream, FORTY);
    let gateways = [Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    for gateway in &gateways {
        until_gateways(gateway, 2.0).await;
    }
    let started = Instant::now();
    let load = Load::on(&gateways, 15);
    sleep(Duration::from_secs(2)).await;
    let died = Instant::now();
    match outage {
        Outage::Frozen => redis.freeze(),
        Outage::Killed => redis.kill(),
    }
    for gateway in &gateways {
        until_breaker(gateway, OPEN).await;
    }
    sleep(Duration::from_secs(1)).await;
    let away = Instant::now();
    sleep(Duration::from_secs(4)).await;
    let back = Instant::now();
    match outage {
        Outage::Frozen => redis.thaw(),
        Outage::Killed => redis.start_again(),
    }
    for gateway in &gateways {
        until_breaker(gateway, CLOSED).await;
    }
    sleep(Duration::from_secs(2)).await;
    let ended = Instant::now();
    let answers = load.end().await;
    assert!(answers.iter().all(|status| [200, 429].contains(status)), "{answers:?}");

    let arrivals = upstream.arrivals();
    let span = (back - away).as_secs_f64();
    let passed = between(&arrivals, away, back) as f64;
    assert!(
        (0.75 * 40.0 * span..=1.1 * 40.0 * span + 1.0).contains(&passed),
        "{passed} passed in {span} s without the store"
    );
    // In sum over everything that came before, at any time. The gateways do not know of each other's last few.
    let mut sorted = arrivals.clone();
    sorted.sort();
    for (i, at) in sorted.iter().enumerate() {
        let after = (*at - started).as_secs_f64();
        let most = 10.0 + 40.0 * after + 8.0;
        assert!(
            (i + 1) as f64 <= most,
            "{} in {after} s; it died after {:?}",
            i + 1,
            died - started
        );
    }
    // After the return as well.
    let (later, span) = (between(&arrivals, back, ended) as f64, (ended - back).as_secs_f64());
    assert!(later <= 10.0 + 40.0 * span + 8.0, "{later} in {span} s after the return");
}

/// Requests wait when the store comes back: their slots lie ahead, and are not granted a second time.
#[rstest]
#[case::of_both(2)]
#[case::of_one(1)]
#[tokio::test(flavor = "multi_thread")]
async fn a_window_has_room_for_who_waits_when_its_store_is_back(#[case] waiting: usize) {
    const COUNT: usize = 36;
    // The permits that both take while one has seen that the store is away, or back, and the other has not.
    const MORE: usize = 9;
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = "limiters: { search: { algorithm: sliding_window, rate: 36/s, margin: 200ms } }
routes: [{ name: search, suffix: /search, limiters: [search], max_wait: 1500ms }]
";
    let yaml = config(&redis.url(), "timeout: 100ms", &upstream, rest);
    let gateways = [Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    for gateway in &gateways {
        until_gateways(gateway, 2.0).await;
    }
    let stalls = Stalls::watch();
    let load = Load::on(&gateways[..waiting], 60);
    sleep(Duration::from_secs(1)).await;
    redis.freeze();
    for gateway in &gateways {
        until_breaker(gateway, OPEN).await;
    }
    sleep(Duration::from_secs(3)).await;
    assert!(decided_by(&gateways[0], "local").await > 0.0);
    redis.thaw();
    for gateway in &gateways {
        until_breaker(gateway, CLOSED).await;
    }
    let later = Load::on(&gateways[waiting..], 15);
    sleep(Duration::from_secs(4)).await;
    let answers = [load.end().await, later.end().await].concat();
    assert!(answers.iter().all(|status| [200, 429].contains(status)), "{answers:?}");
    let mut arrivals = upstream.arrivals();
    arrivals.sort();
    let within = |from: &Instant| between(&arrivals, *from, *from + Duration::from_secs(1));
    for (i, from) in arrivals.iter().enumerate() {
        let (count, after) = (within(from), *from - arrivals[0]);
        // A stall of the machine brings arrivals together that belong as far apart as the stall lasted.
        let stalled = stalls.within(*from, *from + Duration::from_secs(1)).as_secs_f64();
        assert!(
            count as f64 <= (COUNT + MORE) as f64 + COUNT as f64 * stalled,
            "{count} in a second, the {i}th on, {after:?} after the first; stalls of {stalled} s"
        );
    }
}

/// SIGTERM of a gateway: it leaves the set of gateways, so that the others do not keep its share free for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_ends_is_counted_no_longer() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = config(&redis.url(), "timeout: 2s", &upstream, FIVE);
    let mut ending = Gateway::start(&yaml).await;
    let gateway = Gateway::start(&yaml).await;
    until_gateways(&gateway, 2.0).await;
    ending.signal("TERM");
    ending.end().await;
    assert_eq!(redis.command(&["ZCARD", "paceway:{gateways}"]), Said::Number(1));
    assert_eq!(statuses(&gateway, "/search", 6).await, [200, 200, 200, 200, 200, 429]);
    until_gateways(&gateway, 1.0).await;
}

/// kill -9 of a gateway: the others count it for some seconds and no longer, and have their quota.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_gone_is_counted_no_longer() {
    let (mut redis, upstream) = (durable(), Upstream::ok().await);
    let yaml = config(&redis.url(), "timeout: 2s", &upstream, FIVE);
    let mut doomed = Gateway::start(&yaml).await;
    let gateway = Gateway::start(&yaml).await;
    until_gateways(&gateway, 2.0).await;
    until_gateways(&doomed, 2.0).await;
    doomed.signal("KILL");
    doomed.end().await;
    until_gateways(&gateway, 1.0).await;
    redis.kill();
    until_breaker(&gateway, OPEN).await;
    assert_eq!(statuses(&gateway, "/search", 6).await, [200, 200, 200, 200, 200, 429]);
}

/// Without the store a gateway cannot know whether the other one is dead or only cut off: the share of the other stays
/// unused.
#[tokio::test(flavor = "multi_thread")]
async fn the_share_of_a_gateway_that_dies_without_the_store_is_nobodys() {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = "limiters: { search: { rate: 1/hour, burst: 4 } }
routes: [{ name: search, suffix: /search, limiters: [search] }]
";
    let yaml = config(&redis.url(), "timeout: 2s", &upstream, rest);
    let [gateway, mut doomed] = [Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    until_gateways(&gateway, 2.0).await;
    until_gateways(&doomed, 2.0).await;
    redis.kill();
    until_breaker(&gateway, OPEN).await;
    doomed.signal("KILL");
    doomed.end().await;
    // With the store it would count no longer by then.
    sleep(Duration::from_millis(3500)).await;
    assert_eq!(statuses(&gateway, "/search", 4).await, [200, 200, 429, 429]);
    until_gateways(&gateway, 2.0).await;
}

// ------------------------------------------------------------------------------------- permits

/// An upstream that answers as many as have a permit of the first, and gives one of the second for each that arrives.
async fn gated() -> (Upstream, Arc<Semaphore>, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let (behind, arrived) = (gate.clone(), Arc::new(Semaphore::new(0)));
    let come = arrived.clone();
    let upstream = Upstream::start(move |_| {
        come.add_permits(1);
        Reply::ok().behind(&behind)
    })
    .await;
    (upstream, gate, arrived)
}

/// A request that waits for a permit when the store dies gets it from the gateway, and a permit that is still held is not
/// granted again.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_permit_gets_it_without_the_store() {
    let (upstream, gate, arrived) = gated().await;
    let redis = Redis::start();
    let rest = "limiters: { places: { algorithm: concurrency, max: 2, lease: 60s } }
routes: [{ name: search, suffix: /search, limiters: [places], max_wait: 5min }]
";
    let gateway = Gateway::start(&config(&redis.url(), "timeout: 200ms", &upstream, rest)).await;
    let mut holders = Vec::new();
    for _ in 0..2 {
        holders.push(gateway.ask("/search", &[]).await);
        reached(&arrived, "a holder at the upstream").await;
    }
    let mut waiters = Vec::new();
    for waiting in 1..=3 {
        waiters.push(gateway.ask("/search", &[]).await);
        gateway.until_waiting("search", waiting).await;
    }
    redis.freeze();
    until_breaker(&gateway, OPEN).await;
    // Both permits are held, though the store that gave them is gone.
    let mut late = gateway.ask("/search", &[("Prefer", "wait=0")]).await;
    assert_eq!(late.answer().await.expect("an answer").status, 429);
    gateway.until_waiting("search", 3).await;
    assert_eq!(upstream.calls().len(), 2);
    gate.add_permits(1);
    reached(&arrived, "a waiter at the upstream").await;
    gateway.until_waiting("search", 2).await;
    assert_eq!(upstream.calls().len(), 3);
    redis.thaw();
    until_breaker(&gateway, CLOSED).await;
    gate.add_permits(10);
    for conn in holders.iter_mut().chain(&mut waiters) {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    eventually("all permits are free", async || {
        (gateway.limiter("places").await["level"] == 2).then_some(())
    })
    .await;
}

/// A permit is never there twice because the store died between.
#[tokio::test(flavor = "multi_thread")]
async fn permits_taken_without_the_store_are_the_stores_when_it_is_back() {
    let (upstream, gate, arrived) = gated().await;
    let redis = Redis::start();
    let rest = "limiters: { places: { algorithm: concurrency, max: 2, lease: 60s } }
routes: [{ name: search, suffix: /search, limiters: [places] }]
";
    let gateway = Gateway::start(&config(&redis.url(), "timeout: 200ms", &upstream, rest)).await;
    let mut first = gateway.ask("/search", &[]).await;
    reached(&arrived, "a holder at the upstream").await;
    redis.freeze();
    until_breaker(&gateway, OPEN).await;
    let mut second = gateway.ask("/search", &[]).await;
    reached(&arrived, "another holder").await;
    assert_eq!(gateway.get("/search").await.status, 429);
    redis.thaw();
    until_breaker(&gateway, CLOSED).await;
    eventually("both are held", async || {
        (gateway.limiter("places").await["level"] == 0).then_some(())
    })
    .await;
    assert_eq!(gateway.get("/search").await.status, 429);
    gate.add_permits(2);
    for conn in [&mut first, &mut second] {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    eventually("both are free", async || {
        (gateway.limiter("places").await["level"] == 2).then_some(())
    })
    .await;
}
