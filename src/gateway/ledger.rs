//! What each request writes to: of one worker alone, so that no worker waits for what another has just written.

use super::plan::Plan;
use crate::{
    metrics::{self, Counted, Decisions, Outcomes, Statuses, Times},
    store::Checks,
};
use metrics_exporter_prometheus::PrometheusHandle;
use std::{collections::HashMap, sync::Arc};

/// Of one worker.
#[derive(Debug)]
pub struct Ledger {
    /// By index of the route.
    pub(super) routes: Box<[RouteLedger]>,
    pub(super) no_route: RouteLedger,
    /// By index of the limiter.
    pub(super) limiters: Box<[LimiterLedger]>,
    /// By index of the upstream.
    pub(super) upstreams: Box<[UpstreamLedger]>,
    /// What requests took less what they waited and what the upstream took.
    pub(super) overhead: Overhead,
}

/// Of one route. What most requests touch is one cache line, the second.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct RouteLedger {
    pub(super) requests: Outcomes,
    /// What its limiters are asked, where nothing of it depends on the request. To hold it is to count who does.
    pub(super) fixed: Option<Checks>,
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
    /// For a worker whose routes ask `fixed`; routes that ask the same share it here, too.
    pub(super) fn new(fixed: &[Option<Checks>], limiters: usize, upstreams: usize) -> Self {
        let mut own = HashMap::new();
        let mut copy = |checks: &Checks| {
            let copied = || Checks::from(&checks[..]);
            own.entry(Arc::as_ptr(checks)).or_insert_with(copied).clone()
        };
        let route = |fixed: &Option<Checks>| RouteLedger {
            fixed: fixed.as_ref().map(&mut copy),
            ..RouteLedger::default()
        };
        Self {
            routes: fixed.iter().map(route).collect(),
            no_route: RouteLedger::default(),
            limiters: (0..limiters).map(|_| LimiterLedger::default()).collect(),
            upstreams: (0..upstreams).map(|_| UpstreamLedger::default()).collect(),
            overhead: Overhead::default(),
        }
    }
}

// === impl Plan ===

impl Plan {
    /// All metrics, those of `exporter` among them, as text.
    pub fn measured(&self, exporter: &PrometheusHandle) -> String {
        let route = |of: &dyn Fn(&Ledger) -> &RouteLedger| {
            let (outcomes, wait) = (Outcomes::default(), Times::default());
            for own in self.ledgers.iter().map(of) {
                outcomes.add(&own.requests);
                wait.add(&own.wait);
            }
            (outcomes, wait)
        };
        let routes = self.routes.iter().enumerate().map(|(i, plan)| {
            let (outcomes, wait) = route(&|ledger| &ledger.routes[i]);
            (&plan.metrics, outcomes, wait)
        });
        let (outcomes, wait) = route(&|ledger| &ledger.no_route);
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
        let routes = routes.chain([(&self.no_route, outcomes, wait)]);
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
    use std::mem::offset_of;

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
        let line = 64..128;
        // The last of the outcomes, and the shortest of the waits behind their sum.
        let passed = offset_of!(RouteLedger, fixed) - 8;
        let at_once = offset_of!(RouteLedger, wait) + 8;
        assert!(line.contains(&passed) && line.contains(&at_once), "{passed} {at_once}");
    }

    #[test]
    fn each_worker_asks_with_its_own() {
        let (one, other) = (checks("a"), checks("b"));
        let fixed = [Some(one.clone()), None, Some(other), Some(one.clone())];
        let ledgers = [Ledger::new(&fixed, 1, 1), Ledger::new(&fixed, 1, 1)];
        let asked = |worker: usize, route: usize| ledgers[worker].routes[route].fixed.clone();
        let (first, second) = (asked(0, 0).expect("checks"), asked(1, 0).expect("checks"));
        assert!(first == one && !Arc::ptr_eq(&first, &one) && !Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&first, &asked(0, 3).expect("checks")) && asked(0, 1).is_none());
        assert_eq!(asked(1, 2), fixed[2]);
    }
}
