//! Estimates of the admin side at the real binary, on both stores: what they say then happens, and they charge nothing.

use crate::support::{Answer, Gateway, Redis, Upstream, eventually, paceway, request};
use rstest::rstest;
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

const LIMITERS: &str = "limiters:\n  \
    slow: { rate: 1/s, burst: 2 }\n  \
    both: { rate: [5/s, 20/min] }\n  \
    even: { algorithm: fixed_window, rate: 86400/day, resets: '00:00 UTC', spread: even }\n  \
    shop: { rate: 1/s, burst: 3, key: '{header.x-shop}', rates: { big: 10/s } }\n  \
    team: { rate: 2/s, burst: 1, fair: { by: '{header.x-team}', weights: { a: 1, b: 1 } } }\n  \
    calls: { algorithm: concurrency, max: 3 }\n  \
    kept: { rate: 1/s, burst: 10, floors: { high: 50% } }\n  \
    seen: { rate: 1/hour, mode: observe }\n\
    routes:\n  - { path: /team, limiters: [team], max_wait: 20s }\n  \
    - { path: /kept, limiters: [kept], priority: low, max_wait: 1s }\n  \
    - { suffix: '*', limiters: [slow], max_wait: 0 }\n";

/// A gateway, with the Redis of its store if it has one.
struct World {
    redis: Option<Redis>,
    gateway: Gateway,
    _upstream: Upstream,
}

async fn world(on_redis: bool) -> World {
    let (redis, upstream) = (on_redis.then(Redis::start), Upstream::ok().await);
    let store = redis.as_ref().map_or(String::new(), |redis| {
        format!("store: {{ url: '{}', timeout: 5s }}\n", redis.url())
    });
    let gateway = Gateway::before(&upstream, &format!("{store}{LIMITERS}")).await;
    World { redis, gateway, _upstream: upstream }
}

async fn send(gateway: &Gateway, method: &str, path: &str, body: &Value) -> Answer {
    let body = body.to_string();
    let length = body.len().to_string();
    let fields = [("Content-Length", length.as_str()), ("Content-Type", "application/json")];
    gateway.admin_request(request(method, path, &fields) + &body).await
}

