//! The counts of one route or of one upstream at one moment, as the dashboard draws them. Two moments give a rate.

use super::counters::{RouteCounts, UpstreamCounters};
use crate::metrics::{Outcome, TimeCounts};

/// The counts of one route or one upstream since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExchangeTotals {
    /// Requests of a route, or answers of an upstream: all of them, then the kinds of [`ROUTE_KINDS`] or [`UPSTREAM_KINDS`].
    pub counts: [u64; 4],
    /// The waits of the requests that were forwarded, or the times of the answers.
    pub times: TimeCounts,
}

/// The names of the counts of a route: all requests, those that waited, those that a limiter, a full queue or the store
/// refused, and those that failed otherwise.
pub const ROUTE_KINDS: [&str; 4] = ["requests", "waited", "refused", "failed"];
/// The names of the counts of an upstream: all answers, those with status 429, with another 4xx, and with 5xx.
pub const UPSTREAM_KINDS: [&str; 4] = ["answers", "status_429", "status_4xx", "status_5xx"];

// === impl ExchangeTotals ===

impl ExchangeTotals {
    pub(super) fn of_route(counted: &RouteCounts) -> Self {
        let mut counts = [0; 4];
        for outcome in Outcome::ALL {
            let requests = counted.requests.get(outcome);
            counts[0] += requests;
            let kind = match outcome {
                Outcome::Passed | Outcome::Observed => continue,
                Outcome::Waited => 1,
                Outcome::Refused
                | Outcome::Throttled
                | Outcome::Paused
                | Outcome::QueueFull
                | Outcome::Draining
                | Outcome::LimiterMissing
                | Outcome::StoreUnavailable => 2,
                Outcome::NoRoute
                | Outcome::BadRequest
                | Outcome::UpstreamFailed
                | Outcome::Cancelled => 3,
            };
            counts[kind] += requests;
        }
        Self { counts, times: counted.wait().counts() }
    }

    pub(super) fn of_upstream(counted: &UpstreamCounters) -> Self {
        let mut counts = [0; 4];
        for (status, answers) in counted.statuses.all() {
            counts[0] += answers;
            match status {
                429 => counts[1] += answers,
                400..500 => counts[2] += answers,
                500.. => counts[3] += answers,
                _ => {}
            }
        }
        Self { counts, times: counted.seconds.counts() }
    }

    /// The counts after `before`.
    pub fn since(&self, before: &Self) -> Self {
        let mut counts = self.counts;
        let both = counts.iter_mut().zip(before.counts);
        both.for_each(|(count, before)| *count = count.saturating_sub(before));
        Self { counts, times: self.times.since(&before.times) }
    }
}
