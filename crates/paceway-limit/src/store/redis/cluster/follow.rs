//! Keeps the map of a Cluster: looks after its nodes, and asks those that answer who has the slots of those that do not.

use super::{Node, Shared};
use crate::log::{Permit, Throttle};
use crate::store::redis::{
    ConnectError,
    connect::ask,
    reason::refusal,
    resp::{self, Value},
    slots::{SLOTS, View},
    url::Place,
};
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

/// How often the nodes are looked at, and the least time between two maps.
const LOOK: Duration = Duration::from_millis(100);
/// For one server that is asked for the map, before the next is.
const ASK: Duration = Duration::from_millis(500);
/// A map is read again after this time though nothing is wrong with it.
const OLD: Duration = Duration::from_secs(10);
/// A server may refuse each question in other words.
static REFUSED: Throttle = Throttle::new();

/// Keeps the map, until the Cluster is dropped.
pub(super) async fn follow(
    shared: Arc<Shared>,
    say: watch::Sender<Option<Result<(), ConnectError>>>,
) {
    // Not always the same one is asked: it may be the one that is wrong.
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

/// Asks one server after the other, until one knows who has which slot.
async fn refresh(shared: &Shared, turn: usize) -> Result<(), ConnectError> {
    let mut knowing = shared.knowing();
    let well = knowing.iter().take_while(|(_, node)| node.is_some()).count();
    // Those that answer by turns, then the others by turns: not all of them fit into one time-out.
    knowing[..well].rotate_left(if well > 0 { turn % well } else { 0 });
    let others = knowing.len() - well;
    knowing[well..].rotate_left(if others > 0 { turn % others } else { 0 });
    let mut why = ConnectError::Unreachable("no server is known".into());
    for (place, node) in knowing {
        let asked = timeout(ASK, shared.view(&place, node)).await;
        match asked {
            Ok(Ok(view)) => {
                shared.apply(view);
                return Ok(());
            }
            // What one refuses says more than that another is away.
            Ok(Err(error @ ConnectError::Refused(_))) => why = error,
            _ if matches!(why, ConnectError::Refused(_)) => {}
            Ok(Err(error)) => why = error,
            Err(_) => why = ConnectError::Unreachable(format!("{place}: no answer in time")),
        }
    }
    Err(why)
}

// === impl Shared ===

impl Shared {
    /// Takes over what a server says of slots whose owner may be lost. It may know less than we do: of its own slots, an
    /// owner that is well says itself when they have moved.
    fn apply(&self, view: View) {
        let mut map = self.map.lock();
        let old = mem::take(&mut map.owners);
        let mut owners = vec![None; usize::from(SLOTS)];
        for (first, last, place) in &view.ranges {
            let node = map.node(&self.access, &self.met, place);
            if let Some(owners) = owners.get_mut(usize::from(*first)..=usize::from(*last)) {
                owners.fill(node);
            }
        }
        let ails: HashMap<_, _> =
            map.nodes.iter().map(|(place, node)| (place.clone(), node.ails())).collect();
        let is_well = |node: &Arc<Node>| ails.get(&node.place) == Some(&false);
        for (owner, old) in owners.iter_mut().zip(old) {
            if old.as_ref().is_some_and(is_well) {
                *owner = old;
            }
        }
        let current: HashSet<_> = owners.iter().flatten().map(|node| &node.place).collect();
        map.nodes.retain(|place, node| {
            // One without slots may be about to get some.
            let stays =
                current.contains(place) || (is_well(node) && !view.replicas.contains(place));
            if !stays && !is_well(node) {
                // Nobody waits for a server that has been replaced.
                node.link.give_up();
            }
            stays
        });
        for node in map.nodes.values() {
            // That has been looked after: until it says so again.
            node.is_down.store(false, Relaxed);
        }
        map.owners = owners;
        map.replicas = view.replicas;
    }

    /// Whether a server that has slots may be lost.
    fn ails(&self) -> bool {
        let map = self.map.lock();
        map.owners.iter().all(Option::is_none) || map.nodes.values().any(|node| node.ails())
    }

    /// Servers that may know the map, those that answer first.
    fn knowing(&self) -> Vec<(Place, Option<Arc<Node>>)> {
        let map = self.map.lock();
        let well = map.nodes.values().filter(|node| !node.ails());
        let mut all: Vec<_> = well.map(|node| (node.place.clone(), Some(node.clone()))).collect();
        for place in map.replicas.iter().chain(&self.seeds).chain(map.nodes.keys()) {
            if !all.iter().any(|(known, _)| known == place) {
                all.push((place.clone(), None));
            }
        }
        all
    }

    /// What one server says of all.
    async fn view(&self, place: &Place, node: Option<Arc<Node>>) -> Result<View, ConnectError> {
        let words: [&[u8]; 2] = [b"CLUSTER", b"SLOTS"];
        let said = match node {
            Some(node) => {
                let said = node.link.call(&resp::command(&words)).await;
                said.map_err(|error| ConnectError::Unreachable(format!("{place}: {error}")))?
            }
            None => ask(&mut self.access.connect(place).await?, place, &words).await?,
        };
        if let Value::Error(words) = &said {
            return Err(refusal(place, &self.access.login, words));
        }
        let view = View::read(&said, place).filter(|view| !view.ranges.is_empty());
        view.ok_or_else(|| ConnectError::Unreachable(format!("{place}: it knows of no slots yet")))
    }
}
