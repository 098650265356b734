//! Keeps this process known to its store, reads levels before an outage needs them, and brings the store back: the permits
//! that were granted without it are charged before it is asked again, and those that are granted meanwhile after that.

use super::{Failover, PROBE, Process, local::Debt};
use crate::{
    algorithm::{MAX_BUDGET, reserve::Part},
    log::{Permit, Throttle},
    store::{Check, Doubt, Source, Store, StoreError},
};
use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

/// Time between heartbeats while the store answers. Other gateways count this one as absent when three are missing.
const BEAT: Duration = Duration::from_millis(500);
/// Time between reads of levels, and between looks for data that the servers have evicted.
const LOOK: Duration = Duration::from_secs(1);
/// Limiters and keys whose charges are on their way at one time.
const AT_ONCE: usize = 64;
/// How long this gateway keeps deciding by its share after the first charge. Other gateways may notice that much later
/// that the store is back; permits that they have not charged by then would be granted twice.
const OTHERS: Duration = Duration::from_millis(400);
/// Time between charges until then. The shorter it is, the fewer permits are charged late.
const CHARGE: Duration = Duration::from_millis(20);
/// Rounds of last charges. The first one takes a moment, in which a few more permits are granted; the second charges those.
const ROUNDS: usize = 2;
/// Bounds the log: a store whose answers take about as long as its time-out is away and back every few seconds.
static BACK: Throttle = Throttle::new();

/// The return of a store that answers again.
struct Recovery {
    /// When the first charge was answered.
    since: Instant,
    /// How many permits were charged so far.
    charged: i64,
}

// === impl Recovery ===

impl Recovery {
    fn now() -> Self {
        Self { since: Instant::now(), charged: 0 }
    }

    /// The time until the next charge or probe; `lanes`: some servers of a Cluster are being brought back.
    fn pause(recovery: Option<&Self>, lanes: bool) -> Duration {
        if lanes || recovery.is_some_and(|recovery| recovery.since.elapsed() <= OTHERS) {
            CHARGE
        } else {
            PROBE
        }
    }
}

// === impl Failover ===

impl Failover {
    /// Sends heartbeats and brings the store back, for as long as the runtime lives or until this gateway leaves.
    pub(super) async fn recover(self, looked: watch::Receiver<Arc<[Check]>>) {
        let health = &self.process.health;
        let (mut recovery, mut lanes_back) = (None, HashMap::new());
        let mut last_look = None::<Instant>;
        while !self.process.left.load(Relaxed) {
            let looked = looked.borrow().clone();
            let answered = self.probe().await;
            // In a Cluster the server that counts gateways may be away alone, while others can be charged.
            let is_there =
                answered || (self.backend.placement().has_many_servers() && health.is_closed());
            if is_there {
                if health.is_closed() {
                    self.member.is_well();
                }
                let is_due = last_look.is_none_or(|last| last.elapsed() >= LOOK);
                if health.is_closed() && is_due {
                    last_look = Some(Instant::now());
                    // A look without an answer in time is repeated a second later.
                    drop(timeout(health.pace.limit(), self.backend.inspect()).await);
                    self.look_at(&looked).await;
                }
                if self.backend.placement().has_many_servers() {
                    self.bring_lanes_back(&mut lanes_back).await;
                } else {
                    self.bring_back(&mut recovery, &looked).await;
                }
            } else {
                recovery = None;
            }
            self.process.charges.store(recovery.is_some(), Relaxed);
            if health.is_closed() && self.process.local.is_empty() {
                tokio::select! {
                    () = sleep(BEAT) => {}
                    () = health.opened() => {}
                    () = health.wake.notified() => {}
                }
            } else {
                tokio::select! {
                    () = sleep(Recovery::pause(recovery.as_ref(), !lanes_back.is_empty())) => {}
                    () = health.wake.notified() => {}
                }
            }
        }
    }

    /// Reads the levels of `looked`, which the health of the store remembers for the next outage.
    async fn look_at(&self, looked: &[Check]) {
        let asked: Vec<_> = looked.iter().map(|check| self.store.look(check)).collect();
        for level in asked {
            // An error is counted where every call is.
            drop(level.get().await);
        }
    }

    /// The store answers. It is charged all debts, and asked again when all gateways can have done the same and all workers
    /// have had answers for long enough. Until then each debt is charged a moment after its grant, so that the gateways
    /// which ask the store already grant nothing twice.
    async fn bring_back(&self, recovery: &mut Option<Recovery>, looked: &[Check]) {
        let (health, local) = (&self.process.health, &self.process.local);
        if health.is_closed() && local.is_empty() {
            *recovery = None;
            return;
        }
        let looked = if recovery.is_none() { looked } else { &[] };
        self.pause_again(|_| true, looked).await;
        let charged = self.charge(local.debts(|_| true, false)).await;
        let Ok(charged) = charged else {
            *recovery = None;
            return self.member.probed(None);
        };
        let Recovery { since, charged: sum } = recovery.get_or_insert_with(Recovery::now);
        *sum += charged;
        if since.elapsed() < OTHERS || !(health.is_closed() || health.is_believed()) {
            return;
        }
        let away = health.close();
        for _ in 0..ROUNDS {
            let Ok(charged) = self.charge(local.debts(|_| true, true)).await else { break };
            *sum += charged;
            if self.forget() {
                health.notify_all();
            }
            if local.is_empty() {
                break;
            }
        }
        if let Some(away) = away {
            // Requests that waited for a permit of this gateway now wait in the store's queue.
            health.notify_all();
            if let Some(Permit { suppressed }) = BACK.permit() {
                tracing::info!(
                    away_s = away.as_secs_f64(),
                    charged = *sum,
                    suppressed,
                    "the store answers again, and has what was decided without it"
                );
            }
        }
        *recovery = None;
    }

