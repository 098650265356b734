//! A limiter for programs: one limit or several, all or none, over one store.

use super::{
    Acquired, Limit, LimitedCall, Reservation, RuleError,
    asked::Asked,
    duration,
    planned::Planned,
    service::{AlwaysReady, Caller, pace},
};
use crate::{
    algorithm::MAX_BUDGET,
    handle::StoreHandle,
    rate::Rate,
    store::{Checks, Decision, Store, StoreError},
};
use std::{marker::PhantomData, sync::Arc, time::Duration};
use tokio::{
    sync::{Mutex, MutexGuard},
    time::{Instant, sleep},
};

/// How far ahead a [`Limiter`] reserves permits by default: 60 s. After Redis loses its data the limiter refuses for as
/// long, so a longer wait has to be declared.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// How many limits one limiter may have. Each of them is a state in every call of the store.
const MAX_LIMITS: usize = 16;

/// One [`Limit`] or several, all or none, over a store. Clones share it.
///
/// ```
/// use paceway_limit::{AcquireError, Limit, Limiter, Rate, memory};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // 20 calls a second, and never more than 4 at a time.
/// let rate = Limit::sliding_window("rate", Rate::per_second(20));
/// let parallel = Limit::concurrency("parallel", 4);
/// let limiter = Limiter::all("vendor", [rate, parallel], memory())?;
///
/// let first = limiter.acquire(1).await?; // waits as long as needed, in order
/// let second = limiter.acquire_within(1, Duration::from_millis(300)).await?; // at most 300 ms
/// let others = [limiter.acquire(1).await?, limiter.acquire(1).await?];
/// match limiter.try_acquire(1).await {
///     Err(AcquireError::Refused { limit, .. }) => assert_eq!(&*limit, "parallel"),
///     other => panic!("a fifth call at a time: {other:?}"),
/// }
/// # drop((first, second, others));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Limiter {
    pub(super) limits: Arc<[Planned]>,
    pub(super) store: Arc<dyn Store>,
    /// How far ahead permits are reserved.
    pub(super) max_wait: Duration,
    /// Held by the one caller of `acquire` that asks for permits further ahead than `max_wait`; later callers wait for
    /// the lock, in order.
    beyond: Arc<Mutex<()>>,
}

/// Why a [`Limiter`] gave no permits.
///
/// ```
/// use paceway_limit::{AcquireError, Limit, Limiter, Rate, memory};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Limit::token_bucket("mail", Rate::per_second(5), 5), memory())?;
/// limiter.acquire(5).await?;
/// match limiter.try_acquire(1).await {
///     Err(AcquireError::Refused { retry_after, .. }) => assert!(retry_after <= Duration::from_millis(200)),
///     other => panic!("the bucket is empty: {other:?}"),
/// }
/// // A bucket of 5 never has 6 permits: an error at once, not a wait for ever.
/// assert!(matches!(limiter.acquire(6).await, Err(AcquireError::Impossible { most: 5, .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The permits would come after the time that the call may wait; nothing was taken.
    #[error("the limit `{limit}` has no permits within the time; ask again in {retry_after:?}")]
    Refused {
        /// The limit that would delay the call most.
        limit: Arc<str>,
        /// The same call succeeds when a lone caller makes it this much later.
        retry_after: Duration,
        /// The permits that the limit has left: more than none where the call costs more than one.
        remaining: i64,
    },
    /// More (or fewer) permits than the limit can ever give at once.
    #[error("the limit `{limit}` never has {asked} permits at once; a call can cost 1 to {most}")]
    Impossible {
        /// The limit.
        limit: Arc<str>,
        /// The cost of the call.
        asked: u32,
        /// The greatest cost that the limit grants.
        most: i64,
    },
    /// The call names a limit that the limiter does not have.
    #[error("the limiter has no limit `{0}`")]
    Unknown(Arc<str>),
    /// The key is longer than 512 bytes; hash it first.
    #[error("a key for the limit `{0}` is longer than 512 bytes")]
    LongKey(Arc<str>),
    /// The rate that [`Limit::rates`] gave for the key of the call makes no rule.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// The store gave no decision.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// One call that asks a [`Limiter`], as its caller.
pub(super) struct LimiterCaller<'a, E> {
    /// The time that it may wait in all, from `started` on; `None`: `most` for each reservation.
    until: Option<Instant>,
    most: Duration,
    asked: Option<&'a Asked>,
    /// Dropped when permits are granted: the next caller may ask for those further ahead.
    turn: Option<MutexGuard<'a, ()>>,
    error: PhantomData<fn() -> E>,
}

