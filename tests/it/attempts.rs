//! Attempts at an upstream: each one is paid for, and a connect that fails is tried again while there is time.

use crate::support::{Answer, Conn, Gateway, Reply, Upstream, eventually, free_port};
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::{task::JoinSet, time::Instant};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Counts each call. Answers the first one of each connection, and ends the connection with the second.
async fn counts_and_closes() -> (Upstream, Arc<Mutex<Vec<Instant>>>) {
    let calls = Arc::<Mutex<Vec<Instant>>>::default();
    let counted = calls.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let counted = counted.clone();
        async move {
            let Ok(Some((_, at, _))) = conn.request().await else { return };
            counted.lock().push(at);
            if conn.send(OK).await.is_err() {
                return;
            }
            if let Ok(Some((_, at, _))) = conn.request().await {
                counted.lock().push(at);
            }
        }
    })
    .await;
    (upstream, calls)
}

/// One worker, so that idle connections are found again.
async fn gateway(upstream: &str, rest: &str) -> Gateway {
    Gateway::start(&format!("workers: 1\nupstream: {upstream}\n{rest}")).await
}

async fn ask_at_once(gateway: &Arc<Gateway>, count: usize) -> Vec<Answer> {
    let mut all = JoinSet::new();
    for _ in 0..count {
        let gateway = gateway.clone();
        all.spawn(async move { gateway.get("/").await });
    }
    all.join_all().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_counts_and_closes_sees_no_more_calls_than_the_law_allows() {
    let (upstream, calls) = counts_and_closes().await;
    let limited = "limiters: { day: { algorithm: fixed_window, rate: 30/day } }
routes: [{ name: all, suffix: \"*\", limiters: [day] }]
";
    let gateway = Arc::new(gateway(&upstream.url(), limited).await);
    let mut unpaid = 0;
    // Few at one time, so that connections are used again; more than the law allows.
    for _ in 0..30 {
        for answer in ask_at_once(&gateway, 2).await {
            let is_unpaid = answer.status == 502;
            assert!(is_unpaid || [200, 429].contains(&answer.status), "{answer:?}");
            if is_unpaid {
                assert_eq!(answer.problem(), "upstream-broken");
                assert!(answer.text().contains("no permit"), "{}", answer.text());
                unpaid += 1;
            }
        }
    }
    let counted = calls.lock().len();
    assert_eq!(counted, 30, "all of the quota is used, and no more");
    assert!(upstream.connections() < counted, "some connections were used twice");
    assert!(unpaid <= 2, "only the last may find no permit: {unpaid}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_attempt_waits_for_its_permit_and_keeps_its_concurrency_permit() {
    let (upstream, calls) = counts_and_closes().await;
    let limited = "limiters:
  pace: { rate: 5/s, burst: 1 }
  places: { algorithm: concurrency, max: 1 }
routes: [{ name: all, suffix: \"*\", limiters: [places, pace], max_wait: 30s }]
";
    let gateway = gateway(&upstream.url(), limited).await;
    let mut retried = 0;
    for asked in 0.. {
        if retried == 2 {
            break;
        }
        assert!(asked < 50, "no connection is used again");
        let before = calls.lock().len();
        assert_eq!(gateway.get("/").await.status, 200);
        retried += calls.lock().len() - before - 1;
    }
    let calls = calls.lock().clone();
    // The way to the upstream may take longer for one call than for the next.
    let pace = Duration::from_millis(200 - 50);
    let closest = calls.windows(2).map(|pair| pair[1] - pair[0]).min();
    assert!(closest.is_some_and(|closest| closest >= pace), "{closest:?} between two calls");
    let asked = gateway.metric("paceway_decisions_total", &[("limiter", "pace")]).await as usize;
    assert!(asked >= calls.len(), "each attempt asks for a permit: {asked} for {}", calls.len());
}

/// A budget that is over: the second attempt finds no permit in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_attempt_has_only_the_rest_of_the_budget() {
    let (upstream, calls) = counts_and_closes().await;
    let limited = "limiters: { pace: { rate: 1/h, burst: 2 } }
routes: [{ name: all, suffix: \"*\", limiters: [pace], max_wait: 2s }]
";
    let gateway = gateway(&upstream.url(), limited).await;
    let first = gateway.get("/").await;
    let second = gateway.get("/").await;
    assert_eq!(first.status, 200);
    // Over a connection that had answered, or over a new one where that was not back yet.
    assert!([200, 502].contains(&second.status), "{second:?}");
    assert_eq!(calls.lock().len(), 2);
    assert_eq!(gateway.limiter("pace").await["level"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_waits_for_the_only_address_to_return() {
    let port = free_port();
    let rest = "limiters: { day: 1000/day }
routes: [{ name: all, suffix: \"*\", limiters: [day] }]
";
    let only = format!("workers: 1\nupstreams: {{ vendor: {{ url: \"http://127.0.0.1:{port}\"");
    let gateway = Gateway::start(&format!("{only}, connect_timeout: 60s }} }}\n{rest}")).await;
    let mut asked = Vec::new();
    for _ in 0..5 {
        asked.push(gateway.ask("/", &[]).await);
    }
    eventually("the outage is seen", async || {
        let said = gateway.output().1.iter().any(|line| line.contains("cannot be reached"));
        said.then_some(())
    })
    .await;
    let upstream = Upstream::on(port, |_| Reply::ok()).await;
    for mut conn in asked {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    assert_eq!(upstream.calls().len(), 5);
    assert_eq!(gateway.limiter("day").await["level"], 995);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_that_lasts_longer_than_connect_timeout_is_a_502_and_costs_nothing() {
    let only =
        format!("workers: 1\nupstreams: {{ vendor: {{ url: \"http://127.0.0.1:{}\"", free_port());
    let rest = "limiters: { day: 1000/day }
routes: [{ name: all, suffix: \"*\", limiters: [day] }]
";
    let gateway = Gateway::start(&format!("{only}, connect_timeout: 500ms }} }}\n{rest}")).await;
    let started = Instant::now();
    let answer = gateway.get("/").await;
    assert_eq!((answer.status, answer.problem().as_str()), (502, "upstream-unreachable"));
    // Attempts at 0, 50, 150 and 350 ms, and none that would come too late.
    assert!(started.elapsed() >= Duration::from_millis(350), "{:?}", started.elapsed());
    assert_eq!(gateway.limiter("day").await["level"], 1000);
}

/// Asks until a request waits for the permits of its second attempt, and returns its connection.
async fn waiting_again(gateway: &Gateway) -> Conn {
    // A connection may not be back yet when the second request comes, and then there is no second attempt.
    for path in (0..50).map(|i| format!("/{i}")) {
        assert_eq!(gateway.get(&path).await.status, 200);
        let mut second = gateway.ask(&path, &[]).await;
        let is_answered = tokio::select! {
            answer = second.answer() => answer.expect("an answer").status == 200,
            () = gateway.until_waiting("all", 1) => false,
        };
        if !is_answered {
            return second;
        }
    }
    panic!("no connection is used again");
}

/// A second attempt whose slot comes after the end of the drain: its first one may have been counted, so it is a 502.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_attempt_does_not_wait_beyond_the_end_of_the_drain() {
    let (upstream, _) = counts_and_closes().await;
    let limited = "drain_timeout: 10min
limiters: { pace: { rate: 1/30min, burst: 2, key: \"{path}\" } }
routes: [{ name: all, suffix: \"*\", limiters: [pace], max_wait: 1h }]
";
    let mut gateway = gateway(&upstream.url(), limited).await;
    let mut waits = waiting_again(&gateway).await;
    gateway.signal("TERM");
    let answer = waits.answer().await.expect("a whole answer");
    assert_eq!((answer.status, answer.problem().as_str()), (502, "upstream-broken"));
    assert_eq!(gateway.end().await.code(), Some(0));
}

/// A second attempt whose slot comes before the end of the drain: SIGTERM does not cut it.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_attempt_that_waits_during_the_drain_is_made() {
    let (upstream, calls) = counts_and_closes().await;
    let limited = "drain_timeout: 10min
limiters: { pace: { rate: 1/3s, burst: 2, key: \"{path}\" } }
routes: [{ name: all, suffix: \"*\", limiters: [pace], max_wait: 1h }]
";
    let mut gateway = gateway(&upstream.url(), limited).await;
    let mut waits = waiting_again(&gateway).await;
    let before = calls.lock().len();
    gateway.signal("TERM");
    let answer = waits.answer().await.expect("a whole answer");
    assert_eq!((answer.status, answer.text()), (200, "ok".into()));
    assert_eq!(calls.lock().len(), before + 1);
    assert_eq!(gateway.end().await.code(), Some(0));
}
