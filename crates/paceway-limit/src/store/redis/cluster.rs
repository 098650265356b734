//! A Redis Cluster: a connection to each of its masters, and the map of slots, which follows the replies of the nodes. A
//! node that is away is an error at once for keys in its own slots, and for no other key. Decides nothing about limits.

mod follow;
mod state;

use super::{
    epoch::Epochs,
    identity,
    reason::ConnectError,
    slots::{Redirect, slot},
    topic::Topic,
    transport::{Access, Sent, command, words},
    url::Endpoint,
};
use crate::store::StoreError;
use follow::follow;
use redis::{Cmd, Value};
use state::{ClusterNode, ClusterState};
use std::{
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::{Instant, timeout},
};

/// How many nodes a command is sent to at most, one after the other: a map in motion may lead in circles.
const TRIES: usize = 16;
/// The connections to a Cluster, which end when it is dropped.
pub(super) struct RedisCluster {
    shared: Arc<ClusterState>,
    state: watch::Receiver<Option<Result<(), ConnectError>>>,
    task: AbortHandle,
}

// === impl Cluster ===

impl RedisCluster {
    /// Connects in the background of the current runtime.
    pub(super) fn open(access: Arc<Access>, seeds: Vec<Endpoint>, epochs: &Arc<Epochs>) -> Self {
        let shared = ClusterState::new(access, seeds, epochs);
        let (say, state) = watch::channel(None);
        let task = tokio::spawn(follow(shared.clone(), say)).abort_handle();
        Self { shared, state, task }
    }

    /// Whether each slot has a node to which a connection exists.
    pub(super) fn is_connected(&self) -> bool {
        let map = self.shared.map.lock();
        let is_up = |node: &Option<Arc<ClusterNode>>| {
            node.as_ref().is_some_and(|node| node.connection.is_connected())
        };
        !map.owners.is_empty() && map.owners.iter().all(is_up)
    }

    /// Resolves when the map is known and all of its nodes are connected to; after `limit`, one node is enough.
    ///
    /// # Errors
    ///
    /// Why no node is connected to, after `limit`; at once when a node refuses us.
    pub(super) async fn connected(&self, limit: Duration) -> Result<(), ConnectError> {
        let end = Instant::now() + limit;
        let mut state = self.state.clone();
        let is_known = |state: &Option<Result<(), ConnectError>>| {
            matches!(state, Some(Ok(()) | Err(ConnectError::Refused(_))))
        };
        drop(timeout(limit, state.wait_for(is_known)).await);
        let known = state.borrow().clone();
        known.unwrap_or_else(|| Err(ConnectError::Unreachable("no answer in time".into())))?;
        let nodes: Vec<_> = self.shared.map.lock().nodes.values().cloned().collect();
        let (mut is_one_there, mut why) = (false, None);
        for node in nodes {
            let left = end.saturating_duration_since(Instant::now());
            match node.connection.connected(left).await {
                Ok(()) => is_one_there = true,
                Err(error @ ConnectError::Refused(_)) => return Err(error),
                Err(error) => why = Some(error),
            }
        }
        why.filter(|_| !is_one_there).map_or(Ok(()), Err)
    }

    /// Whether at least one node answers, as far as is known.
    pub(super) fn answers(&self) -> bool {
        self.shared.map.lock().nodes.values().any(|node| !node.ails())
    }

    /// The addresses of the masters that are known, in order.
    pub(super) fn servers(&self) -> Vec<Arc<str>> {
        let map = self.shared.map.lock();
        let mut all: Vec<Arc<str>> =
            map.nodes.keys().map(|endpoint| endpoint.to_string().into()).collect();
        all.sort_unstable();
        all
    }

    /// Sends a command to the master with this address and waits for its reply.
    ///
    /// # Errors
    ///
    /// As of [`RedisConnection::call`], and [`StoreError::NotConnected`] for a server that is not known.
    pub(super) async fn call_at(&self, server: &str, sent: &Cmd) -> Result<Value, StoreError> {
        let is_it = |node: &&Arc<ClusterNode>| node.endpoint.to_string() == server;
        let node = self.shared.map.lock().nodes.values().find(is_it).cloned();
        node.ok_or(StoreError::NotConnected)?.send(Sent::Command(sent), false).await
    }

    /// Subscribes at each node to the messages that it publishes, also at nodes that are found later. A node passes messages
    /// on to the others, so a message may come several times.
    pub(super) fn listen(&self, topic: Topic) {
        let mut map = self.shared.map.lock();
        for node in map.nodes.values() {
            node.listen(&self.shared.access, topic.clone());
        }
        map.topics.push(topic);
    }

    /// Asks each node that has reported its run how many keys it has evicted. A silent node delays no other.
    pub(super) async fn ask_for_evicted(&self, epochs: &Arc<Epochs>) {
        let nodes: Vec<_> = self.shared.map.lock().nodes.values().cloned().collect();
        let mut asked = JoinSet::new();
        for node in nodes.into_iter().filter(|node| epochs.knows(&node.endpoint.to_string())) {
            let (shared, epochs) = (self.shared.clone(), epochs.clone());
            asked.spawn(async move {
                let said = node.connection.call(&command(&[identity::INFO])).await;
                if let Some(run) = said.ok().as_ref().and_then(identity::read) {
                    let endpoint = &node.endpoint;
                    epochs.look(&endpoint.to_string(), &run, |lane| shared.has(lane, endpoint));
                }
            });
        }
        while asked.join_next().await.is_some() {}
    }

    /// Has a command or the decision script executed by the node that has `key`, and waits for its reply. Another node is
    /// asked only after a reply that says that nothing was executed: `MOVED` or `ASK`.
    ///
    /// # Errors
    ///
    /// As of [`RedisConnection::send`].
    pub(super) async fn send(&self, key: &str, sent: Sent<'_>) -> Result<Value, StoreError> {
        let slot = slot(key);
        let mut node = self.shared.owner(slot)?;
        let (mut asking, mut tries) = (false, 0);
        loop {
            let said = node.send(sent, asking).await;
            let said = said.inspect_err(|_| self.shared.stale.notify_one())?;
            let Value::ServerError(error) = &said else {
                node.is_down.store(false, Relaxed);
                return Ok(said);
            };
            let words = words(error);
            let redirect = Redirect::of(&words, &node.endpoint);
            let is_down = words.starts_with("CLUSTERDOWN");
            node.is_down.store(is_down, Relaxed);
            if is_down || matches!(redirect, Some(Redirect::Moved(_))) {
                self.shared.stale.notify_one();
            }
            tries += 1;
            asking = matches!(redirect, Some(Redirect::Ask(_)));
            node = match redirect {
                Some(_) if tries == TRIES => return Ok(said),
                None => return Ok(said),
                Some(Redirect::Moved(endpoint)) => self.shared.moved(slot, &endpoint)?,
                Some(Redirect::Ask(endpoint)) => self.shared.node(&endpoint)?,
            };
        }
    }
}

impl Drop for RedisCluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for RedisCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCluster")
            .field("connected", &self.is_connected())
            .finish_non_exhaustive()
    }
}
