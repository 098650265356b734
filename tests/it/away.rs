//! A store that stalls, dies and comes back: what each policy does meanwhile, what all gateways let through in sum, and
//! what the store knows of it afterwards.

mod gateways;
mod outages;
mod permits;

use crate::support::{Answer, Chaos, Gateway, Redis, Upstream, eventually};
use rstest::rstest;
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, sleep};

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
async fn levels_pass_between_store_and_share() {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = Gateway::start(&config(&redis.url(), "timeout: 200ms", &upstream, FIVE)).await;
    assert_eq!(gateway.statuses("/search", 2).await, [200; 2]);
    redis.freeze();
    until_breaker(&gateway, OPEN).await;
    assert_eq!(gateway.statuses("/search", 2).await, [200; 2]);
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
    assert_eq!(gateway.statuses("/search", 3).await, [200, 429, 429]);
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
async fn each_policy_decides_without_the_store(
    #[case] policy: &str,
    #[case] expected: &[u16],
    #[case] source: &str,
) {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    let store = format!("timeout: 2s, on_failure: {policy}");
    let gateway = Gateway::start(&config(&redis.url(), &store, &upstream, FIVE)).await;
    assert_eq!(gateway.statuses("/search", 2).await, [200; 2]);
    redis.kill();
    until_breaker(&gateway, OPEN).await;
    assert_eq!(gateway.metric("paceway_store_up", &[]).await, 0.0);
    assert_eq!(gateway.statuses("/search", 5).await, expected);
    assert_eq!(decided_by(&gateway, source).await, 5.0);
    let ready = gateway.page("/readyz").await;
    assert_eq!((ready.status, &ready.json()["store"]["breaker"]), (200, &"open".into()));
}

/// A server that answers each call with an error decides as little as one that is dead.
#[tokio::test(flavor = "multi_thread")]
async fn readyz_reports_a_store_that_refuses_every_call() {
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
        // A thread of its own writes the log.
        eventually(message, async || (events(&gateway, message) > 0).then_some(())).await;
        assert_eq!(events(&gateway, message), 1, "{message}");
    }
}

/// The server runs but rejects our password after a change: the pages report that and name the server, not only that no
/// connection exists.
#[tokio::test(flavor = "multi_thread")]
async fn the_pages_name_the_reason_of_an_outage() {
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
async fn a_limiter_that_rejects_without_the_store_answers_503() {
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
async fn the_strictest_policy_of_the_limiters_applies() {
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
    assert_eq!(gateway.statuses("/lax", 4).await, [200; 4]);
    assert_eq!(gateway.statuses("/two", 3).await, [200, 200, 429]);
    assert_eq!(gateway.statuses("/seen", 3).await, [200; 3]);
    assert_unavailable(&gateway.get("/strict").await);
    let page = gateway.page("/readyz").await;
    assert_eq!(page.status, 200, "others are served: {}", page.text());
}

/// A limiter of one instance keeps its whole rule, however many gateways are alive, because no other gateway uses it.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_limiter_keeps_its_whole_rule() {
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
    assert_eq!(gateway.statuses("/own", 5).await, [200, 200, 200, 200, 429]);
    assert_eq!(gateway.statuses("/all", 3).await, [200, 200, 429]);
}

/// A right that is missing is an answer: the store is asked each time, and the policy decides.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusing_store_leads_to_no_refusals() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    redis.command(&["ACL", "SETUSER", "paceway", "on", ">secret", "~*", "&*", "+@all"]);
    let url = redis.url().replace("redis://", "redis://paceway:secret@");
    let gateway = Gateway::start(&config(&url, "timeout: 2s", &upstream, FIVE)).await;
    // At the start it would be an error.
    redis.command(&["ACL", "SETUSER", "paceway", "-fcall", "-eval", "-evalsha"]);
    assert_eq!(gateway.statuses("/search", 6).await, [200, 200, 200, 200, 200, 429]);
    assert_eq!(decided_by(&gateway, "local").await, 6.0);
    until_breaker(&gateway, CLOSED).await;
    assert!(gateway.metric("paceway_store_errors_total", &[("kind", "refused")]).await >= 6.0);
    redis.command(&["ACL", "SETUSER", "paceway", "+fcall", "+eval", "+evalsha"]);
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
    assert_eq!(gateway.statuses("/search", 3).await, [200; 3]);
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
async fn a_silent_store_delays_only_the_first_requests(#[case] silence: Silence) {
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
    assert_eq!(gateway.statuses("/search", 5).await, [200; 5]);
    assert_eq!(decided_by(&gateway, "shared").await, before + 5.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_missing_at_the_start_is_replaced_by_the_policy() {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    redis.kill();
    let gateway = Gateway::start(&config(&redis.url(), "timeout: 2s", &upstream, FIVE)).await;
    assert_eq!(gateway.statuses("/search", 6).await, [200, 200, 200, 200, 200, 429]);
    redis.start_again();
    until_breaker(&gateway, CLOSED).await;
    eventually("what was taken is charged", async || {
        (gateway.limiter("search").await["level"] == 0).then_some(())
    })
    .await;
    assert_eq!(gateway.get("/search").await.status, 429);
}

// ------------------------------------------------------------------------------------- several gateways

// ------------------------------------------------------------------------------------- permits
