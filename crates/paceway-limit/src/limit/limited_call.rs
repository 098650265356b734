//! One call of a program with its keys, costs and time: what a [`Limiter`] is asked for.

use super::{
    AcquireError, Acquired, CostLimit, KeyLimit, Limiter,
    asked::{Asked, AskedPart},
    planned::Seat,
};
use crate::{algorithm::fair::Priority, store::Pause};
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
/// acme.clone().try_acquire().await?;
/// // One call a minute for each tenant: the second of this one is refused, that of another tenant is not.
/// assert!(acme.try_acquire().await.is_err());
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
    /// One for each limit, in their order.
    demands: SmallVec<[LimitDemand; 2]>,
    /// Its place at limits that are shared fairly.
    seat: Seat,
    wrong: Option<AcquireError>,
}

/// The part of a call at one limit.
#[derive(Debug, Clone, Default)]
struct LimitDemand {
    key: Option<String>,
    cost: Option<u32>,
}

// === impl LimitedCall ===

impl<'a> LimitedCall<'a> {
    pub(super) fn new(limiter: &'a Limiter) -> Self {
        let demands = limiter.limits.iter().map(|_| LimitDemand::default()).collect();
        let seat = Seat { tenant: None, priority: Priority::Normal };
        Self { limiter, permits: 1, demands, seat, wrong: None }
    }

    /// The cost for each rate without a [`cost`](Self::cost) of its own: 1 unless declared.
    pub fn permits(self, permits: u32) -> Self {
        Self { permits, ..self }
    }

    /// Takes the permits of `limit` from the state of `key`: each key has a state of its own.
    pub fn key(self, limit: impl KeyLimit, key: impl Into<String>) -> Self {
        match limit.find(&self.limiter.limits) {
            Ok(index) => self.key_at(index, key.into()),
            Err(error) => self.failing(Some(&error)),
        }
    }

    /// Takes `cost` permits of `limit`. A limit with a cost of 0 is not asked.
    pub fn cost(self, limit: impl CostLimit, cost: u32) -> Self {
        match limit.find(&self.limiter.limits) {
            Ok(index) => self.cost_at(index, cost),
            Err(error) => self.failing(Some(&error)),
        }
    }

    /// As [`Self::key`], at the limit with this index.
    pub(super) fn key_at(mut self, index: usize, key: String) -> Self {
        if key.len() > LONGEST_KEY {
            let name = self.limiter.limits[index].name.clone();
            return self.failing(Some(&AcquireError::LongKey(name)));
        }
        self.demands[index].key = Some(key);
        self
    }

    /// As [`Self::cost`], at the limit with this index.
    pub(super) fn cost_at(mut self, index: usize, cost: u32) -> Self {
        self.demands[index].cost = Some(cost);
        self
    }

    /// A call that ends with `error`, if there is one, unless it ends with an earlier one.
    pub(super) fn failing(self, error: Option<&AcquireError>) -> Self {
        Self { wrong: self.wrong.or_else(|| error.cloned()), ..self }
    }

    /// The tenant whose turn the call takes at limits with [`Limit::fair`](crate::Limit::fair), such as a customer or a job.
    /// Calls without one are a tenant together. At most 128 bytes of the name count.
    pub fn tenant(self, tenant: impl Into<Arc<str>>) -> Self {
        Self { seat: Seat { tenant: Some(tenant.into()), ..self.seat }, ..self }
    }

    /// The priority of the call at limits with [`Limit::fair`](crate::Limit::fair); [`Priority::Normal`] unless declared.
    pub fn priority(self, priority: Priority) -> Self {
        Self { seat: Seat { priority, ..self.seat }, ..self }
    }

    /// Takes the permits, and waits for them as long as needed; [`Limiter::acquire`] says in which order.
    ///
    /// # Errors
    ///
    /// All of [`AcquireError`] except [`Refused`](AcquireError::Refused).
    pub async fn acquire(self) -> Result<Acquired, AcquireError> {
        let limiter = self.limiter;
        limiter.acquire_all(self.asked()?).await
    }

    /// Takes the permits if they are free now, and returns an error otherwise. It waits for the answer of the store alone.
    ///
    /// # Errors
    ///
    /// [`AcquireError`].
    pub async fn try_acquire(self) -> Result<Acquired, AcquireError> {
        self.acquire_within(Duration::ZERO).await
    }

    /// Takes the permits if they can be had within `timeout`, or within [`Limiter::max_wait`] if that is shorter, and waits
    /// for them. If not, returns an error at once.
    ///
    /// # Errors
    ///
    /// [`AcquireError`].
    pub async fn acquire_within(self, timeout: Duration) -> Result<Acquired, AcquireError> {
        let limiter = self.limiter;
        limiter.acquire_all_within(self.asked()?, timeout).await
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
    /// match acme.acquire_within(Duration::from_secs(2)).await {
    ///     Err(AcquireError::Refused { retry_after, .. }) => assert!(retry_after > Duration::from_secs(27)),
    ///     other => panic!("the tenant is paused: {other:?}"),
    /// }
    /// limiter.call().key("tenant", "zenith").try_acquire().await?;
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
        Ok(store.pause(&self.asked()?.checks, Pause::of(span, 0)).get().await?)
    }

    /// The checks of the call, or the reason why it can never be granted.
    pub(super) fn asked(self) -> Result<Asked, AcquireError> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let (limits, max_wait) = (&self.limiter.limits, self.limiter.max_wait);
        let (mut checks, mut parts) = (SmallVec::<[_; 2]>::new(), SmallVec::new());
        for (index, (limit, demand)) in limits.iter().zip(&self.demands).enumerate() {
            let own = match demand.key.as_deref() {
                Some(key) => limit.rated_for(key)?,
                None => None,
            };
            let rated = own.unwrap_or_else(|| limit.rated());
            let asked = match demand.cost {
                Some(0) => continue,
                Some(cost) => cost,
                None if limit.is_concurrency() => 1,
                None => self.permits,
            };
            let cost = i64::from(asked);
            if !(1..=rated.most).contains(&cost) {
                let (limit, most) = (limit.name.clone(), rated.most);
                return Err(AcquireError::Impossible { limit, asked, most });
            }
            let key = demand.key.as_deref();
            checks.push(limit.check(&rated, key, cost, max_wait, &self.seat));
            parts.push(AskedPart { index, rated, is_common: own.is_none() });
        }
        match (checks.is_empty(), limits.first()) {
            (true, Some(limit)) => Err(AcquireError::Impossible {
                limit: limit.name.clone(),
                asked: 0,
                most: limit.rated().most,
            }),
            _ => Ok(Asked {
                checks: checks.into_vec().into(),
                limits: limits.clone(),
                parts,
                max_wait,
            }),
        }
    }
}
