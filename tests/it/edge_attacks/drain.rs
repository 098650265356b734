//! Requests that wait while the gateway drains.

use crate::support::{Gateway, PATIENCE, Reply, Upstream, eventually, request};
use serde_json::json;
use std::sync::Arc;
use tokio::{sync::Semaphore, time::Instant};

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_beyond_the_end_of_the_drain_is_refused_at_once() {
    let gate = Arc::new(Semaphore::new(0));
    let behind = gate.clone();
    let upstream = Upstream::start(move |call| match call.target.as_str() {
        "/place" => Reply::ok().behind(&behind),
        _ => Reply::ok(),
    })
    .await;
    let mut gateway = Gateway::start(&format!(
        "drain_timeout: 10min\nupstream: {}
limiters: {{ late: {{ rate: 1/30min, burst: 1 }}, soon: 1/2s, place: {{ algorithm: concurrency, max: 1 }} }}
routes:
  - {{ name: late, suffix: /late, limiters: [late], max_wait: 1h }}
  - {{ name: soon, suffix: /soon, limiters: [soon], max_wait: 1h }}
  - {{ name: place, suffix: /place, limiters: [place], max_wait: 1h }}
",
        upstream.url()
    ))
    .await;
    for path in ["/late", "/soon"] {
        assert_eq!(gateway.get(path).await.status, 200);
    }
    let mut kept = gateway.connect().await;
    let holds = gateway.ask("/place", &[]).await;
    eventually("the permit is held", async || (upstream.calls().len() == 3).then_some(())).await;
    let (mut late, began) = (gateway.ask("/late", &[]).await, Instant::now());
    let mut in_time = vec![holds, gateway.ask("/place", &[]).await];
    for _ in 0..2 {
        in_time.push(gateway.ask("/soon", &[]).await);
    }
    gateway.until_waiting("late", 1).await;
    gateway.until_waiting("place", 1).await;
    gateway.signal("TERM");

    let answer = late.answer().await.expect("a whole answer");
    assert_eq!((answer.status, answer.problem().as_str()), (503, "draining"));
    assert_eq!(answer.field("connection"), Some("close"));
    let retry: u64 = answer.field("retry-after").expect("a time").parse().expect("seconds");
    // The bucket had its last permit a moment before this request came.
    let half_an_hour = 30 * 60;
    let passed = began.elapsed().as_secs() + 2 * PATIENCE.as_secs();
    assert!((half_an_hour - passed..=half_an_hour).contains(&retry), "{retry}");
    let line = eventually("its line", async || {
        gateway.access().into_iter().find(|line| line["path"] == "/late" && line["status"] == 503)
    })
    .await;
    assert_eq!((&line["outcome"], &line["limiter"]), (&json!("draining"), &json!("late")));
    assert!(line["wait_ms"].as_f64() > Some(0.0), "{line}");
    // A request that comes now gets the same answer, unless its connection was closed as an idle one.
    let asked = kept.send(request("GET", "/late", &[])).await;
    if let (Ok(()), Ok(answer)) = (asked, kept.answer().await) {
        assert_eq!((answer.status, answer.problem().as_str()), (503, "draining"));
    }
    // Those whose turn comes in time are served.
    gate.add_permits(2);
    for conn in &mut in_time {
        assert_eq!(conn.answer().await.expect("a whole answer").status, 200);
    }
    assert_eq!(gateway.end().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_is_not_free_before_the_end_of_the_drain_is_refused_in_time() {
    let never = Arc::new(Semaphore::new(0));
    let upstream = Upstream::start(move |_| Reply::ok().behind(&never)).await;
    let mut gateway = Gateway::start(&format!(
        "drain_timeout: 3s\nupstream: {}
limiters: {{ place: {{ algorithm: concurrency, max: 1, lease: 30min }} }}
routes: [{{ name: place, suffix: \"*\", limiters: [place], max_wait: 1h }}]\n",
        upstream.url()
    ))
    .await;
    let _holds = gateway.ask("/holds", &[]).await;
    eventually("the permit is held", async || (!upstream.calls().is_empty()).then_some(())).await;
    let mut waits = gateway.ask("/waits", &[]).await;
    gateway.until_waiting("place", 1).await;
    gateway.signal("TERM");
    let answer = waits.answer().await.expect("a whole answer");
    assert_eq!((answer.status, answer.problem().as_str()), (503, "draining"));
    // When a permit will be free is not known.
    assert_eq!(answer.field("retry-after"), Some("1"));
    assert_eq!(gateway.line("/waits").await["outcome"], "draining");
    assert_eq!(gateway.end().await.code(), Some(0));
}
