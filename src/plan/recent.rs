//! The requests that limiters held or refused last, for operators who ask why. A request that passes at once is not among
//! them, so that it costs nothing here.

use crate::{algorithm::Micros, answer::Failure, metrics::Outcome, throttle::Timestamp};
use http::HeaderValue;
use parking_lot::Mutex;
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// The number of requests that are kept.
pub const MOST_RECENT: usize = 50;

/// The requests that were held or refused last, at most [`MOST_RECENT`]. All workers share them.
#[derive(Debug, Default)]
pub struct RecentRequests(Mutex<VecDeque<RecentRequest>>);

/// A request that was held or refused.
#[derive(Debug, Clone)]
pub struct RecentRequest {
    /// When it was decided.
    pub at: Timestamp,
    /// The `X-Request-Id` of the request.
    pub id: HeaderValue,
    /// The name of its route.
    pub route: Arc<str>,
    /// The name of the state that held or refused it; `None` if the store gave no decision. A name holds secrets as hashes.
    pub state: Option<Arc<str>>,
    /// The decision.
    pub reason: RecentReason,
}

/// The decision about a request that did not pass at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecentReason {
    /// It was held for a slot that comes after this time.
    Slot(Duration),
    /// It was held for a concurrency permit.
    Permit,
    /// It was refused.
    Refused {
        /// The way in which it ended, such as [`Outcome::QueueFull`].
        outcome: Outcome,
        /// The time after which its client may come back, µs.
        retry_after: Option<Micros>,
        /// Whether the limiter is closed because the store has lost its states.
        is_closed: bool,
    },
}

// === impl RecentRequests ===

impl RecentRequests {
    /// Adds a request, and forgets the oldest one if there are [`MOST_RECENT`].
    pub fn note(&self, request: RecentRequest) {
        let mut all = self.0.lock();
        let oldest = if all.len() < MOST_RECENT { None } else { all.pop_back() };
        all.push_front(request);
        // Freed without the lock.
        drop(all);
        drop(oldest);
    }

    /// All of them, the newest first.
    pub fn all(&self) -> Vec<RecentRequest> {
        self.0.lock().iter().cloned().collect()
    }
}

// === impl RecentReason ===

impl RecentReason {
    /// The refusal as operators see it.
    pub fn refused(failure: &Failure) -> Self {
        let is_closed = matches!(failure, Failure::Closed(_));
        Self::Refused { outcome: failure.outcome(), retry_after: failure.retry_after(), is_closed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest_entries() {
        let recent = RecentRequests::default();
        for millis in 0..60 {
            recent.note(RecentRequest {
                at: Timestamp::now(),
                id: HeaderValue::from_static("a"),
                route: "r".into(),
                state: None,
                reason: RecentReason::Slot(Duration::from_millis(millis)),
            });
        }
        let all = recent.all();
        let reasons = [59, 10].map(|millis| RecentReason::Slot(Duration::from_millis(millis)));
        assert_eq!([all[0].reason.clone(), all[MOST_RECENT - 1].reason.clone()], reasons);
        assert_eq!(all.len(), MOST_RECENT);
    }
}
