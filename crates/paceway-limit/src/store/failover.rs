//! Decisions while the store gives none, as each limiter's `on_failure` says. [`Failover`] wraps the [`Batched`] store of a
//! worker. It asks that store while the breaker is closed, and decides by itself while it is open.

mod grants;
mod heartbeat;
mod local;
mod permits;
mod process;
mod recovery;

#[cfg(feature = "redis")]
pub(super) use grants::is_delayed_charge;
#[cfg(all(test, feature = "redis"))]
pub(super) use grants::{DuePermits, charges};
pub use process::Process;

use super::{
    Answer, Backend, BoxFuture, Check, Checks, Decision, Entry, OnFailure, Pause, Pauses, Question,
    Reply, Share, Source, Store, StoreAdmin, StoreError, Way,
    batch::{Batched, StoreMetrics},
    calls::Calls,
    health::Member,
    settlement,
};
use crate::algorithm::{Grant, Micros, concurrency::Ticket, reserve::Part};
use local::IsBack;
use smallvec::SmallVec;
use std::{future::ready, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};

/// How often each worker probes a store that is away.
const PROBE: Duration = Duration::from_millis(200);

/// The store of one worker, which decides by the limiters' `on_failure` while the shared store is away.
#[derive(Debug, Clone)]
pub struct Failover {
    store: Batched,
    backend: Arc<dyn Backend>,
    metrics: StoreMetrics,
    process: Arc<Process>,
    member: Arc<Member>,
}

// === impl Failover ===

impl Failover {
    /// A worker's store over `backend`, whose calls take as long as the pace of the process allows. While the store is
    /// away, a task on the current runtime probes it.
    pub fn new(backend: Arc<dyn Backend>, metrics: StoreMetrics, process: Arc<Process>) -> Self {
        let failover = Self::without_probes(backend, metrics, process);
        failover.store.spend_late();
        tokio::spawn(failover.clone().probe_while_away());
        failover
    }

    /// The one store of a process that sends its heartbeats, and charges the store when it is back. It reads the levels
    /// of `looked` once a second, so that they are known also for limiters that no request uses.
    pub fn with_recovery(
        backend: Arc<dyn Backend>,
        metrics: StoreMetrics,
        process: Arc<Process>,
        looked: watch::Receiver<Arc<[Check]>>,
    ) -> Self {
        let failover = Self::without_probes(backend, metrics, process);
        // A process makes one such store, so the cell is empty.
        drop(failover.process.recovery.set(failover.backend.clone()));
        tokio::spawn(failover.clone().recover(looked));
        failover
    }

    fn without_probes(
        backend: Arc<dyn Backend>,
        metrics: StoreMetrics,
        process: Arc<Process>,
    ) -> Self {
        let member =
            process.health.join(backend.calls().clone(), backend.placement().has_many_servers());
        process.local.calls().join(backend.calls());
        let store = Batched::with_member(member.clone(), backend.clone(), metrics.clone());
        Self { store, backend, metrics, process, member }
    }

    /// Asks the store, with the limiters' `on_failure` as the fallback.
    fn ask(&self, question: &Question, budget: Micros, ticket: Option<Ticket>) -> Answer<Decision> {
        if let Some(ticket) = ticket {
            let health = &self.process.health;
            health.known.permits.asks(question.all(), ticket, health.pace.most());
        }
        let (process, asked, of) = (self.process.clone(), Instant::now(), question.clone());
        self.store.decide_or(question.clone(), budget, ticket, move |error| {
            let waited = i64::try_from(asked.elapsed().as_micros()).unwrap_or(i64::MAX);
            process.decide_without(error, &of, budget.saturating_sub(waited).max(0), ticket)
        })
    }

    fn is_away(&self) -> bool {
        !self.process.health.is_closed()
    }
}

