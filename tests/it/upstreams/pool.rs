//! The pool of connections: how many it keeps, and for how long.

use super::Gets::Whole;
use super::{gets, own, saying};
use crate::support::{Gateway, PATIENCE, Upstream, eventually};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use tokio::{sync::Semaphore, time::timeout};

/// One worker, and what the configuration says of the pool.
async fn pooled(upstream: &Upstream, settings: &str) -> Gateway {
    Gateway::start(&format!(
        "workers: 1
upstreams: {{ vendor: {{ url: \"{}\", {settings} }} }}
routes: [{{ name: all, suffix: \"*\" }}]
",
        upstream.url()
    ))
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_size_zero_keeps_no_connection() {
    let (upstream, _log) = saying(Vec::new(), false).await;
    let gateway = pooled(&upstream, "pool_size: 0").await;
    for _ in 0..10 {
        assert_eq!(gets(&gateway, "/x").await, Whole("/x"));
    }
    assert_eq!(upstream.connections(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_above_the_pool_size_are_closed() {
    let gate = Arc::new(Semaphore::new(0));
    let (arrived, closed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (held, seen, ended) = (gate.clone(), arrived.clone(), closed.clone());
    let upstream = Upstream::raw(move |mut conn| {
        let (held, seen, ended) = (held.clone(), seen.clone(), ended.clone());
        async move {
            while let Ok(Some(_)) = conn.head().await {
                seen.fetch_add(1, Relaxed);
                held.acquire().await.expect("open").forget();
                if conn.send(own("ok")).await.is_err() {
                    break;
                }
            }
            ended.fetch_add(1, Relaxed);
        }
    })
    .await;
    let gateway = pooled(&upstream, "pool_size: 3, idle_timeout: 60s").await;
    let mut conns = Vec::new();
    for _ in 0..10 {
        conns.push(gateway.ask("/", &[]).await);
    }
    eventually("all are under way", async || (arrived.load(Relaxed) == 10).then_some(())).await;
    gate.add_permits(10);
    for conn in &mut conns {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    eventually("seven are closed", async || (closed.load(Relaxed) == 7).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_upstream_connection_is_closed() {
    let ended = Arc::new(Semaphore::new(0));
    let end = ended.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let end = end.clone();
        async move {
            let Ok(Some(_)) = conn.head().await else { return };
            conn.send(own("ok")).await.expect("send");
            assert!(conn.rest().await.is_empty(), "no second request");
            end.add_permits(1);
        }
    })
    .await;
    let gateway = pooled(&upstream, "idle_timeout: 100ms").await;
    assert_eq!(gets(&gateway, "/").await, Whole("ok"));
    let permit = timeout(PATIENCE, ended.acquire()).await;
    permit.expect("the gateway closes it").expect("open").forget();
}
