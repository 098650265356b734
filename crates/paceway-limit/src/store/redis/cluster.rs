//! A Redis Cluster: a connection to each of its masters, and the map of slots, which follows the replies of the nodes. A
//! node that is away is an error at once for keys in its own slots, and for no other key. Decides nothing about limits.

mod follow;

use super::{
    epoch::Epochs,
    identity::{self, ServerRun},
    reason::ConnectError,
    slots::{MOST_NODES, Redirect, slot},
    subscriber::Subscriber,
    transport::{Access, Destination, Met, RedisConnection, command, words},
    url::Endpoint,
};
use crate::store::{StoreError, calls::Calls};
use follow::follow;
use parking_lot::Mutex;
use redis::{Cmd, Value};
use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    task::{AbortHandle, JoinSet},
    time::{Instant, timeout},
};

/// How many nodes a command is sent to at most, one after the other: a map in motion may lead in circles.
const TRIES: usize = 16;
/// A node that has not answered a command for 250 ms may be lost: the other nodes are asked whether it is.
const SLOW: Duration = Duration::from_millis(250);

/// The connections to a Cluster, which end when it is dropped.
pub(super) struct Cluster {
    shared: Arc<ClusterState>,
    state: watch::Receiver<Option<Result<(), ConnectError>>>,
    task: AbortHandle,
}

struct ClusterState {
    access: Arc<Access>,
    seeds: Vec<Endpoint>,
    map: Mutex<SlotMap>,
    /// Notified when a node has shown that the map is wrong somewhere.
    stale: Notify,
    met: Met,
}

#[derive(Default)]
struct SlotMap {
    /// The node of each slot; empty before the first map is known.
    owners: Vec<Option<Arc<ClusterNode>>>,
    nodes: HashMap<Endpoint, Arc<ClusterNode>>,
    /// The replicas, which are asked for the map like the masters.
    replicas: Vec<Endpoint>,
    /// The tickets that servers call, if a limiter counts concurrency.
    calls: Option<Arc<Calls>>,
}

struct ClusterNode {
    place: Endpoint,
    connection: RedisConnection,
    /// `PUBLISH` in a script counts the subscribers of its own node only, so each node has one of ours.
    subscriber: Mutex<Option<Subscriber>>,
    /// The node has answered `CLUSTERDOWN`: it serves no slots.
    is_down: AtomicBool,
}

// === impl Cluster ===

impl Cluster {
    /// Connects in the background of the current runtime.
    pub(super) fn open(access: Arc<Access>, seeds: Vec<Endpoint>, epochs: &Arc<Epochs>) -> Self {
        let (map, stale) = (Mutex::default(), Notify::new());
        let shared = Arc::new_cyclic(|shared| {
            let met = meets(shared.clone(), epochs.clone());
            ClusterState { access, seeds, map, stale, met }
        });
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

    /// Subscribes at each node to the tickets that it calls, also at nodes that are found later.
    pub(super) fn receive_calls(&self, calls: &Arc<Calls>) {
        let mut map = self.shared.map.lock();
        map.calls = Some(calls.clone());
        for node in map.nodes.values() {
            node.receive_calls(&self.shared.access, calls);
        }
    }

    /// Asks each node that has reported its run how many keys it has evicted. A silent node delays no other.
    pub(super) async fn ask_for_evicted(&self, epochs: &Arc<Epochs>) {
        let nodes: Vec<_> = self.shared.map.lock().nodes.values().cloned().collect();
        let mut asked = JoinSet::new();
        for node in nodes.into_iter().filter(|node| epochs.knows(&node.place.to_string())) {
            let (shared, epochs) = (self.shared.clone(), epochs.clone());
            asked.spawn(async move {
                let said = node.connection.call(&command(&[identity::INFO])).await;
                if let Some(run) = said.ok().as_ref().and_then(identity::read) {
                    let place = &node.place;
                    epochs.look(&place.to_string(), &run, |lane| shared.has(lane, place));
                }
            });
        }
        while asked.join_next().await.is_some() {}
    }

    /// Sends a command to the node that has `key` and waits for its reply. The command is sent to another node only after
    /// a reply that says that nothing was executed: `MOVED` or `ASK`.
    ///
    /// # Errors
    ///
    /// As of [`RedisConnection::call`].
    pub(super) async fn call(&self, key: &str, sent: &Cmd) -> Result<Value, StoreError> {
        let slot = slot(key);
        let mut node = self.shared.owner(slot)?;
        let (mut asking, mut tries) = (false, 0);
        loop {
            let said = node.call(sent, asking).await;
            let said = said.inspect_err(|_| self.shared.stale.notify_one())?;
            let Value::ServerError(error) = &said else {
                node.is_down.store(false, Relaxed);
                return Ok(said);
            };
            let words = words(error);
            let redirect = Redirect::of(&words, &node.place);
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
                Some(Redirect::Moved(place)) => self.shared.moved(slot, &place)?,
                Some(Redirect::Ask(place)) => self.shared.node(&place)?,
            };
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("connected", &self.is_connected()).finish_non_exhaustive()
    }
}

// === impl ClusterState ===

impl ClusterState {
    /// Whether the node at `place` has the slot of a lane.
    fn has(&self, lane: &str, place: &Endpoint) -> bool {
        let map = self.map.lock();
        let owner = map.owners.get(usize::from(slot(lane))).and_then(Option::as_ref);
        owner.is_some_and(|owner| owner.place == *place)
    }