    /// Brings each server of a Cluster back by itself when it answers, whatever the others do. `back` has the lanes whose
    /// debts are charged, and since when.
    async fn bring_lanes_back(&self, back: &mut HashMap<Box<str>, Instant>) {
        let (health, local) = (&self.process.health, &self.process.local);
        // A limiter with a debt is decided here nevertheless.
        if let Some(away) = health.close() {
            health.notify_all();
            if let Some(Permit { suppressed }) = BACK.permit() {
                let away_s = away.as_secs_f64();
                tracing::info!(away_s, suppressed, "the store answers again");
            }
        }
        let lanes = local.lanes(|key| self.backend.placement().lane(key));
        back.retain(|lane, _| lanes.contains(lane));
        for lane in lanes {
            let is_meant = |key: &str| self.backend.placement().lane(key) == &*lane;
            self.pause_again(is_meant, &[]).await;
            if self.charge(local.debts(is_meant, false)).await.is_err() {
                back.remove(&lane);
                continue;
            }
            if back.entry(lane.clone()).or_insert_with(Instant::now).elapsed() < OTHERS {
                continue;
            }
            for _ in 0..ROUNDS {
                if self.charge(local.debts(is_meant, true)).await.is_err() {
                    break;
                }
                if self.forget() {
                    health.notify_all();
                }
            }
            // A debt that was added since begins its own recovery.
            back.remove(&lane);
        }
    }

    /// Forgets the limiters without a debt; see [`LocalStore::forget`](super::local::LocalStore::forget). Permits that no
    /// call took over are refunded to the store.
    fn forget(&self) -> bool {
        let idle = |check: &Check, parts: &[Part]| {
            self.store.refund(Source::Shared, &[check.clone()].into(), parts);
        };
        self.process.local.forget(&self.process.health, idle)
    }

    /// Writes the pauses of the limiters that were decided here, and of those in `looked`, to the store, except those that an
    /// operator has ended meanwhile. One that it does not receive is written by the first request that notices.
    async fn pause_again(&self, is_meant: impl Fn(&str) -> bool, looked: &[Check]) {
        let Process { health, local, .. } = &*self.process;
        let mut all = local.pauses(health, is_meant);
        let known = |check: &Check| Some((check.clone(), health.pauses.get(&check.key)?.pause()));
        all.extend(looked.iter().filter(|check| check.enforce).filter_map(known));
        for pauses in all.chunks(AT_ONCE) {
            let known = health.pauses.version();
            let looks: Vec<_> = pauses.iter().map(|(check, _)| self.store.look(check)).collect();
            let mut asked = Vec::new();
            for (look, (check, pause)) in looks.into_iter().zip(pauses) {
                let is_free = matches!(look.get().await, Ok(level) if level.paused == 0);
                if !(is_free && health.pauses.doubt(&check.key, known) == Doubt::Ask) {
                    asked.push(self.store.pause(&[check.clone()].into(), *pause));
                }
            }
            for answer in asked {
                // An error is counted where every call is.
                drop(answer.get().await);
            }
        }
    }

    /// Charges debts to the store, and returns how many permits that were.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store is away again. The debts that it may not have received are open again.
    async fn charge(&self, debts: Vec<Debt>) -> Result<i64, StoreError> {
        let (mut sum, mut away) = (0, None);
        for debts in debts.chunks(AT_ONCE) {
            let asked = debts.iter().filter(|_| away.is_none()).map(|debt| {
                let asks = debt.asks.iter();
                asks.map(|(checks, ticket)| self.store.reserve(checks, MAX_BUDGET, *ticket))
                    .collect()
            });
            let asked: Vec<Vec<_>> = asked.collect();
            let mut answers = asked.into_iter();
            for debt in debts {
                let mut failed = None;
                match answers.next() {
                    // The store went away before this debt was charged.
                    None => failed = Some(StoreError::NotConnected),
                    Some(asked) => {
                        for decision in asked {
                            failed = decision.get().await.err().or(failed);
                        }
                    }
                }
                match &failed {
                    None => sum += debt.count,
                    // A key with a foreign value can be charged nowhere.
                    Some(StoreError::Foreign(_)) => {}
                    // A late answer is undone. If no answer comes, the charge may have been executed: to charge it twice
                    // is safe, and to charge it never is not.
                    Some(_) => self.process.local.restore(debt),
                }
                away = failed.filter(StoreError::is_silence).or(away);
            }
            // The answer to a charge that is due later has the level of what delays it. Without that of the limiter, this gateway
            // would begin the next outage with the level before the charge, and grant the slots ahead a second time.
            let rates = debts.iter().filter(|debt| away.is_none() && !debt.check.is_lease());
            let looks: Vec<_> = rates.map(|debt| self.store.look(&debt.check)).collect();
            for level in looks {
                // An error is counted where every call is.
                drop(level.get().await);
            }
        }
        away.map_or(Ok(sum), Err)
    }
}
