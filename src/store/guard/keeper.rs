//! Keeps a process known to its store, looks at limiters before that is needed, and brings the store back: what was
//! decided here is charged to it before it is asked again, and what came in between behind that.

use super::{Guard, PROBE, local::Due};
use crate::{
    algorithm::MAX_BUDGET,
    store::{Check, Store, StoreError},
};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Signs of life while all is well.
const BEAT: Duration = Duration::from_secs(1);
/// Limiters and keys whose charges are on their way at one time.
const AT_ONCE: usize = 64;
/// How much later than this one other gateways may see that the store is back: what they have not charged by then would
/// be granted twice.
const OTHERS: Duration = Duration::from_millis(400);
/// Until then it charges so often, so that little comes late.
const CHARGE: Duration = Duration::from_millis(20);
/// What is decided while the last charge is on its way is little; what is left then comes a moment later.
const ROUNDS: usize = 2;

/// A store that answers again.
struct Back {
    /// Since when it has what was decided without it.
    since: Instant,
    /// How much that was.
    charged: i64,
}

// === impl Back ===

impl Back {
    fn now() -> Self {
        Self { since: Instant::now(), charged: 0 }
    }
}

// === impl Guard ===

impl Guard {
    /// For as long as its runtime lives.
    pub(super) async fn keep(self, looked: Vec<Check>) {
        let health = &self.process.health;
        let mut back = None;
        loop {
            let answered = self.probe().await;
            // The server that counts gateways may be away alone: others have something to be charged.
            let is_there = answered || (self.script.has_many_servers() && health.is_closed());
            match is_there && (health.is_closed() || health.all_answered()) {
                true => {
                    if health.is_closed() {
                        self.member.is_well();
                        // What is not answered in time is asked for again in a moment.
                        drop(timeout(self.timeout, self.script.inspect()).await);
                        self.look_at(&looked).await;
                    }
                    self.bring_back(&mut back).await;
                }
                false => back = None,
            }
            match health.is_closed() && self.process.local.is_empty() {
                true => tokio::select! {
                    () = sleep(BEAT) => {}
                    () = health.opened() => {}
                    () = health.wake.notified() => {}
                },
                false => tokio::select! {
                    () = sleep(if back.is_some() { CHARGE } else { PROBE }) => {}
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

    /// The store answers: it learns what it missed, and is asked again when all gateways can have told it.
    async fn bring_back(&self, back: &mut Option<Back>) {
        let (health, local) = (&self.process.health, &self.process.local);
        if health.is_closed() && local.is_empty() {
            *back = None;
            return;
        }
        let charged = match self.charge(local.due(false)).await {
            Ok(charged) => charged,
            // What is owed to one of many servers is owed until that one is back, and keeps nobody from the others.
            Err(_) if self.script.answers() && !health.is_closed() => 0,
            Err(_) => {
                *back = None;
                return self.member.probed(false);
            }
        };
        let Back { since, charged: sum } = back.get_or_insert_with(Back::now);
        *sum += charged;
        if since.elapsed() < OTHERS {
            return;
        }
        let away = health.close();
        for _ in 0..ROUNDS {
            let Ok(charged) = self.charge(local.due(true)).await else { break };
            *sum += charged;
            if local.forget() {
                health.call_all();
            }
            if local.is_empty() {
                break;
            }
        }
        if let Some(away) = away {
            // Who waits for a place here waits there.
            health.call_all();
            tracing::info!(
                away_s = away.as_secs_f64(),
                charged = *sum,
                "the store answers again, and has what was decided without it"
            );
        }
        *back = None;
    }

    /// Returns how much was charged.
    ///
    /// # Errors
    ///
    /// When the store is away again: what is not known to be charged then is still due.
    async fn charge(&self, dues: Vec<Due>) -> Result<i64, StoreError> {
        let (mut sum, mut away) = (0, None);
        for dues in dues.chunks(AT_ONCE) {
            let asked = dues.iter().filter(|_| away.is_none()).map(|due| {
                let asks = due.asks.iter();
                asks.map(|(checks, ticket)| self.store.decide(checks, MAX_BUDGET, *ticket))
                    .collect()
            });
            let asked: Vec<Vec<_>> = asked.collect();
            let mut answers = asked.into_iter();
            for due in dues {
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
                    Some(_) => self.process.local.unpaid(due),
                }
                away = failed.filter(StoreError::is_silence).or(away);
            }
        }
        away.map_or(Ok(sum), Err)
    }
}
