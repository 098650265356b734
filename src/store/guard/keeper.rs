//! Keeps a process known to its store, looks at limiters before that is needed, and brings the store back: what was
//! decided here is charged to it before it is asked again, and what came in between behind that.

use super::{Guard, PROBE, local::Due};
use crate::{
    algorithm::MAX_BUDGET,
    store::{Check, Store, StoreError},
};
use std::time::Duration;
use tokio::time::sleep;

/// Signs of life while all is well.
const BEAT: Duration = Duration::from_secs(1);
/// Limiters and keys whose charges are on their way at one time.
const AT_ONCE: usize = 64;
/// What was decided while the last charge was on its way is little; what is left then comes with the next sign of life.
const ROUNDS: usize = 3;

// === impl Guard ===

impl Guard {
    /// For as long as its runtime lives.
    pub(super) async fn keep(self, looked: Vec<Check>) {
        let health = &self.process.health;
        loop {
            if self.probe().await {
                match health.is_closed() {
                    true => {
                        self.member.is_well();
                        self.look_at(&looked).await;
                        self.settle().await;
                    }
                    false if health.all_answered() => self.come_back().await,
                    false => {}
                }
            }
            match health.is_closed() && self.process.local.is_empty() {
                true => tokio::select! {
                    () = sleep(BEAT) => {}
                    () = health.opened() => {}
                },
                false => tokio::select! {
                    () = sleep(PROBE) => {}
                    () = health.answered.notified() => {}
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

    /// The store answers: it learns what it missed, and is asked again.
    async fn come_back(&self) {
        let (dues, _) = self.process.local.due(false);
        let charged = match self.charge(dues).await {
            Ok(charged) => charged,
            Err(_) => return self.member.probed(false),
        };
        let health = &self.process.health;
        let away = health.close();
        // Who waits for a place here waits there.
        health.call_all();
        let later = self.settle().await;
        tracing::info!(
            away_s = away.as_secs_f64(),
            charged = charged + later,
            "the store answers again, and has what was decided without it"
        );
    }

    /// Charges what was decided here, until there is nothing left of it; returns how much that was.
    async fn settle(&self) -> i64 {
        let (health, local) = (&self.process.health, &self.process.local);
        let mut sum = 0;
        for _ in 0..ROUNDS {
            let (dues, places) = local.due(true);
            if places {
                health.call_all();
            }
            if dues.is_empty() {
                break;
            }
            match self.charge(dues).await {
                Ok(charged) => sum += charged,
                Err(_) => break,
            }
        }
        sum
    }

    /// Returns how much was charged.
    ///
    /// # Errors
    ///
    /// When the store is away again: what has not been charged then is still due, but for what may have been.
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
                    Some(StoreError::NotConnected | StoreError::Refused(_)) => {
                        self.process.local.unpaid(due);
                    }
                    // It may have been charged, and is not charged again; or it can be charged nowhere.
                    Some(_) => {}
                }
                away = failed.filter(StoreError::is_silence).or(away);
            }
        }
        away.map_or(Ok(sum), Err)
    }
}
