//! What each request writes to: of one worker alone, so that no worker waits for what another has just written.

use super::plan::{Plan, RoutePlan};
use crate::{
    metrics::{self, Counted, Decisions, Outcome, Outcomes, Statuses, Times},
    store::Checks,
    upstream::headers::Rules,
};
use metrics_exporter_prometheus::PrometheusHandle;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Of one worker.
#[derive(Debug)]
pub struct Ledger {
    /// By index of the route.
    pub(super) lines: Box<[RouteLine]>,
    /// The same.
    pub(super) routes: Box<[RouteLedger]>,
    pub(super) no_route: RouteLedger,
    /// By index of the limiter.
    pub(super) limiters: Box<[LimiterLedger]>,
    /// By index of the upstream.
    pub(super) upstreams: Box<[UpstreamLedger]>,
    /// What requests took less what they waited and what the upstream took.
    pub(super) overhead: Overhead,
}

/// Of one route, what a request that goes at once needs: one cache line, for with thousands of routes each one is one from
/// memory.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct RouteLine {
    /// Requests that were forwarded without having been held. [`RouteLedger`] has all others.
    at_once: AtomicU64,
    /// What its limiters are asked, where nothing of it depends on the request. To hold it is to count who does.
    pub(super) fixed: Option<Checks>,
    pub(super) max_wait: Duration,
    /// What the operator changes in headers: of the upstream, then of the route. `None`: nothing.
    pub(super) rules: Option<Arc<[Rules; 2]>>,
    pub(super) upstream: u32,
    /// The limiter behind its check, where it is one.
    pub(super) limiter: Option<u32>,
}

/// Of one route.
#[derive(Debug, Default)]
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
    /// For a worker whose `routes` ask `fixed`; those that ask the same share it here, too.
    pub(super) fn new(
        routes: &[RoutePlan],
        fixed: &[Option<Checks>],
        limiters: usize,
        upstreams: usize,
    ) -> Self {
        let fixed = own(fixed);
        Self {
            lines: routes.iter().zip(fixed).map(|(route, fixed)| route.line(fixed)).collect(),
            routes: routes.iter().map(|_| RouteLedger::default()).collect(),
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

/// Checks of one worker: counting who holds them keeps no other from its own.
fn own(fixed: &[Option<Checks>]) -> Vec<Option<Checks>> {
    let mut own = HashMap::new();
    let mut copy = |checks: &Checks| {
        let copied = || Checks::from(&checks[..]);
        own.entry(Arc::as_ptr(checks)).or_insert_with(copied).clone()
    };
    fixed.iter().map(|fixed| fixed.as_ref().map(&mut copy)).collect()
}

// === impl RouteLine ===

impl RouteLine {
    pub(super) fn new(
        fixed: Option<Checks>,
        max_wait: Duration,
        rules: Option<Arc<[Rules; 2]>>,
        upstream: u32,
        limiter: Option<u32>,
    ) -> Self {
        Self { at_once: AtomicU64::new(0), fixed, max_wait, rules, upstream, limiter }
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
        let routes = self.routes.iter().enumerate().map(|(i, plan)| {
            let all = RouteLedger::default();
            self.ledgers.iter().for_each(|ledger| ledger.add_to(&all, i));
            (&plan.metrics, all.requests, all.wait)
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
        metrics::text(exporter, Counted { routes, limiters, upstreams, overhead })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        algorithm::{Algorithm, TokenBucket},
        store::{Check, OnFailure},
    };
    fn checks(key: &str) -> Checks {
        let check = Check {
            key: key.into(),
            algorithm: Algorithm::TokenBucket(TokenBucket::ONE_A_SECOND),
            cost: 1,
            enforce: true,
            hidden: 0,
            overflow: None,
            on_failure: OnFailure::Whole,
        };
        [check].into()
    }

    #[test]
    fn what_most_requests_touch_of_a_route_is_one_cache_line() {
        assert_eq!(size_of::<RouteLine>(), 64);
    }

    #[test]
    fn requests_that_went_at_once_are_among_all() {
        let line = || RouteLine::new(None, Duration::ZERO, None, 0, None);
        let ledger = Ledger {
            lines: [line(), line()].into(),
            routes: [RouteLedger::default(), RouteLedger::default()].into(),
            no_route: RouteLedger::default(),
            limiters: [].into(),
            upstreams: [].into(),
            overhead: Overhead::default(),
        };
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

    #[test]
    fn each_worker_asks_with_its_own() {
        let (one, other) = (checks("a"), checks("b"));
        let fixed = [Some(one.clone()), None, Some(other), Some(one.clone())];
        let workers = [own(&fixed), own(&fixed)];
        let asked = |worker: usize, route: usize| workers[worker][route].clone();
        let (first, second) = (asked(0, 0).expect("checks"), asked(1, 0).expect("checks"));
        assert!(first == one && !Arc::ptr_eq(&first, &one) && !Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&first, &asked(0, 3).expect("checks")) && asked(0, 1).is_none());
        assert_eq!(asked(1, 2), fixed[2]);
    }
}