impl Store for Failover {
    fn decide(
        &self,
        question: &Question,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Answer<Decision> {
        let Process { health, local, .. } = &*self.process;
        if health.is_closed() && !local.decides(question.all()) {
            return self.ask(question, budget, ticket);
        }
        match self.process.decide_here(question, budget, ticket, true) {
            Ok(Some(decision)) => Answer::Ready(Ok(decision)),
            Ok(None) => Answer::Ready(Err(StoreError::NotConnected)),
            Err(IsBack) => self.ask(question, budget, ticket),
        }
    }

    /// Nothing else gives these answers: while the store is away, that is an error at once.
    fn execute(&self, entry: Entry) -> Answer<Reply> {
        if self.is_away() {
            return Answer::Ready(Err(StoreError::NotConnected));
        }
        self.store.execute(entry)
    }

    fn refund(&self, source: Source, checks: &Checks, parts: &[Part]) {
        let Process { local, health, .. } = &*self.process;
        match source {
            Source::Shared => {
                // A permit that a later call takes over in this gateway stays leased in the store.
                let left = local.leave(health, checks, parts);
                self.store.refund(source, checks, left.as_deref().unwrap_or(parts));
            }
            // A concurrency permit that was charged meanwhile is leased in the store.
            Source::Local => {
                if let Some(charged) = local.refund(checks, parts) {
                    self.store.refund(Source::Shared, checks, &charged);
                }
            }
            Source::None => {}
        }
    }

    fn refunded(&self, checks: &Checks) -> BoxFuture<()> {
        if self.is_away() { Box::pin(ready(())) } else { self.store.refunded(checks) }
    }

    fn settle(&self, source: Source, check: &Check, part: Part, used: i64) {
        let Process { local, health, .. } = &*self.process;
        let owed = settlement::owed(check, part, used);
        match source {
            Source::None => {}
            // While the store is away, the debt is charged here and to the store when that is back.
            _ if owed > 0 && local.owe(health, check, owed) => {}
            Source::Local if owed == 0 => local.settle(check, part, used),
            _ => self.store.settle(Source::Shared, check, part, used),
        }
    }

    fn renew(&self, _: Source, check: &Check, grant: Grant) -> Answer<bool> {
        if self.process.local.renew(check, grant) {
            return Answer::Ready(Ok(true));
        }
        self.execute(Entry::Renew { check: check.clone(), grant }).read(Reply::done)
    }

    fn pause(&self, checks: &Checks, pause: Pause) -> Answer<()> {
        let Process { local, health, .. } = &*self.process;
        for check in checks.iter().filter(|check| check.enforce) {
            health.pauses.learn_first(check, pause);
        }
        if self.is_away() {
            local.pause(health, checks);
            Answer::Ready(Ok(()))
        } else {
            self.store.pause(checks, pause)
        }
    }

    fn calls(&self) -> &Arc<Calls> {
        self.store.calls()
    }

    fn pauses(&self) -> &Arc<Pauses> {
        &self.process.health.pauses
    }

    fn closed_for(&self, check: &Check) -> Option<Micros> {
        self.process.health.closed_for(check)
    }

    fn decides_alone(&self, checks: &Checks) -> bool {
        let Process { local, health, .. } = &*self.process;
        let fails = |check: &Check| health.failure(&check.key).is_some();
        self.is_away() || local.decides(checks) || checks.iter().any(fails)
    }
}

impl StoreAdmin for Failover {
    fn forget(&self, check: &Check) -> Answer<bool> {
        let forgotten = self.execute(Entry::Forget { check: check.clone() }).read(Reply::done);
        let (pauses, key) = (self.process.health.pauses.clone(), check.key.clone());
        Answer::Later(Box::pin(async move { forgotten.get().await.inspect(|_| pauses.end(&key)) }))
    }

    fn backend(&self) -> Result<&dyn Backend, StoreError> {
        if self.is_away() { Err(StoreError::NotConnected) } else { Ok(&*self.backend) }
    }

    fn share(&self, check: &Check) -> Option<Share> {
        let Process { local, health, .. } = &*self.process;
        ((self.is_away() || health.failure(&check.key).is_some()) && local::is_own(check))
            .then(|| local.look(health, check))
    }

