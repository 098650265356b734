//! The counters of plans that were replaced. Without them each reload would set the counters of `/metrics` to 0.
//!
//! Requests that began under a plan count there until they end, on their own cache lines. The ledger adds the counts of all
//! plans when `/metrics` is written, and drops a plan when its last request has ended.

use super::{
    Plan,
    counters::{LimiterCounters, RouteCounts, UpstreamCounters},
    previous::Previous,
    service_counts::EndedServiceCounts,
    totals::ExchangeTotals,
};
use crate::{
    config::PriorityRule,
    metrics::{
        DECISIONS, GRANTED, LIMITER_WAIT, OVERHEAD, Scrape, TimeHistogram, UPSTREAM_REQUESTS,
    },
};
use parking_lot::Mutex;
use std::{collections::HashMap, mem, sync::Arc};

/// The counts of all plans that were replaced. A gateway has one.
#[derive(Default)]
pub struct CountLedger(Mutex<ReplacedPlans>);

#[derive(Default)]
struct ReplacedPlans {
    /// Plans under which requests are still running or waiting.
    in_use: Vec<Arc<Plan>>,
    ended: EndedCounts,
}

/// The counts of plans without a request, by the names of routes, limiters and upstreams that the newest plan has as well.
#[derive(Default)]
struct EndedCounts {
    routes: HashMap<String, RouteCounts>,
    limiters: HashMap<String, LimiterCounters>,
    upstreams: HashMap<String, UpstreamCounters>,
    no_route: RouteCounts,
    services: EndedServiceCounts,
    overhead: TimeHistogram,
}

// === impl CountLedger ===

impl CountLedger {
    /// Keeps the counts of a plan that another one has replaced. Call [`Self::sweep`] from time to time, so that the plan is
    /// dropped.
    pub fn retire(&self, plan: Arc<Plan>) {
        self.0.lock().in_use.push(plan);
    }

    /// Drops the plans that no request uses any more, and keeps their counts for names that `current` has.
    pub fn sweep(&self, current: &Plan) {
        self.0.lock().sweep(current);
    }

    /// The number of replaced plans under which requests are still running or waiting.
    #[cfg(test)]
    pub(super) fn plans_in_use(&self) -> usize {
        self.0.lock().in_use.len()
    }

    /// The counts of each route and of each upstream of `current`, by their indices, over all workers and plans.
    pub fn totals(&self, current: &Plan) -> (Vec<ExchangeTotals>, Vec<ExchangeTotals>) {
        let mut replaced = self.0.lock();
        replaced.sweep(current);
        let in_use = replaced.by_name();
        let routes = (0..current.routes.len())
            .map(|i| ExchangeTotals::of_route(&replaced.ended.route(&in_use, current, i)));
        let upstreams = (0..current.upstreams.len())
            .map(|i| ExchangeTotals::of_upstream(&replaced.ended.upstream(&in_use, current, i)));
        (routes.collect(), upstreams.collect())
    }

    /// Begins a scrape with the sums over the workers and plans, for the names that `current` has.
    pub fn scrape(&self, current: &Plan) -> Scrape {
        let mut replaced = self.0.lock();
        replaced.sweep(current);
        let in_use = replaced.by_name();
        let ReplacedPlans { in_use: plans, ended } = &*replaced;
        let waits =
            current.config.routes.iter().map(|route| route.max_wait.max(route.max_wait_cap));
        let mut scrape = Scrape::new(waits.max().unwrap_or_default());
        // The text has their help also for a gateway without limiters, and before the first answer.
        for metric in [&DECISIONS, &GRANTED, &LIMITER_WAIT, &UPSTREAM_REQUESTS] {
            scrape.lines(metric);
        }
        for (i, metrics) in current.routes.iter().enumerate() {
            let all = ended.route(&in_use, current, i);
            all.give(&mut scrape, metrics.label(), &current.config.routes[i].priority);
        }
        for (i, plan) in current.limiters.iter().enumerate() {
            let all = ended.limiter(&in_use, current, i);
            all.give(&mut scrape, &plan.metrics.label);
        }
        for (i, metrics) in current.upstreams.iter().enumerate() {
            ended.upstream(&in_use, current, i).give(&mut scrape, &metrics.label);
        }
        let (no_route, overhead) = (RouteCounts::default(), TimeHistogram::default());
        no_route.add(&ended.no_route);
        overhead.add(&ended.overhead);
        for plan in plans.iter().map(|plan| &**plan).chain([current]) {
            plan.add_unrouted(&no_route, &overhead);
        }
        no_route.give(&mut scrape, current.no_route.label(), &PriorityRule::Normal);
        scrape.times(&OVERHEAD, "", &overhead);
        ended.services.give(&mut scrape, current, &in_use);
        scrape
    }
}

// === impl ReplacedPlans ===

impl ReplacedPlans {
    /// The plans under which requests are still running or waiting, with their parts by name.
    fn by_name(&self) -> Vec<Previous<'_>> {
        self.in_use.iter().map(|plan| Previous::of(plan)).collect()
    }

    fn sweep(&mut self, current: &Plan) {
        for mut plan in mem::take(&mut self.in_use) {
            // Nothing can count in a plan that only the ledger has.
            match Arc::get_mut(&mut plan) {
                Some(plan) => self.ended.add(plan, current),
                None => self.in_use.push(plan),
            }
        }
    }
}

