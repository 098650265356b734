//! One call of a program with its keys, costs and time: what a [`Limiter`] is asked for.

use super::{AcquireError, Acquired, Limiter};
use crate::{
    algorithm::fair::Priority,
    store::{Checks, Pause},
};
use smallvec::SmallVec;
use std::{sync::Arc, time::Duration};

/// The longest key of a state, in bytes. A key is sent with each call of the store.
const LONGEST_KEY: usize = 512;

/// A call with a key or a cost of its own for some limits of a [`Limiter`]. Without them it takes one permit of each limit,
/// from the state that all calls without a key share.
///
/// ```
/// use paceway_limit::{Limit, Limiter, Rate, memory};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tokens = Limit::token_bucket("tokens", Rate::per_minute(60_000), 8_000);
/// let tenant = Limit::fixed_window("tenant", Rate::per_minute(1));
/// let limiter = Limiter::all("llm", [tokens, tenant], memory())?;
///
/// let acme = limiter.call().key("tenant", "acme").cost("tokens", 1_200);
/// acme.clone().try_acquire(Duration::ZERO).await?;
/// // One call a minute for each tenant: the second of this one is refused, that of another tenant is not.
/// assert!(acme.try_acquire(Duration::ZERO).await.is_err());
/// limiter.call().key("tenant", "zenith").cost("tokens", 500).acquire().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is asked before `acquire` or `try_acquire`"]
pub struct LimitedCall<'a> {
    limiter: &'a Limiter,
    /// The cost for each limit without one of its own.
    permits: u32,
    /// A key and a cost for each limit, in their order.
    demands: SmallVec<[(Option<String>, Option<u32>); 2]>,
    /// The tenant at limits that are shared fairly.
    tenant: Option<Arc<str>>,
    priority: Priority,
    wrong: Option<AcquireError>,
}

/// The checks of a call, with the name of the limit that each belongs to.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) checks: Checks,
    pub(super) limits: SmallVec<[Arc<str>; 2]>,
}

// === impl LimitedCall ===

impl<'a> LimitedCall<'a> {
    pub(super) fn new(limiter: &'a Limiter) -> Self {
        let demands = limiter.limits.iter().map(|_| (None, None)).collect();
        let priority = Priority::Normal;
        Self { limiter, permits: 1, demands, tenant: None, priority, wrong: None }
    }

    /// The cost for each rate without a [`cost`](Self::cost) of its own: 1 unless declared.
    pub fn permits(self, permits: u32) -> Self {
        Self { permits, ..self }
    }

    /// Takes the permits of `limit` from the state of `key`: each key has a state of its own.
    pub fn key(mut self, limit: &str, key: impl Into<String>) -> Self {
        let key = key.into();
        if key.len() > LONGEST_KEY {
            self.wrong.get_or_insert(AcquireError::LongKey(limit.into()));
            return self;
        }
        self.set(limit, |demand| demand.0 = Some(key))
    }

    /// Takes `cost` permits of `limit`. A limit with a cost of 0 is not asked.
    pub fn cost(self, limit: &str, cost: u32) -> Self {
        self.set(limit, |demand| demand.1 = Some(cost))
    }

    /// The tenant whose turn the call takes at limits with [`Limit::fair`](crate::Limit::fair), such as a customer or a job.
    /// Calls without one are a tenant together. At most 128 bytes of the name count.
    pub fn tenant(self, tenant: impl Into<Arc<str>>) -> Self {
        Self { tenant: Some(tenant.into()), ..self }
    }

    /// The priority of the call at limits with [`Limit::fair`](crate::Limit::fair); [`Priority::Normal`] unless declared.
    pub fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    fn set(mut self, limit: &str, set: impl FnOnce(&mut (Option<String>, Option<u32>))) -> Self {
        match self.limiter.limits.iter().position(|planned| *planned.name == *limit) {
            Some(i) => set(&mut self.demands[i]),
            None => {
                self.wrong.get_or_insert(AcquireError::Unknown(limit.into()));
            }
        }
        self
    }