// === impl Limiter ===

impl Limiter {
    /// A limiter of one limit. Two limiters whose limits have one name in one store are one.
    ///
    /// # Errors
    ///
    /// [`RuleError`] when the numbers of the limit make no rule.
    pub fn new(limit: Limit, store: impl Into<StoreHandle>) -> Result<Self, RuleError> {
        let group = limit.name.clone();
        Self::all(&group, [limit], store)
    }

    /// A limiter of several limits: a call takes permits of all of them at one instant, or of none.
    ///
    /// `group` is part of the names of their states, and decides where they are on a Redis Cluster: a limit that several
    /// limiters share has the same group in all of them.
    ///
    /// # Errors
    ///
    /// [`RuleError`] when the numbers of a limit make no rule, two limits have one name, or there are none or over 16.
    pub fn all(
        group: &str,
        limits: impl IntoIterator<Item = Limit>,
        store: impl Into<StoreHandle>,
    ) -> Result<Self, RuleError> {
        let StoreHandle { store, prefix } = store.into();
        let mut planned: Vec<Planned> = Vec::new();
        for limit in limits {
            let wrong = |why| Err(RuleError { limit: limit.name.clone(), why });
            if planned.iter().any(|other| *other.name == *limit.name) {
                return wrong("a name that no other limit of the limiter has");
            }
            if planned.len() == MAX_LIMITS {
                return wrong("at most 16 limits in one limiter");
            }
            planned.push(Planned::new(&prefix, group, limit)?);
        }
        if planned.is_empty() {
            return Err(RuleError { limit: group.to_owned(), why: "at least one limit" });
        }
        let beyond = Arc::default();
        Ok(Self { limits: planned.into(), store, max_wait: MAX_WAIT, beyond })
    }

