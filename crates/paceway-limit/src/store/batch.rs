//! Group commit around a store that does I/O: at most one call in flight per key group, and everybody who
//! comes meanwhile goes into the next one, in order. No caller drives a call, so none that leaves
//! can block the others.

mod asked;
mod lane;

pub use asked::Asked;

use super::{
    Answer, BoxFuture, Check, Checks, Decision, Entry, OnFailure, Reply, Source, Store, StoreAdmin,
    StoreError, calls::Calls, hash_tag, health::Member,
};
use crate::algorithm::{
    Grant, Level, MAX_BUDGET, Micros,
    concurrency::{CLAIM, Ticket},
    reserve,
};
use ahash::RandomState;
use asked::Wait;
use lane::{Lane, Queued};
use metrics::{Counter, Histogram};
use parking_lot::Mutex;
use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

/// A gateway without a heartbeat for so long counts as one that decides alone: three heartbeats of a gateway are missing.
pub const ABSENT: Duration = Duration::from_millis(1500);
/// A gateway without a heartbeat for so long counts as dead.
pub const GONE: Duration = Duration::from_secs(10);
/// How long to wait before what was lost is given back again.
const MAKE_UP: Duration = Duration::from_millis(500);

/// Executes entries in order, atomically with regard to every other run.
pub trait Script: Send + Sync + fmt::Debug {
    /// Who waits for a place.
    fn calls(&self) -> &Arc<Calls>;

    /// What of a key decides which entries may share a call: those with one of it do. Where keys live on several
    /// servers that is their hash tag.
    fn lane<'k>(&self, key: &'k str) -> &'k str {
        hash_tag(key)
    }

    /// Whether lanes have servers of their own: that one is away says nothing of the others.
    fn has_many_servers(&self) -> bool {
        false
    }

    /// Whether one of many servers answers, as far as is known, though it may not be the one that was asked.
    fn answers(&self) -> bool {
        false
    }

    /// One reply per entry.
    ///
    /// # Errors
    ///
    /// When nothing is known of any entry.
    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>>;

    /// Sends a heartbeat of the gateway `id` to the set of gateways named `key`; `alone`: it decides alone, and cannot
    /// charge what it grants. A gateway without a heartbeat for [`ABSENT`] counts as one that decides alone, and one
    /// without any for [`GONE`] is in the set no longer.
    ///
    /// # Errors
    ///
    /// When it was not heard, or that is unknown.
    fn beat(
        &self,
        _key: Arc<str>,
        _id: Arc<str>,
        _alone: bool,
    ) -> BoxFuture<Result<Beat, StoreError>> {
        Box::pin(std::future::ready(Ok(Beat { gateways: 1, absent: 0, entered: false, now: None })))
    }

    /// Takes the gateway `id` out of the set of gateways named `key`: it ends.
    ///
    /// # Errors
    ///
    /// When it was not heard, or that is unknown.
    fn leave(&self, _key: Arc<str>, _id: Arc<str>) -> BoxFuture<Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Makes the connection anew: it answers later than those of other workers, or not at all.
    fn renew(&self) {}

    /// Looks whether the store still has what it was given. What is found to be lost, later calls know.
    fn inspect(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

/// The answer to a sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// How many gateways there are, this one and those that decide alone among them.
    pub gateways: i64,
    /// How many of the others decide alone, or have sent no heartbeat for [`ABSENT`].
    pub absent: i64,
    /// This gateway was not in the set of gateways before: it has just started, or the store has lost the set.
    pub entered: bool,
    /// The store's clock, if it has one of its own.
    pub now: Option<Micros>,
}

/// The metrics of a store.
#[derive(Clone)]
pub struct StoreMetrics {
    /// Time of each call that was answered.
    pub seconds: Histogram,
    /// Calls without an answer, by [`StoreError::KINDS`].
    pub errors: [Counter; StoreError::KINDS.len()],
}

/// A store over a [`Script`].
#[derive(Debug, Clone)]
pub struct Batched(Arc<Inner>);

struct Inner {
    script: Arc<dyn Script>,
    /// Where no `member` says it.
    timeout: Duration,
    metrics: StoreMetrics,
    /// Hears what becomes of each call.
    member: Option<Arc<Member>>,
    /// See [`Batched::spend_late`].
    spends_late: AtomicBool,
    /// By what [`Script::lane`] says. Tags come from the configuration.
    lanes: Mutex<HashMap<Box<str>, Arc<Lane>, RandomState>>,
    idle: Arc<Notify>,
    /// Places that were handed over a moment ago, by key.
    watched: Mutex<HashSet<Arc<str>>>,
}

// === impl Batched ===

impl Batched {
    /// Group commit around `script`; no caller waits longer than `timeout`.
    pub fn new(script: Arc<dyn Script>, timeout: Duration, metrics: StoreMetrics) -> Self {
        Self::with(None, script, timeout, metrics)
    }

