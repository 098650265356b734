//! Asking, waiting, and giving back what is not used: the way of a request between its route and its
//! upstream, and the same for programs that use this crate as a library.

mod layer;

pub use layer::{LimitLayer, LimitService};

use crate::{
    algorithm::{Algorithm, MAX_BUDGET, Micros, TokenBucket, reserve},
    answer::Policy,
    config::Rate,
    store::{Check, Checks, Decision, Store, StoreError},
};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, sleep_until};

/// A granted slot that has not been used. Dropped, it goes to somebody else.
#[derive(Debug)]
pub struct Slot {
    store: Arc<dyn Store>,
    checks: Checks,
    parts: reserve::Parts,
    /// When it may be used.
    pub at: Instant,
    /// How long that is from the decision.
    pub wait: Duration,
    /// Index of the check that made it so late.
    pub bound_by: usize,
    spent: bool,
}

/// The store's answer to one who asked.
#[derive(Debug)]
pub enum Admission {
    /// To be used at its instant.
    Granted(Slot),
    /// Nothing was taken.
    Refused(Decision),
}

/// A limiter for programs that use this crate as a library. Clones share it.
#[derive(Debug, Clone)]
pub struct Limiter {
    policy: Policy,
    rule: TokenBucket,
    key: Arc<str>,
    store: Arc<dyn Store>,
}

/// Why a [`Limiter`] gave no permits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Not within the time; nothing was taken.
    #[error("no permits within the time; they can be had by asking again in {retry_after:?}")]
    Refused {
        /// The same call succeeds when a lone caller makes it this much later.
        retry_after: Duration,
    },
    /// More (or fewer) permits than the limiter can ever give at once.
    #[error("{asked} permits can never be had at once; between 1 and {most} can")]
    Impossible {
        /// What was asked for.
        asked: u32,
        /// The limiter's burst.
        most: i64,
    },
    /// The store gave no decision.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Asks once for all `checks` of a request that may wait up to `budget`.
///
/// # Errors
///
/// The store's.
pub async fn ask(
    store: &Arc<dyn Store>,
    checks: &Checks,
    budget: Duration,
) -> Result<Admission, StoreError> {
    let decision = store.decide(checks, micros(budget)).get().await?;
    if !decision.admitted {
        return Ok(Admission::Refused(decision));
    }
    let wait = duration(decision.wait);
    Ok(Admission::Granted(Slot {
        store: store.clone(),
        checks: checks.clone(),
        parts: decision.parts,
        at: Instant::now() + wait,
        wait,
        bound_by: decision.bound_by,
        spent: false,
    }))
}

/// A budget in µs, as the rules count; what is longer than any wait is as long as the longest.
pub fn micros(span: Duration) -> Micros {
    i64::try_from(span.as_micros()).unwrap_or(MAX_BUDGET).min(MAX_BUDGET)
}

/// From µs.
pub fn duration(micros: Micros) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

// === impl Slot ===

impl Slot {
    /// Resolves `lead` before the slot's instant.
    pub async fn near(&self, lead: Duration) {
        if self.wait > lead {
            sleep_until(self.at - lead).await;
        }
    }

    /// Resolves at the slot's instant.
    pub async fn come(&self) {
        if !self.wait.is_zero() {
            sleep_until(self.at).await;
        }
    }

    /// Uses the slot: from now on, what is sent is paid for.
    pub fn spend(&mut self) {
        self.spent = true;
    }

    /// Nothing was sent after all: somebody else may.
    pub fn give_back(mut self) {
        self.spent = false;
    }

    /// What each limiter gave, in the order of the checks.
    pub fn parts(&self) -> &[reserve::Part] {
        &self.parts
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.spent {
            self.store.give_back(&self.checks, &self.parts);
        }
    }
}

// === impl Limiter ===

impl Limiter {
    /// A token bucket named `name` in `store`: `rate.count` permits per `rate.period`, at most `burst` at once.
    /// Two limiters with one name in one store are one. `None` when `rate` and `burst` make no rule:
    /// zero, more than one a microsecond, or a bucket that takes decades to fill.
    pub fn token_bucket(name: &str, rate: Rate, burst: u32, store: Arc<dyn Store>) -> Option<Self> {
        let period = i64::try_from(rate.period.as_micros()).ok()?;
        let rule = TokenBucket::new(i64::try_from(rate.count).ok()?, period, i64::from(burst))?;
        let policy = Policy { name: name.to_owned(), rate };
        Some(Self { policy, rule, key: key("paceway", name, name).into(), store })
    }

    /// Takes `permits` and waits for them as long as needed; returns how long that was. Callers are
    /// served in the order in which they asked. A dropped future gives its place to somebody else.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Impossible`], [`AcquireError::Store`].
    pub async fn acquire(&self, permits: u32) -> Result<Duration, AcquireError> {
        let started = Instant::now();
        loop {
            match self.try_acquire(permits, duration(MAX_BUDGET)).await {
                // No reservation reaches further than an hour: come back when one does.
                Err(AcquireError::Refused { retry_after }) => sleep(retry_after).await,
                taken => return taken.map(|_| started.elapsed()),
            }
        }
    }

    /// Takes `permits` if they can be had within `timeout` (at most an hour), waits for them, and returns how
    /// long that was. If not, says so at once.
    ///
    /// # Errors
    ///
    /// [`AcquireError`].
    pub async fn try_acquire(
        &self,
        permits: u32,
        timeout: Duration,
    ) -> Result<Duration, AcquireError> {
        let checks = self.checks(permits)?;
        match ask(&self.store, &checks, timeout).await? {
            Admission::Granted(mut slot) => {
                slot.come().await;
                slot.spend();
                Ok(slot.wait)
            }
            Admission::Refused(decision) => {
                Err(AcquireError::Refused { retry_after: duration(decision.retry_after) })
            }
        }
    }

    fn checks(&self, permits: u32) -> Result<Checks, AcquireError> {
        let (cost, most) = (i64::from(permits), self.rule.burst());
        if !(1..=most).contains(&cost) {
            return Err(AcquireError::Impossible { asked: permits, most });
        }
        let algorithm = Algorithm::TokenBucket(self.rule);
        Ok(Arc::new([Check { key: self.key.clone(), algorithm, cost, enforce: true }]))
    }
}

/// The name of a limiter's state in a store. Limiters of one `group` share the `{hash tag}`.
pub fn key(prefix: &str, group: &str, name: &str) -> String {
    format!("{prefix}:{{{group}}}:{name}")
}

#[cfg(test)]
mod tests;
