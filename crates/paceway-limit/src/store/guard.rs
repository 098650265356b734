//! What a gateway does when its store gives no decision: each limiter says it (`on_failure`). A store around a worker's
//! [`Batched`] that asks it while the breaker is closed, and decides by itself while it is not.

mod keeper;
mod local;
mod places;
mod slots;

use super::{
    Answer, BoxFuture, Check, Checks, Decision, OnFailure, Share, Source, Store, StoreError,
    batch::{Batched, Beat, Script, StoreMetrics},
    calls::Calls,
    health::{Health, Member},
};
use crate::algorithm::{Grant, Level, Micros, concurrency::Ticket, reserve::Part};
use local::{IsBack, Local};
use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout};

/// While the store is away each worker asks for a sign of life so often.
const PROBE: Duration = Duration::from_millis(200);
/// A heartbeat has a time-out of its own, whatever `store.timeout` is: a store that answers slowly still says how many
/// gateways live. The driver gives a silent connection up sooner.
const GIVE_UP: Duration = Duration::from_secs(10);

/// Heartbeats before the first request. The first one opens what calls need, and two more show the round trip.
const INTRODUCTIONS: usize = 3;

/// What all workers of a process know of their store, and decide without it.
#[derive(Debug)]
pub struct Process {
    /// How the store is.
    pub health: Arc<Health>,
    local: Local,
    /// Of the set of gateways that live.
    gateways: Arc<str>,
    /// The store does not let us count gateways: told once.
    uncounted: AtomicBool,
    /// What is decided without the store is charged to it all the time.
    charges: AtomicBool,
    /// Of the side that keeps the process.
    keeper: OnceLock<Arc<dyn Script>>,
    /// This gateway has left the set of gateways, and sends no heartbeats.
    left: AtomicBool,
}

/// One worker's store.
#[derive(Clone)]
pub struct Guard {
    store: Batched,
    script: Arc<dyn Script>,
    metrics: StoreMetrics,
    process: Arc<Process>,
    member: Arc<Member>,
}

// === impl Process ===

impl Process {
    /// Of a gateway whose keys begin with `prefix`.
    pub fn new(prefix: &str, health: Arc<Health>) -> Arc<Self> {
        let gateways = format!("{prefix}:{{gateways}}").into();
        Arc::new(Self {
            health,
            local: Local::default(),
            gateways,
            uncounted: AtomicBool::new(false),
            charges: AtomicBool::new(false),
            keeper: OnceLock::new(),
            left: AtomicBool::new(false),
        })
    }

    /// Says that this gateway lives, before it decides anything: how many share each rule, and how slow the store is, is
    /// known from the first request on. A heartbeat that is not answered within `limit` is left to those that follow.
    pub async fn introduce(&self, script: &dyn Script, limit: Duration) {
        for _ in 0..INTRODUCTIONS {
            let sent = Instant::now();
            let Ok(Ok(beat)) = timeout(limit, self.beat(script)).await else { return };
            self.health.pace.measured(sent.elapsed());
            self.health.counted(&beat, sent);
        }
    }

    /// This gateway ends, and has decided its last request: the others have its share at once. They miss it after
    /// [`ABSENT`](super::batch::ABSENT) if that is not heard within `limit`.
    pub async fn leave(&self, limit: Duration) {
        self.left.store(true, Relaxed);
        if let Some(script) = self.keeper.get().filter(|_| self.health.is_closed()) {
            // Behind the last heartbeat, on the same connection.
            let leaves = script.leave(self.gateways.clone(), self.health.id.clone());
            drop(timeout(limit, leaves).await);
        }
    }

    fn beat(&self, script: &dyn Script) -> BoxFuture<Result<Beat, StoreError>> {
        // One of several servers is away for some limiters only: the set is about all of them.
        let is_alone = !self.health.is_closed() && !self.charges.load(Relaxed);
        let alone = is_alone && !script.has_many_servers();
        let beat = script.beat(self.gateways.clone(), self.health.id.clone(), alone);
        let absent_counts = !script.has_many_servers();
        Box::pin(async move {
            let beat = beat.await?;
            Ok(Beat { absent: if absent_counts { beat.absent } else { 0 }, ..beat })
        })
    }
}

// === impl Guard ===