    fn flush(&self) -> BoxFuture<()> {
        self.store.flush()
    }
}

/// A pause that still holds a request: the index of its check, and how much of it is left, µs.
#[derive(Clone, Copy)]
struct HeldBy {
    index: usize,
    left: Micros,
}

// === impl Process ===

impl Process {
    /// Decides a request by its limiters' `on_failure`, because the store gave `error` instead of a decision.
    ///
    /// # Errors
    ///
    /// The same error when a limiter says [`OnFailure::Reject`], or when the error concerns one key.
    fn decide_without(
        &self,
        error: StoreError,
        question: &Question,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Result<Decision, StoreError> {
        if error.is_of_a_key() || question.ways().iter().all(|way| way.checks.iter().any(rejects)) {
            return Err(error);
        }
        if let Some(ticket) = ticket {
            self.health.known.permits.refused(question.all(), ticket);
        }
        self.decide_here(question, budget, ticket, false).ok().flatten().ok_or(error)
    }

    /// Decides a request by the limiters' `on_failure`: `None` where these refuse it. A way that a pause holds for longer than the
    /// budget is taken only where all are.
    ///
    /// # Errors
    ///
    /// [`IsBack`] when the store answers again which was not asked about this request because it was away (`is_unasked`).
    fn decide_here(
        &self,
        question: &Question,
        budget: Micros,
        ticket: Option<Ticket>,
        is_unasked: bool,
    ) -> Result<Option<Decision>, IsBack> {
        let (mut ways, mut holds) = (SmallVec::<[Way<'_>; 1]>::new(), SmallVec::<[_; 1]>::new());
        let mut first: Option<(HeldBy, Option<u8>)> = None;
        for way in question.ways().into_iter().filter(|way| !way.checks.iter().any(rejects)) {
            // Once for each way: a pause may begin or end meanwhile.
            match self.held(way.checks) {
                Some(held) if held.left > budget => {
                    if first.is_none_or(|(first, _)| held.left < first.left) {
                        first = Some((held, way.id));
                    }
                }
                held => {
                    ways.push(way);
                    holds.push(held);
                }
            }
        }
        if ways.is_empty() {
            return Ok(first.map(|(HeldBy { index, left }, chosen)| Decision {
                chosen,
                ..Decision::paused(index, left)
            }));
        }
        let decision = self.local.decide(&self.health, &ways, budget, ticket, is_unasked)?;
        let chosen = decision.as_ref().and_then(|decision| decision.chosen);
        let taken = ways.iter().position(|way| way.id == chosen).unwrap_or(0);
        let decision = passed(ways[taken].checks, decision, holds[taken]);
        Ok(Some(Decision { chosen: ways[taken].id, ..decision }))
    }

    /// How long a pause still holds a request among those of its limiters that are not decided here. They let requests pass,
    /// but not within a pause.
    fn held(&self, checks: &Checks) -> Option<HeldBy> {
        if self.health.pauses.is_empty() {
            return None;
        }
        let allow = checks.iter().enumerate().filter(|(_, it)| it.enforce && !local::is_own(it));
        let pause = |(index, check): (usize, &Check)| {
            Some(HeldBy { index, left: self.health.pauses.get(&check.key)?.left() })
        };
        allow.filter_map(pause).max_by_key(|held| held.left)
    }
}

/// Whether only the store may decide this limiter, so that the request is refused while the store is away.
fn rejects(check: &Check) -> bool {
    check.enforce && check.on_failure == OnFailure::Reject
}

/// The decision of the limiters that are decided here, if there are any. The others, which say [`OnFailure::Allow`], let the
/// request pass at once, or when the pause ends that `held` tells.
fn passed(checks: &Checks, decision: Option<Decision>, held: Option<HeldBy>) -> Decision {
    let mut decision = decision.unwrap_or_else(|| Decision {
        admitted: true,
        parts: checks.iter().map(unasked).collect(),
        source: Source::None,
        ..Decision::default()
    });
    if let Some(HeldBy { index, left }) = held
        && decision.admitted
        && left > decision.wait
    {
        (decision.wait, decision.bound_by) = (left, index);
    }
    decision
}

/// The grant of a limiter that does not decide: no permit, at once.
fn unasked(check: &Check) -> Part {
    if check.is_lease() { Part::NOTHING } else { Part { at: 0, grant: Grant::default() } }
}

#[cfg(test)]
mod tests;
