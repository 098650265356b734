//! The nodes of a Cluster and the map of its slots. Only notes and connects: `follow` asks for the map, and the commands
//! come from the Cluster.

use crate::store::{
    StoreError,
    redis::{
        epoch::Epochs,
        identity::ServerRun,
        slots::{MOST_NODES, slot},
        subscriber::Subscriber,
        topic::Topic,
        transport::{Access, Destination, Met, RedisConnection, Sent},
        url::Endpoint,
    },
};
use parking_lot::Mutex;
use redis::Value;
use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// A node that has not answered a command for 250 ms may be lost: the other nodes are asked whether it is.
const SLOW: Duration = Duration::from_millis(250);

/// The map of slots, and how the nodes in it are connected to.
pub(super) struct ClusterState {
    pub(super) access: Arc<Access>,
    pub(super) seeds: Vec<Endpoint>,
    pub(super) map: Mutex<SlotMap>,
    /// Notified when a node has shown that the map is wrong somewhere.
    pub(super) stale: Notify,
    pub(super) met: Met,
}

/// The nodes that are known, and the slots that each of them has.
#[derive(Default)]
pub(super) struct SlotMap {
    /// The node of each slot; empty before the first map is known.
    pub(super) owners: Vec<Option<Arc<ClusterNode>>>,
    pub(super) nodes: HashMap<Endpoint, Arc<ClusterNode>>,
    /// The replicas, which are asked for the map like the masters.
    pub(super) replicas: Vec<Endpoint>,
    /// The messages of the servers that are meant for this connection.
    pub(super) topics: Vec<Topic>,
}

/// One node and the connections to it, which end when it is dropped.
pub(super) struct ClusterNode {
    pub(super) endpoint: Endpoint,
    pub(super) connection: RedisConnection,
    /// `PUBLISH` in a script counts the subscribers of its own node only, so each node has one of ours.
    subscribers: Mutex<Vec<Subscriber>>,
    /// The node has answered `CLUSTERDOWN`: it serves no slots.
    pub(super) is_down: AtomicBool,
}

// === impl ClusterState ===

impl ClusterState {
    /// Knows no slots yet. Each new connection to a node reports its run to `epochs`.
    pub(super) fn new(
        access: Arc<Access>,
        seeds: Vec<Endpoint>,
        epochs: &Arc<Epochs>,
    ) -> Arc<Self> {
        let (map, stale) = (Mutex::default(), Notify::new());
        Arc::new_cyclic(|shared| {
            let met = meets(shared.clone(), epochs.clone());
            Self { access, seeds, map, stale, met }
        })
    }

    /// Whether the node at `endpoint` has the slot of a lane.
    pub(super) fn has(&self, lane: &str, endpoint: &Endpoint) -> bool {
        let map = self.map.lock();
        let owner = map.owners.get(usize::from(slot(lane))).and_then(Option::as_ref);
        owner.is_some_and(|owner| owner.endpoint == *endpoint)
    }

    /// Returns the node that has a slot.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotConnected`] while no node is known to have it.
    pub(super) fn owner(&self, slot: u16) -> Result<Arc<ClusterNode>, StoreError> {
        let owner = self.map.lock().owners.get(usize::from(slot)).cloned().flatten();
        owner.ok_or_else(|| {
            self.stale.notify_one();
            StoreError::NotConnected
        })
    }

    /// Notes that a slot has moved to the node at `endpoint`, and returns that node.
    ///
    /// # Errors
    ///
    /// As of [`Self::node`].
    pub(super) fn moved(
        &self,
        slot: u16,
        endpoint: &Endpoint,
    ) -> Result<Arc<ClusterNode>, StoreError> {
        let node = self.node(endpoint)?;
        if let Some(owner) = self.map.lock().owners.get_mut(usize::from(slot)) {
            *owner = Some(node.clone());
        }
        Ok(node)
    }

    /// Returns the node at `endpoint`, after connecting to it if it is new.
    ///
    /// # Errors
    ///
    /// [`StoreError::Protocol`] when more nodes are named than a Cluster has.
    pub(super) fn node(&self, endpoint: &Endpoint) -> Result<Arc<ClusterNode>, StoreError> {
        let node = self.map.lock().node(&self.access, &self.met, endpoint);
        node.ok_or(StoreError::Protocol)
    }
}

/// Reports the run of each new connection, so that the epochs of the lanes on that node are in doubt after another run.
fn meets(shared: Weak<ClusterState>, epochs: Arc<Epochs>) -> Met {
    Arc::new(move |endpoint: &Endpoint, run: Option<&ServerRun>| {
        let (Some(shared), Some(run)) = (shared.upgrade(), run) else { return };
        epochs.meet(&endpoint.to_string(), run, |lane| shared.has(lane, endpoint));
    })
}

// === impl SlotMap ===

impl SlotMap {
    pub(super) fn node(
        &mut self,
        access: &Arc<Access>,
        met: &Met,
        endpoint: &Endpoint,
    ) -> Option<Arc<ClusterNode>> {
        if let Some(node) = self.nodes.get(endpoint) {
            return Some(node.clone());
        }
        if self.nodes.len() >= MOST_NODES {
            return None;
        }
        let connection = RedisConnection::open(
            access.clone(),
            Destination::Server(endpoint.clone()),
            met.clone(),
        );
        let node = Arc::new(ClusterNode {
            endpoint: endpoint.clone(),
            connection,
            subscribers: Mutex::default(),
            is_down: AtomicBool::new(false),
        });
        self.topics.iter().for_each(|topic| node.listen(access, topic.clone()));
        self.nodes.insert(endpoint.clone(), node.clone());
        Some(node)
    }
}

// === impl ClusterNode ===

impl ClusterNode {
    pub(super) fn listen(&self, access: &Arc<Access>, topic: Topic) {
        let target = Destination::Server(self.endpoint.clone());
        self.subscribers.lock().push(Subscriber::open(access.clone(), target, topic));
    }

    /// Whether another node may have its slots by now.
    pub(super) fn ails(&self) -> bool {
        self.is_down.load(Relaxed) || self.connection.ails(SLOW)
    }

    pub(super) async fn send(&self, sent: Sent<'_>, is_asking: bool) -> Result<Value, StoreError> {
        if !self.connection.is_connected() {
            // The node may be new, and its first connection on its way.
            self.connection.tried().await;
        }
        self.connection.send(sent, is_asking).await
    }
}