impl Guard {
    /// A worker's store over `script`, whose decisions take as long as the pace of the process allows. While the store is
    /// away, a task of the current runtime asks it for signs of life.
    pub fn new(script: Arc<dyn Script>, metrics: StoreMetrics, process: Arc<Process>) -> Self {
        let guard = Self::without_probes(script, metrics, process);
        guard.store.spend_late();
        tokio::spawn(guard.clone().probe_while_away());
        guard
    }

    /// The one of a process that keeps it known to the store, and brings the store back. `looked` are the limiters whose
    /// level is to be known also when nobody asks them.
    pub fn keeper(
        script: Arc<dyn Script>,
        metrics: StoreMetrics,
        process: Arc<Process>,
        looked: Vec<Check>,
    ) -> Self {
        let guard = Self::without_probes(script, metrics, process);
        // There is one keeper.
        drop(guard.process.keeper.set(guard.script.clone()));
        tokio::spawn(guard.clone().keep(looked));
        guard
    }

    fn without_probes(
        script: Arc<dyn Script>,
        metrics: StoreMetrics,
        process: Arc<Process>,
    ) -> Self {
        let member = process.health.join(script.calls().clone(), script.has_many_servers());
        process.local.calls().join(script.calls());
        let store = Batched::heard_by(member.clone(), script.clone(), metrics.clone());
        Self { store, script, metrics, process, member }
    }

    fn ask(&self, checks: &Checks, budget: Micros, ticket: Option<Ticket>) -> Answer<Decision> {
        if let Some(ticket) = ticket {
            let health = &self.process.health;
            health.known.asks(checks, ticket, health.pace.most());
        }
        self.store.decide(checks, budget, ticket)
    }

    fn is_away(&self) -> bool {
        !self.process.health.is_closed()
    }

    async fn probe_while_away(self) {
        let health = &self.process.health;
        loop {
            health.opened().await;
            while !health.is_closed() {
                if self.probe().await {
                    health.wake.notify_one();
                }
                sleep(PROBE).await;
            }
        }
    }

    /// Whether the store answers in time.
    async fn probe(&self) -> bool {
        let started = Instant::now();
        let answered = match self.beat().await {
            Ok(_) | Err(StoreError::Refused(_)) => true,
            // The server that counts gateways may be away alone.
            Err(_) => self.script.answers(),
        };
        let (took, limit) = (started.elapsed(), self.process.health.pace.limit());
        if took > limit {
            // There was one that was late.
            self.member.probed(None);
        }
        self.member.probed(answered.then_some(took <= limit / 2));
        if !answered {
            self.cure();
        }
        answered
    }

    /// A connection that answers late, or not at all, while others of this process do is not waited for.
    fn cure(&self) {
        if self.member.is_sick() {
            self.script.renew();
        }
    }

    /// Says that this gateway lives.
    async fn beat(&self) -> Result<Beat, StoreError> {
        // An answer that comes too late may be the first of a store that is back: other gateways see that now, too.
        for _ in 0..2 {
            if self.process.left.load(Relaxed) {
                break;
            }
            if let Some(beat) = self.beat_once().await? {
                return Ok(beat);
            }
        }
        Err(StoreError::Timeout)
    }

    /// `None` when the answer came too late. It counts all the same: it brings the number of gateways and the clock. A
    /// heartbeat is waited for up to [`GIVE_UP`], so that there is never more than one of them on a connection.
    async fn beat_once(&self) -> Result<Option<Beat>, StoreError> {
        let Process { health, gateways, uncounted, .. } = &*self.process;
        let mut beat = self.process.beat(&*self.script);
        let (started, limit) = (Instant::now(), health.pace.limit());
        let mut patience = limit;
        let answer = loop {
            match timeout(patience, &mut beat).await {
                Ok(answer) => break answer,
                Err(_) if started.elapsed() >= GIVE_UP => return Err(StoreError::Timeout),
                Err(_) => {
                    self.metrics.count(&StoreError::Timeout);
                    self.member.missed(&StoreError::Timeout);
                    self.cure();
                    // An answer that comes until then says how slow the store is, not that it is away.
                    patience = match started.elapsed() < health.pace.most() {
                        true => limit.max(health.pace.most() - started.elapsed()),
                        false => limit,
                    };
                }
            }
        };
        let took = started.elapsed();
        if !matches!(answer, Err(ref error) if error.is_silence()) {
            health.pace.measured(took);
        }
        // By the time-out that this answer has made, if it has.
        let in_time = took <= health.pace.limit();
        match &answer {
            Ok(beat) => {
                health.answered();
                health.counted(beat, started);
                if !self.script.has_many_servers() {
                    health.wrote();
                }
            }
            Err(error) => {
                self.metrics.count(error);
                self.member.missed(error);
                if let StoreError::Refused(_) = error
                    && !uncounted.swap(true, Relaxed)
                {
                    tracing::warn!(%error, key = %gateways, "the gateways on the store cannot be counted");
                }
            }
        }
        answer.map(|beat| in_time.then_some(beat))
    }
}

