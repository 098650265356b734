//! Pauses of gateways in several databases of a real Redis.

use crate::support::{Gateway, Redis, Reply, Upstream, eventually, reply};

/// Publish and subscribe know no database: a 429 of a limiter in database 0 paused that of the same name in database 1.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_in_one_database_leaves_the_same_limiter_in_another_alone() {
    let redis = Redis::start();
    let upstream = Upstream::start(|call| match call.target.as_str() {
        "/refused" => reply("429 Too Many Requests", &[("Retry-After", "600")], ""),
        _ => Reply::ok(),
    })
    .await;
    let start = async |database: u8| {
        Gateway::start(&format!(
            "store: {{ url: \"redis://127.0.0.1:{}/{database}\", timeout: 2s }}
upstream: {}
limiters: {{ quota: {{ rate: 100/s }} }}
routes: [{{ suffix: \"*\", limiters: [quota] }}]
",
            redis.port(),
            upstream.url()
        ))
        .await
    };
    let (other, first, second) = (start(0).await, start(1).await, start(1).await);
    for gateway in [&other, &second] {
        gateway.until_answered("/x", 200).await;
    }
    assert_eq!(first.get("/refused").await.status, 429);
    let hears = |gateway: &Gateway| {
        let begins = |line: &serde_json::Value| {
            line["message"].as_str().is_some_and(|said| said.starts_with("a pause begins"))
        };
        gateway.events().iter().any(begins)
    };
    eventually("a gateway of the same database learns of it", async || {
        hears(&second).then_some(())
    })
    .await;
    assert_eq!(second.get("/x").await.problem(), "upstream-throttled");
    assert!(!hears(&other));
    assert_eq!(other.get("/x").await.status, 200);
}
