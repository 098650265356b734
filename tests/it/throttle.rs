//! Upstreams that refuse calls: the pauses of limiters, further attempts within the caller's time, and the answers that
//! callers get.

mod grpc;
mod held_answers;
mod pauses;
mod remaining;
mod working_rate;

use crate::support::{
    Answer, Conn, Gateway, PATIENCE, Redis, Reply, Upstream, eventually, reply, request,
};
use parking_lot::Mutex;
use rstest::rstest;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::{task::JoinSet, time::Instant};

/// The store of a test's gateways.
enum Place {
    Memory,
    Redis,
}

const MS: Duration = Duration::from_millis(1);
/// A pause that is counted in whole seconds by the upstream may end a little earlier than the test's clock has it: the
/// answer was on its way meanwhile.
const ON_THE_WAY: Duration = Duration::from_millis(50);

/// An upstream that answers with these, one after another, and then with 200.
async fn scripted(replies: impl IntoIterator<Item = Reply>) -> Upstream {
    let replies = Mutex::new(replies.into_iter().collect::<VecDeque<_>>());
    Upstream::start(move |_| replies.lock().pop_front().unwrap_or_else(Reply::ok)).await
}

fn refusal(status: &str, after: &str) -> Reply {
    reply(status, &[("Retry-After", after), ("X-From", "vendor")], "slow down")
}

fn too_many(after: &str) -> Reply {
    refusal("429 Too Many Requests", after)
}