impl Store for Guard {
    fn decide(&self, checks: &Checks, budget: Micros, ticket: Option<Ticket>) -> Answer<Decision> {
        let Process { health, local, .. } = &*self.process;
        if health.is_closed() && !local.decides(checks) {
            return self.ask(checks, budget, ticket);
        }
        if checks.iter().any(rejects) {
            return Answer::Ready(Err(StoreError::NotConnected));
        }
        match local.decide_unasked(health, checks, budget, ticket) {
            Ok(decision) => Answer::Ready(Ok(decision.unwrap_or_else(|| passed(checks)))),
            Err(IsBack) => self.ask(checks, budget, ticket),
        }
    }

    fn decide_without(
        &self,
        error: StoreError,
        checks: &Checks,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Result<Decision, StoreError> {
        if error.is_of_a_key() || checks.iter().any(rejects) {
            return Err(error);
        }
        let Process { local, health, .. } = &*self.process;
        if let Some(ticket) = ticket {
            health.known.refused(checks, ticket);
        }
        let decision = local.decide(health, checks, budget, ticket);
        Ok(decision.unwrap_or_else(|| passed(checks)))
    }

    fn decides_alone(&self, checks: &Checks) -> bool {
        let Process { local, health, .. } = &*self.process;
        let fails = |check: &Check| health.failure(&check.key).is_some();
        self.is_away() || local.decides(checks) || checks.iter().any(fails)
    }

    fn share(&self, check: &Check) -> Option<Share> {
        let Process { local, health, .. } = &*self.process;
        ((self.is_away() || health.failure(&check.key).is_some()) && local::is_own(check))
            .then(|| local.look(health, check))
    }

    fn give_back(&self, source: Source, checks: &Checks, parts: &[Part]) {
        let Process { local, health, .. } = &*self.process;
        match source {
            Source::Shared => {
                // A place that a later call takes over here stays with the store.
                let left = local.leave(health, checks, parts);
                self.store.give_back(source, checks, left.as_deref().unwrap_or(parts));
            }
            // A place that was charged meanwhile is the store's.
            Source::Local => {
                if let Some(charged) = local.give_back(checks, parts) {
                    self.store.give_back(Source::Shared, checks, &charged);
                }
            }
            Source::None => {}
        }
    }

    fn renew(&self, source: Source, check: &Check, grant: Grant) -> Answer<bool> {
        if self.process.local.renew(check, grant) {
            return Answer::Ready(Ok(true));
        }
        match self.is_away() {
            true => Answer::Ready(Err(StoreError::NotConnected)),
            false => self.store.renew(source, check, grant),
        }
    }

    fn forget(&self, check: &Check) -> Answer<bool> {
        match self.is_away() {
            true => Answer::Ready(Err(StoreError::NotConnected)),
            false => self.store.forget(check),
        }
    }

    fn calls(&self) -> &Arc<Calls> {
        self.store.calls()
    }

    fn look(&self, check: &Check) -> Answer<Level> {
        match self.is_away() {
            true => Answer::Ready(Err(StoreError::NotConnected)),
            false => self.store.look(check),
        }
    }

    fn flush(&self) -> BoxFuture<()> {
        self.store.flush()
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Whether nobody but the store may decide it.
fn rejects(check: &Check) -> bool {
    check.enforce && check.on_failure == OnFailure::Reject
}

/// Nobody decides: it goes at once.
fn passed(checks: &Checks) -> Decision {
    Decision {
        admitted: true,
        wait: 0,
        retry_after: 0,
        bound_by: 0,
        level: Level::default(),
        parts: checks.iter().map(unasked).collect(),
        queued: None,
        source: Source::None,
    }
}

/// What a limiter gives that is not asked.
fn unasked(check: &Check) -> Part {
    match check.is_lease() {
        true => Part::NOTHING,
        false => Part { at: 0, grant: Grant::default() },
    }
}

#[cfg(test)]
mod tests;
