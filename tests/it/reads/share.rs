//! Identical reads that wait: one slot, one call, and its answer for all. A first one that leaves or fails.

use super::{Scene, ask, gated, one_at_a_time, saved};
use crate::support::{Gateway, Reply, Upstream, closed, eventually, reply, store};
use rstest::rstest;
use serde_json::Value;
use std::{
    collections::HashSet,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};
use tokio::time::sleep;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_identical_reads_are_one_call(#[values(false, true)] is_redis: bool) {
    let (_redis, store) = store(is_redis);
    let answer = |_: &_| reply("200 OK", &[("ETag", "\"1\"")], "same");
    let scene = Scene::start(&one_at_a_time(&store, "on"), answer).await;
    let gateway = &scene.gateway;
    let mut conns = Vec::new();
    for _ in 0..200 {
        conns.push(ask(gateway, "GET", "/same", &[]).await);
    }
    gateway.until_waiting("all", 200).await;
    scene.open();
    let mut answers = Vec::new();
    for conn in &mut conns {
        answers.push(conn.answer().await.expect("an answer"));
    }
    assert!(answers.iter().all(|answer| answer.status == 200 && answer.text() == "same"));
    let ids: HashSet<_> = answers.iter().map(|answer| answer.field("x-request-id")).collect();
    assert_eq!(ids.len(), 200, "each has its own id");
    assert!(answers.iter().all(|answer| answer.held_ms() > 0.0));
    assert_eq!(scene.calls(), 1);
    assert_eq!(saved(gateway, "share").await, 199.0);
    let granted = gateway.metric("paceway_granted_permits_total", &[("limiter", "calls")]).await;
    assert_eq!(granted, 2.0);
    eventually("the access lines", async || {
        let lines = gateway.access();
        let shared = lines.iter().filter(|line| line["saved_by"] == "share").count();
        (shared == 199).then_some(())
    })
    .await;
}

