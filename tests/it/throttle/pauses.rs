//! Pauses of limiters: their length, their keys, the calls that wait or are refused during one, and their traces in pages,
//! metrics and logs.

use super::*;
use paceway::throttle::Timestamp;

/// The refusal of a call during a pause, once the gateway knows of it, and its `Retry-After`.
async fn refused_in_a_pause(gateway: &Gateway) -> (Answer, u64) {
    let refused = eventually("the pause is known", async || {
        let answer = gateway.get("/b").await;
        (answer.status == 429).then_some(answer)
    })
    .await;
    assert_eq!(refused.problem(), "upstream-throttled");
    let after = refused.field("retry-after").expect("it").parse().expect("a number");
    (refused, after)
}

/// Nothing reaches the upstream before the time that it named; waiting calls are sent after it, at the pace of the limiter, and
/// those without the time for that are refused at once.
#[rstest]
#[case::memory(Place::Memory)]
#[case::redis(Place::Redis)]
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_during_a_pause(#[case] place: Place) {
    let redis = redis_of(place);
    let upstream = scripted([Reply::ok(), too_many("3")]).await;
    let limiters = "quota: { rate: 10/s, burst: 2 }";
    let store = redis.as_ref();
    let gateway = Arc::new(gateway_on(store, &upstream, ("", limiters, WAITS)).await);
    let mut all = JoinSet::new();
    for i in 0..12 {
        let gateway = gateway.clone();
        all.spawn(async move { gateway.get(&format!("/{i}")).await });
    }
    let answers = all.join_all().await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    let arrivals = upstream.arrivals();
    assert_eq!(arrivals.len(), 13, "twelve, and one of them twice");
    // Two were sent at once; a third may have been under way when the refusal came.
    let refused = arrivals[1];
    let times: Vec<_> = arrivals.iter().map(|at| *at - refused).collect();
    let resumed: Vec<_> = times.iter().filter(|time| **time > 500 * MS).collect();
    assert!(resumed.len() >= 9, "{times:?}");
    // No herd: one permit at the end of the pause, and one more each 100 ms.
    for (i, time) in (0..).zip(resumed) {
        assert!(*time + ON_THE_WAY >= 3000 * MS + i * 100 * MS, "{times:?}");
    }
}

#[rstest]
#[case::memory(Place::Memory)]
#[case::redis(Place::Redis)]
#[tokio::test(flavor = "multi_thread")]
async fn during_a_pause_requests_are_refused_at_once(#[case] place: Place) {
    let redis = redis_of(place);
    let upstream = scripted([too_many("600")]).await;
    let route = ", limiters: [quota], max_wait: 5s";
    let gateway = gateway_on(redis.as_ref(), &upstream, ("", WIDE, route)).await;
    assert_eq!(gateway.get("/a").await.status, 429);
    let (refused, after) = refused_in_a_pause(&gateway).await;
    assert!((595..=600).contains(&after), "{after}");
    assert!(refused.json()["retry_after_ms"].as_u64().is_some_and(|ms| ms <= 600_000));
    let limit = refused.field("ratelimit").expect("it");
    assert!(limit.starts_with("\"quota\";r=0;t="), "{limit}");
    assert_eq!(upstream.calls().len(), 1);
    assert_eq!(gateway.count("all", "throttled").await, 1.0);
    // The pages and the metrics show it, and the log has a line.
    let left = gateway.metric("paceway_limiter_paused", &[("limiter", "quota")]).await;
    assert!((590.0..=600.0).contains(&left), "{left}");
    let shown = gateway.limiter("quota").await;
    assert_eq!(shown["pause_reason"], "the upstream answered 429");
    assert!(shown["paused_ms"].as_f64().is_some_and(|ms| ms > 590_000.0), "{shown}");
    assert!(shown["paused_until"].as_str().is_some_and(|at| at.ends_with('Z')), "{shown}");
    let begins = |line: &&serde_json::Value| {
        line["message"].as_str().is_some_and(|said| said.starts_with("a pause begins"))
    };
    let line = eventually("the line", async || gateway.events().iter().find(begins).cloned()).await;
    assert_eq!((&line["limiter"], &line["status"]), (&"quota".into(), &429.into()));
    assert!(line["until"].is_string(), "{line}");
    // An operator ends it.
    let mut conn = Conn::to(gateway.admin).await.expect("connect");
    conn.send(request("DELETE", "/limiters/quota", &[])).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    gateway.until_answered("/c", 200).await;
    assert_eq!(gateway.metric("paceway_limiter_paused", &[("limiter", "quota")]).await, 0.0);
    eventually("the end is logged", async || {
        gateway.events().iter().find(|line| line["message"] == "a pause has ended").cloned()
    })
    .await;
}

