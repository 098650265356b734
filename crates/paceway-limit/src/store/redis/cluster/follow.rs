//! Keeps the map of a Cluster up to date: watches the nodes, and asks those that answer which node has the slots of those
//! that do not. Sends no commands of limiters.

use super::state::{ClusterNode, ClusterState};
use crate::log::{Permit, Throttle};
use crate::store::redis::{
    reason::{ConnectError, refusal},
    slots::{SLOTS, View},
    transport::{ask, command, words},
    url::Endpoint,
};
use redis::Value;
use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

/// The nodes are checked every 100 ms, and two questions for the map are at least as far apart.
const LOOK: Duration = Duration::from_millis(100);
/// A node that has not sent the map within 500 ms is passed over for the next one.
const ASK: Duration = Duration::from_millis(500);
/// The map is read again after 10 s although nothing seems wrong with it: a node may have been added.
const OLD: Duration = Duration::from_secs(10);
/// A node may refuse each question in other words.
static REFUSED: Throttle = Throttle::new();

/// Keeps the map up to date until the Cluster is dropped, and reports whether it is known.
pub(super) async fn follow(
    shared: Arc<ClusterState>,
    say: watch::Sender<Option<Result<(), ConnectError>>>,
) {
    // The nodes are asked by turns: one of them may be wrong.
    let mut turn = 0;
    loop {
        let result = refresh(&shared, turn).await;
        turn += 1;
        say.send_if_modified(|state| {
            let is_new = state.as_ref() != Some(&result);
            if is_new
                && let Err(error @ ConnectError::Refused(_)) = &result
                && let Some(Permit { suppressed }) = REFUSED.permit()
            {
                tracing::warn!(%error, suppressed, "the store");
            }
            *state = Some(result);
            is_new
        });
        let read = Instant::now();
        sleep(LOOK).await;
        while timeout(LOOK, shared.stale.notified()).await.is_err() {
            if shared.ails() || read.elapsed() >= OLD {
                break;
            }
        }
    }
}

/// Asks one node after the other for the map, until one knows it.
async fn refresh(shared: &ClusterState, turn: usize) -> Result<(), ConnectError> {
    let mut knowing = shared.knowing();
    let well = knowing.iter().take_while(|(_, node)| node.is_some()).count();
    // First the nodes that answer, then the others, each by turns: not all of them fit into one time-out.
    knowing[..well].rotate_left(if well > 0 { turn % well } else { 0 });
    let others = knowing.len() - well;
    knowing[well..].rotate_left(if others > 0 { turn % others } else { 0 });
    let mut why = ConnectError::Unreachable("no server is known".into());
    for (endpoint, node) in knowing {
        let asked = timeout(ASK, shared.view(&endpoint, node)).await;
        match asked {
            Ok(Ok(view)) => {
                shared.apply(view);
                return Ok(());
            }
            // A refusal says more than the silence of another node.
            Ok(Err(error @ ConnectError::Refused(_))) => why = error,
            _ if matches!(why, ConnectError::Refused(_)) => {}
            Ok(Err(error)) => why = error,
            Err(_) => why = ConnectError::Unreachable(format!("{endpoint}: no answer in time")),
        }
    }
    Err(why)
}

// === impl ClusterState ===

impl ClusterState {
    /// Takes over from a view the slots whose node may be lost. The other slots stay as they are: the view may be older than
    /// the map, and a node that answers says itself when one of its slots has moved.
    fn apply(&self, view: View) {
        let mut map = self.map.lock();
        let old = mem::take(&mut map.owners);
        let mut owners = vec![None; usize::from(SLOTS)];
        for (first, last, endpoint) in &view.ranges {
            let node = map.node(&self.access, &self.met, endpoint);
            if let Some(owners) = owners.get_mut(usize::from(*first)..=usize::from(*last)) {
                owners.fill(node);
            }
        }
        let ails: HashMap<_, _> =
            map.nodes.iter().map(|(endpoint, node)| (endpoint.clone(), node.ails())).collect();
        let is_well = |node: &Arc<ClusterNode>| ails.get(&node.endpoint) == Some(&false);
        for (owner, old) in owners.iter_mut().zip(old) {
            if old.as_ref().is_some_and(is_well) {
                *owner = old;
            }
        }
        let current: HashSet<_> = owners.iter().flatten().map(|node| &node.endpoint).collect();
        map.nodes.retain(|endpoint, node| {
            // A node without slots may be about to get some.
            let stays =
                current.contains(endpoint) || (is_well(node) && !view.replicas.contains(endpoint));
            if !stays && !is_well(node) {
                // Its calls would wait for a node that has been replaced.
                node.connection.give_up();
            }
            stays
        });
        for node in map.nodes.values() {
            // The map is new: the node counts as down when it says so again.
            node.is_down.store(false, Relaxed);
        }
        map.owners = owners;
        map.replicas = view.replicas;
    }

    /// Whether a node may be lost, or no map is known yet.
    fn ails(&self) -> bool {
        let map = self.map.lock();
        map.owners.iter().all(Option::is_none) || map.nodes.values().any(|node| node.ails())
    }

    /// Returns the servers that may know the map: first the nodes that answer, then replicas, seeds and the other nodes.
    fn knowing(&self) -> Vec<(Endpoint, Option<Arc<ClusterNode>>)> {
        let map = self.map.lock();
        let well = map.nodes.values().filter(|node| !node.ails());
        let mut all: Vec<_> =
            well.map(|node| (node.endpoint.clone(), Some(node.clone()))).collect();
        for endpoint in map.replicas.iter().chain(&self.seeds).chain(map.nodes.keys()) {
            if !all.iter().any(|(known, _)| known == endpoint) {
                all.push((endpoint.clone(), None));
            }
        }
        all
    }

    /// Asks one server for the map; over its connection if `node` has one, else over a new one.
    async fn view(
        &self,
        endpoint: &Endpoint,
        node: Option<Arc<ClusterNode>>,
    ) -> Result<View, ConnectError> {
        let slots: [&[u8]; 2] = [b"CLUSTER", b"SLOTS"];
        let said = match node {
            Some(node) => {
                let said = node.connection.call(&command(&slots)).await;
                said.map_err(|error| ConnectError::Unreachable(format!("{endpoint}: {error}")))?
            }
            None => ask(&mut self.access.connect(endpoint).await?, endpoint, &slots).await?,
        };
        if let Value::ServerError(error) = &said {
            return Err(refusal(endpoint, &self.access.login, &words(error)));
        }
        let view = View::read(&said, endpoint).filter(|view| !view.ranges.is_empty());
        view.ok_or_else(|| {
            ConnectError::Unreachable(format!("{endpoint}: it knows of no slots yet"))
        })
    }
}
