//! Beginnings of many tests: a gateway before one upstream, a connection of a client, a closed gate, a store of either kind.

use super::{Conn, Gateway, PATIENCE, Redis, Upstream, eventually};
use paceway_limit::store::redis::{Epochs, RedisStore, RedisUrl};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// A gate that the test opens with `add_permits`.
pub(crate) fn closed() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(0))
}

/// The store of a gateway: its process, or a Redis server that lives as long as the value. It has 5 s for each call, because
/// a busy machine would decide without it.
pub(crate) fn store(is_redis: bool) -> (Option<Redis>, String) {
    if !is_redis {
        return (None, String::new());
    }
    let redis = Redis::that_is_heard();
    let store = format!("store: {{ url: \"{}\", timeout: 5s }}", redis.url());
    (Some(redis), store)
}

/// Opens the store at `url` and waits for its server.
pub(crate) async fn connected_store(url: &RedisUrl) -> RedisStore {
    let epochs = Epochs::new("paceway", metrics::Counter::noop());
    let store = RedisStore::open(url, &epochs).expect("a store");
    store.connected(PATIENCE).await.expect("a connection");
    store
}

impl Gateway {
    /// Starts a gateway before this upstream, with these lines in its configuration file.
    pub(crate) async fn before(upstream: &Upstream, lines: &str) -> Self {
        Self::start(&format!("upstream: {}\n{lines}\n", upstream.url())).await
    }

    /// Opens a connection of a client.
    pub(crate) async fn connect(&self) -> Conn {
        Conn::to(self.listen).await.expect("connect")
    }

    /// Sends requests one after the other and lists their statuses.
    pub(crate) async fn statuses(&self, target: &str, count: usize) -> Vec<u16> {
        let mut statuses = Vec::new();
        for _ in 0..count {
            statuses.push(self.get(target).await.status);
        }
        statuses
    }

    /// Counts the connections that were refused for this reason.
    pub(crate) async fn refused_connections(&self, reason: &str) -> f64 {
        self.metric("paceway_connections_refused_total", &[("reason", reason)]).await
    }

    /// Waits for that many refused connections. A connection may end a moment before it is counted.
    pub(crate) async fn until_refused(&self, reason: &str, count: usize) {
        eventually(&format!("{count} refused: {reason}"), async || {
            (self.refused_connections(reason).await as usize == count).then_some(())
        })
        .await;
    }
}
