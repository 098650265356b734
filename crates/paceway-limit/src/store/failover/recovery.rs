//! Keeps a process known to its store, looks at limiters before that is needed, and brings the store back: what was
//! decided here is charged to it before it is asked again, and what came in between behind that.

use super::{Failover, PROBE, local::Debt};
use crate::{
    algorithm::{MAX_BUDGET, reserve::Part},
    log::{Permit, Throttle},
    store::{Check, Source, Store, StoreError},
};
use std::{collections::HashMap, sync::atomic::Ordering::Relaxed, time::Duration};
use tokio::time::{Instant, sleep, timeout};

/// Heartbeats while all is well. Others miss a gateway after three of them.
const BEAT: Duration = Duration::from_millis(500);
/// So often it looks at limiters, and at what the servers have evicted.
const LOOK: Duration = Duration::from_secs(1);
/// Limiters and keys whose charges are on their way at one time.
const AT_ONCE: usize = 64;
/// How much later than this one other gateways may see that the store is back: what they have not charged by then would
/// be granted twice.
const OTHERS: Duration = Duration::from_millis(400);
/// Until then it charges so often, so that little comes late.
const CHARGE: Duration = Duration::from_millis(20);
/// What is decided while the last charge is on its way is little; what is left then comes a moment later.
const ROUNDS: usize = 2;
/// A store whose answers take about as long as its time-out is away and back every few seconds.
static BACK: Throttle = Throttle::new();

/// A store that answers again.
struct Recovery {
    /// Since when it has what was decided without it.
    since: Instant,
    /// How much that was.
    charged: i64,
}

// === impl Recovery ===

impl Recovery {
    fn now() -> Self {
        Self { since: Instant::now(), charged: 0 }
    }

    /// Until it is told more; `lanes`: some are brought back by themselves.
    fn pause(back: Option<&Self>, lanes: bool) -> Duration {
        match lanes || back.is_some_and(|back| back.since.elapsed() <= OTHERS) {
            true => CHARGE,
            false => PROBE,
        }
    }
}

// === impl Failover ===

impl Failover {
    /// For as long as its runtime lives.
    pub(super) async fn recover(self, looked: Vec<Check>) {
        let health = &self.process.health;
        let (mut back, mut lanes_back) = (None, HashMap::new());
        let mut last_look = None::<Instant>;
        while !self.process.left.load(Relaxed) {
            let answered = self.probe().await;
            // The server that counts gateways may be away alone: others have something to be charged.
            let is_there = answered || (self.script.has_many_servers() && health.is_closed());
            match is_there {
                true => {
                    if health.is_closed() {
                        self.member.is_well();
                    }
                    let is_due = last_look.is_none_or(|last| last.elapsed() >= LOOK);
                    if health.is_closed() && is_due {
                        last_look = Some(Instant::now());
                        // What is not answered in time is asked for again in a moment.
                        drop(timeout(health.pace.limit(), self.script.inspect()).await);
                        self.look_at(&looked).await;
                    }
                    match self.script.has_many_servers() {
                        true => self.bring_lanes_back(&mut lanes_back).await,
                        false => self.bring_back(&mut back).await,
                    }
                }
                false => back = None,
            }
            self.process.charges.store(back.is_some(), Relaxed);
            match health.is_closed() && self.process.local.is_empty() {
                true => tokio::select! {
                    () = sleep(BEAT) => {}
                    () = health.opened() => {}
                    () = health.wake.notified() => {}
                },
                false => tokio::select! {
                    () = sleep(Recovery::pause(back.as_ref(), !lanes_back.is_empty())) => {}
                    () = health.wake.notified() => {}
                },
            }
        }
    }

    /// So that their levels are known.
    async fn look_at(&self, looked: &[Check]) {
        let asked: Vec<_> = looked.iter().map(|check| self.store.look(check)).collect();
        for level in asked {
            // What fails is told where all calls are.
            drop(level.get().await);
        }
    }

