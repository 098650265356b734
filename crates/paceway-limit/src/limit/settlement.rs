//! The true cost of a call that reserved permits for a cost that it did not know yet.

use super::Reservation;
use crate::{
    algorithm::reserve::Part,
    store::{Check, Opening, Source, Store},
};
use std::sync::Arc;
use tokio::time::Instant;

/// The right to settle the permits of one limiter, once: a call that reserved 1000 permits and cost 200 gets 800 of them
/// refunded, and one that cost 1200 owes 200, which later calls wait for. Dropped, the reserved permits count as the cost.
#[derive(Debug)]
pub struct Settlement {
    store: Arc<dyn Store>,
    source: Source,
    check: Check,
    part: Part,
}

/// The difference between the permits that a call reserved and its true cost, as
/// [`Acquired::settle`](super::Acquired::settle) returns it.
///
/// ```
/// use paceway_limit::{Limit, Limiter, Rate, Settled, memory};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let points = Limit::token_bucket("points", Rate::per_second(10), 100);
/// let limiter = Limiter::new(points, memory())?;
/// let mut call = limiter.acquire(20).await?;
/// // The answer says that the call cost 25 points.
/// match call.settle("points", 25) {
///     Settled::Exact => println!("as expected"),
///     Settled::Refunded(unused) => println!("{unused} points were not used"),
///     Settled::Owed(more) => assert_eq!(more, 5),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The call cost what it had reserved, or the limiter had granted nothing.
    Exact,
    /// The limiter got this number of permits back.
    Refunded(i64),
    /// The limiter was charged this number of permits after the call.
    Owed(i64),
}

// === impl Settlement ===

impl Settlement {
    /// The permits that were reserved.
    pub fn reserved(&self) -> i64 {
        self.check.cost
    }

    /// Gives back up to `permits` of those that are left, as often as it is called. Returns how many it gave back.
    pub fn give_back(&mut self, permits: i64) -> i64 {
        let given = permits.clamp(0, self.check.cost);
        let left = self.check.cost - given;
        if given > 0 && self.source != Source::None {
            self.store.settle(self.source, &self.check, self.part, left);
            self.store.pauses().openings().opened(&self.check.key, Opening::new(Instant::now()));
        }
        self.check.cost = left;
        given
    }

    /// The key of the state whose permits these are.
    pub fn state(&self) -> &Arc<str> {
        &self.check.key
    }

    /// Settles the permits for a call that cost `true_cost`. It does not wait: a refund that does not reach the store
    /// counts as spent.
    pub fn settle(self, true_cost: i64) -> Settled {
        let Self { store, source, check, part } = self;
        let true_cost = true_cost.max(0);
        if source == Source::None || true_cost == check.cost {
            return Settled::Exact;
        }
        store.settle(source, &check, part, true_cost);
        match true_cost - check.cost {
            owed if owed > 0 => Settled::Owed(owed),
            unused => {
                // Calls that wait may use what is free now.
                store.pauses().openings().opened(&check.key, Opening::new(Instant::now()));
                Settled::Refunded(-unused)
            }
        }
    }
}

// === impl Reservation ===

impl Reservation {
    /// Takes the right to settle the permits of the check at `index`. `None` before the permits are spent, for a
    /// concurrency permit, for a limiter that granted nothing, and when it was taken before.
    pub fn settlement(&mut self, index: usize) -> Option<Settlement> {
        let check = self.checks.get(index).filter(|check| !check.is_lease() && self.spent)?;
        let part = self.parts.get_mut(index).filter(|part| part.at >= 0)?;
        let part = std::mem::replace(part, Part::NOTHING);
        let (store, source) = (self.store.clone(), self.source);
        Some(Settlement { store, source, check: check.clone(), part })
    }
}
