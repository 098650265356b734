//! A limit with a name: what it allows, and what happens when it cannot be asked. It has no state and asks no store;
//! [`Limiter`](super::Limiter) does.

use super::rated::KeyRates;
use crate::{
    algorithm::{
        Concurrency, FixedWindow, LeakyBucket, Micros, Rule, SlidingWindow, TokenBucket, WarmUp,
    },
    answer::Quota,
    rate::Rate,
    store::{OnFailure, OnLoss},
};
use std::time::Duration;

/// How long a process that died keeps its concurrency permits: 30 s, unless [`Limit::lease`] says otherwise.
const LEASE: Duration = Duration::from_secs(30);

/// A named limit, for one [`Limiter`](super::Limiter) or for several that share its state.
///
/// Every process that shares the limit must declare it with the same numbers.
///
/// ```
/// use paceway_limit::{Limit, Limiter, Rate, memory};
/// use std::time::Duration;
///
/// let account = Limit::token_bucket("account", Rate::per_second(30), 10);
/// let tenant = Limit::sliding_window("tenant", Rate::per_minute(100)).margin(Duration::from_millis(50));
/// let parallel = Limit::concurrency("parallel", 4).lease(Duration::from_secs(60));
/// let trial = Limit::fixed_window("trial", Rate::new(10_000, Duration::from_secs(86_400))).observe();
/// Limiter::all("vendor", [account, tenant, parallel, trial], memory())?;
/// # Ok::<(), paceway_limit::RuleError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    pub(super) name: String,
    pub(super) rate: Rate,
    /// The rates of keys that have one of their own.
    pub(super) rates: Option<KeyRates>,
    shape: Shape,
    margin: Duration,
    max_cost: Option<u32>,
    pub(super) enforce: bool,
    without_store: WithoutStore,
    pub(super) on_loss: OnLoss,
    /// The weights of tenants that share it fairly; `None`: first come, first served.
    pub(super) weights: Option<Vec<(String, u32)>>,
}

/// The algorithm with the numbers that only it has.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    TokenBucket { burst: u32 },
    LeakyBucket { queue: Option<u32> },
    SlidingWindow,
    FixedWindow,
    WarmUp { warm_up: Duration, cold_factor: f64 },
    Concurrency { max: u32, lease: Duration },
}

/// The behaviour of a [`Limit`] while its store gives no decision, for example because Redis is away.
///
/// ```
/// use paceway_limit::{Limit, Rate, WithoutStore};
///
/// let limit = Limit::token_bucket("mail", Rate::per_second(5), 5);
/// // A vendor that bans callers above the limit: better no calls at all than too many.
/// let strict = limit.clone().without_store(WithoutStore::Refuse);
/// assert_ne!(limit, strict);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutStore {
    /// Each process enforces its share of the limit by itself, as large as the number of known processes allows.
    Share,
    /// Calls are made without permits.
    Allow,
    /// Calls end with [`AcquireError::Store`](super::AcquireError::Store).
    Refuse,
}

/// A [`Limit`] whose numbers make no rule, or a set of limits that cannot be used together.
///
/// ```
/// use paceway_limit::{Limit, Limiter, Rate, memory};
///
/// let error = Limiter::new(Limit::token_bucket("search", Rate::per_second(0), 1), memory()).unwrap_err();
/// assert!(error.to_string().starts_with("the limit `search` is no rule"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the limit `{limit}` is no rule: it needs {why}")]
pub struct RuleError {
    /// The name of the limit.
    pub limit: String,
    /// The bound that its numbers do not keep.
    pub why: &'static str,
}

// === impl Limit ===

impl Limit {
    fn new(name: &str, rate: Rate, shape: Shape) -> Self {
        Self {
            name: name.to_owned(),
            rate,
            rates: None,
            shape,
            margin: Duration::ZERO,
            max_cost: None,
            enforce: true,
            without_store: WithoutStore::Share,
            on_loss: OnLoss::Close,
            weights: None,
        }
    }

    /// A token bucket: permits flow in at `rate`, and an idle bucket saves up to `burst` of them. For vendors that allow
    /// bursts.
    pub fn token_bucket(name: &str, rate: Rate, burst: u32) -> Self {
        Self::new(name, rate, Shape::TokenBucket { burst })
    }

    /// A leaky bucket: calls with the same time between any two of them. For vendors that measure spacing.
    pub fn leaky_bucket(name: &str, rate: Rate) -> Self {
        Self::new(name, rate, Shape::LeakyBucket { queue: None })
    }

    /// A sliding window: at most `rate.count` permits in any window of `rate.period`, wherever it starts.
    pub fn sliding_window(name: &str, rate: Rate) -> Self {
        Self::new(name, rate, Shape::SlidingWindow)
    }

    /// A fixed window: at most `rate.count` permits in each period of the store's clock, for example in each UTC day.
    pub fn fixed_window(name: &str, rate: Rate) -> Self {
        Self::new(name, rate, Shape::FixedWindow)
    }