/// A gateway with one limiter that never binds by itself, or with other `limiters`.
async fn gateway_on(
    redis: Option<&Redis>,
    upstream: &Upstream,
    (throttle, limiters, route): (&str, &str, &str),
) -> Gateway {
    let store = redis.map_or_else(String::new, |redis| format!("store: {}\n", redis.url()));
    Gateway::start(&format!(
        "{store}upstreams: {{ vendor: {{ url: \"{}\"{throttle} }} }}
limiters: {{ {limiters} }}
routes: [{{ name: all, suffix: \"*\"{route} }}]
",
        upstream.url()
    ))
    .await
}

const WIDE: &str = "quota: { rate: 1000/s }";
const WAITS: &str = ", limiters: [quota], max_wait: 20s";

async fn waiting(upstream: &Upstream) -> Gateway {
    gateway_on(None, upstream, ("", WIDE, WAITS)).await
}

/// Sends a request with a body.
async fn post(gateway: &Gateway, fields: &[(&str, &str)], body: &[u8]) -> Answer {
    let length = body.len().to_string();
    let mut all = vec![("Content-Length", length.as_str())];
    all.extend(fields);
    let mut conn = gateway.connect().await;
    conn.send(request("POST", "/orders", &all)).await.expect("send");
    conn.send(body).await.expect("send");
    conn.answer().await.expect("an answer")
}

async fn retried(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric("paceway_retries_total", &[("upstream", "vendor"), ("result", result)]).await
}

fn gap(upstream: &Upstream, first: usize) -> Duration {
    let arrivals = upstream.arrivals();
    arrivals[first + 1] - arrivals[first]
}

fn redis_of(place: Place) -> Option<Redis> {
    matches!(place, Place::Redis).then(Redis::start)
}

#[rstest]
#[case::memory(Place::Memory)]
#[case::redis(Place::Redis)]
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_is_sent_again_after_the_pause(#[case] place: Place) {
    let redis = redis_of(place);
    let upstream = scripted([too_many("1")]).await;
    let gateway = gateway_on(redis.as_ref(), &upstream, ("", WIDE, WAITS)).await;
    let answer = gateway.get("/a").await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
    assert_eq!(answer.field("paceway-attempts"), Some("2"));
    assert!(answer.held_ms() >= 900.0, "it was held: {answer:?}");
    assert_eq!(upstream.calls().len(), 2);
    assert!(gap(&upstream, 0) + ON_THE_WAY >= 1000 * MS, "{:?}", gap(&upstream, 0));
    assert_eq!(retried(&gateway, "answered").await, 1.0);
    assert_eq!(gateway.metric("paceway_pauses_total", &[("limiter", "quota")]).await, 1.0);
    assert_eq!(gateway.metric("paceway_upstream_throttled_total", &[]).await, 1.0);
    assert_eq!(gateway.count("all", "waited").await, 1.0);
    let line = eventually("the access line", async || gateway.access().pop()).await;
    assert_eq!((&line["attempts"], &line["outcome"]), (&2.into(), &"waited".into()));
}

#[rstest]
#[case::with_a_length(false)]
#[case::in_chunks(true)]
#[tokio::test(flavor = "multi_thread")]
async fn the_body_is_the_same_in_every_attempt(#[case] is_chunked: bool) {
    let upstream = scripted([too_many("0.2"), too_many("0.2")]).await;
    let gateway = waiting(&upstream).await;
    let body: Vec<u8> = (0..60_000_u32).map(|i| (i * 7 % 251) as u8).collect();
    let answer = match is_chunked {
        false => post(&gateway, &[], &body).await,
        true => {
            let mut conn = gateway.connect().await;
            let head = request("POST", "/orders", &[("Transfer-Encoding", "chunked")]);
            conn.send(head).await.expect("send");
            for piece in body.chunks(7_000) {
                conn.send(format!("{:x}\r\n", piece.len())).await.expect("send");
                conn.send(piece).await.expect("send");
                conn.send("\r\n").await.expect("send");
            }
            conn.send("0\r\n\r\n").await.expect("send");
            conn.answer().await.expect("an answer")
        }
    };
    assert_eq!(answer.status, 200);
    assert_eq!(answer.field("paceway-attempts"), Some("3"));
    let calls = upstream.calls();
    assert_eq!(calls.len(), 3);
    for call in &calls {
        assert!(call.body == body, "a body of {} bytes", call.body.len());
        assert_eq!(call.method, "POST");
        assert_eq!(call.head.fields, calls[0].head.fields);
    }
}

#[rstest]
#[case::post_of_429("POST", "429 Too Many Requests", &[], 2)]
#[case::post_of_503("POST", "503 Service Unavailable", &[], 1)]
#[case::post_of_503_with_a_key("POST", "503 Service Unavailable", &[("Idempotency-Key", "k1")], 2)]
#[case::put_of_503("PUT", "503 Service Unavailable", &[], 2)]
#[tokio::test(flavor = "multi_thread")]
async fn a_method_that_may_not_be_repeated_is_sent_once(
    #[case] method: &str,
    #[case] status: &str,
    #[case] fields: &[(&str, &str)],
    #[case] attempts: usize,
) {
    let upstream = scripted([refusal(status, "0.2")]).await;
    let gateway = waiting(&upstream).await;
    let mut conn = gateway.connect().await;
    let fields = [fields, &[("Content-Length", "4")]].concat();
    conn.send(request(method, "/a", &fields) + "body").await.expect("send");
    let answer = conn.answer().await.expect("an answer");
    let expected = if attempts == 2 { 200 } else { 503 };
    assert_eq!((answer.status, upstream.calls().len()), (expected, attempts));
    let result = if attempts == 2 { "answered" } else { "not_repeatable" };
    assert_eq!(retried(&gateway, result).await, 1.0);
    assert!(upstream.calls().iter().all(|call| call.body == b"body"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_above_the_limit_is_sent_once() {
    let upstream = scripted([too_many("0.2"), too_many("0.2")]).await;
    let throttle = ", throttle: { retry: { max_body: 10B } }";
    let gateway = gateway_on(None, &upstream, (throttle, WIDE, WAITS)).await;
    let answer = post(&gateway, &[], b"eleven byte").await;
    assert_eq!((answer.status, answer.text().as_str()), (429, "slow down"));
    assert_eq!(answer.field("paceway-origin"), Some("upstream"));
    assert_eq!(answer.field("x-from"), Some("vendor"));
    assert_eq!(answer.field("paceway-attempts"), None);
    assert_eq!(upstream.calls().len(), 1);
    assert_eq!(retried(&gateway, "not_repeatable").await, 1.0);
    assert_eq!(post(&gateway, &[], b"ten bytes.").await.status, 200);
    assert_eq!(upstream.calls().len(), 3);
}

/// All kept bodies together are bounded, with the refusals that are kept meanwhile: while one of 12 bytes is kept, another one
/// is sent once.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_fill_the_bound_leave_no_room_for_another() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let late = Reply::ok().behind(&gate);
    let upstream = scripted([late, too_many("0.2"), too_many("0.2")]).await;
    let gateway = Gateway::start(&format!(
        "upstreams: {{ vendor: {{ url: \"{}\" }} }}\nlimits: {{ retry_bodies: 22B }}\nlimiters: {{ {WIDE} }}\n\
         routes: [{{ name: all, suffix: \"*\"{WAITS} }}]\n",
        upstream.url()
    ))
    .await;
    let mut first = gateway.connect().await;
    first
        .send(request("POST", "/orders", &[("Content-Length", "12")]) + "twelve bytes")
        .await
        .expect("send");
    eventually("the first call", async || (upstream.calls().len() == 1).then_some(())).await;
    assert_eq!(post(&gateway, &[], b"twelve bytes").await.status, 429);
    assert_eq!(retried(&gateway, "not_repeatable").await, 1.0);
    gate.add_permits(1);
    assert_eq!(first.answer().await.expect("an answer").status, 200);
    let answer = post(&gateway, &[], b"twelve bytes").await;
    assert_eq!((answer.status, answer.field("paceway-attempts")), (200, Some("2")), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_100_continue_is_sent_once() {
    let upstream = scripted([too_many("0.2")]).await;
    let gateway = waiting(&upstream).await;
    let answer = post(&gateway, &[("Expect", "100-continue")], b"body").await;
    assert_eq!((answer.status, upstream.calls().len()), (429, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_attempts_have_a_bound() {
    let upstream = scripted((0..10).map(|_| too_many("0.1"))).await;
    let throttle = ", throttle: { retry: { attempts: 2 } }";
    let gateway = gateway_on(None, &upstream, (throttle, WIDE, WAITS)).await;
    let answer = gateway.get("/a").await;
    assert_eq!((answer.status, answer.text().as_str()), (429, "slow down"));
    assert_eq!(answer.field("paceway-attempts"), Some("2"));
    assert_eq!(answer.field("paceway-origin"), Some("upstream"));
    assert_eq!(upstream.calls().len(), 2);
    assert_eq!(retried(&gateway, "throttled").await, 1.0);
    assert_eq!(retried(&gateway, "exhausted").await, 1.0);
}

/// The caller gets the upstream's own answer, at once, when the pause is longer than its time.
#[rstest]
#[case::no_time("")]
#[case::too_little_time(", max_wait: 5m")]
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_beyond_the_budget_gives_the_upstreams_answer(#[case] wait: &str) {
    let upstream = scripted([too_many("600")]).await;
    let route = format!(", limiters: [quota]{wait}");
    let gateway = gateway_on(None, &upstream, ("", WIDE, &route)).await;
    let started = Instant::now();
    let answer = gateway.get("/a").await;
    assert!(started.elapsed() < PATIENCE, "it waited in vain");
    assert_eq!((answer.status, answer.text().as_str()), (429, "slow down"));
    assert_eq!(answer.field("paceway-origin"), Some("upstream"));
    assert_eq!(answer.field("retry-after"), Some("600"));
    assert_eq!(upstream.calls().len(), 1);
}

/// Each attempt takes permits of its own: the third call has to wait for the next window.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_finds_no_permit_gives_the_upstreams_answer() {
    let upstream = scripted([too_many("0.1")]).await;
    let limiters = "quota: { rate: 1/hour, burst: 1 }";
    let gateway = gateway_on(None, &upstream, ("", limiters, WAITS)).await;
    let answer = gateway.get("/a").await;
    assert_eq!((answer.status, answer.text().as_str()), (429, "slow down"));
    assert_eq!(upstream.calls().len(), 1);
    assert_eq!(retried(&gateway, "no_slot").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_limiter_a_refusal_causes_no_pause_and_no_retry() {
    let upstream = scripted([too_many("1")]).await;
    let gateway = gateway_on(None, &upstream, ("", WIDE, ", max_wait: 20s")).await;
    assert_eq!(gateway.get("/a").await.status, 429);
    assert_eq!(gateway.get("/a").await.status, 200);
    assert_eq!(gateway.metric("paceway_upstream_throttled_total", &[]).await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_throttle_off_refusals_are_counted_and_passed_on() {
    let upstream = scripted([too_many("600")]).await;
    let gateway = gateway_on(None, &upstream, (", throttle: off", WIDE, WAITS)).await;
    let answer = gateway.get("/a").await;
    assert_eq!((answer.status, answer.field("paceway-origin")), (429, Some("upstream")));
    assert_eq!(gateway.get("/a").await.status, 200);
    assert_eq!(gateway.metric("paceway_upstream_throttled_total", &[]).await, 1.0);
    assert_eq!(gateway.metric("paceway_pauses_total", &[("limiter", "quota")]).await, 0.0);
}

/// A client that leaves while its request waits for another attempt: what it holds is given back, and nothing is sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_is_refunded_and_not_sent_again() {
    let upstream = scripted([too_many("2")]).await;
    let limiters = "quota: { rate: 10/s, burst: 10 }, places: { algorithm: concurrency, max: 1 }";
    let route = ", limiters: [quota, places], max_wait: 20m";
    let gateway = gateway_on(None, &upstream, ("", limiters, route)).await;
    let conn = gateway.ask("/a", &[]).await;
    gateway.until_waiting("all", 1).await;
    drop(conn);
    gateway.until_waiting("all", 0).await;
    let retried = [("upstream", "vendor"), ("result", "cancelled")];
    gateway.until_metric("paceway_retries_total", &retried, 1).await;
    eventually("the permit is free", async || {
        (gateway.limiter("places").await["level"] == 1).then_some(())
    })
    .await;
    assert_eq!(gateway.get("/b").await.status, 200);
    let calls = upstream.calls();
    let targets: Vec<_> = calls.iter().map(|call| call.target.as_str()).collect();
    assert_eq!(targets, ["/a", "/b"]);
}

/// A concurrency permit is free while its request waits out a pause that does not concern the limiter.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_request_holds_no_concurrency_permit() {
    let upstream = scripted([too_many("3")]).await;
    let limiters = "quota: { rate: 1000/s }, places: { algorithm: concurrency, max: 1 }";
    let yaml = format!(
        "upstreams: {{ vendor: {{ url: \"{}\", throttle: {{ pauses: [quota] }} }} }}
limiters: {{ {limiters} }}
routes:
  - {{ name: both, suffix: /both, limiters: [quota, places], max_wait: 20s }}
  - {{ name: places, suffix: /places, limiters: [places] }}
",
        upstream.url()
    );
    let gateway = Gateway::start(&yaml).await;
    let mut conn = gateway.ask("/both", &[]).await;
    gateway.until_waiting("both", 1).await;
    assert_eq!(gateway.get("/places").await.status, 200);
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
}

/// A refused request for which the queue has no room gets the upstream's answer, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_gives_the_upstreams_answer() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let held = gate.clone();
    let refused = Mutex::new(2);
    let upstream = Upstream::start(move |_| {
        let mut left = refused.lock();
        *left -= i32::from(*left >= 0);
        if *left >= 0 { too_many("2").behind(&held) } else { Reply::ok() }
    })
    .await;
    let route = ", limiters: [quota], max_wait: 20s, max_waiting: 1";
    let gateway = gateway_on(None, &upstream, ("", WIDE, route)).await;
    let (mut one, mut other) = (gateway.ask("/a", &[]).await, gateway.ask("/b", &[]).await);
    eventually("both are under way", async || (upstream.calls().len() == 2).then_some(())).await;
    gate.add_permits(2);
    let one = one.answer().await.expect("an answer");
    let other = other.answer().await.expect("an answer");
    let refused = if one.status == 429 { &one } else { &other };
    assert_eq!(one.status + other.status, 200 + 429);
    assert_eq!(
        (refused.text().as_str(), refused.field("paceway-origin")),
        ("slow down", Some("upstream"))
    );
    assert_eq!(upstream.calls().len(), 3);
}
