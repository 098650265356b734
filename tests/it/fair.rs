//! Tenants and priorities among the requests that wait, in one gateway with the memory store and in several on Redis. The
//! tests assert which requests came before which, and how many; never how fast a machine is.

mod effort;
mod floors;
mod order;
mod pages;
mod permits;
mod services;
mod shared;
mod tenants;

use crate::support::{Gateway, Redis, Upstream, eventually};
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Gateways before an upstream.
struct Ordered {
    gateway: Arc<Gateway>,
    /// The gateways that share a Redis with it.
    others: Vec<Arc<Gateway>>,
    redis: Option<Redis>,
    upstream: Upstream,
}

/// A request that a gateway holds or has answered: its status.
type Asked = JoinHandle<u16>;

// === impl Ordered ===

impl Ordered {
    /// `rest` is the text of the configuration after its upstream.
    async fn start(rest: &str) -> Self {
        Self::of(0, rest).await
    }

    /// The number of gateways on one Redis; with 0, one gateway with the memory store.
    async fn of(gateways: usize, rest: &str) -> Self {
        Self::before(Upstream::ok().await, gateways, rest).await
    }

    async fn before(upstream: Upstream, gateways: usize, rest: &str) -> Self {
        let redis = (gateways > 0).then(Redis::start);
        // Hundreds of requests come at once. A slow machine is no outage.
        let on = |redis: &Redis| format!("{{ url: \"{}\", timeout: 2s }}", redis.url());
        let store = redis.as_ref().map_or_else(|| "memory".to_owned(), on);
        let yaml = format!("store: {store}\nupstream: {}\n{rest}", upstream.url());
        let gateway = Arc::new(Gateway::start(&yaml).await);
        let mut others = Vec::new();
        for _ in 1..gateways {
            others.push(Arc::new(Gateway::start(&yaml).await));
        }
        Self { gateway, others, redis, upstream }
    }

    fn gateways(&self) -> impl Iterator<Item = &Arc<Gateway>> {
        std::iter::once(&self.gateway).chain(&self.others)
    }

    /// The sum of a metric over all gateways.
    async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let mut sum = 0.0;
        for gateway in self.gateways() {
            sum += gateway.metric(name, labels).await;
        }
        sum
    }

    /// Sends requests for `target`, to all gateways in turn.
    fn ask(
        &self,
        target: &str,
        fields: &'static [(&'static str, &'static str)],
        count: usize,
    ) -> Vec<Asked> {
        let gateways: Vec<_> = self.gateways().cloned().collect();
        (0..count)
            .flat_map(|i| Self::ask_at(&gateways[i % gateways.len()], target, fields, 1))
            .collect()
    }

    /// Sends requests for `target` to one gateway.
    fn ask_at(
        gateway: &Arc<Gateway>,
        target: &str,
        fields: &'static [(&'static str, &'static str)],
        count: usize,
    ) -> Vec<Asked> {
        let one = |_| {
            let gateway = gateway.clone();
            let (target, fields) = (target.to_owned(), fields);
            tokio::spawn(async move {
                let mut conn = gateway.ask(&target, fields).await;
                conn.answer().await.expect("an answer").status
            })
        };
        (0..count).map(one).collect()
    }

    /// Waits until `count` requests wait, have been sent, or have been answered, as those of a service are.
    async fn until_asked(&self, count: usize) {
        eventually(&format!("{count} requests have been decided"), async || {
            // A request that is answered between these looks is missed once, and never counted twice.
            let sent = self.upstream.calls().len();
            let answered = self.metric("paceway_requests_total", &[]).await as usize;
            let waiting = self.metric("paceway_waiting", &[]).await as usize;
            (waiting + sent.max(answered) >= count).then_some(())
        })
        .await;
    }

    /// The teams of the calls so far, in their order at the upstream.
    fn teams(&self) -> Vec<String> {
        let team =
            |target: &str| target.split_once("team=").map_or(String::new(), |(_, t)| t.into());
        self.upstream.calls().iter().map(|call| team(&call.target)).collect()
    }

    /// The teams of the calls that come after `first` ones, once there are as many.
    async fn next_teams(&self, first: usize, count: usize) -> Vec<String> {
        eventually("they are sent", async || {
            let teams = self.teams();
            (teams.len() >= first + count).then(|| teams[first..first + count].to_vec())
        })
        .await
    }
}

fn count(teams: &[String], team: &str) -> usize {
    teams.iter().filter(|own| *own == team).count()
}

async fn served(asked: Vec<Asked>) {
    for request in asked {
        assert_eq!(request.await.expect("a task"), 200);
    }
}

/// A caller that no `trusted_proxies` name says a priority in vain.
#[tokio::test(flavor = "multi_thread")]
async fn a_priority_of_an_untrusted_caller_does_not_count() {
    let ordered = Ordered::start(
        "limiters: { vendor: { rate: 1000/s } }
routes: [{ name: x, suffix: /x, limiters: [vendor], priority: rfc9218, max_wait: 60s }]
",
    )
    .await;
    served(ordered.ask("/x", &[("Priority", "u=0")], 1)).await;
    assert_eq!(ordered.gateway.line("/x").await["priority"], "normal");
    // It reaches the upstream as it came.
    assert_eq!(ordered.upstream.calls()[0].head.get("priority"), Some("u=0"));
}
