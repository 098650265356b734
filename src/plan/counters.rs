//! The counters that each request writes to. Each worker has its own, so that no worker waits for a cache line that
//! another has just written.

use super::Plan;
use crate::{
    algorithm::fair::Priority,
    config::{PRIORITIES, PriorityRule},
    metrics::{
        DECISIONS, Decisions, GRANTED, LIMITER_WAIT, Outcome, Outcomes, REQUESTS, Scrape, Statuses,
        TimeHistogram, UPSTREAM_REQUESTS, UPSTREAM_SECONDS, WAIT,
    },
    store::{Checks, Question},
};
use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
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
    /// The same for each policy with accounts: the question of all its requests.
    fixed_questions: Box<[Option<Question>]>,
    /// The requests that match no route.
    pub(crate) no_route: RequestCounters,
    /// The counters of each limiter, by its index.
    pub(crate) limiters: Box<[LimiterCounters]>,
    /// The counters of each upstream, by its index.
    pub(crate) upstreams: Box<[UpstreamCounters]>,
    /// The time of requests to the head of the response, less their wait and the upstream's time.
    pub(crate) overhead: Overhead,
}

/// A route, as its requests are counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountedRoute {
    /// The index of its policy.
    pub(crate) policy: usize,
    /// The priority of its requests, except for those that say their own.
    pub(crate) priority: Priority,
}

/// The part of a route that a request needs which passes at once: one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct DirectCounter {
    /// Requests that were forwarded without having been held. [`RequestCounters`] has all other requests.
    at_once: AtomicU64,
    /// The index of the policy of the route.
    pub(crate) policy: usize,
    /// The priority of the route's requests, except for those that say their own.
    priority: Priority,
}

/// Requests by outcome, and the waits of those that were forwarded. A worker has one for each route, beside its
/// [`DirectCounter`], and one for requests without a route; `/metrics` adds them up in a [`RouteCounts`].
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct RequestCounters {
    pub(crate) requests: Outcomes,
    /// The time for which forwarded requests were held that have the priority of their route.
    pub(crate) wait: TimeHistogram,
    /// The same for requests that say their own priority, by [`Priority`]. Made by the first of them.
    claimed: OnceLock<Box<WaitsByPriority>>,
}

/// The waits of the requests of each [`Priority`].
pub(crate) type WaitsByPriority = [TimeHistogram; PRIORITIES.len()];

/// The counts of one route, added up over workers.
#[derive(Debug, Default)]
pub(crate) struct RouteCounts {
    pub(crate) requests: Outcomes,
    /// The time for which forwarded requests were held.
    pub(crate) waits: WaitsByPriority,
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
    /// Makes the counters of a worker. `fixed` has the checks that the worker owns.
    pub(crate) fn new(
        routes: &[CountedRoute],
        fixed: Box<[Option<Checks>]>,
        limiters: usize,
        upstreams: usize,
    ) -> Self {
        Self {
            direct: routes.iter().map(DirectCounter::new).collect(),
            routes: routes.iter().map(|_| RequestCounters::default()).collect(),
            fixed,
            fixed_questions: Box::default(),
            no_route: RequestCounters::default(),
            limiters: (0..limiters).map(|_| LimiterCounters::default()).collect(),
            upstreams: (0..upstreams).map(|_| UpstreamCounters::default()).collect(),
            overhead: Overhead::default(),
        }
    }

    /// The same counters with the questions that the worker owns.
    pub(super) fn with_questions(self, fixed_questions: Box<[Option<Question>]>) -> Self {
        Self { fixed_questions, ..self }
    }

    /// The question of all requests of a route with accounts, if it depends on none of them.
    pub(crate) fn fixed_question(&self, route: usize) -> Option<&Question> {
        self.fixed_questions.get(self.direct[route].policy)?.as_ref()
    }

    /// Counts a request that was forwarded to the upstream of `route` without having been held, and its answer.
    pub(crate) fn passed(&self, route: usize) {
        self.direct[route].at_once.fetch_add(1, Relaxed);
    }

    /// Adds all that this worker counted of `route` to `all`, which was empty for the first worker.
    pub(super) fn add_to(&self, all: &RouteCounts, route: usize) {
        let DirectCounter { at_once, priority, .. } = &self.direct[route];
        all.add_counters(&self.routes[route], *priority);
        let at_once = at_once.load(Relaxed);
        all.requests.count_many(Outcome::Passed, at_once);
        all.waits[*priority as usize].record_many(Duration::ZERO, at_once);
    }
}

// === impl DirectCounter ===

impl DirectCounter {
    fn new(route: &CountedRoute) -> Self {
        Self { at_once: AtomicU64::new(0), policy: route.policy, priority: route.priority }
    }
}

// === impl RequestCounters ===

impl RequestCounters {
    /// The waits to which that of a request belongs; `claimed` is its own priority, if it says one.
    pub(crate) fn waits_of(&self, claimed: Option<Priority>) -> &TimeHistogram {
        match claimed {
            None => &self.wait,
            Some(priority) => &self.claimed.get_or_init(Box::default)[priority as usize],
        }
    }
}

