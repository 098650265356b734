//! The counters that each request writes to. Each worker has its own, so that no worker waits for a cache line that
//! another has just written.

use super::Plan;
use crate::{
    metrics::{Decisions, LimiterCounts, Outcome, Outcomes, Statuses, TimeHistogram},
    store::Checks,
};
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// The counters of one worker.
#[derive(Debug)]
pub struct WorkerCounters {
    /// The counter of requests that passed at once, and the policy, by index of the route.
    pub(crate) direct: Box<[DirectCounter]>,
    /// The requests of each route that waited, were refused or failed, by its index.
    pub(crate) routes: Box<[RequestCounters]>,
    /// The checks of each policy whose checks do not depend on the request, by index of the policy. Each worker has its
    /// own: they are counted references, and workers that shared them would write to one cache line.
    pub(crate) fixed: Box<[Option<Checks>]>,
    /// The requests that match no route.
    pub(crate) no_route: RequestCounters,
    /// The counters of each limiter, by its index.
    pub(crate) limiters: Box<[LimiterCounters]>,
    /// The counters of each upstream, by its index.
    pub(crate) upstreams: Box<[UpstreamCounters]>,
    /// The time of requests to the head of the response, less their wait and the upstream's time.
    pub(crate) overhead: Overhead,
}

/// The part of a route that a request needs which passes at once: one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct DirectCounter {
    /// Requests that were forwarded without having been held. [`RequestCounters`] has all other requests.
    at_once: AtomicU64,
    /// The index of the policy of the route.
    pub(crate) policy: usize,
}

/// Requests by outcome, and the waits of those that were forwarded. A worker has one for each route, beside its
/// [`DirectCounter`], and one for requests without a route; `/metrics` adds them up in a further one.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct RequestCounters {
    pub(crate) requests: Outcomes,
    /// The time for which forwarded requests were held.
    pub(crate) wait: TimeHistogram,
}

/// The counters of one limiter in one worker.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct LimiterCounters {
    pub(crate) decisions: Decisions,
    /// Permits with which requests were sent.
    pub(crate) permits: AtomicU64,
    /// The time that requests were held because of it.
    pub(crate) wait: TimeHistogram,
}

/// The counters of one upstream in one worker.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct UpstreamCounters {
    pub(crate) statuses: Statuses,
    /// The time from the slot to the head of the response.
    pub(crate) seconds: TimeHistogram,
}

#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Overhead(pub(crate) TimeHistogram);

// === impl WorkerCounters ===

impl WorkerCounters {
    /// Makes the counters of a worker. `policy` has the index of the policy of each route, and `fixed` the checks that
    /// the worker owns.
    pub(crate) fn new(
        policy: &[usize],
        fixed: Box<[Option<Checks>]>,
        limiters: usize,
        upstreams: usize,
    ) -> Self {
        Self {
            direct: policy.iter().map(|policy| DirectCounter::new(*policy)).collect(),
            routes: policy.iter().map(|_| RequestCounters::default()).collect(),
            fixed,
            no_route: RequestCounters::default(),
            limiters: (0..limiters).map(|_| LimiterCounters::default()).collect(),
            upstreams: (0..upstreams).map(|_| UpstreamCounters::default()).collect(),
            overhead: Overhead::default(),
        }
    }

    /// Counts a request that was forwarded to the upstream of `route` without having been held, and its answer.
    pub(crate) fn passed(&self, route: usize) {
        self.direct[route].at_once.fetch_add(1, Relaxed);
    }

    /// Adds all that this worker counted of `route` to `all`, which was empty for the first worker.
    pub(super) fn add_to(&self, all: &RequestCounters, route: usize) {
        all.add(&self.routes[route]);
        let at_once = self.direct[route].at_once.load(Relaxed);
        all.requests.count_many(Outcome::Passed, at_once);
        all.wait.record_many(Duration::ZERO, at_once);
    }
}

// === impl DirectCounter ===

impl DirectCounter {
    fn new(policy: usize) -> Self {
        Self { at_once: AtomicU64::new(0), policy }
    }
}

// === impl RequestCounters ===

impl RequestCounters {
    pub(super) fn add(&self, other: &Self) {
        self.requests.add(&other.requests);
        self.wait.add(&other.wait);
    }
}

// === impl LimiterCounters ===

impl LimiterCounters {
    pub(super) fn add(&self, other: &Self) {
        self.decisions.add(&other.decisions);
        self.permits.fetch_add(other.permits.load(Relaxed), Relaxed);
        self.wait.add(&other.wait);
    }

    /// The counts as `/metrics` shows them.
    pub(super) fn into_counts(self) -> LimiterCounts {
        let Self { decisions, permits, wait } = self;
        LimiterCounts { decisions, permits: permits.into_inner(), wait }
    }
}

// === impl UpstreamCounters ===

impl UpstreamCounters {
    pub(super) fn add(&self, other: &Self) {
        self.statuses.add(&other.statuses);
        self.seconds.add(&other.seconds);
    }
}

// === impl Plan ===

impl Plan {
    /// The counts of the route with index `i`, over all workers.
    pub(super) fn route_counts(&self, i: usize) -> RequestCounters {
        let all = RequestCounters::default();
        self.counters.iter().for_each(|own| own.add_to(&all, i));
        all
    }

    /// The counts of the limiter with index `i`, over all workers.
    pub(super) fn limiter_counts(&self, i: usize) -> LimiterCounters {
        let all = LimiterCounters::default();
        self.counters.iter().for_each(|own| all.add(&own.limiters[i]));
        all
    }

    /// The answers of the upstream with index `i`, over all workers.
    pub(super) fn upstream_counts(&self, i: usize) -> UpstreamCounters {
        let all = UpstreamCounters::default();
        self.counters.iter().for_each(|own| all.add(&own.upstreams[i]));
        all
    }

    /// Adds the counts of requests without a route, and the gateway's own time, over all workers.
    pub(super) fn add_unrouted(&self, no_route: &RequestCounters, overhead: &TimeHistogram) {
        for own in &self.counters {
            no_route.add(&own.no_route);
            overhead.add(&own.overhead.0);
        }
        for own in self.services.iter().flat_map(|service| &service.workers) {
            overhead.add(&own.overhead.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_went_at_once_are_among_all() {
        let counters = WorkerCounters::new(&[0, 0], [None].into(), 0, 0);
        counters.passed(1);
        counters.passed(1);
        counters.routes[1].requests.count(Outcome::Passed);
        counters.routes[1].wait.record(Duration::from_nanos(1));
        let (all, expected) = (RequestCounters::default(), RequestCounters::default());
        counters.add_to(&all, 1);
        expected.requests.count_many(Outcome::Passed, 3);
        expected.wait.record_many(Duration::ZERO, 2);
        expected.wait.record(Duration::from_nanos(1));
        assert_eq!(format!("{all:?}"), format!("{expected:?}"));
    }
}
