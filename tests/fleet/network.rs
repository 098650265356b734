//! The network between gateways and the store. Each connection is a [`Link`], and all messages under way are in one
//! queue with the instants of their arrival, so that a history depends on nothing but its seed. Decides nothing.

mod world;

use crate::{
    controls::{self, Defect},
    history::{Gateway, History, MS, Micros, SECOND},
    store::Server,
};
use fastrand::Rng;
use paceway::{
    limit::{self, Reservation},
    store::{
        Backend, Beat, BoxFuture, Entry, Heartbeat, Opening, Pauses, Reply, Source, StoreError,
        calls::Calls,
    },
};
use parking_lot::Mutex;
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep_until},
};

/// A connection that is silent for this time is given up.
const SILENT: Micros = 2 * SECOND;
/// The longest time until the next attempt to connect.
const AGAIN: Micros = 200 * MS;
/// The shortest way: a message that is sent at one instant arrives at a later one.
const LEAST: Micros = MS;
const NEVER: Micros = Micros::MAX;

/// The world between gateways and their store. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    pub(crate) world: Arc<Mutex<World>>,
    changed: Arc<Notify>,
    begun: Instant,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) server: Server,
    /// Events in their order: instant, connection, number.
    coming: BTreeMap<(Micros, usize, u64), Event>,
    links: Vec<Line>,
    frozen_until: Micros,
    /// The instant from which on the store takes connections again after it has ended.
    store_up: Micros,
    /// Messages that arrived while the store stalled.
    waiting: Vec<Message>,
    /// For each gateway, the instant until which it stalls, and in `silent` the instant until which no message passes.
    stalled: Vec<Micros>,
    silent: Vec<Micros>,
    numbers: u64,
    pub(crate) defect: Option<Defect>,
    /// The pauses that each gateway knows, which receive the store's messages about them.
    pauses: Vec<Option<Arc<Pauses>>>,
    /// The number of losses of states that each gateway knows of.
    known_losses: Vec<usize>,
    /// A limiter has worked at a lower rate.
    pub(crate) lowered: bool,
    /// The calls that the store has executed.
    pub(crate) executed: Vec<(Micros, usize, Ask, Said)>,
}

/// A connection as the network sees it.
#[derive(Debug)]
struct Line {
    gateway: usize,
    way: Gateway,
    rng: Rng,
    /// A number that changes with each new connection.
    number: u64,
    /// The instant from which on it can be used; `NEVER` for a gateway that is dead.
    up: Micros,
    /// The arrivals of the last messages, there and back.
    last: [Micros; 2],
    asked: BTreeMap<u64, oneshot::Sender<Result<Said, StoreError>>>,
    calls: Arc<Calls>,
    /// The instant from which on no message is lost.
    lossy_until: Micros,
    /// The number of lost messages.
    lost: i64,
    /// When the last answers came, all at once, and when the store had executed the first and the last of their calls.
    heard: (Micros, Micros, Micros),
}

#[derive(Debug, Clone)]
struct Message {
    line: usize,
    /// The number of the connection on which it was sent.
    number: u64,
    id: u64,
    ask: Ask,
}

#[derive(Debug, Clone)]
pub(crate) enum Ask {
    Run(Arc<Vec<Entry>>),
    Beat(Heartbeat),
    Leave(Arc<str>),
}

#[derive(Debug, Clone)]
pub(crate) enum Said {
    Replies(Vec<Reply>),
    Beat(Beat),
    Left,
}

#[derive(Debug)]
enum Event {
    Arrives(Message),
    /// An answer, with the instant at which the call was executed.
    Answered(Message, Said, Micros),
    /// No answer came within [`SILENT`].
    GivenUp(Message),
    Thaws,
    /// The gateway receives notifications again.
    Hears(usize),
    /// The store tells a gateway the news of a state, over this connection.
    Told(usize, Arc<str>, News),
}