    fn owner(&self, slot: u16) -> Result<Arc<ClusterNode>, StoreError> {
        let owner = self.map.lock().owners.get(usize::from(slot)).cloned().flatten();
        owner.ok_or_else(|| {
            self.stale.notify_one();
            StoreError::NotConnected
        })
    }

    fn moved(&self, slot: u16, place: &Endpoint) -> Result<Arc<ClusterNode>, StoreError> {
        let node = self.node(place)?;
        if let Some(owner) = self.map.lock().owners.get_mut(usize::from(slot)) {
            *owner = Some(node.clone());
        }
        Ok(node)
    }

    /// Returns the node at `place`, after connecting to it if it is new.
    fn node(&self, place: &Endpoint) -> Result<Arc<ClusterNode>, StoreError> {
        let node = self.map.lock().node(&self.access, &self.met, place);
        node.ok_or(StoreError::Protocol)
    }
}

/// Reports the run of each new connection, so that the epochs of the lanes on that node are in doubt after another run.
fn meets(shared: Weak<ClusterState>, epochs: Arc<Epochs>) -> Met {
    Arc::new(move |place: &Endpoint, run: Option<&ServerRun>| {
        let (Some(shared), Some(run)) = (shared.upgrade(), run) else { return };
        epochs.meet(&place.to_string(), run, |lane| shared.has(lane, place));
    })
}

// === impl SlotMap ===

impl SlotMap {
    fn node(
        &mut self,
        access: &Arc<Access>,
        met: &Met,
        place: &Endpoint,
    ) -> Option<Arc<ClusterNode>> {
        if let Some(node) = self.nodes.get(place) {
            return Some(node.clone());
        }
        if self.nodes.len() >= MOST_NODES {
            return None;
        }
        let connection =
            RedisConnection::open(access.clone(), Destination::Server(place.clone()), met.clone());
        let node = Arc::new(ClusterNode {
            place: place.clone(),
            connection,
            subscriber: Mutex::default(),
            is_down: AtomicBool::new(false),
        });
        if let Some(calls) = &self.calls {
            node.receive_calls(access, calls);
        }
        self.nodes.insert(place.clone(), node.clone());
        Some(node)
    }
}

// === impl ClusterNode ===

impl ClusterNode {
    fn receive_calls(&self, access: &Arc<Access>, calls: &Arc<Calls>) {
        let target = Destination::Server(self.place.clone());
        *self.subscriber.lock() = Some(Subscriber::open(access.clone(), target, calls.clone()));
    }

    /// Whether another node may have its slots by now.
    fn ails(&self) -> bool {
        self.is_down.load(Relaxed) || self.connection.ails(SLOW)
    }

    async fn call(&self, sent: &Cmd, asking: bool) -> Result<Value, StoreError> {
        if !self.connection.is_connected() {
            // The node may be new, and its first connection on its way.
            self.connection.tried().await;
        }
        match asking {
            true => self.connection.call_after(command(&[b"ASKING"]), sent).await,
            false => self.connection.call(sent).await,
        }
    }
}
