//! What each request writes to: of one worker alone, so that no worker waits for what another has just written.

use super::plan::Plan;
use crate::{
    metrics::{self, Counted, Decisions, Outcome, Outcomes, Statuses, Times},
    store::Checks,
};
use metrics_exporter_prometheus::PrometheusHandle;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Of one worker.
#[derive(Debug)]
pub struct Ledger {
    /// By index of the route.
    pub(super) lines: Box<[RouteLine]>,
    /// The same.
    pub(super) routes: Box<[RouteLedger]>,
    /// By index of the terms, what their limiters are asked, where nothing of it depends on the request. To hold it is to
    /// count who does.
    pub(super) fixed: Box<[Option<Checks>]>,
    pub(super) no_route: RouteLedger,
    /// By index of the limiter.
    pub(super) limiters: Box<[LimiterLedger]>,
    /// By index of the upstream.
    pub(super) upstreams: Box<[UpstreamLedger]>,
    /// What requests took less what they waited and what the upstream took.
    pub(super) overhead: Overhead,
}

/// Of one route, what a request that goes at once needs.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct RouteLine {
    /// Requests that were forwarded without having been held. [`RouteLedger`] has all others.
    at_once: AtomicU64,
    /// Index of its terms.
    pub(super) terms: usize,
}

/// Of one route.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct RouteLedger {
    pub(super) requests: Outcomes,
    /// Time that forwarded requests were held.
    pub(super) wait: Times,
}

/// Of one limiter.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct LimiterLedger {
    pub(super) decisions: Decisions,
}

/// Of one upstream.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct UpstreamLedger {
    pub(super) statuses: Statuses,
    /// Time to the head of the response.
    pub(super) seconds: Times,
}

#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Overhead(pub(super) Times);

// === impl Ledger ===

impl Ledger {
    /// For a worker of a plan whose routes have the terms with these indices, whose limiters are asked `fixed`: its own.
    pub(super) fn new(
        terms: &[usize],
        fixed: Box<[Option<Checks>]>,
        limiters: usize,
        upstreams: usize,
    ) -> Self {
        Self {
            lines: terms.iter().map(|terms| RouteLine::new(*terms)).collect(),
            routes: terms.iter().map(|_| RouteLedger::default()).collect(),
            fixed,
            no_route: RouteLedger::default(),
            limiters: (0..limiters).map(|_| LimiterLedger::default()).collect(),
            upstreams: (0..upstreams).map(|_| UpstreamLedger::default()).collect(),
            overhead: Overhead::default(),
        }
    }

    /// Counts a request that was forwarded to the upstream of `route` without having been held, and its answer.
    pub(super) fn passed(&self, route: usize) {
        self.lines[route].at_once.fetch_add(1, Relaxed);
    }

    /// All that was counted of `route`, in which there is nothing yet.
    fn add_to(&self, all: &RouteLedger, route: usize) {
        all.add(&self.routes[route]);
        let at_once = self.lines[route].at_once.load(Relaxed);
        all.requests.count_many(Outcome::Passed, at_once);
        all.wait.record_many(Duration::ZERO, at_once);
    }
}

// === impl RouteLine ===

impl RouteLine {
    fn new(terms: usize) -> Self {
        Self { at_once: AtomicU64::new(0), terms }
    }
}

// === impl RouteLedger ===

impl RouteLedger {
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
            let all = RouteLedger::default();
            self.ledgers.iter().for_each(|ledger| ledger.add_to(&all, i));
            (metrics, all.requests, all.wait)
        });
        let no_route = RouteLedger::default();
        self.ledgers.iter().for_each(|ledger| no_route.add(&ledger.no_route));
        let limiters = self.limiters.iter().enumerate().map(|(i, plan)| {
            let all = Decisions::default();
            self.ledgers.iter().for_each(|ledger| all.add(&ledger.limiters[i].decisions));
            (&plan.metrics, all)
        });
        let upstreams = self.upstreams.iter().enumerate().map(|(i, upstream)| {
            let (statuses, seconds) = (Statuses::default(), Times::default());
            for own in self.ledgers.iter().map(|ledger| &ledger.upstreams[i]) {
                statuses.add(&own.statuses);
                seconds.add(&own.seconds);
            }
            (upstream, statuses, seconds)
        });
        let overhead = Times::default();
        self.ledgers.iter().for_each(|ledger| overhead.add(&ledger.overhead.0));
        let routes = routes.chain([(&self.no_route, no_route.requests, no_route.wait)]);
        let waits = self.config.routes.iter().map(|route| route.max_wait.max(route.max_wait_cap));
        let longest_wait = waits.max().unwrap_or_default();
        metrics::text(exporter, Counted { routes, limiters, upstreams, overhead, longest_wait })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_went_at_once_are_among_all() {
        let ledger = Ledger::new(&[0, 0], [None].into(), 0, 0);
        ledger.passed(1);
        ledger.passed(1);
        ledger.routes[1].requests.count(Outcome::Passed);
        ledger.routes[1].wait.record(Duration::from_nanos(1));
        let (all, expected) = (RouteLedger::default(), RouteLedger::default());
        ledger.add_to(&all, 1);
        expected.requests.count_many(Outcome::Passed, 3);
        expected.wait.record_many(Duration::ZERO, 2);
        expected.wait.record(Duration::from_nanos(1));
        assert_eq!(format!("{all:?}"), format!("{expected:?}"));
    }
}