    /// The same, with a `member` that hears what becomes of each call, and says how long a call may take.
    pub(super) fn heard_by(
        member: Arc<Member>,
        script: Arc<dyn Script>,
        metrics: StoreMetrics,
    ) -> Self {
        Self::with(Some(member), script, Duration::ZERO, metrics)
    }

    fn with(
        member: Option<Arc<Member>>,
        script: Arc<dyn Script>,
        timeout: Duration,
        metrics: StoreMetrics,
    ) -> Self {
        let (lanes, watched, idle) = (Mutex::default(), Mutex::default(), Arc::default());
        let spends_late = AtomicBool::new(false);
        Self(Arc::new(Inner {
            script,
            timeout,
            metrics,
            member,
            spends_late,
            lanes,
            idle,
            watched,
        }))
    }

    /// From now on a permit counts as spent if the store's answer came after the time-out and the gateway decided by its
    /// share meanwhile. Given back, it would leave room in the shared state that the charges of the share have passed
    /// over, and that room would be granted besides.
    pub(super) fn spend_late(&self) {
        self.0.spends_late.store(true, Relaxed);
    }

    /// Joins the queue at once; what is returned is only the wait for the answer.
    fn ask(&self, entry: Entry) -> Asked {
        let wait = Arc::new(Wait::new());
        let queued = self.enqueue(entry, Instant::now(), Some(wait.clone()));
        Asked::new(queued.then_some(wait))
    }

    fn ask_done(&self, entry: Entry) -> Answer<bool> {
        Answer::Asked(self.ask(entry), |reply| match reply {
            Reply::Done(done) => Some(done),
            _ => None,
        })
    }

    /// False when the queue is full or its call is stuck.
    fn enqueue(&self, entry: Entry, since: Instant, caller: Option<Arc<Wait>>) -> bool {
        if let (Entry::Refund { check, grant }, Some(member)) = (&entry, &self.0.member) {
            member.refunded(check, *grant);
        }
        let lane = self.lane(self.0.script.lane(&entry.checks()[0].key));
        lane.push(&self.0, Queued { entry, since, caller })
    }

    fn lane(&self, name: &str) -> Arc<Lane> {
        let mut lanes = self.0.lanes.lock();
        if let Some(lane) = lanes.get(name) {
            return lane.clone();
        }
        let lane = Arc::new(Lane::new(name, self.0.idle.clone()));
        lanes.insert(name.into(), lane.clone());
        lane
    }

    /// Gives back what was decided for somebody who has left.
    fn undo(&self, checks: &Checks, ticket: Option<Ticket>, decision: &Decision) {
        if ticket.is_some_and(|ticket| ticket.deadline == Ticket::HELD) {
            return; // Its call runs, whatever became of this one.
        }
        self.refund(Source::Shared, checks, &decision.parts);
        if let (Some(queued), Some(ticket)) = (decision.queued, ticket) {
            let ticket = Ticket { deadline: queued.deadline, ..ticket };
            self.refund(Source::Shared, checks, &places(checks, ticket));
        }
    }

    /// Gives back what a call granted whose answer came after the time-out, but for what is spent.
    fn undo_late(&self, checks: &Checks, ticket: Option<Ticket>, mut decision: Decision) {
        let is_spent = |check: &Check| {
            let is_shared = matches!(check.on_failure, OnFailure::Share { .. } | OnFailure::Whole);
            is_shared && check.enforce && !check.is_lease()
        };
        if self.0.spends_late.load(Relaxed) {
            let parts = decision.parts.iter_mut().zip(checks.iter());
            let spent = parts.filter(|(_, check)| is_spent(check));
            spent.for_each(|(part, _)| *part = reserve::Part::NOTHING);
        }
        self.undo(checks, ticket, &decision);
    }

    /// Places are given back until the store has heard it, which it may twice: a ticket is nobody else's. Without that
    /// a lost answer, or a lost release, would keep a place from everybody for as long as a lease.
    fn make_up_for(&self, entry: &Entry, since: Instant, reply: &Result<Reply, StoreError>) {
        let Err(error) = reply else { return };
        let (releases, since): (Vec<_>, _) = match entry {
            Entry::Refund { check, .. } => {
                let lease = check.algorithm.lease().unwrap_or_default();
                if since.elapsed() >= Duration::from_micros(lease.unsigned_abs()) {
                    return; // A place that is free by now, or permits.
                }
                (vec![entry.clone()], since)
            }
            // The place of a call that runs is told again, and not given back.
            Entry::Reserve { ticket: Some(Ticket { deadline: Ticket::HELD, .. }), .. } => return,
            Entry::Reserve { checks, ticket: Some(ticket), .. } if !error.is_unasked() => {
                (gifts(checks, &places(checks, *ticket)).collect(), Instant::now())
            }
            _ => return,
        };
        let store = self.clone();
        tokio::spawn(async move {
            // Not before the store has worked off what it was sent on a connection that is gone.
            sleep(MAKE_UP).await;
            for entry in releases {
                store.enqueue(entry, since, None);
            }
        });
    }