/// Its place in the line is before that of a request that came later.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_first_one_that_leaves_keeps_its_place_for_the_next(
    #[values(false, true)] is_redis: bool,
) {
    let (_redis, store) = store(is_redis);
    let scene = Scene::start(&one_at_a_time(&store, "on"), |_| Reply::ok()).await;
    let leader = scene.wait_as(1, "/same").await;
    let mut later = scene.wait_as(2, "/other").await;
    let mut follower = scene.wait_as(3, "/same").await;
    drop(leader);
    scene.open();
    assert_eq!(follower.answer().await.expect("an answer").status, 200);
    assert_eq!(later.answer().await.expect("an answer").status, 200);
    let targets: Vec<_> = scene.upstream.calls().iter().map(|call| call.target.clone()).collect();
    assert_eq!(targets, ["/first", "/same", "/other"]);
    scene.gateway.until_counted("all", "cancelled", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_one_that_leaves_after_its_call_still_serves_the_others() {
    let answer = closed();
    let behind = answer.clone();
    let answers = move |_: &_| Reply::ok().behind(&behind);
    let scene = Scene::start(&one_at_a_time("", "on"), answers).await;
    let leader = scene.wait_as(1, "/same").await;
    let mut follower = scene.wait_as(2, "/same").await;
    scene.open();
    eventually("the call", async || (scene.calls() == 1).then_some(())).await;
    drop(leader);
    answer.add_permits(1);
    assert_eq!(follower.answer().await.expect("an answer").status, 200);
    assert_eq!(scene.calls(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_all_have_left_no_call_is_made() {
    let mut scene = Scene::start(&one_at_a_time("", "on"), |_| Reply::ok()).await;
    drop(scene.wait_together(2).await);
    scene.gateway.until_counted("all", "cancelled", 2).await;
    scene.open();
    assert_eq!(scene.first.answer().await.expect("an answer").status, 200);
    assert_eq!(scene.gateway.get("/other").await.status, 200);
    assert_eq!(scene.calls(), 0);
}

/// The call takes longer than the budget of a follower, which then has its whole budget for a slot of its own.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_the_call_is_no_wait_of_a_follower() {
    const BUDGET: Duration = Duration::from_secs(8);
    let answer = closed();
    let behind = answer.clone();
    let answers = move |_: &_| reply("200 OK", &[("Vary", "*")], "own").behind(&behind);
    let lines = one_at_a_time("", "on").replace("120s", "8s");
    let scene = Scene::start(&lines, answers).await;
    let mut conns = scene.wait_together(3).await;
    scene.open();
    eventually("the call", async || (scene.calls() == 1).then_some(())).await;
    sleep(BUDGET).await;
    // The two that followed take turns.
    answer.add_permits(3);
    for conn in &mut conns {
        let answer = conn.answer().await.expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (200, "own"));
        assert!(answer.held_ms() < BUDGET.as_secs_f64() * 1000.0, "{answer:?}");
    }
    let is_same = |line: &&Value| line["path"] == "/same";
    let lines = eventually("the access lines", async || {
        let lines: Vec<_> = scene.gateway.access().iter().filter(is_same).cloned().collect();
        (lines.len() == 3).then_some(lines)
    })
    .await;
    for line in lines {
        let millis = |name: &str| line[name].as_f64().expect("a number");
        assert!(millis("upstream_ms") >= 8_000.0, "{line}");
        assert!(millis("wait_ms") + millis("upstream_ms") <= millis("total_ms") + 1.0, "{line}");
    }
}

/// The answer could be older than the request.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_comes_after_the_call_makes_its_own() {
    let answer = closed();
    let behind = answer.clone();
    let upstream = Upstream::start(move |_| Reply::ok().behind(&behind)).await;
    let lines = "limiters: { calls: 100/s }\n\
                 routes: [{ name: all, suffix: '*', max_wait: 60s, share: on, limiters: [calls] }]";
    let gateway = Gateway::before(&upstream, lines).await;
    let mut conns = Vec::new();
    for made in 1..=3 {
        conns.push(ask(&gateway, "GET", "/same", &[]).await);
        eventually("the call", async || (upstream.calls().len() == made).then_some(())).await;
    }
    answer.add_permits(3);
    for conn in &mut conns {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
}

/// The slot of the first comes after a minute. One that may wait a second gets the 429 that it would get alone, at once.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn each_has_its_own_wait_budget(#[values(false, true)] is_redis: bool) {
    let (_redis, store) = store(is_redis);
    let upstream = Upstream::ok().await;
    let lines = format!(
        "{store}\nlimiters: {{ calls: {{ rate: 1/min }} }}\n\
         routes: [{{ name: all, suffix: '*', max_wait: 1s, max_wait_cap: 120s, share: on, limiters: [calls] }}]"
    );
    let gateway = Gateway::before(&upstream, &lines).await;
    assert_eq!(gateway.get("/first").await.status, 200);
    let _leader = ask(&gateway, "GET", "/same", &[("Prefer", "wait=100")]).await;
    gateway.until_waiting("all", 1).await;
    let _patient = ask(&gateway, "GET", "/same", &[("Prefer", "wait=110")]).await;
    gateway.until_waiting("all", 2).await;
    let mut hasty = ask(&gateway, "GET", "/same", &[]).await;
    let answer = hasty.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (429, "quota-exceeded"));
    let after: u64 = answer.field("retry-after").expect("a time").parse().expect("seconds");
    assert!((60..=121).contains(&after), "{after}");
    // Only the first has a place in the line.
    assert_eq!(gateway.limiter("calls").await["waiting"], 2);
}

/// A vendor's refusal is sent again by the first alone, and all get what comes then.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_first_one_is_sent_again_for_all() {
    let count = AtomicUsize::new(0);
    let answer = move |_: &_| match count.fetch_add(1, Relaxed) {
        0 => reply("429 Too Many Requests", &[("Retry-After", "1")], ""),
        _ => reply("200 OK", &[], "then"),
    };
    let scene = Scene::start(&one_at_a_time("", "on"), answer).await;
    let mut conns = scene.wait_together(3).await;
    scene.open();
    for conn in &mut conns {
        let answer = conn.answer().await.expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (200, "then"));
    }
    assert_eq!(scene.calls(), 2);
}

/// A failure is the answer of the first alone, and the others ask again.
#[rstest]
#[case::error("500 Internal Server Error")]
#[case::away("503 Service Unavailable")]
#[case::refusal("429 Too Many Requests")]
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_not_shared(#[case] status: &'static str) {
    let (gate, count) = (closed(), AtomicUsize::new(0));
    let upstream = gated(&gate, move |_| match count.fetch_add(1, Relaxed) {
        0 => reply(status, &[], ""),
        _ => Reply::ok(),
    })
    .await;
    let lines = "limiters: { one: { algorithm: concurrency, max: 1 } }\n\
                 routes: [{ name: all, suffix: '*', max_wait: 120s, share: on, limiters: [one] }]";
    let upstreams = format!("upstreams: {{ a: {{ url: '{}', throttle: off }} }}", upstream.url());
    let gateway = Gateway::start(&format!("{upstreams}\n{lines}\n")).await;
    let scene = Scene::occupied(gate, upstream, gateway).await;
    let mut conns = scene.wait_together(4).await;
    scene.open();
    let mut statuses = Vec::new();
    for conn in &mut conns {
        statuses.push(conn.answer().await.expect("an answer").status);
    }
    assert_eq!(statuses[1..], [200; 3]);
    assert!(status.starts_with(&statuses[0].to_string()));
    // The others ask again as one, as far as they know of the failure before that one has its answer.
    let made = scene.calls();
    assert!((2..=4).contains(&made), "{made}");
    assert_eq!(saved(&scene.gateway, "share").await, (4 - made) as f64);
}
