//! Reads that cost no permit: identical ones that wait are one call, and kept answers that the upstream confirms are free.

mod revalidate;
mod revalidate_rules;
mod share;
mod share_bodies;
mod share_rules;

use crate::support::{Call, Conn, Gateway, Reply, Upstream, closed, eventually, request};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// A gateway that makes one call at a time. The call for `/first` is made, and the others wait for its end.
struct Scene {
    /// Ends the call for `/first`.
    gate: Arc<Semaphore>,
    upstream: Upstream,
    gateway: Gateway,
    first: Conn,
}

/// A route that shares its reads as `share` says, with one call at a time.
fn one_at_a_time(store: &str, share: &str) -> String {
    format!(
        "{store}\naccess_log: json\nworkers: 2\n\
         limiters: {{ calls: {{ rate: 5/s, burst: 1 }}, one: {{ algorithm: concurrency, max: 1 }} }}\n\
         routes: [{{ name: all, suffix: '*', max_wait: 120s, share: {share}, limiters: [calls, one] }}]"
    )
}

/// An upstream that answers `/first` when the gate opens, and everything else at once.
async fn gated(
    gate: &Arc<Semaphore>,
    answer: impl Fn(&Call) -> Reply + Send + Sync + 'static,
) -> Upstream {
    let gate = gate.clone();
    Upstream::start(move |call: &Call| match call.target.as_str() {
        "/first" => Reply::ok().behind(&gate),
        _ => answer(call),
    })
    .await
}

impl Scene {
    /// The scene with these lines in the configuration file, before an upstream that gives these answers.
    async fn start(lines: &str, answer: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> Self {
        let gate = closed();
        let upstream = gated(&gate, answer).await;
        let gateway = Gateway::before(&upstream, lines).await;
        Self::occupied(gate, upstream, gateway).await
    }

    /// Makes the call for `/first` by a gateway.
    async fn occupied(gate: Arc<Semaphore>, upstream: Upstream, gateway: Gateway) -> Self {
        let made = upstream.calls().len();
        let first = ask(&gateway, "GET", "/first", &[]).await;
        eventually("the first call", async || (upstream.calls().len() > made).then_some(())).await;
        Self { gate, upstream, gateway, first }
    }

    /// Ends the call for `/first`, so that one of the requests that wait is sent.
    fn open(&self) {
        self.gate.add_permits(1);
    }

    /// Sends a request, and returns when it waits, as the last of so many.
    async fn wait_as(&self, count: usize, target: &str) -> Conn {
        let conn = ask(&self.gateway, "GET", target, &[]).await;
        self.gateway.until_waiting("all", count).await;
        conn
    }

    /// Lets so many reads of `/same` wait.
    async fn wait_together(&self, count: usize) -> Vec<Conn> {
        let mut conns = Vec::new();
        for waiting in 1..=count {
            conns.push(self.wait_as(waiting, "/same").await);
        }
        conns
    }

    /// The calls for `/same` so far.
    fn calls(&self) -> usize {
        self.upstream.calls().iter().filter(|call| call.target == "/same").count()
    }
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