/// A second, shorter `Retry-After` must not shorten the pause.
#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_pause_never_shortens_a_longer_one() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let late = gate.clone();
    let upstream = Upstream::start(move |call| match call.target.as_str() {
        "/short" => too_many("1").behind(&late),
        "/long" => too_many("600"),
        _ => Reply::ok(),
    })
    .await;
    let gateway = gateway_on(None, &upstream, ("", WIDE, ", limiters: [quota]")).await;
    let mut short = gateway.ask("/short", &[]).await;
    eventually("it is under way", async || (upstream.calls().len() == 1).then_some(())).await;
    assert_eq!(gateway.get("/long").await.status, 429);
    gate.add_permits(1);
    assert_eq!(short.answer().await.expect("an answer").status, 429);
    let refused = gateway.get("/other").await;
    assert_eq!(refused.problem(), "upstream-throttled");
    let after: u64 = refused.field("retry-after").expect("it").parse().expect("a number");
    assert!(after > 590, "{after}");
}

/// A new configuration, by a request and by a signal, ends neither the pause nor the wait for its end.
#[rstest]
#[case::memory(Place::Memory)]
#[case::redis(Place::Redis)]
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_survives_reloads(#[case] place: Place) {
    let redis = redis_of(place);
    let store =
        redis.as_ref().map_or_else(String::new, |redis| format!("store: {}\n", redis.url()));
    let upstream = scripted([too_many("4")]).await;
    let yaml = |rate: &str| {
        format!(
            "{store}upstream: {}
limiters: {{ quota: {{ rate: {rate} }} }}
routes:
  - {{ name: all, suffix: \"*\", limiters: [quota], max_wait: 20s }}
  - {{ name: now, suffix: /now, limiters: [quota] }}
",
            upstream.url()
        )
    };
    let gateway = Gateway::start(&yaml("1000/s")).await;
    let mut waits = gateway.ask("/waits", &[]).await;
    gateway.until_waiting("all", 1).await;
    gateway.rewrite(&yaml("500/s"));
    assert_eq!(gateway.reload().await.json()["changed"], true);
    assert_eq!(gateway.get("/now").await.problem(), "upstream-throttled");
    gateway.rewrite(&yaml("200/s"));
    gateway.signal("HUP");
    eventually("the second reload", async || {
        (gateway.limiter("quota").await["rate"] == "200/s").then_some(())
    })
    .await;
    assert_eq!(gateway.get("/now").await.problem(), "upstream-throttled");
    let shown = gateway.limiter("quota").await;
    assert_eq!(shown["pause_reason"], "the upstream answered 429");
    assert_eq!(waits.answer().await.expect("an answer").status, 200);
    assert!(gap(&upstream, 0) + ON_THE_WAY >= 4000 * MS, "{:?}", gap(&upstream, 0));
    assert_eq!(upstream.calls().len(), 2);
}

/// A refusal of one shop pauses that shop alone, and one of a limiter without a key pauses every route that has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_covers_only_the_limiters_and_keys_of_the_call() {
    let upstream = Upstream::start(|call| match call.head.get("x-shop") {
        Some("busy") => too_many("600"),
        _ => Reply::ok(),
    })
    .await;
    let yaml = format!(
        "upstreams: {{ vendor: {{ url: \"{}\", throttle: {{ pauses: [shop] }} }} }}
limiters:
  shop: {{ rate: 1000/s, key: \"{{header.x-shop}}\" }}
  all: {{ rate: 1000/s }}
routes:
  - {{ name: one, suffix: /one, limiters: [shop, all] }}
  - {{ name: two, suffix: /two, limiters: [shop] }}
",
        upstream.url()
    );
    let gateway = Gateway::start(&yaml).await;
    let of = async |target: &str, shop: &str| {
        let mut conn = gateway.ask(target, &[("X-Shop", shop)]).await;
        conn.answer().await.expect("an answer")
    };
    assert_eq!(of("/one", "busy").await.field("paceway-origin"), Some("upstream"));
    assert_eq!(of("/one", "busy").await.problem(), "upstream-throttled");
    assert_eq!(of("/two", "busy").await.problem(), "upstream-throttled");
    assert_eq!(of("/one", "quiet").await.status, 200);
    let left = gateway.metric("paceway_limiter_paused", &[("limiter", "shop")]).await;
    assert!(left > 500.0, "{left}");
    assert_eq!(gateway.metric("paceway_limiter_paused", &[("limiter", "all")]).await, 0.0);
    assert_eq!(gateway.metric("paceway_pauses_total", &[("limiter", "all")]).await, 0.0);
    assert_eq!(gateway.limiter("shop").await["pause_reason"], "the upstream answered 429");
}

#[tokio::test(flavor = "multi_thread")]
async fn limiters_that_only_observe_are_not_paused() {
    let upstream = scripted([too_many("600")]).await;
    let limiters = "quota: { rate: 1000/s, mode: observe }";
    let gateway = gateway_on(None, &upstream, ("", limiters, WAITS)).await;
    assert_eq!(gateway.get("/a").await.status, 429);
    assert_eq!(gateway.get("/a").await.status, 200);
    assert_eq!(gateway.metric("paceway_pauses_total", &[("limiter", "quota")]).await, 0.0);
}

/// The default pause doubles with each refusal in a row, and waits no longer than `max_pause`.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_without_a_time_pauses_longer_each_time() {
    let bare = || reply("429 Too Many Requests", &[], "slow down");
    let upstream = scripted((0..3).map(|_| bare())).await;
    let throttle = ", throttle: { default_pause: 200ms, max_pause: 500ms, retry: { attempts: 5 } }";
    let gateway = gateway_on(None, &upstream, (throttle, WIDE, WAITS)).await;
    let answer = gateway.get("/a").await;
    assert_eq!((answer.status, answer.field("paceway-attempts")), (200, Some("4")));
    for (i, pause) in [200, 400, 500].into_iter().enumerate() {
        let gap = gap(&upstream, i);
        assert!(gap + ON_THE_WAY >= pause * MS, "pause {i} of {gap:?}");
    }
}

/// A gateway whose shops have a limiter state each; the upstream refuses `/refused` without a time, `/named` with one.
async fn shops(default_pause: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::start(|call| match call.target.as_str() {
        "/refused" => reply("429 Too Many Requests", &[], "slow down"),
        "/named" => too_many("0.1"),
        _ => Reply::ok(),
    })
    .await;
    let throttle = format!(
        ", throttle: {{ default_pause: {default_pause}, max_pause: 1h, retry: {{ attempts: 1 }} }}"
    );
    let shop = "shop: { rate: 1000/s, key: \"{header.x-shop}\" }";
    let route = ", limiters: [shop], max_wait: 20s";
    let gateway = gateway_on(None, &upstream, (&throttle, shop, route)).await;
    (upstream, gateway)
}

async fn call(gateway: &Gateway, target: &str, shop: &str) -> Answer {
    gateway.ask(target, &[("X-Shop", shop)]).await.answer().await.expect("an answer")
}

/// The calls of one shop that are answered do not end the row of refusals of another.
#[tokio::test(flavor = "multi_thread")]
async fn a_success_of_one_key_does_not_end_the_streak_of_another() {
    let (upstream, gateway) = shops("300ms").await;
    assert_eq!(call(&gateway, "/refused", "one").await.status, 429);
    assert_eq!(call(&gateway, "/answered", "other").await.status, 200);
    assert_eq!(call(&gateway, "/refused", "one").await.status, 429);
    assert_eq!(call(&gateway, "/answered", "other").await.status, 200);
    assert_eq!(call(&gateway, "/answered", "one").await.status, 200);
    let arrivals = upstream.arrivals();
    let pause = arrivals[4] - arrivals[2];
    assert!(pause + ON_THE_WAY >= 600 * MS, "the second in a row: {pause:?}");
}

/// The refusals of one shop do not double the pause of another.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_one_key_do_not_double_the_pause_of_another() {
    let (_upstream, gateway) = shops("100s").await;
    for _ in 0..3 {
        assert_eq!(call(&gateway, "/named", "one").await.status, 429);
    }
    assert_eq!(call(&gateway, "/refused", "other").await.status, 429);
    let refused = call(&gateway, "/answered", "other").await;
    assert_eq!(refused.problem(), "upstream-throttled");
    let after = refused.json()["retry_after_ms"].as_u64().expect("a time");
    assert!(after <= 100_000, "{after}");
}

/// A pause may be longer than the longest time that a request may wait, which is an hour.
#[rstest]
#[case::memory(Place::Memory)]
#[case::redis(Place::Redis)]
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_may_last_for_hours(#[case] place: Place) {
    let redis = redis_of(place);
    let upstream = scripted([too_many("10800")]).await;
    let throttle = ", throttle: { max_pause: 1d }";
    let gateway = gateway_on(redis.as_ref(), &upstream, (throttle, WIDE, WAITS)).await;
    assert_eq!(gateway.get("/a").await.status, 429);
    let (_, after) = refused_in_a_pause(&gateway).await;
    assert!((10_700..=10_800).contains(&after), "{after}");
    // The gateway knows of the pause a moment before the store.
    eventually("the pause is shown", async || {
        let shown = gateway.limiter("quota").await;
        shown["paused_ms"].as_f64().filter(|ms| *ms > 10_700_000.0)
    })
    .await;
    let begins = |line: &&serde_json::Value| {
        line["message"].as_str().is_some_and(|said| said.starts_with("a pause begins"))
    };
    let line = eventually("the line", async || gateway.events().iter().find(begins).cloned()).await;
    let until: Timestamp = line["until"].as_str().expect("an instant").parse().expect("one");
    assert!(until > Timestamp::now() + Duration::from_secs(10_700), "{line}");
    assert_eq!(upstream.calls().len(), 1);
}

/// A pause counts from the answer, whatever the clock of the upstream says: `Date` is read against itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_date_is_read_against_the_upstreams_own_clock() {
    let ahead = |seconds: u64| httpdate(Timestamp::now() + Duration::from_secs(5 * 3600 + seconds));
    let (date, after) = (ahead(0), ahead(120));
    let fields = [("Date", date.as_str()), ("Retry-After", after.as_str())];
    let upstream = scripted([reply("429 Too Many Requests", &fields, "")]).await;
    let gateway = gateway_on(None, &upstream, ("", WIDE, ", limiters: [quota]")).await;
    assert_eq!(gateway.get("/a").await.status, 429);
    let after = gateway.get("/a").await.json()["retry_after_ms"].as_u64().expect("a time");
    assert!((110_000..=120_000).contains(&after), "{after}");
}