async fn estimate(gateway: &Gateway, limiter: &str, body: Value) -> [f64; 2] {
    let answer = send(gateway, "POST", &format!("/limiters/{limiter}/estimate"), &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let told = answer.json();
    ["first_ms", "last_ms"].map(|field| told[field].as_f64().expect("a time"))
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

#[rstest]
#[case::memory(false)]
#[case::redis(true)]
#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_comes_true_and_charges_nothing(#[case] on_redis: bool) {
    let World { redis, gateway, _upstream } = world(on_redis).await;
    // The length of a slot in ms, and what a call costs.
    for (limiter, slot, cost, key) in [
        ("slow", 1000.0, 1, None),
        ("both", 3000.0, 2, None),
        ("even", 1000.0, 1, None),
        ("shop", 1000.0, 2, Some("small")),
        ("shop", 100.0, 1, Some("big")),
    ] {
        let mut asked = json!({ "cost": cost, "key": key });
        if key.is_none() {
            asked.as_object_mut().expect("a map").remove("key");
        }
        let acquire = format!("/limiters/{limiter}/acquire");
        let take = async || {
            let mut body = asked.clone();
            body["max_wait_ms"] = 600_000.into();
            let at = Instant::now();
            let answer = send(&gateway, "POST", &acquire, &body).await.json();
            assert_eq!(answer["limited"], false, "{answer}");
            (at, answer["wait_ms"].as_f64().expect("a wait"))
        };
        take().await;
        let states = || {
            redis.as_ref().map(|redis| {
                let keys = redis.keys().into_iter().filter(|key| key.contains(limiter));
                keys.map(|key| (redis.bytes(&key), key)).collect::<BTreeSet<_>>()
            })
        };
        let before = states();
        let begin = Instant::now();
        let mut question = asked.clone();
        question["count"] = 12.into();
        let [first, last] = estimate(&gateway, limiter, question).await;
        assert_eq!(states(), before, "{limiter}");
        let mut waits = Vec::new();
        for _ in 0..12 {
            let (at, wait) = take().await;
            waits.push(millis(at - begin) + wait);
        }
        for (told, then) in [(first, waits[0]), (last, waits[11])] {
            let took = millis(begin.elapsed());
            assert!((told - then).abs() <= slot + took, "{limiter}: {told} {then} of {waits:?}");
        }
        assert!(last > 0.0, "{limiter}");
    }
    // A pause of an operator, and a limiter that holds nothing.
    let pause = json!({ "pause": true, "for": "1m", "reason": "test" });
    assert_eq!(send(&gateway, "PUT", "/limiters/slow/override", &pause).await.status, 200);
    eventually("a pause", async || gateway.limiter("slow").await["paused_ms"].as_f64()).await;
    let [first, _] = estimate(&gateway, "slow", json!({ "count": 1 })).await;
    assert!((50_000.0..=60_000.0).contains(&first), "{first}");
    assert_eq!(estimate(&gateway, "seen", json!({ "count": 99 })).await, [0.0, 0.0]);
}

/// The calls of a team that has waited for nothing share the slots with those of another one that wait.
#[rstest]
#[case::memory(false)]
#[case::redis(true)]
#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_shares_slots_with_the_tenants_that_wait(#[case] on_redis: bool) {
    const SLOT: f64 = 500.0;
    let World { gateway, redis: _redis, _upstream } = world(on_redis).await;
    let mut others = Vec::new();
    for waiting in 0..8 {
        others.push(gateway.ask("/team", &[("X-Team", "a")]).await);
        gateway.until_waiting("/team", waiting).await;
    }
    let begin = Instant::now();
    let told = estimate(&gateway, "team", json!({ "count": 3, "tenant": "b" })).await;
    let of_nobody = estimate(&gateway, "team", json!({ "count": 30 })).await;
    let mut own = Vec::new();
    for _ in 0..3 {
        own.push(gateway.ask("/team", &[("X-Team", "b")]).await);
    }
    // An answer counts as coming when it is read.
    let own = own.into_iter().map(|mut conn| {
        tokio::spawn(async move {
            let answer = conn.answer().await.expect("an answer");
            assert_eq!(answer.status, 200);
            answer.at
        })
    });
    let mut then = Vec::new();
    for answer in own.collect::<Vec<_>>() {
        then.push(millis(answer.await.expect("a call") - begin));
    }
    then.sort_by(f64::total_cmp);
    for (told, then) in told.into_iter().zip([then[0], then[2]]) {
        assert!((told - then).abs() <= SLOT, "{told} {then}");
    }
    // First come, first served would come to them after seven others; thirty calls come after all of them.
    assert!(told[0] < 3.0 * SLOT && told[1] < 7.5 * SLOT, "{told:?}");
    assert!((of_nobody[1] - 37.0 * SLOT).abs() <= 2.0 * SLOT, "{of_nobody:?}");
}