    /// A rate that begins `cold_factor` times slower than `rate`, and reaches it after `warm_up` of steady use.
    pub fn warm_up(name: &str, rate: Rate, warm_up: Duration, cold_factor: f64) -> Self {
        Self::new(name, rate, Shape::WarmUp { warm_up, cold_factor })
    }

    /// At most `max` calls at one time. Each call holds its permit until its [`Acquired`](super::Acquired) is dropped.
    pub fn concurrency(name: &str, max: u32) -> Self {
        let rate = Rate { count: u64::from(max), period: Duration::from_secs(1) };
        Self::new(name, rate, Shape::Concurrency { max, lease: LEASE })
    }

    /// How much the travel time of calls to the vendor may vary: calls of a leaky bucket or a sliding window are spaced by
    /// this much more. The other algorithms ignore it.
    #[must_use]
    pub fn margin(self, margin: Duration) -> Self {
        Self { margin, ..self }
    }

    /// How many permits may wait in a leaky bucket; further calls are refused at once. The other algorithms ignore it.
    #[must_use]
    pub fn queue(self, queue: u32) -> Self {
        let shape = match self.shape {
            Shape::LeakyBucket { .. } => Shape::LeakyBucket { queue: Some(queue) },
            shape => shape,
        };
        Self { shape, ..self }
    }