/// A message that the store publishes.
#[derive(Debug, Clone, Copy)]
enum News {
    /// A limiter is paused for so many µs, and perhaps works at a lower rate from then on.
    Paused { left: Micros, falls: bool },
    /// A count of the permits of a limiter has begun, which ends in so many µs.
    Counted(Micros),
    /// A slot that comes in so many µs has become free.
    Opened(Micros),
    /// An operator has reset a limiter.
    Freed,
}

/// A connection of a gateway, which its store sends calls on.
pub(crate) struct Link {
    network: Network,
    pub(crate) line: usize,
    calls: Arc<Calls>,
}

// === impl Network ===

impl Network {
    pub(crate) fn new(gateways: usize, defect: Option<Defect>) -> Self {
        let mut server = Server::default();
        server.hides_losses = defect == Some(Defect::LossesAreHidden);
        let world = World {
            server,
            coming: BTreeMap::new(),
            links: Vec::new(),
            frozen_until: 0,
            store_up: 0,
            waiting: Vec::new(),
            stalled: vec![0; gateways],
            silent: vec![0; gateways],
            pauses: vec![None; gateways],
            known_losses: vec![0; gateways],
            numbers: 0,
            defect,
            lowered: false,
            executed: Vec::new(),
        };
        Self { world: Arc::new(Mutex::new(world)), changed: Arc::default(), begun: Instant::now() }
    }

    /// The time since the history began, µs.
    pub(crate) fn now(&self) -> Micros {
        i64::try_from(self.begun.elapsed().as_micros()).expect("short")
    }

    pub(crate) async fn until(&self, at: Micros) {
        sleep_until(self.begun + Duration::from_micros(at.unsigned_abs())).await;
    }

    /// Makes another connection of a gateway; no other has its `number`.
    pub(crate) fn connect(&self, history: &History, gateway: usize, number: i64) -> Link {
        let calls = Arc::new(Calls::numbered(number));
        let mut world = self.world.lock();
        world.server.hear(&calls, true);
        let line = Line {
            gateway,
            way: history.gateways[gateway].clone(),
            rng: Rng::with_seed(
                history.seed ^ number.unsigned_abs().wrapping_mul(0x9E37_79B9_7F4A_7C15),
            ),
            number: 0,
            // A gateway that starts while the store is away reaches it as late as others do.
            up: world.store_up,
            last: [0; 2],
            asked: BTreeMap::new(),
            calls: calls.clone(),
            lossy_until: history.load,
            lost: 0,
            heard: (-SECOND, 0, 0),
        };
        world.links.push(line);
        Link { network: self.clone(), line: world.links.len() - 1, calls }
    }

