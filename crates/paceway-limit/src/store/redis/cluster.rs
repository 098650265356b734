//! A Redis Cluster: one link to each of its masters, and the map of who has which slot, which follows what the Cluster
//! says. A node that is away is an error for its own slots, at once, and for nobody else's.

mod follow;

use super::{
    ConnectError,
    connect::{Access, Target},
    ear::Ear,
    identity::{self, Run},
    link::{Link, Met},
    marker::Markers,
    resp::{self, Value},
    slots::{MOST_NODES, Redirect, slot},
    url::Place,
};
use crate::store::{StoreError, calls::Calls};
use follow::follow;
use parking_lot::Mutex;
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

/// How often a command is sent on.
const TRIES: usize = 16;
/// A node with an older call may be lost: others are asked whether it is.
const SLOW: Duration = Duration::from_millis(250);

/// A Cluster. Dropped, its connections end.
pub(super) struct Cluster {
    shared: Arc<Shared>,
    state: watch::Receiver<Option<Result<(), ConnectError>>>,
    task: AbortHandle,
}

struct Shared {
    access: Arc<Access>,
    seeds: Vec<Place>,
    map: Mutex<Map>,
    /// The map is wrong somewhere.
    stale: Notify,
    met: Met,
}

#[derive(Default)]
struct Map {
    /// By slot; empty before the first map is known.
    owners: Vec<Option<Arc<Node>>>,
    nodes: HashMap<Place, Arc<Node>>,
    /// Servers that stand by, and know the map as well.
    replicas: Vec<Place>,
    /// Who is called to places, if anybody is.
    calls: Option<Arc<Calls>>,
}

struct Node {
    place: Place,
    link: Link,
    /// The script counts who hears a call on its own server only.
    ear: Mutex<Option<Ear>>,
    /// It has said that it serves no slots.
    is_down: AtomicBool,
}

// === impl Cluster ===

impl Cluster {
    /// Connects in the background of the current runtime.
    pub(super) fn open(access: Arc<Access>, seeds: Vec<Place>, markers: &Arc<Markers>) -> Self {
        let (map, stale) = (Mutex::default(), Notify::new());
        let shared = Arc::new_cyclic(|shared| {
            let met = meets(shared.clone(), markers.clone());
            Shared { access, seeds, map, stale, met }
        });
        let (say, state) = watch::channel(None);
        let task = tokio::spawn(follow(shared.clone(), say)).abort_handle();
        Self { shared, state, task }
    }

    /// Whether each slot has a server that there is a connection to.
    pub(super) fn is_connected(&self) -> bool {
        let map = self.shared.map.lock();
        let is_up =
            |node: &Option<Arc<Node>>| node.as_ref().is_some_and(|node| node.link.is_connected());
        !map.owners.is_empty() && map.owners.iter().all(is_up)
    }

