//! The permits of one call, from the moment that it may be made to its end.

use super::Reservation;
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
/// assert!(limiter.try_acquire(1, Duration::ZERO).await.is_err());
/// drop(running);
/// assert!(limiter.try_acquire(1, Duration::ZERO).await.is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Acquired {
    reservation: Reservation,
    waited: Duration,
}

// === impl Acquired ===

impl Acquired {
    pub(super) fn new(mut reservation: Reservation, waited: Duration) -> Self {
        reservation.spend();
        Self { reservation, waited }
    }

    /// How long the call had to wait for its permits.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Refunds all permits, because the call was not made after all: another call may have them.
    pub fn refund(self) {
        self.reservation.refund();
    }
}