    /// Delivers messages for as long as the history lasts.
    pub(crate) async fn deliver(self) {
        loop {
            let next = self.world.lock().coming.first_key_value().map(|(key, _)| key.0);
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = self.until(next.unwrap_or_default()), if next.is_some() => {
                    let mut world = self.world.lock();
                    let now = self.now();
                    while let Some(first) = world.coming.first_entry().filter(|it| it.key().0 <= now) {
                        let ((at, ..), event) = first.remove_entry();
                        world.happens(at, event);
                    }
                }
            }
        }
    }

    /// Changes the world at this instant.
    pub(crate) fn change(&self, change: impl FnOnce(&mut World, Micros)) {
        change(&mut self.world.lock(), self.now());
        self.changed.notify_one();
    }

    /// Whether this is the defect of the history.
    pub(crate) fn has(&self, defect: Defect) -> bool {
        self.world.lock().defect == Some(defect)
    }

    /// Resolves when the gateway does not stall.
    pub(crate) async fn awake(&self, gateway: usize) {
        let until = self.world.lock().stalled[gateway];
        if until > self.now() {
            self.until(until).await;
        }
    }

    /// Whether a message that the gateway sends now would arrive.
    pub(crate) fn reaches(&self, gateway: usize) -> bool {
        let (world, now) = (self.world.lock(), self.now());
        // The connections of an earlier life are dead.
        let mut lines =
            world.links.iter().filter(|line| line.gateway == gateway && line.up != NEVER);
        let is_cut = world.store_up > now || lines.any(|line| line.up > now);
        !is_cut && world.silent[gateway] <= now && world.frozen_until <= now
    }

    /// The earliest and the latest instant that a decision, received just now on `line`, can have granted.
    pub(crate) fn granted(&self, line: usize, slot: &Reservation) -> (Micros, Micros) {
        let (first, last) = self.granted_by(slot.source, line, slot.wait);
        // A block that came earlier may have served the request, now.
        let is_served = slot.wait.is_zero() && matches!(slot.checks(), [check] if check.blocks);
        (first, if is_served { self.now() } else { last })
    }

    /// The same for a decision that says how long to wait.
    pub(crate) fn granted_by(&self, by: Source, line: usize, wait: Duration) -> (Micros, Micros) {
        let (now, wait) = (self.now(), limit::micros(wait));
        let (heard, first, last) = self.world.lock().links[line].heard;
        match by {
            Source::Shared if now - heard <= MS => (first + wait, last + wait),
            _ => (now + wait, now + wait),
        }
    }

    /// Counts the lost messages of each gateway.
    pub(crate) fn lost(&self) -> Vec<i64> {
        let world = self.world.lock();
        let mut lost = vec![0; world.stalled.len()];
        world.links.iter().for_each(|line| lost[line.gateway] += line.lost);
        lost
    }

    fn send(&self, line: usize, ask: Ask) -> oneshot::Receiver<Result<Said, StoreError>> {
        let (sender, receiver) = oneshot::channel();
        let now = self.now();
        self.change(|world, _| world.send(now, line, ask, sender));
        receiver
    }
}

// === impl Line ===

impl Line {
    /// The arrival of a message that leaves at `leaves`; messages stay in order, and a lost one never arrives.
    fn travels(&mut self, leaves: Micros, way: usize) -> Option<Micros> {
        let Gateway { delay, jitter, lost, .. } = self.way;
        let more = self.rng.i64(0..=jitter);
        let is_lost = self.rng.u32(0..1000) < lost && leaves < self.lossy_until;
        let at = (leaves + delay.max(LEAST) + more).max(self.last[way]);
        self.last[way] = at;
        self.lost += i64::from(is_lost);
        (!is_lost).then_some(at)
    }
}

// === impl Link ===

impl Backend for Link {
    fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        let answer = self.network.send(self.line, Ask::Run(entries));
        Box::pin(async move {
            match answer.await {
                Ok(Ok(Said::Replies(replies))) => Ok(replies),
                Ok(Err(error)) => Err(error),
                _ => Err(StoreError::Protocol),
            }
        })
    }

    fn beat(&self, heartbeat: Heartbeat) -> BoxFuture<Result<Beat, StoreError>> {
        let ask = if heartbeat.is_last { Ask::Leave(heartbeat.id) } else { Ask::Beat(heartbeat) };
        let answer = self.network.send(self.line, ask);
        let asked = Instant::now();
        let defect = self.network.world.lock().defect;
        Box::pin(async move {
            match answer.await {
                Ok(Ok(Said::Beat(_))) if controls::drops_beat(defect, asked.elapsed()) => {
                    Err(StoreError::Timeout)
                }
                Ok(Ok(Said::Beat(beat))) => Ok(beat),
                Ok(Ok(Said::Left)) => {
                    Ok(Beat { gateways: 1, absent: 0, entered: false, now: None })
                }
                Ok(Err(error)) => Err(error),
                _ => Err(StoreError::Protocol),
            }
        })
    }

    fn renew(&self) {
        self.network.change(|world, now| world.cut(self.line, now + AGAIN, "renewed"));
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("line", &self.line).finish_non_exhaustive()
    }
}