fn httpdate(at: Timestamp) -> String {
    at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// A pause is no failure of the upstream, and the configured rate is the same after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_changes_neither_the_rate_nor_the_health_of_the_upstream() {
    let upstream = scripted((0..5).map(|_| too_many("0.1"))).await;
    let limiters = "quota: { rate: 10/s, burst: 1 }";
    let throttle = ", throttle: { retry: { attempts: 3 } }";
    let gateway = gateway_on(None, &upstream, (throttle, limiters, WAITS)).await;
    let before = gateway.limiter("quota").await;
    assert_eq!(gateway.get("/a").await.status, 429, "three attempts");
    assert_eq!(gateway.get("/a").await.status, 200, "two refusals and an answer");
    let after = gateway.limiter("quota").await;
    for key in ["rate", "burst", "limit", "mode"] {
        assert_eq!(before[key], after[key], "{key}");
    }
    let ejected = gateway.metric("paceway_upstream_addresses", &[("state", "ejected")]).await;
    assert_eq!(ejected, 0.0);
    assert_eq!(gateway.count("all", "upstream_failed").await, 0.0);
}

/// A call that waits in one gateway learns of a pause that another gateway's refusal began.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_holds_the_calls_of_other_gateways_back() {
    let redis = Redis::start();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (held, refused) = (gate.clone(), Mutex::new(true));
    let upstream = Upstream::start(move |call| match call.target.as_str() {
        "/a" if std::mem::take(&mut *refused.lock()) => too_many("3").behind(&held),
        _ => Reply::ok(),
    })
    .await;
    let limiters = "quota: { rate: 1/s, burst: 1 }";
    let one = gateway_on(Some(&redis), &upstream, ("", limiters, WAITS)).await;
    let other = gateway_on(Some(&redis), &upstream, ("", limiters, WAITS)).await;
    let mut first = one.ask("/a", &[]).await;
    eventually("it is under way", async || (upstream.calls().len() == 1).then_some(())).await;
    let mut second = other.ask("/b", &[]).await;
    other.until_waiting("all", 1).await;
    let refused = Instant::now();
    gate.add_permits(1);
    for conn in [&mut first, &mut second] {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    let arrivals = upstream.arrivals();
    assert_eq!(arrivals.len(), 3);
    assert!(arrivals[1] + ON_THE_WAY >= refused + 3000 * MS, "{:?}", arrivals[1] - refused);
    assert!(arrivals[2] + ON_THE_WAY >= arrivals[1] + 1000 * MS, "{:?}", arrivals[2] - arrivals[1]);
}
