//! Stores that are away, hang or refuse, at the start and later, and gateways that die while others use their store.

use crate::support::{Gateway, PATIENCE, Redis, Upstream, assert_lawful, eventually, paceway_in};
use rstest::rstest;
use std::{fs, net::TcpListener, process::Output, time::Duration};
use tokio::time::Instant;

fn stored(redis: &Redis, timeout: &str, upstream: &Upstream) -> String {
    format!(
        "store: {{ url: \"{}\", timeout: {timeout}, on_failure: reject }}
upstream: {}
limiters: {{ search: {{ rate: 20/s, burst: 5 }} }}
routes:
  - {{ name: search, suffix: /search, limiters: [search], max_wait: 200ms }}
  - {{ name: free, suffix: /free }}
",
        redis.url(),
        upstream.url()
    )
}

/// A request that needs the store gets 503, one that does not is served.
async fn assert_store_away(gateway: &Gateway) {
    let answer = gateway.get("/search").await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "store-unavailable"));
    let seconds: u64 = answer.field("retry-after").expect("it").parse().expect("seconds");
    assert!(seconds >= 1);
    assert_eq!(gateway.get("/free").await.status, 200);
}

#[rstest]
#[case::nobody_there(false)]
#[case::there_and_hanging(true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_store_away_at_the_start_is_a_warning_and_used_later(#[case] hangs: bool) {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    if hangs {
        redis.freeze()
    } else {
        redis.kill()
    }
    let gateway = Gateway::start(&stored(&redis, "2s", &upstream)).await;
    let warned = |event: &serde_json::Value| {
        event["level"] == "WARN" && event.to_string().contains("the store is away")
    };
    assert!(gateway.events().iter().any(warned), "{:?}", gateway.events());
    assert_store_away(&gateway).await;
    assert_eq!(gateway.page("/healthz").await.status, 200);
    let ready = gateway.page("/readyz").await;
    assert_eq!((ready.status, &ready.json()["ready"]), (503, &false.into()));

    if hangs {
        redis.thaw()
    } else {
        redis.start_again()
    }
    gateway.until_answered("/search", 200).await;
    eventually("it is ready", async || (gateway.page("/readyz").await.status == 200).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_dies_is_used_again_when_it_is_back() {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = Gateway::start(&stored(&redis, "2s", &upstream)).await;
    for _ in 0..2 {
        // Each worker has a connection of its own, and may be back a moment after another.
        gateway.until_answered("/search", 200).await;
        redis.kill();
        for _ in 0..3 {
            assert_store_away(&gateway).await;
        }
        assert_eq!(gateway.page("/readyz").await.status, 503);
        assert_eq!(gateway.metric("paceway_store_up", &[]).await, 0.0);
        eventually("errors are counted", async || {
            let errors = gateway.metric("paceway_store_errors_total", &[]).await;
            (errors >= 3.0).then_some(())
        })
        .await;
        redis.start_again();
        gateway.until_answered("/search", 200).await;
        eventually("the store is up", async || {
            (gateway.metric("paceway_store_up", &[]).await == 1.0).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_store_delays_no_request_beyond_its_timeout() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = Gateway::start(&stored(&redis, "300ms", &upstream)).await;
    let started = Instant::now();
    gateway.until_answered("/search", 200).await;

    redis.freeze();
    // Longer than the driver keeps a connection that hangs, so that both its ways out are taken.
    let frozen = Instant::now();
    let mut fastest = PATIENCE;
    while frozen.elapsed() < Duration::from_secs(3) {
        let mut all = Vec::new();
        for _ in 0..10 {
            all.push((Instant::now(), gateway.ask("/search", &[]).await));
        }
        for (asked, mut conn) in all {
            let answer = conn.answer().await.expect("an answer while the store still hangs");
            assert_eq!((answer.status, answer.problem().as_str()), (503, "store-unavailable"));
            fastest = fastest.min(answer.at - asked);
        }
        assert_eq!(gateway.get("/free").await.status, 200);
    }
    // Not each of them waits to learn what is known.
    assert!(fastest < Duration::from_millis(300), "the fastest answer took {fastest:?}");
    redis.thaw();

    gateway.until_answered("/search", 200).await;
    let mut all = Vec::new();
    for _ in 0..40 {
        all.push(gateway.ask("/search", &[]).await);
    }
    for mut conn in all {
        let status = conn.answer().await.expect("an answer").status;
        assert!([200, 429, 503].contains(&status), "{status}");
    }
    let searches = upstream.calls().into_iter().filter(|call| call.target == "/search");
    let arrivals: Vec<_> = searches.map(|call| call.at).collect();
    assert_lawful(started, &arrivals, 5.0, 20.0);
    // A request that was refused while the store hung is not forwarded later.
    let later = arrivals.iter().filter(|at| **at > frozen).count();
    assert!(later <= 41, "{later} forwarded of 41 that were not refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn warns_of_a_store_that_may_forget_limits() {
    let upstream = Upstream::ok().await;
    for (policy, warned) in [("allkeys-lru", true), ("noeviction", false)] {
        let redis = Redis::with(&["--maxmemory-policy", policy]);
        let gateway = Gateway::start(&stored(&redis, "2s", &upstream)).await;
        let warns = |event: &serde_json::Value| event["level"] == "WARN";
        let warning = gateway.events().into_iter().find(warns).map(|event| event.to_string());
        assert_eq!(warning.is_some(), warned, "{warning:?}");
        assert!(warning.is_none_or(|text| text.contains("allkeys-lru")));
    }
}

/// Runs a gateway that does not start; what it says.
fn run_in_vain(yaml: &str) -> Output {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("paceway.yaml"), yaml).expect("a file");
    paceway_in(dir.path(), &["run"], &[])
}

#[rstest]
#[case::wrong_password("redis://:open-sesame@127.0.0.1:PORT/0")]
#[case::wrong_user("redis://ali:open-sesame@127.0.0.1:PORT/0")]
#[case::no_password("redis://127.0.0.1:PORT/0")]
#[case::no_such_database("redis://:right@127.0.0.1:PORT/99")]
fn a_store_that_will_never_serve_us_is_a_failure_at_the_start(#[case] url: &str) {
    let redis = Redis::with(&["--requirepass", "right"]);
    let url = url.replace("PORT", &redis.port().to_string());
    let yaml = format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nstore: {{ url: \"{url}\", timeout: 2s }}\n\
         upstream: http://127.0.0.1:1\nlimiters: {{ a: 5/s }}\nroutes: [{{ suffix: \"*\", limiters: [a] }}]\n"
    );
    let output = run_in_vain(&yaml);
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{err}");
    let last = err.lines().last().expect("a message");
    assert!(last.starts_with("error: the store"), "{last}");
    for secret in ["open-sesame", "right"] {
        assert!(!err.contains(secret) && !out.contains(secret), "{err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_right_password_is_accepted_and_never_written() {
    let redis = Redis::with(&["--requirepass", "open-sesame"]);
    let upstream = Upstream::ok().await;
    let yaml = format!(
        "store: {{ url: \"redis://:${{REDIS_PASSWORD}}@127.0.0.1:{}/0\", timeout: 2s }}
upstream: {}
limiters: {{ search: 5/s }}
routes: [{{ suffix: /search, limiters: [search] }}]
",
        redis.port(),
        upstream.url()
    );
    let env = [
        ("REDIS_PASSWORD".to_owned(), "open-sesame".to_owned()),
        ("PACEWAY_LOG".to_owned(), "debug".to_owned()),
    ];
    let gateway = Gateway::start_with(&yaml, &env).await;
    assert_eq!(gateway.get("/search").await.status, 200);
    let mut texts = Vec::new();
    for page in ["/limiters", "/metrics", "/readyz"] {
        texts.push(gateway.page(page).await.text());
    }
    let (out, err) = gateway.output();
    texts.extend(out.into_iter().chain(err));
    assert!(texts.len() > 5);
    for text in texts {
        assert!(!text.contains("open-sesame"), "{text}");
    }
}

#[rstest]
#[case::of_the_data_plane("listen")]
#[case::of_the_admin_side("admin")]
fn an_address_that_is_taken_is_a_failure_that_names_its_key(#[case] key: &str) {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address");
    let other = if key == "listen" { "admin" } else { "listen" };
    let output = run_in_vain(&format!(
        "{key}: {address}\n{other}: 127.0.0.1:0\nupstream: http://127.0.0.1:1\nroutes: [{{ suffix: \"*\" }}]\n"
    ));
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    let last = err.lines().last().expect("a message");
    assert!(last.contains(&format!("`{key}`")) && last.contains(&address.to_string()), "{last}");
}

/// One limiter on a store, for which requests wait as long as a test does.
fn shared(redis: &Redis, upstream: &Upstream, search: &str) -> String {
    format!(
        "store: {{ url: \"{}\", timeout: 2s }}
upstream: {}
limiters: {{ search: {search} }}
routes: [{{ name: search, suffix: \"*\", limiters: [search], max_wait: 1h }}]
",
        redis.url(),
        upstream.url()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_gateway_does_not_disturb_other_gateways() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = shared(&redis, &upstream, "{ rate: 20/s, burst: 5 }");
    let mut doomed = Gateway::start(&yaml).await;
    let other = Gateway::start(&yaml).await;
    let started = Instant::now();
    let (mut lost, mut kept) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        lost.push(doomed.ask("/", &[]).await);
        kept.push(other.ask("/", &[]).await);
    }
    eventually("some have passed", async || (upstream.calls().len() >= 10).then_some(())).await;
    doomed.signal("KILL");
    doomed.end().await;
    for mut conn in kept {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    assert_eq!(other.get("/").await.status, 200);
    assert_lawful(started, &upstream.arrivals(), 5.0, 20.0);
    let ready = other.page("/readyz").await;
    assert_eq!(ready.status, 200, "{}", ready.text());
}

/// The slots that its requests waited for are lost, and nothing else is.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_gateway_loses_only_its_waiting_slots() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = shared(&redis, &upstream, "{ rate: 2/hour, burst: 3 }");
    let mut doomed = Gateway::start(&yaml).await;
    let other = Gateway::start(&yaml).await;
    for _ in 0..3 {
        assert_eq!(doomed.get("/").await.status, 200);
    }
    let _lost = doomed.ask("/", &[]).await;
    doomed.until_waiting("search", 1).await;
    doomed.signal("KILL");
    doomed.end().await;
    let mut refused = other.ask("/", &[("Prefer", "wait=0")]).await;
    let refused = refused.answer().await.expect("an answer");
    assert_eq!(refused.status, 429);
    let seconds: u64 = refused.field("retry-after").expect("it").parse().expect("seconds");
    // The first slot, half an hour ahead, is the one that was held.
    assert!((1801..=3600).contains(&seconds), "{seconds} s until there is a permit");
    assert_eq!(upstream.calls().len(), 3);
}
