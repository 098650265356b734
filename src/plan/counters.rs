//! What each request writes to: of one worker alone, so that no worker waits for what another has just written.

use super::Plan;
use crate::{
    metrics::{self, Decisions, Outcome, Outcomes, Statuses, TimeHistogram, WorkerCounts},
    store::Checks,
};
use metrics_exporter_prometheus::PrometheusHandle;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Of one worker.
#[derive(Debug)]
pub struct WorkerCounters {
    /// By index of the route.
    pub(crate) lines: Box<[DirectCounter]>,
    /// The same.
    pub(crate) routes: Box<[RouteCounters]>,
    /// By index of the policy, what their limiters are asked, where nothing of it depends on the request. To hold it is to
    /// count who does.
    pub(crate) fixed: Box<[Option<Checks>]>,
    pub(crate) no_route: RouteCounters,
    /// By index of the limiter.
    pub(crate) limiters: Box<[LimiterCounters]>,
    /// By index of the upstream.
    pub(crate) upstreams: Box<[UpstreamCounters]>,
    /// What requests took less what they waited and what the upstream took.
    pub(crate) overhead: Overhead,
}

/// Of one route, what a request that goes at once needs.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct DirectCounter {
    /// Requests that were forwarded without having been held. [`RouteCounters`] has all others.
    at_once: AtomicU64,
    /// Index of its policy.
    pub(crate) policy: usize,
}

/// Of one route.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct RouteCounters {
    pub(crate) requests: Outcomes,
    /// Time that forwarded requests were held.
    pub(crate) wait: TimeHistogram,
}

/// Of one limiter.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct LimiterCounters {
    pub(crate) decisions: Decisions,
}

/// Of one upstream.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct UpstreamCounters {
    pub(crate) statuses: Statuses,
    /// Time to the head of the response.
    pub(crate) seconds: TimeHistogram,
}

#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Overhead(pub(crate) TimeHistogram);

// === impl WorkerCounters ===

impl WorkerCounters {
    /// For a worker of a plan whose routes have the policy with these indices, whose limiters are asked `fixed`: its own.
    pub(crate) fn new(
        policy: &[usize],
        fixed: Box<[Option<Checks>]>,
        limiters: usize,
        upstreams: usize,
    ) -> Self {
        Self {
            lines: policy.iter().map(|policy| DirectCounter::new(*policy)).collect(),
            routes: policy.iter().map(|_| RouteCounters::default()).collect(),
            fixed,
            no_route: RouteCounters::default(),
            limiters: (0..limiters).map(|_| LimiterCounters::default()).collect(),
            upstreams: (0..upstreams).map(|_| UpstreamCounters::default()).collect(),
            overhead: Overhead::default(),
        }
    }

    /// Counts a request that was forwarded to the upstream of `route` without having been held, and its answer.
    pub(crate) fn passed(&self, route: usize) {
        self.lines[route].at_once.fetch_add(1, Relaxed);
    }

    /// All that was counted of `route`, in which there is nothing yet.
    fn add_to(&self, all: &RouteCounters, route: usize) {
        all.add(&self.routes[route]);
        let at_once = self.lines[route].at_once.load(Relaxed);
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

// === impl RouteCounters ===

impl RouteCounters {
    fn add(&self, other: &Self) {
        self.requests.add(&other.requests);
        self.wait.add(&other.wait);
    }
}

// === impl Plan ===

impl Plan {
    /// All metrics, those of `exporter` among them, as text.
    pub fn measured(&self, exporter: &PrometheusHandle) -> String {
        let routes = self.routes.iter().enumerate().map(|(i, metrics)| {
            let all = RouteCounters::default();
            self.counters.iter().for_each(|counters| counters.add_to(&all, i));
            (metrics, all.requests, all.wait)
        });
        let no_route = RouteCounters::default();
        self.counters.iter().for_each(|counters| no_route.add(&counters.no_route));
        let limiters = self.limiters.iter().enumerate().map(|(i, plan)| {
            let all = Decisions::default();
            self.counters.iter().for_each(|counters| all.add(&counters.limiters[i].decisions));
            (&plan.metrics, all)
        });
        let upstreams = self.upstreams.iter().enumerate().map(|(i, upstream)| {
            let (statuses, seconds) = (Statuses::default(), TimeHistogram::default());
            for own in self.counters.iter().map(|counters| &counters.upstreams[i]) {
                statuses.add(&own.statuses);
                seconds.add(&own.seconds);
            }
            (upstream, statuses, seconds)
        });
        let overhead = TimeHistogram::default();
        self.counters.iter().for_each(|counters| overhead.add(&counters.overhead.0));
        let routes = routes.chain([(&self.no_route, no_route.requests, no_route.wait)]);
        let waits = self.config.routes.iter().map(|route| route.max_wait.max(route.max_wait_cap));
        let longest_wait = waits.max().unwrap_or_default();
        metrics::text(
            exporter,
            WorkerCounts { routes, limiters, upstreams, overhead, longest_wait },
        )
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
        let (all, expected) = (RouteCounters::default(), RouteCounters::default());
        counters.add_to(&all, 1);
        expected.requests.count_many(Outcome::Passed, 3);
        expected.wait.record_many(Duration::ZERO, 2);
        expected.wait.record(Duration::from_nanos(1));
        assert_eq!(format!("{all:?}"), format!("{expected:?}"));
    }
}
