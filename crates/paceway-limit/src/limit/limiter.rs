//! A limiter for programs: permits as a call, for requests of any kind.

use super::{
    Reservation, duration, micros,
    service::{Callee, Caller, pace},
};
use crate::{
    algorithm::{Algorithm, MAX_BUDGET, TokenBucket},
    answer::{Policy, Quota},
    key,
    rate::Rate,
    store::{Check, Checks, Decision, Store, StoreError},
};
use std::{marker::PhantomData, sync::Arc, time::Duration};
use tokio::{
    sync::{Mutex, MutexGuard},
    time::{Instant, sleep},
};

/// How far ahead a [`Limiter`] reserves permits by default. After Redis loses its data the limiter is closed for as
/// long, so a longer wait has to be asked for.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A limiter for programs that use this crate as a library. Clones share it.
#[derive(Debug, Clone)]
pub struct Limiter {
    pub(super) policy: Policy,
    rule: TokenBucket,
    key: Arc<str>,
    pub(super) store: Arc<dyn Store>,
    /// How far ahead permits are reserved.
    pub(super) max_wait: Duration,
    /// Held by the one caller of `acquire` that asks for permits further ahead than `max_wait`; later callers wait for
    /// the lock, in order.
    beyond: Arc<Mutex<()>>,
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
        /// The number of permits that was asked for.
        asked: u32,
        /// The limiter's burst.
        most: i64,
    },
    /// The store gave no decision.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// One call that asks a [`Limiter`], as its caller.
pub(super) struct Attempt<'a, E> {
    /// The time that it may wait in all, from `started` on; `None`: `most` for each reservation.
    until: Option<Instant>,
    most: Duration,
    /// Dropped when permits are granted: the next caller may ask for those further ahead.
    turn: Option<MutexGuard<'a, ()>>,
    error: PhantomData<fn() -> E>,
}

/// The callee of a program that makes its call itself: it is always ready.
pub(super) struct Nothing;

// === impl Limiter ===

impl Limiter {
    /// A token bucket named `name` in `store`: `rate.count` permits per `rate.period`, at most `burst` at once.
    /// Two limiters with one name in one store are one. `None` when `rate` and `burst` make no rule:
    /// zero, more than one a microsecond, or a bucket that takes decades to fill.
    pub fn token_bucket(name: &str, rate: Rate, burst: u32, store: Arc<dyn Store>) -> Option<Self> {
        let period = i64::try_from(rate.period.as_micros()).ok()?;
        let rule = TokenBucket::new(i64::try_from(rate.count).ok()?, period, i64::from(burst))?;
        let policy = Policy { name: name.to_owned(), quota: Quota::Rate(rate) };
        let key = key::StateNames::new("paceway", name, b'T', name).of(None).into();
        Some(Self { policy, rule, key, store, max_wait: MAX_WAIT, beyond: Arc::default() })
    }

    /// Declares how far ahead the limiter reserves permits: one minute unless declared, one hour at most. No caller
    /// holds a reservation for a later instant, whatever its time-out.
    ///
    /// After Redis loses its data, each process refuses for this long and the time that the bucket takes to fill,
    /// because another process may hold reservations that far ahead. So every process that shares the limiter must
    /// declare the same value, as it must declare the same rate.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait: max_wait.min(duration(MAX_BUDGET)), ..self }
    }

    /// Takes `permits` and waits for them as long as needed; returns how long that was. The callers of one process
    /// are served in the order in which they asked, and so are all processes for permits that come within
    /// [`max_wait`](Self::max_wait). A dropped future gives its place to another caller. A caller that wakes over
    /// 100 ms after its instant (the machine was suspended, say) asks again.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Impossible`], [`AcquireError::Store`].
    pub async fn acquire(&self, permits: u32) -> Result<Duration, AcquireError> {
        let checks = self.checks(permits)?;
        let started = Instant::now();
        let mut turn = match self.beyond.try_lock() {
            Ok(_) => None,
            Err(_) => Some(self.beyond.lock().await),
        };
        loop {
            let mut attempt = Attempt { turn, ..Attempt::for_each(self.max_wait) };
            match self.reserve(&checks, &mut attempt).await {
                Ok(()) => return Ok(started.elapsed()),
                // No reservation reaches so far yet. One caller asks when one does; the others wait for that caller.
                Err(AcquireError::Refused { retry_after }) => {
                    turn = match attempt.turn {
                        Some(turn) => {
                            sleep(retry_after).await;
                            Some(turn)
                        }
                        None => Some(self.beyond.lock().await),
                    };
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes `permits` if they can be had within `timeout`, or within [`max_wait`](Self::max_wait) if that is
    /// shorter, waits for them, and returns how long that was. If not, says so at once. A caller that wakes over 100 ms
    /// after its instant asks again, with the rest of its time.
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
        let started = Instant::now();
        self.reserve(&checks, &mut Attempt::within(timeout.min(self.max_wait))).await?;
        Ok(started.elapsed())
    }

    /// Takes the permits of `checks` and waits for them.
    async fn reserve(
        &self,
        checks: &Checks,
        attempt: &mut Attempt<'_, AcquireError>,
    ) -> Result<(), AcquireError> {
        let (mut reservation, ()) = pace(&self.store, checks, attempt, &mut Nothing).await?;
        reservation.spend();
        Ok(())
    }

    pub(super) fn checks(&self, permits: u32) -> Result<Checks, AcquireError> {
        let (cost, most) = (i64::from(permits), self.rule.capacity());
        if !(1..=most).contains(&cost) {
            return Err(AcquireError::Impossible { asked: permits, most });
        }
        let algorithm = Algorithm::TokenBucket(self.rule);
        // Without the store it refuses: how many processes share the limiter is not known then.
        Ok(Arc::new([Check::new(self.key.clone(), algorithm)
            .with_cost(cost)
            .with_horizon(algorithm.horizon(micros(self.max_wait), cost))]))
    }
}

// === impl Attempt ===

impl<E> Attempt<'_, E> {
    /// An attempt that waits up to `time` in all, however often it has to ask.
    pub(super) fn within(time: Duration) -> Self {
        Self { until: Instant::now().checked_add(time), ..Self::for_each(time) }
    }

    /// An attempt that waits up to `time` for each reservation.
    fn for_each(time: Duration) -> Self {
        Self { until: None, most: time, turn: None, error: PhantomData }
    }
}

impl<E: From<AcquireError>> Caller for Attempt<'_, E> {
    type Error = E;

    fn left(&self) -> Duration {
        match self.until {
            Some(until) => until.saturating_duration_since(Instant::now()),
            None => self.most,
        }
    }

    fn granted(&mut self, _: &Reservation) {
        self.turn = None;
    }

    fn refused(&mut self, decision: Decision) -> E {
        AcquireError::Refused { retry_after: duration(decision.retry_after) }.into()
    }

    fn undecided(&mut self, error: StoreError) -> E {
        AcquireError::Store(error).into()
    }
}

// === impl Nothing ===

impl Callee for Nothing {
    type Ready = ();
    type Error = AcquireError;

    fn lead(&self) -> Duration {
        Duration::ZERO
    }

    fn at_hand(&mut self) -> Option<()> {
        Some(())
    }

    async fn ready(&mut self) -> Result<(), AcquireError> {
        Ok(())
    }

    fn put_back(&mut self, (): ()) {}
}
