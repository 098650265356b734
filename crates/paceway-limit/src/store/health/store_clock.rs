//! The store's clock, as its last answer showed it.

use crate::algorithm::Micros;
use tokio::time::Instant;

/// The clock of decisions here when no store has ever said its own, µs since 1970: about the year 2001, as that of the
/// memory store.
const EPOCH: Micros = 1_000_000_000_000_000;

/// The instant that the store said, and when it did.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct StoreClock {
    pub(super) said: Micros,
    pub(super) at: Instant,
}

// === impl StoreClock ===

impl StoreClock {
    pub(super) fn first() -> Self {
        Self { said: EPOCH, at: Instant::now() }
    }

    pub(in crate::store) fn now(&self) -> Micros {
        self.said.saturating_add(i64::try_from(self.at.elapsed().as_micros()).unwrap_or(i64::MAX))
    }
}
