//! Permits that requests reserved and did not use let waiting requests move up, over all gateways of a Redis.

use crate::support::{Gateway, Redis, Upstream, eventually, reply};
use rstest::rstest;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

/// A vendor has 6000 tokens for 10 s; each request reserves 1000 of them and uses 300. Six requests fit into the reserves, and
/// twenty into the quota: what the first six do not use lets others follow at once, whichever gateway they wait in.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_used_tokens_and_not_for_reserved_ones(
    #[values("sliding_window", "fixed_window", "token_bucket", "leaky_bucket")] algorithm: &str,
    #[values("", ", fair: { by: '{query.team}' }")] fair: &str,
) {
    let redis = Redis::start();
    let gate = Arc::new(Semaphore::new(0));
    let upstream = {
        let gate = gate.clone();
        Upstream::start(move |_| reply("200 OK", &[("X-Cost", "300")], "").behind(&gate)).await
    };
    let yaml = format!(
        "store: {{ url: \"{}\" }}\nupstream: {}\n\
         limiters: {{ tokens: {{ algorithm: {algorithm}, rate: 6000/10s{fair} }}, calls: 100/s }}\n\
         routes: [{{ name: x, suffix: /x, max_wait: 60s, limiters: \
         [calls, {{ limiter: tokens, cost: {{ reserve: 1000, settle: '{{response.header.x-cost}}' }} }}] }}]\n",
        redis.url(),
        upstream.url()
    );
    // Requests that take turns at one limiter and ask a second one keep their slots.
    let yaml = if fair.is_empty() { yaml } else { yaml.replace("[calls, {", "[{") };
    let gateways = [Arc::new(Gateway::start(&yaml).await), Arc::new(Gateway::start(&yaml).await)];
    let start = Instant::now();
    let mut requests = Vec::new();
    // The requests that give permits back are those of another gateway than the ones that wait.
    for i in 0..24 {
        let gateway = gateways[usize::from(i >= 6)].clone();
        requests.push(tokio::spawn(async move {
            let answer = gateway.get("/x?team=a").await;
            (answer.status, start.elapsed())
        }));
        eventually("the request has its slot", async || {
            let mut known = upstream.calls().len() as f64;
            for gateway in &gateways {
                known += gateway.metric("paceway_waiting", &[]).await;
            }
            (known == f64::from(i + 1)).then_some(())
        })
        .await;
    }
    gate.add_permits(24);
    let mut times = Vec::new();
    for request in requests {
        let answer = timeout(Duration::from_secs(60), request).await.expect("an answer in time");
        let (status, after) = answer.expect("a task");
        assert_eq!(status, 200);
        times.push(after);
    }
    times.sort();
    // Without the refunds the seventh request of a window comes after 10 s, and that of a bucket after 1.7 s each.
    let late = times.iter().filter(|after| **after > Duration::from_millis(9_900)).count();
    assert!(late <= 12, "{times:?}");
    let most = match algorithm {
        "sliding_window" => 20,
        _ => 24,
    };
    let within = times.iter().filter(|after| **after < Duration::from_millis(9_900)).count();
    assert!(within <= most, "{within}: {times:?}");
}