// === impl EndedCounts ===

impl EndedCounts {
    /// The counts of the route with index `i` of `current`, over all plans.
    fn route(&self, in_use: &[Previous<'_>], current: &Plan, i: usize) -> RouteCounts {
        let all = current.route_counts(i);
        let name = &current.config.routes[i].name;
        self.routes.get(name).into_iter().for_each(|ended| all.add(ended));
        for (plan, i) in in_use.iter().filter_map(|names| names.route(name)) {
            all.add(&plan.route_counts(i));
        }
        all
    }

    /// The counts of the limiter with index `i` of `current`, over all plans.
    fn limiter(&self, in_use: &[Previous<'_>], current: &Plan, i: usize) -> LimiterCounters {
        let all = current.limiter_counts(i);
        let name = &current.config.limiters[i].name;
        self.limiters.get(name).into_iter().for_each(|ended| all.add(ended));
        for (plan, i) in in_use.iter().filter_map(|names| names.limiter(name)) {
            all.add(&plan.limiter_counts(i));
        }
        all
    }

    /// The counts of the upstream with index `i` of `current`, over all plans.
    fn upstream(&self, in_use: &[Previous<'_>], current: &Plan, i: usize) -> UpstreamCounters {
        let all = current.upstream_counts(i);
        let name = &current.config.upstreams[i].name;
        self.upstreams.get(name).into_iter().for_each(|ended| all.add(ended));
        for (plan, i) in in_use.iter().filter_map(|names| names.upstream(name)) {
            all.add(&plan.upstream_counts(i));
        }
        all
    }

    /// Adds the counts of `plan`, and drops those of names that `current` does not have.
    fn add(&mut self, plan: &Plan, current: &Plan) {
        let names = Previous::of(current);
        for (i, route) in plan.config.routes.iter().enumerate() {
            self.routes.entry(route.name.clone()).or_default().add(&plan.route_counts(i));
        }
        for (i, limiter) in plan.config.limiters.iter().enumerate() {
            self.limiters.entry(limiter.name.clone()).or_default().add(&plan.limiter_counts(i));
        }
        for (i, upstream) in plan.config.upstreams.iter().enumerate() {
            self.upstreams.entry(upstream.name.clone()).or_default().add(&plan.upstream_counts(i));
        }
        self.routes.retain(|name, _| names.route(name).is_some());
        self.limiters.retain(|name, _| names.limiter(name).is_some());
        self.upstreams.retain(|name, _| names.upstream(name).is_some());
        plan.add_unrouted(&self.no_route, &self.overhead);
        self.services.add(plan, &names);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Config, metrics::Outcome};
    use rstest::rstest;
    use std::path::Path;

    fn config(routes: &[&str]) -> Config {
        let routes: String =
            routes.iter().map(|name| format!("- {{ suffix: {name} }}\n")).collect();
        let text = format!("workers: 2\nupstreams:\n  a: http://a\nroutes:\n{routes}");
        Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config")
    }

    fn passed(ledger: &CountLedger, plan: &Plan, route: &str) -> Option<String> {
        let text = ledger.scrape(plan).into_text();
        let start = format!("paceway_requests_total{{route=\"{route}\",outcome=\"passed\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&start).map(str::to_owned))
    }

    #[rstest]
    #[case::while_a_request_runs(true)]
    #[case::after_its_last_request(false)]
    fn a_reload_keeps_the_counts(#[case] is_in_use: bool) {
        let ledger = CountLedger::default();
        let first = Arc::new(Plan::new(config(&["/a", "/b"]), false));
        let second = Arc::new(first.next(config(&["/new", "/b"])));
        first.counters[0].passed(1);
        first.counters[1].passed(1);
        let request = is_in_use.then(|| first.clone());
        ledger.retire(first);
        second.counters[0].passed(1);
        assert_eq!(passed(&ledger, &second, "/b").as_deref(), Some("3"));
        assert_eq!(passed(&ledger, &second, "/new").as_deref(), Some("0"));
        assert_eq!(passed(&ledger, &second, "/a"), None);
        assert_eq!(ledger.plans_in_use(), usize::from(is_in_use));
        if let Some(request) = request {
            request.counters[0].no_route.requests.count(Outcome::NoRoute);
            request.counters[0].passed(1);
            drop(request);
            assert_eq!(passed(&ledger, &second, "/b").as_deref(), Some("4"));
        }
    }

    #[test]
    fn a_thousand_plans_leave_one() {
        let ledger = CountLedger::default();
        let mut plan = Arc::new(Plan::new(config(&["/0"]), false));
        for i in 1..1000 {
            let next = Arc::new(plan.next(config(&[&format!("/{i}"), "/stays"])));
            plan.counters[0].passed(0);
            ledger.retire(std::mem::replace(&mut plan, next));
            ledger.sweep(&plan);
        }
        assert_eq!(ledger.plans_in_use(), 0);
        assert_eq!(ledger.0.lock().ended.routes.len(), 1);
    }
}
