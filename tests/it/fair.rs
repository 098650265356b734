//! Tenants and priorities among the requests that wait, over all gateways of a Redis. The tests assert
//! which requests came before which, and how many; never how fast a machine is.

mod order;
mod pages;
mod tenants;

use crate::support::{Gateway, Redis, Upstream, eventually};
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Gateways on one Redis before one upstream, with a route `/x` whose limiter `vendor` shares by `{query.team}`.
struct Fleet {
    gateways: Vec<Arc<Gateway>>,
    upstream: Upstream,
    _redis: Redis,
}

/// A request that a gateway holds or has answered: its status.
type Asked = JoinHandle<u16>;

// === impl Fleet ===

impl Fleet {
    /// `rest` is the further text of the configuration.
    async fn start(gateways: usize, rest: &str) -> Self {
        let (redis, upstream) = (Redis::start(), Upstream::ok().await);
        let yaml = format!(
            "store: {{ url: \"{}\", timeout: 2s }}\nupstream: {}\n{rest}",
            redis.url(),
            upstream.url()
        );
        let mut all = Vec::new();
        for _ in 0..gateways {
            all.push(Arc::new(Gateway::start(&yaml).await));
        }
        Self { gateways: all, upstream, _redis: redis }
    }

    /// Sends requests for `target`, to each gateway in turn.
    fn ask(
        &self,
        target: &str,
        fields: &'static [(&'static str, &'static str)],
        count: usize,
    ) -> Vec<Asked> {
        let one = |i: usize| {
            let gateway = self.gateways[i % self.gateways.len()].clone();
            let (target, fields) = (target.to_owned(), fields);
            tokio::spawn(async move {
                let mut conn = gateway.ask(&target, fields).await;
                conn.answer().await.expect("an answer").status
            })
        };
        (0..count).map(one).collect()
    }

    /// Waits until `count` requests wait or have been sent, in all gateways.
    async fn until_asked(&self, count: usize) {
        eventually(&format!("{count} requests have been decided"), async || {
            let mut waiting = 0.0;
            for gateway in &self.gateways {
                waiting += gateway.metric("paceway_waiting", &[]).await;
            }
            (waiting as usize + self.upstream.calls().len() >= count).then_some(())
        })
        .await;
    }

    /// The teams of the calls so far, in their order at the upstream.
    fn teams(&self) -> Vec<String> {
        let team =
            |target: &str| target.split_once("team=").map_or(String::new(), |(_, t)| t.into());
        self.upstream.calls().iter().map(|call| team(&call.target)).collect()
    }
}

async fn served(asked: Vec<Asked>) {
    for request in asked {
        assert_eq!(request.await.expect("a task"), 200);
    }
}

/// A caller that no `trusted_proxies` name says a priority in vain.
#[tokio::test(flavor = "multi_thread")]
async fn a_priority_of_an_untrusted_caller_does_not_count() {
    let fleet = Fleet::start(
        1,
        "limiters: { vendor: { rate: 1000/s } }
routes: [{ name: x, suffix: /x, limiters: [vendor], priority: rfc9218, max_wait: 60s }]
",
    )
    .await;
    served(fleet.ask("/x", &[("Priority", "u=0")], 1)).await;
    assert_eq!(fleet.gateways[0].line("/x").await["priority"], "normal");
    // It reaches the upstream as it came.
    assert_eq!(fleet.upstream.calls()[0].head.get("priority"), Some("u=0"));
}