    /// Charges what gateways that decide alone may grant while the store grants this to `checks`.
    fn charge_for_others(&self, member: &Member, checks: &Checks) {
        for check in checks.iter() {
            let (mut left, most) = (member.share_of_others(check), check.algorithm.capacity());
            while left > 0 {
                // A bucket of burst 1 takes one permit at a time.
                let cost = left.min(most);
                left -= cost;
                // A window that is full takes this from the next one. Counted in the full window it would change nothing:
                // at 30/s with one of three absent each second granted 40.
                let algorithm = check.algorithm.endless();
                let check = Check { algorithm, cost, enforce: false, ..check.clone() };
                let entry =
                    Entry::Reserve { checks: [check].into(), budget: MAX_BUDGET, ticket: None };
                self.enqueue(entry, Instant::now(), None);
            }
        }
    }

    /// Looks at the places of `check` when a claim on one of them has expired, which gives it to the next in the queue:
    /// the gateway that was called may be dead, and nobody else knows of the claim.
    fn watch(&self, check: Check) {
        if !self.0.watched.lock().insert(check.key.clone()) {
            return;
        }
        let store = self.clone();
        tokio::spawn(async move {
            let mut claim = CLAIM;
            loop {
                sleep(Duration::from_micros(claim.unsigned_abs())).await;
                // Before the look: what is handed over behind it is watched anew.
                store.0.watched.lock().remove(&check.key);
                claim = match store.look(&check).get().await {
                    Ok(level) if (1..=CLAIM).contains(&level.next) => level.next,
                    // What expires later than a claim is somebody's who lives, or known to those who wait.
                    Ok(_) => return,
                    Err(_) => CLAIM,
                };
                if !store.0.watched.lock().insert(check.key.clone()) {
                    return;
                }
            }
        });
    }
}

impl Store for Batched {
    fn reserve(&self, checks: &Checks, budget: Micros, ticket: Option<Ticket>) -> Answer<Decision> {
        let entry = Entry::Reserve { checks: checks.clone(), budget, ticket };
        let asked = self.ask(entry).deciding(self, checks, ticket);
        Answer::Asked(asked, |reply| match reply {
            Reply::Decision(decision) => Some(decision),
            _ => None,
        })
    }

    fn refund(&self, _: Source, checks: &Checks, parts: &[reserve::Part]) {
        if tokio::runtime::Handle::try_current().is_err() {
            return; // The runtime, and with it the connection, is gone: the grant counts as spent.
        }
        for entry in gifts(checks, parts) {
            self.enqueue(entry, Instant::now(), None);
        }
    }

    fn renew(&self, _: Source, check: &Check, grant: Grant) -> Answer<bool> {
        self.ask_done(Entry::Renew { check: check.clone(), grant })
    }

    fn calls(&self) -> &Arc<Calls> {
        self.0.script.calls()
    }

    fn look(&self, check: &Check) -> Answer<Level> {
        Answer::Asked(self.ask(Entry::Look { check: check.clone() }), |reply| match reply {
            Reply::Level(level) => Some(level),
            _ => None,
        })
    }
}

impl StoreAdmin for Batched {
    fn forget(&self, check: &Check) -> Answer<bool> {
        self.ask_done(Entry::Forget { check: check.clone() })
    }

    fn flush(&self) -> BoxFuture<()> {
        let store = self.clone();
        Box::pin(async move {
            loop {
                let idle = store.0.idle.notified();
                if store.0.lanes.lock().values().all(|lane| lane.is_idle()) {
                    return;
                }
                idle.await;
            }
        })
    }
}

// === impl StoreMetrics ===

impl StoreMetrics {
    pub(super) fn count(&self, error: &StoreError) {
        let kind = StoreError::KINDS.iter().position(|kind| *kind == error.kind());
        if let Some(kind) = kind {
            self.errors[kind].increment(1);
        }
    }

    /// Metrics that go nowhere.
    pub fn noop() -> Self {
        Self { seconds: Histogram::noop(), errors: std::array::from_fn(|_| Counter::noop()) }
    }
}

// === impl Inner ===

impl Inner {
    /// How long a call may take that begins now.
    fn limit(&self) -> Duration {
        self.member.as_ref().map_or(self.timeout, |member| member.limit())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.lanes.get_mut().values().for_each(|lane| lane.close());
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batched").field("script", &self.script).finish_non_exhaustive()
    }
}

/// What an admitted request that did not go out gives back.
pub(super) fn gifts(checks: &Checks, parts: &[reserve::Part]) -> impl Iterator<Item = Entry> {
    let given = checks.iter().zip(parts).filter(|(_, part)| part.at >= 0);
    given.map(|(check, part)| Entry::Refund { check: check.clone(), grant: part.grant })
}

/// What leaves every queue and place that `ticket` may be in.
pub fn places(checks: &Checks, ticket: Ticket) -> reserve::Parts {
    let place = |check: &Check| match check.is_lease() {
        true => reserve::Part { at: 0, grant: ticket.grant() },
        false => reserve::Part::NOTHING,
    };
    checks.iter().map(place).collect()
}

#[cfg(test)]
mod tests;
