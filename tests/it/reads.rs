//! Reads that cost no permit: identical ones that wait are one call, and kept answers that the upstream confirms are free.

mod revalidate;
mod revalidate_rules;
mod share;
mod share_bodies;
mod share_rules;

use crate::support::{Conn, Gateway, Redis, request};

/// The store of a test: this process, or a Redis server that lives as long as the value.
fn store(is_redis: bool) -> (Option<Redis>, String) {
    if !is_redis {
        return (None, String::new());
    }
    let redis = Redis::that_is_heard();
    let store = format!("store: {{ url: \"{}\", timeout: 5s }}", redis.url());
    (Some(redis), store)
}

/// Sends a request on a connection of its own, and leaves the answer to the caller.
async fn ask(gateway: &Gateway, method: &str, target: &str, fields: &[(&str, &str)]) -> Conn {
    let mut conn = gateway.connect().await;
    conn.send(request(method, target, fields)).await.expect("send");
    conn
}

async fn saved(gateway: &Gateway, by: &str) -> f64 {
    gateway.metric("paceway_saved_permits_total", &[("route", "all"), ("by", by)]).await
}
