//! The permits of one call, from the moment that it may be made to its end.

use super::{CostLimit, Reservation, Settled, asked::Asked};
use std::time::Duration;

/// The permits that a [`Limiter`](super::Limiter) gave to one call.
///
/// Permits of rates are spent. A concurrency permit is held, and its lease renewed, until this value is dropped: keep it
/// until the call has ended.
///
/// ```
/// use paceway_limit::{Limit, Limiter, memory};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Limit::concurrency("parallel", 1), memory())?;
/// let running = limiter.acquire(1).await?;
/// assert!(limiter.try_acquire(1).await.is_err());
/// drop(running);
/// assert!(limiter.try_acquire(1).await.is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Acquired {
    reservation: Reservation,
    /// The limits, in the order of the reservation's checks.
    asked: Asked,
    waited: Duration,
}

// === impl Acquired ===

impl Acquired {
    pub(super) fn new(mut reservation: Reservation, asked: Asked, waited: Duration) -> Self {
        reservation.spend();
        Self { reservation, asked, waited }
    }

    /// How long the call had to wait for its permits.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Settles the permits of `limit` for a call that cost `true_cost` of them: the ones that it did not use
    /// are refunded, and the ones that it used in addition are a debt that later calls wait for. A limit is settled once;
    /// further calls, those for a concurrency limit and those for an unknown name change nothing.
    ///
    /// An answer of a language model costs as many tokens as it has, which is known at its end:
    ///
    /// ```
    /// use paceway_limit::{Limit, Limiter, Rate, Settled, memory};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tokens = Limit::token_bucket("tokens", Rate { count: 1000, period: Duration::from_secs(60) }, 1000);
    /// let limiter = Limiter::new(tokens, memory())?;
    /// let mut answer = limiter.acquire(1000).await?;
    /// assert!(limiter.try_acquire(500).await.is_err());
    /// assert_eq!(answer.settle("tokens", 200), Settled::Refunded(800));
    /// assert!(limiter.try_acquire(500).await.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn settle(&mut self, limit: impl CostLimit, true_cost: u32) -> Settled {
        let index = self.asked.check_of(&limit);
        let settlement = index.and_then(|index| self.reservation.settlement(index));
        settlement.map_or(Settled::Exact, |settlement| settlement.settle(true_cost.into()))
    }

    /// Refunds all permits, because the call was not made after all: another call may have them.
    pub fn refund(self) {
        self.reservation.refund();
    }
}