    /// Declares how far ahead the limiter reserves permits: one minute unless declared, one hour at most. No caller
    /// holds a reservation for a later instant, whatever its time-out.
    ///
    /// After Redis loses its data, each process refuses for this long and the time that the limits take to be unused,
    /// because another process may hold reservations that far ahead. So every process that shares the limiter must
    /// declare the same value, as it must declare the same limits.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait: max_wait.min(duration(MAX_BUDGET)), ..self }
    }

    /// Sets the rate of `limit` while the program runs, for this limiter and its clones: from now on calls are granted by
    /// it, except those of keys with a rate of their own ([`Limit::rates`]). Burst, margin and queue stay.
    ///
    /// The level is kept: the store converts the state when the next call asks. Calls that wait for an instant keep it;
    /// those that ask again, because of a pause say, ask by the new rate. Other processes do not learn of the change, and
    /// have to make it, too: until then the limit is counted by both rates in turn.
    ///
    /// ```
    /// use paceway_limit::{Limit, Limiter, Rate, memory};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Limit::fixed_window("calls", Rate::per_hour(2)), memory())?;
    /// limiter.try_acquire(2).await?;
    /// assert!(limiter.try_acquire(1).await.is_err());
    /// // The vendor has granted a larger plan. Two of its calls are used already.
    /// limiter.set_rate("calls", Rate::per_hour(5))?;
    /// limiter.try_acquire(3).await?;
    /// assert!(limiter.try_acquire(1).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RuleError`] when the limiter has no such limit, when the limit counts calls at a time, and when the rate makes no
    /// rule. The rate stays as it was.
    pub fn set_rate(&self, limit: &str, rate: Rate) -> Result<(), RuleError> {
        match self.limits.iter().find(|planned| *planned.name == *limit) {
            Some(planned) => planned.set_rate(rate),
            None => Err(RuleError { limit: limit.to_owned(), why: "a limit that the limiter has" }),
        }
    }

    /// A call with keys or with a cost for each limit.
    pub fn call(&self) -> LimitedCall<'_> {
        LimitedCall::new(self)
    }

    /// Takes `permits` of each rate and one of each concurrency limit, and waits for them as long as needed. The callers
    /// of one process are served in the order in which they asked, and so are all processes for permits that come within
    /// [`max_wait`](Self::max_wait). A dropped future gives its place to another caller. A caller that wakes over
    /// 100 ms after its instant (the machine was suspended, say) asks again.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Impossible`], [`AcquireError::Store`].
    pub async fn acquire(&self, permits: u32) -> Result<Acquired, AcquireError> {
        self.call().permits(permits).acquire().await
    }

    /// Takes `permits` of each rate and one of each concurrency limit if they are free now, and returns an error otherwise.
    ///
    /// # Errors
    ///
    /// [`AcquireError`].
    pub async fn try_acquire(&self, permits: u32) -> Result<Acquired, AcquireError> {
        self.call().permits(permits).try_acquire().await
    }

    /// Takes `permits` of each rate and one of each concurrency limit if they can be had within `timeout`, or within
    /// [`max_wait`](Self::max_wait) if that is shorter, and waits for them. If not, returns an error at once.
    ///
    /// # Errors
    ///
    /// [`AcquireError`].
    pub async fn acquire_within(
        &self,
        permits: u32,
        timeout: Duration,
    ) -> Result<Acquired, AcquireError> {
        self.call().permits(permits).acquire_within(timeout).await
    }

    /// Pauses all limits: no call is granted before the end, in any process that shares them. [`LimitedCall::pause`] says
    /// more, and pauses the limits of calls with keys.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Store`] when the store gave no answer, so that other processes may not know of the pause.
    pub async fn pause(&self, span: Duration) -> Result<(), AcquireError> {
        self.call().pause(span).await
    }

    /// Takes the permits of `asked`, as long as that may take.
    pub(super) async fn acquire_all(&self, asked: Asked) -> Result<Acquired, AcquireError> {
        let started = Instant::now();
        let mut turn = match self.beyond.try_lock() {
            Ok(_) => None,
            Err(_) => Some(self.beyond.lock().await),
        };
        loop {
            let mut attempt = LimiterCaller {
                turn,
                asked: Some(&asked),
                ..LimiterCaller::for_each(self.max_wait)
            };
            let checks = asked.renewed().unwrap_or_else(|| asked.checks.clone());
            match pace(
                &self.store,
                &checks,
                &mut attempt,
                &mut AlwaysReady::<AcquireError>::default(),
            )
            .await
            {
                Ok((reservation, ())) => {
                    drop(attempt);
                    return Ok(Acquired::new(reservation, asked, started.elapsed()));
                }
                // No reservation reaches so far yet. One caller asks when one does; the others wait for that caller.
                Err(AcquireError::Refused { retry_after, .. }) => {
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

    /// Takes the permits of `asked` if they can be had within `timeout`. A caller that wakes over 100 ms after its instant
    /// asks again, with the rest of its time.
    pub(super) async fn acquire_all_within(
        &self,
        asked: Asked,
        timeout: Duration,
    ) -> Result<Acquired, AcquireError> {
        let started = Instant::now();
        let mut attempt = LimiterCaller::within(timeout.min(self.max_wait)).of(&asked);
        let paced = pace(
            &self.store,
            &asked.checks,
            &mut attempt,
            &mut AlwaysReady::<AcquireError>::default(),
        )
        .await;
        let (reservation, ()) = paced?;
        drop(attempt);
        Ok(Acquired::new(reservation, asked, started.elapsed()))
    }
}

// === impl LimiterCaller ===

impl<'a, E> LimiterCaller<'a, E> {
    /// An attempt that waits up to `time` in all, however often it has to ask.
    pub(super) fn within(time: Duration) -> Self {
        Self { until: Instant::now().checked_add(time), ..Self::for_each(time) }
    }

    /// The same attempt, whose errors name the limits of `asked`.
    pub(super) fn of(self, asked: &'a Asked) -> Self {
        Self { asked: Some(asked), ..self }
    }

    /// An attempt that waits up to `time` for each reservation.
    fn for_each(time: Duration) -> Self {
        Self { until: None, most: time, asked: None, turn: None, error: PhantomData }
    }
}

impl<E: From<AcquireError>> Caller for LimiterCaller<'_, E> {
    type Error = E;

    fn left(&self) -> Duration {
        match self.until {
            Some(until) => until.saturating_duration_since(Instant::now()),
            None => self.most,
        }
    }

    /// A rate that was set while the call waited holds when it asks again.
    fn renewed(&self) -> Option<Checks> {
        self.asked.and_then(Asked::renewed)
    }

    fn granted(&mut self, _: &Reservation) {
        self.turn = None;
    }

    fn refused(&mut self, decision: Decision) -> E {
        let limit = self.asked.and_then(|asked| asked.name(decision.bound_by));
        AcquireError::Refused {
            limit: limit.unwrap_or_else(|| "".into()),
            retry_after: duration(decision.retry_after),
            remaining: decision.level.remaining,
        }
        .into()
    }

    fn undecided(&mut self, error: StoreError) -> E {
        AcquireError::Store(error).into()
    }
}