// === impl RouteCounts ===

impl RouteCounts {
    pub(super) fn add(&self, other: &Self) {
        self.requests.add(&other.requests);
        self.waits.iter().zip(&other.waits).for_each(|(own, other)| own.add(other));
    }

    /// Adds what one worker counted of a route whose requests have this priority, except for those that say their own.
    pub(super) fn add_counters(&self, counted: &RequestCounters, priority: Priority) {
        self.requests.add(&counted.requests);
        self.waits[priority as usize].add(&counted.wait);
        let claimed = counted.claimed.get().into_iter().flat_map(|waits| &**waits);
        self.waits.iter().zip(claimed).for_each(|(own, other)| own.add(other));
    }

    /// The waits of all priorities.
    pub(super) fn wait(&self) -> TimeHistogram {
        let all = TimeHistogram::default();
        self.waits.iter().for_each(|waits| all.add(waits));
        all
    }

    /// Gives the counts of a route with these labels: the waits of each priority that a request of it can have, or has had.
    pub(super) fn give(&self, scrape: &mut Scrape, labels: &str, rule: &PriorityRule) {
        self.requests.give(scrape, &REQUESTS, labels);
        for (waits, (name, priority)) in self.waits.iter().zip(PRIORITIES) {
            if rule.fixed().is_none_or(|fixed| fixed == priority) || !waits.is_empty() {
                scrape.waits(&WAIT, labels, &[name], waits);
            }
        }
    }
}

// === impl LimiterCounters ===

impl LimiterCounters {
    pub(super) fn add(&self, other: &Self) {
        self.decisions.add(&other.decisions);
        self.permits.fetch_add(other.permits.load(Relaxed), Relaxed);
        self.wait.add(&other.wait);
    }

    /// Gives the counts of a limiter with this label.
    pub(super) fn give(&self, scrape: &mut Scrape, label: &str) {
        self.decisions.give(scrape, &DECISIONS, label);
        scrape.value(&GRANTED, label, &[], self.permits.load(Relaxed));
        scrape.waits(&LIMITER_WAIT, label, &[], &self.wait);
    }
}

// === impl UpstreamCounters ===

impl UpstreamCounters {
    pub(super) fn add(&self, other: &Self) {
        self.statuses.add(&other.statuses);
        self.seconds.add(&other.seconds);
    }

    /// Gives the counts of an upstream with this label.
    pub(super) fn give(&self, scrape: &mut Scrape, label: &str) {
        self.statuses.give(scrape, &UPSTREAM_REQUESTS, label);
        scrape.times(&UPSTREAM_SECONDS, label, &self.seconds);
    }
}

// === impl Plan ===

impl Plan {
    /// The counts of the route with index `i`, over all workers.
    pub(super) fn route_counts(&self, i: usize) -> RouteCounts {
        let all = RouteCounts::default();
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
    pub(super) fn add_unrouted(&self, no_route: &RouteCounts, overhead: &TimeHistogram) {
        for own in &self.counters {
            no_route.add_counters(&own.no_route, Priority::Normal);
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
    fn requests_without_a_wait_count_in_the_total() {
        let routes =
            [Priority::Normal, Priority::High].map(|priority| CountedRoute { policy: 0, priority });
        let counters = WorkerCounters::new(&routes, [None].into(), 0, 0);
        counters.passed(1);
        counters.passed(1);
        counters.routes[1].requests.count(Outcome::Passed);
        counters.routes[1].wait.record(Duration::from_nanos(1));
        let (all, expected) = (RouteCounts::default(), RouteCounts::default());
        counters.add_to(&all, 1);
        expected.requests.count_many(Outcome::Passed, 3);
        expected.waits[0].record_many(Duration::ZERO, 2);
        expected.waits[0].record(Duration::from_nanos(1));
        assert_eq!(format!("{all:?}"), format!("{expected:?}"));
    }

    #[test]
    fn waits_are_recorded_by_priority() {
        let route = CountedRoute { policy: 0, priority: Priority::Normal };
        let counters = WorkerCounters::new(&[route], [None].into(), 0, 0);
        for claimed in [Priority::Low, Priority::Low, Priority::High] {
            counters.routes[0].waits_of(Some(claimed)).record(Duration::ZERO);
        }
        let all = RouteCounts::default();
        counters.add_to(&all, 0);
        let names = |rule: PriorityRule| {
            let mut scrape = Scrape::new(Duration::ZERO);
            all.give(&mut scrape, "route=\"a\"", &rule);
            let lines = scrape.lines(&WAIT).lines();
            let counts = lines.filter_map(|line| {
                line.strip_prefix("paceway_wait_seconds_count{route=\"a\",priority=\"")
            });
            counts.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(names(PriorityRule::Rfc9218), ["high", "normal", "low"]);
        assert_eq!(names(PriorityRule::High), ["high", "low"]);
        assert_eq!(names(PriorityRule::Normal), ["high", "normal", "low"]);
    }
}