    /// Resolves when the map is known and its servers are connected to; after `limit`, when one is.
    ///
    /// # Errors
    ///
    /// Why none is, after `limit`; at once when a server refuses us.
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
            match node.link.connected(left).await {
                Ok(()) => is_one_there = true,
                Err(error @ ConnectError::Refused(_)) => return Err(error),
                Err(error) => why = Some(error),
            }
        }
        why.filter(|_| !is_one_there).map_or(Ok(()), Err)
    }

    /// Whether some server answers, as far as is known.
    pub(super) fn answers(&self) -> bool {
        self.shared.map.lock().nodes.values().any(|node| !node.ails())
    }

    /// From now on hears, at each server, who is called to a place.
    pub(super) fn hear(&self, calls: &Arc<Calls>) {
        let mut map = self.shared.map.lock();
        map.calls = Some(calls.clone());
        for node in map.nodes.values() {
            node.hear(&self.shared.access, calls);
        }
    }

    /// Asks each server that has said which run it is what it has evicted since; one that is silent keeps no other.
    pub(super) async fn ask_for_evicted(&self, markers: &Arc<Markers>) {
        let nodes: Vec<_> = self.shared.map.lock().nodes.values().cloned().collect();
        let mut asked = JoinSet::new();
        for node in nodes.into_iter().filter(|node| markers.knows(&node.place.to_string())) {
            let (shared, markers) = (self.shared.clone(), markers.clone());
            asked.spawn(async move {
                let said = node.link.call(&identity::command()).await;
                if let Some(run) = said.ok().as_ref().and_then(identity::read) {
                    let place = &node.place;
                    markers.look(&place.to_string(), &run, |lane| shared.has(lane, place));
                }
            });
        }
        while asked.join_next().await.is_some() {}
    }

    /// Sends a command to the server that has `key`, and waits for its reply.
    ///
    /// # Errors
    ///
    /// As of [`Link::call`].
    pub(super) async fn call(&self, key: &str, command: &[u8]) -> Result<Value, StoreError> {
        let slot = slot(key);
        let mut node = self.shared.owner(slot)?;
        let (mut asking, mut tries) = (false, 0);
        loop {
            let said = node.call(command, asking).await;
            let said = said.inspect_err(|_| self.shared.stale.notify_one())?;
            let Value::Error(words) = &said else {
                node.is_down.store(false, Relaxed);
                return Ok(said);
            };
            let redirect = Redirect::of(words, &node.place);
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

// === impl Shared ===

impl Shared {
    /// Whether the slot of a lane is of the server at `place`.
    fn has(&self, lane: &str, place: &Place) -> bool {
        let map = self.map.lock();
        let owner = map.owners.get(usize::from(slot(lane))).and_then(Option::as_ref);
        owner.is_some_and(|owner| owner.place == *place)
    }

    fn owner(&self, slot: u16) -> Result<Arc<Node>, StoreError> {
        let owner = self.map.lock().owners.get(usize::from(slot)).cloned().flatten();
        owner.ok_or_else(|| {
            self.stale.notify_one();
            StoreError::NotConnected
        })
    }

    fn moved(&self, slot: u16, place: &Place) -> Result<Arc<Node>, StoreError> {
        let node = self.node(place)?;
        if let Some(owner) = self.map.lock().owners.get_mut(usize::from(slot)) {
            *owner = Some(node.clone());
        }
        Ok(node)
    }

    /// The node at `place`, with a new link where there was none.
    fn node(&self, place: &Place) -> Result<Arc<Node>, StoreError> {
        let node = self.map.lock().node(&self.access, &self.met, place);
        node.ok_or(StoreError::Protocol)
    }
}

/// What is known of lanes whose slot is a server's is in doubt when that is another run.
fn meets(shared: Weak<Shared>, markers: Arc<Markers>) -> Met {
    Arc::new(move |place: &Place, run: Option<&Run>| {
        let (Some(shared), Some(run)) = (shared.upgrade(), run) else { return };
        markers.meet(&place.to_string(), run, |lane| shared.has(lane, place));
    })
}

// === impl Map ===

impl Map {
    fn node(&mut self, access: &Arc<Access>, met: &Met, place: &Place) -> Option<Arc<Node>> {
        if let Some(node) = self.nodes.get(place) {
            return Some(node.clone());
        }
        if self.nodes.len() >= MOST_NODES {
            return None;
        }
        let link = Link::open(access.clone(), Target::Server(place.clone()), met.clone());
        let node = Arc::new(Node {
            place: place.clone(),
            link,
            ear: Mutex::default(),
            is_down: AtomicBool::new(false),
        });
        if let Some(calls) = &self.calls {
            node.hear(access, calls);
        }
        self.nodes.insert(place.clone(), node.clone());
        Some(node)
    }
}

// === impl Node ===

impl Node {
    fn hear(&self, access: &Arc<Access>, calls: &Arc<Calls>) {
        let target = Target::Server(self.place.clone());
        *self.ear.lock() = Some(Ear::open(access.clone(), target, calls.clone()));
    }

    /// Whether another server may have its place by now.
    fn ails(&self) -> bool {
        self.is_down.load(Relaxed) || self.link.ails(SLOW)
    }

    async fn call(&self, command: &[u8], asking: bool) -> Result<Value, StoreError> {
        if !self.link.is_connected() {
            // One that has just been heard of.
            self.link.tried().await;
        }
        match asking {
            true => self.link.call_behind(&resp::command(&[b"ASKING"]), command).await,
            false => self.link.call(command).await,
        }
    }
}