    /// The store answers: it learns what it missed, and is asked again when all gateways can have told it, and all
    /// workers have had answers for long enough. Until then it hears what is decided here a moment later, so that those
    /// who ask it grant nothing twice.
    async fn bring_back(&self, back: &mut Option<Recovery>) {
        let (health, local) = (&self.process.health, &self.process.local);
        if health.is_closed() && local.is_empty() {
            *back = None;
            return;
        }
        let charged = self.charge(local.debts(|_| true, false)).await;
        let Ok(charged) = charged else {
            *back = None;
            return self.member.probed(None);
        };
        let Recovery { since, charged: sum } = back.get_or_insert_with(Recovery::now);
        *sum += charged;
        if since.elapsed() < OTHERS || !(health.is_closed() || health.is_believed()) {
            return;
        }
        let away = health.close();
        for _ in 0..ROUNDS {
            let Ok(charged) = self.charge(local.debts(|_| true, true)).await else { break };
            *sum += charged;
            if self.forget() {
                health.call_all();
            }
            if local.is_empty() {
                break;
            }
        }
        if let Some(away) = away {
            // Who waits for a place here waits there.
            health.call_all();
            if let Some(Permit { suppressed }) = BACK.permit() {
                tracing::info!(
                    away_s = away.as_secs_f64(),
                    charged = *sum,
                    suppressed,
                    "the store answers again, and has what was decided without it"
                );
            }
        }
        *back = None;
    }

    /// Of several servers each that answers is brought back by itself, whatever the others do. `back`: since when those of
    /// a lane have what was decided without them.
    async fn bring_lanes_back(&self, back: &mut HashMap<Box<str>, Instant>) {
        let (health, local) = (&self.process.health, &self.process.local);
        // What has not been charged is decided here all the same.
        if let Some(away) = health.close() {
            health.call_all();
            if let Some(Permit { suppressed }) = BACK.permit() {
                let away_s = away.as_secs_f64();
                tracing::info!(away_s, suppressed, "the store answers again");
            }
        }
        let lanes = local.lanes(|key| self.script.lane(key));
        back.retain(|lane, _| lanes.contains(lane));
        for lane in lanes {
            let is_meant = |key: &str| self.script.lane(key) == &*lane;
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
                    health.call_all();
                }
            }
            // What has come meanwhile begins anew.
            back.remove(&lane);
        }
    }

    /// See [`LocalStore::forget`](super::local::LocalStore::forget). Permits that nobody took over are the store's again.
    fn forget(&self) -> bool {
        let idle = |check: &Check, parts: &[Part]| {
            self.store.refund(Source::Shared, &[check.clone()].into(), parts);
        };
        self.process.local.forget(idle)
    }

    /// Returns how much was charged.
    ///
    /// # Errors
    ///
    /// When the store is away again: what is not known to be charged then is still due.
    async fn charge(&self, debts: Vec<Debt>) -> Result<i64, StoreError> {
        let (mut sum, mut away) = (0, None);
        for debts in debts.chunks(AT_ONCE) {
            let asked = debts.iter().filter(|_| away.is_none()).map(|due| {
                let asks = due.asks.iter();
                asks.map(|(checks, ticket)| self.store.reserve(checks, MAX_BUDGET, *ticket))
                    .collect()
            });
            let asked: Vec<Vec<_>> = asked.collect();
            let mut answers = asked.into_iter();
            for due in debts {
                let mut failed = None;
                match answers.next() {
                    // Not asked for any more.
                    None => failed = Some(StoreError::NotConnected),
                    Some(asked) => {
                        for decision in asked {
                            failed = decision.get().await.err().or(failed);
                        }
                    }
                }
                match &failed {
                    None => sum += due.count,
                    // It can be charged nowhere.
                    Some(StoreError::Foreign(_)) => {}
                    // An answer that comes too late is undone. One that never comes may have been a charge: twice is
                    // safe, and not at all is not.
                    Some(_) => self.process.local.restore(due),
                }
                away = failed.filter(StoreError::is_silence).or(away);
            }
        }
        away.map_or(Ok(sum), Err)
    }
}