/// Half of the bucket is for requests of priority `high`.
#[rstest]
#[case::memory(false)]
#[case::redis(true)]
#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_counts_floors(#[case] on_redis: bool) {
    let World { gateway, redis: _redis, _upstream } = world(on_redis).await;
    let of = async |question: Value| estimate(&gateway, "kept", question).await;
    assert_eq!(of(json!({ "count": 10, "priority": "high" })).await, [0.0, 0.0]);
    assert_eq!(of(json!({ "count": 5, "priority": "low" })).await, [0.0, 0.0]);
    // Its route has the priority `low`.
    for question in [json!({ "count": 7, "priority": "normal" }), json!({ "count": 7 })] {
        assert_eq!(of(question).await, [0.0, 2000.0]);
    }
    let admin = gateway.admin.to_string();
    for (priority, said) in [("high", "the last at once"), ("low", "the last in 5s")] {
        let args = ["estimate", "kept", "--count", "10", "--priority", priority, "--admin", &admin];
        let out = paceway(&args);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(text.contains(said), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_question_is_answered_with_its_remedy() {
    let World { gateway, redis: _redis, _upstream } = world(false).await;
    for (limiter, body, status, said) in [
        ("none", json!({ "count": 1 }), 404, "there is no such limiter"),
        ("slow", json!({}), 422, "missing field `count`"),
        ("slow", json!({ "count": 1, "calls": 2 }), 422, "unknown field `calls`"),
        ("slow", json!([1]), 422, "send a question such as"),
        ("slow", json!({ "count": 0 }), 400, "`count` must be between 1 and 1000000"),
        ("slow", json!({ "count": 1_000_001 }), 400, "`count` must be between 1 and 1000000"),
        ("slow", json!({ "count": 1, "cost": 3 }), 400, "`cost` must be between 1 and 2"),
        ("slow", json!({ "count": 1, "cost": 0 }), 400, "`cost` must be between 1 and 2"),
        ("slow", json!({ "count": 1, "priority": "top" }), 400, "`high`, `normal` or `low`"),
        ("slow", json!({ "count": 1, "key": "a" }), 400, "give no key"),
        ("slow", json!({ "count": 1, "tenant": "a" }), 400, "give no tenant"),
        ("shop", json!({ "count": 1 }), 400, "name one, as `key` in the body"),
        ("calls", json!({ "count": 1 }), 400, "comes back when a call ends"),
    ] {
        let answer = send(&gateway, "POST", &format!("/limiters/{limiter}/estimate"), &body).await;
        let text = answer.text();
        let kind = "application/problem+json";
        assert_eq!(answer.status, status, "{body}: {text}");
        assert!(answer.field("content-type") == Some(kind), "{text}");
        assert!(text.contains(said) || status == 422, "{body}: {text}");
    }
    let answer = send(&gateway, "GET", "/limiters/slow/estimate", &json!({})).await;
    assert_eq!(answer.status, 405);
    let large = json!({ "count": 1, "key": "a".repeat(3 << 20) });
    assert_eq!(send(&gateway, "POST", "/limiters/slow/estimate", &large).await.status, 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_tells_when_calls_would_be_sent() {
    let World { gateway, redis: _redis, _upstream } = world(false).await;
    let admin = gateway.admin.to_string();
    let run = |args: &[&str]| {
        let output = paceway(&[&["estimate", "--admin", &admin], args].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, err) = run(&["slow", "--count", "5000"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let told = "slow: the first of 5000 calls would be sent at once; the last in 83.3min, at 20";
    assert!(out.starts_with(told), "{out}");
    let (code, out, _) = run(&["shop", "--count", "3", "--cost", "3", "--key", "a", "--json"]);
    let told: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &told["first_ms"], &told["last_ms"]), (Some(0), &json!(0.0), &json!(6000.0)));
    let (code, out, _) = run(&["team", "--count", "1", "--tenant", "a"]);
    assert_eq!((code, out.as_str()), (Some(0), "team: the call would be sent at once\n"));
    let (code, _, err) = run(&["shop", "--count", "1"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("this limiter has a bucket for each"), "{err}");
}

/// 60 of 100 calls of a month within a moment are more than the month has room for.
#[rstest]
#[case::memory(false)]
#[case::redis(true)]
#[tokio::test(flavor = "multi_thread")]
async fn operators_see_when_a_quota_will_be_used_up(#[case] on_redis: bool) {
    let (redis, upstream) = (on_redis.then(Redis::start), Upstream::ok().await);
    let store = redis
        .as_ref()
        .map_or("memory".to_owned(), |redis| format!("{{ url: '{}', timeout: 5s }}", redis.url()));
    let gateway = Gateway::before(
        &upstream,
        &format!(
            "store: {store}\nlimiters:\n  \
             month: {{ algorithm: fixed_window, rate: 100/month, resets: 'day 15 00:00 UTC' }}\n  \
             bucket: 100/30d\n\
             routes: [{{ suffix: '*', limiters: [month, bucket], max_wait: 0 }}]"
        ),
    )
    .await;
    let name = "paceway_limiter_used_up_seconds";
    let month = [("limiter", "month")];
    assert_eq!(gateway.metric(name, &month).await, f64::INFINITY);
    let reset = gateway.metric("paceway_limiter_reset_seconds", &month).await;
    assert!(reset > 0.0 && reset <= 31.0 * 86_400.0, "{reset}");
    assert!(gateway.limiter("month").await["used_up_at"].is_null());
    let cost = json!({ "cost": 60 });
    for limiter in ["month", "bucket"] {
        let path = format!("/limiters/{limiter}/acquire");
        assert_eq!(send(&gateway, "POST", &path, &cost).await.json()["limited"], false);
    }
    let page = gateway.limiter("month").await;
    let left = page["used_up_ms"].as_f64().expect("an end");
    assert!((39_000.0..70_000.0).contains(&left), "{page}");
    assert!(page["used_up_at"].as_str().is_some_and(|at| at.starts_with("20")), "{page}");
    let left = gateway.metric(name, &month).await;
    assert!((39.0..70.0).contains(&left), "{left}");
    assert!(gateway.limiter("bucket").await["used_up_at"].is_null());
    let text = gateway.page("/metrics").await.text();
    assert!(!text.contains(&format!("{name}{{limiter=\"bucket\"}}")), "{text}");
    let output = paceway(&["status", "--admin", &gateway.admin.to_string()]);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.contains("its quota ends at 20"), "{out}");
}