    /// How long the concurrency permit of a process that died stays in use: 30 s unless declared. A living process
    /// renews its permits three times in this time. The other algorithms ignore it.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        let shape = match self.shape {
            Shape::Concurrency { max, .. } => Shape::Concurrency { max, lease },
            shape => shape,
        };
        Self { shape, ..self }
    }

    /// The greatest cost of a call; a call with a greater cost is [`Impossible`](super::AcquireError::Impossible). Unless
    /// declared it is 1 for a leaky bucket and a warm-up, and all that is ever there at once for the others. After Redis
    /// loses its data, a leaky bucket or a warm-up refuses for as long as such a call takes.
    #[must_use]
    pub fn max_cost(self, max_cost: u32) -> Self {
        Self { max_cost: Some(max_cost), ..self }
    }

    /// Gives some keys a rate of their own, such as customers with a larger plan; a key for which `rates` returns `None`
    /// has the rate of the limit. Burst, margin and queue are those of the limit. A concurrency limit ignores it.
    ///
    /// Each call asks the function for its key, and nothing is kept of the answers, so the function should only look
    /// something up. A key whose rate changes keeps its level: the state is converted when the next call asks. Every
    /// process that shares the limit must give the same rates. A rate that makes no rule ends the call with
    /// [`AcquireError::Rule`](super::AcquireError::Rule).
    ///
    /// ```
    /// use paceway_limit::{Limit, Limiter, Rate, memory};
    /// use std::collections::HashMap;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let plans = HashMap::from([("acme", Rate::per_minute(3))]);
    /// let calls = Limit::fixed_window("calls", Rate::per_minute(1)).rates(move |key| plans.get(key).copied());
    /// let limiter = Limiter::new(calls, memory())?;
    ///
    /// let (acme, zenith) = (limiter.call().key("calls", "acme"), limiter.call().key("calls", "zenith"));
    /// for _ in 0..3 {
    ///     acme.clone().try_acquire().await?;
    /// }
    /// zenith.clone().try_acquire().await?;
    /// assert!(acme.try_acquire().await.is_err() && zenith.try_acquire().await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn rates(self, rates: impl Fn(&str) -> Option<Rate> + Send + Sync + 'static) -> Self {
        Self { rates: Some(KeyRates::new(rates)), ..self }
    }

    /// Counts calls and never delays or refuses one, for example to find out what a limit would do.
    #[must_use]
    pub fn observe(self) -> Self {
        Self { enforce: false, ..self }
    }

    /// Sets the behaviour while the store gives no decision; [`WithoutStore::Share`] unless declared.
    #[must_use]
    pub fn without_store(self, without_store: WithoutStore) -> Self {
        Self { without_store, ..self }
    }

    /// Sets the behaviour after Redis has lost states, or may have; [`OnLoss::Close`] unless declared. A restart with an
    /// append-only file is such a case: with [`OnLoss::Trust`] the limit continues with what that file has.
    #[must_use]
    pub fn on_loss(self, on_loss: OnLoss) -> Self {
        Self { on_loss, ..self }
    }

    /// Shares the limit among the tenants of the calls that wait: while several tenants wait, each gets the share of its
    /// weight, however many of its calls wait. A tenant without a weight here has 1; weights go from 1 to 1,000. Within a
    /// tenant the order is first come, first served. [`LimitedCall::tenant`](super::LimitedCall::tenant) names the tenant,
    /// [`LimitedCall::priority`](super::LimitedCall::priority) the priority.
    ///
    /// A call that waits for a later instant than [`Limiter::max_wait`](super::Limiter::max_wait) has no turn yet: it gets one
    /// once its instant is that near, in the order of arrival. Where several limits of a limiter are fair, a call takes its
    /// turn at the first of them.
    ///
    /// ```
    /// use paceway_limit::{Limit, Limiter, Priority, Rate, memory};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let account = Limit::token_bucket("account", Rate::per_second(100), 1).fair([("checkout", 4)]);
    /// let limiter = Limiter::new(account, memory())?;
    ///
    /// // The nightly job asks for 40 calls at once, which are 400 ms of the limit.
    /// let job = limiter.call().tenant("job").priority(Priority::Low);
    /// let job: Vec<_> = std::iter::repeat_with(|| job.clone()).take(40).collect();
    /// let job = futures_util::future::join_all(job.into_iter().map(|call| call.acquire()));
    /// let checkout = async {
    ///     tokio::time::sleep(Duration::from_millis(20)).await;
    ///     limiter.call().tenant("checkout").acquire_within(Duration::from_secs(5)).await
    /// };
    /// // A call of another tenant waits for its turn, and not for the job.
    /// let waited = tokio::select! {
    ///     biased;
    ///     checkout = checkout => checkout?.waited(),
    ///     _ = job => unreachable!("the job is longer"),
    /// };
    /// assert!(waited < Duration::from_millis(300), "{waited:?}");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn fair<T: Into<String>>(self, weights: impl IntoIterator<Item = (T, u32)>) -> Self {
        let weights = weights.into_iter().map(|(tenant, weight)| (tenant.into(), weight));
        Self { weights: Some(weights.collect()), ..self }
    }

    /// The rule that the numbers make at `rate`, or the bound that they do not keep.
    pub(super) fn algorithm(&self, rate: Rate) -> Result<Rule, RuleError> {
        let (count, period) = (i64::try_from(rate.count).unwrap_or(0), span(rate.period));
        let margin = span(self.margin);
        let (rule, why) = match self.shape {
            Shape::TokenBucket { burst } => (
                TokenBucket::new(count, period, burst.into()).map(Rule::from),
                "a rate of at least one permit and at most one a microsecond, and a burst of at least 1",
            ),
            Shape::LeakyBucket { queue } => (
                LeakyBucket::new(count, period, margin, queue.map(i64::from)).map(Rule::from),
                "a rate of at least one permit and at most one a microsecond",
            ),
            Shape::SlidingWindow => (
                SlidingWindow::new(count, period, margin).map(Rule::from),
                "a rate of at least one permit in at least a microsecond",
            ),
            Shape::FixedWindow => (
                FixedWindow::new(count, period).map(Rule::from),
                "1 to 1,000,000,000 permits in 1 ms to 366 days",
            ),
            Shape::WarmUp { warm_up, cold_factor } => (
                WarmUp::new(count, period, span(warm_up), cold_factor).map(Rule::from),
                "a rate of at least one permit and at most one a microsecond, a warm-up of at most an hour, and a cold \
                 factor above 1 and at most 100",
            ),
            Shape::Concurrency { max, lease } => (
                Concurrency::new(max.into(), span(lease))
                    .map(|rule| rule.with_turns(self.weights.is_some()).into()),
                "at least one call at a time, and a lease of at least a microsecond",
            ),
        };
        rule.ok_or_else(|| RuleError { limit: self.name.clone(), why })
    }

    /// The quota at `rate`, as a refused caller of an HTTP service reads it.
    pub(super) fn quota(&self, rate: Rate) -> Quota {
        match self.shape {
            Shape::Concurrency { max, .. } => Quota::Concurrency(max.into()),
            _ => Quota::Rate(rate),
        }
    }

    /// The greatest cost of a call under `rule`, in permits.
    pub(super) fn most(&self, rule: &Rule) -> i64 {
        let spaces = rule.as_rate().is_some_and(|rate| rate.facts().spaces_permits);
        let most = if spaces { 1 } else { rule.capacity() };
        self.max_cost.map_or(most, i64::from).min(rule.capacity())
    }

    /// The policy of the store for this limit at `rate`, while it cannot decide.
    pub(super) fn on_failure(&self, rate: Rate) -> OnFailure {
        match (self.without_store, self.shape) {
            (WithoutStore::Share, Shape::Concurrency { .. }) => {
                OnFailure::Share { period: Micros::MAX }
            }
            (WithoutStore::Share, _) => OnFailure::Share { period: span(rate.period) },
            (WithoutStore::Allow, _) => OnFailure::Allow,
            (WithoutStore::Refuse, _) => OnFailure::Reject,
        }
    }
}

/// A span in µs. Beyond what the rules compute with it becomes a span that they refuse.
fn span(span: Duration) -> Micros {
    i64::try_from(span.as_micros()).unwrap_or(Micros::MAX)
}