    /// Takes the permits, and waits for them as long as needed; [`Limiter::acquire`] says in which order.
    ///
    /// # Errors
    ///
    /// All of [`AcquireError`] except [`Refused`](AcquireError::Refused).
    pub async fn acquire(self) -> Result<Acquired, AcquireError> {
        let limiter = self.limiter;
        limiter.acquire_all(&self.asked()?).await
    }

    /// Takes the permits if they can be had within `timeout`, or within [`Limiter::max_wait`] if that is shorter, and waits
    /// for them. If not, returns an error at once.
    ///
    /// # Errors
    ///
    /// [`AcquireError`].
    pub async fn try_acquire(self, timeout: Duration) -> Result<Acquired, AcquireError> {
        let limiter = self.limiter;
        limiter.acquire_within(&self.asked()?, timeout).await
    }

    /// Pauses the limits of the call, each for the key that the call has there: no call is granted before the end, in any
    /// process that shares them. Use it when the vendor says "slow down", with the time that it names.
    ///
    /// Calls that wait ask again, with what is left of their time. A pause that ends earlier than the present one changes
    /// nothing. After the pause permits flow one by one, for a while a little slower than by the rule. A limit with [`observe`](crate::Limit::observe) or with a
    /// cost of 0 is not paused.
    ///
    /// ```
    /// use paceway_limit::{AcquireError, Limit, Limiter, Rate, memory};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Limit::token_bucket("tenant", Rate::per_second(5), 5), memory())?;
    /// let acme = limiter.call().key("tenant", "acme");
    /// // The vendor answered a call of this tenant with 429 and `Retry-After: 30`.
    /// acme.clone().pause(Duration::from_secs(30)).await?;
    /// // A call that waits up to 2 s is admitted 2 s before the end of the pause.
    /// match acme.try_acquire(Duration::from_secs(2)).await {
    ///     Err(AcquireError::Refused { retry_after, .. }) => assert!(retry_after > Duration::from_secs(27)),
    ///     other => panic!("the tenant is paused: {other:?}"),
    /// }
    /// limiter.call().key("tenant", "zenith").try_acquire(Duration::ZERO).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// All of [`AcquireError`] except [`Refused`](AcquireError::Refused). With [`AcquireError::Store`] other processes may
    /// not know of the pause.
    pub async fn pause(self, span: Duration) -> Result<(), AcquireError> {
        let store = self.limiter.store.clone();
        let checks = self.asked()?.checks;
        Ok(store.pause(&checks, Pause::of(span, 0)).get().await?)
    }

    /// The checks of the call, or the reason why it can never be granted.
    pub(super) fn asked(self) -> Result<Asked, AcquireError> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let (mut checks, mut limits) = (SmallVec::<[_; 2]>::new(), SmallVec::new());
        for (limit, (key, cost)) in self.limiter.limits.iter().zip(&self.demands) {
            let asked = match (cost, limit.is_concurrency()) {
                (Some(cost), _) => *cost,
                (None, true) => 1,
                (None, false) => self.permits,
            };
            let impossible =
                || AcquireError::Impossible { limit: limit.name.clone(), asked, most: limit.most };
            match i64::from(asked) {
                0 if *cost == Some(0) => continue,
                cost if !(1..=limit.most).contains(&cost) => return Err(impossible()),
                cost => {
                    let (max_wait, tenant) = (self.limiter.max_wait, self.tenant.as_ref());
                    let key = key.as_deref();
                    checks.push(limit.check(key, cost, max_wait, tenant, self.priority));
                    limits.push(limit.name.clone());
                }
            }
        }
        match (checks.is_empty(), self.limiter.limits.first()) {
            (true, Some(limit)) => Err(AcquireError::Impossible {
                limit: limit.name.clone(),
                asked: 0,
                most: limit.most,
            }),
            _ => Ok(Asked { checks: checks.into_vec().into(), limits }),
        }
    }
}
