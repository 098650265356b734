//! The counts of requests that a service decided for another proxy. They are apart from those of the data plane, under the
//! same routes and with the label `service`.

use super::{
    Plan,
    counters::{CountedRoute, RouteCounts, WorkerCounters},
    previous::Previous,
};
use crate::{
    algorithm::fair::Priority,
    config::{Config, PriorityRule, Service},
    metrics::{Scrape, service_label},
};
use std::collections::HashMap;

/// The counts of one service.
pub(crate) struct ServiceCounts {
    pub(crate) service: Service,
    /// The labels of each route, by its index in the configuration; the last ones are of requests without a route.
    labels: Box<[String]>,
    /// The counters of each worker, by the worker's index.
    pub(crate) workers: Box<[WorkerCounters]>,
}

/// The counts of services in plans without a request, by the names of routes; empty for requests without a route.
#[derive(Default)]
pub(super) struct EndedServiceCounts(HashMap<(Service, String), RouteCounts>);

// === impl ServiceCounts ===

impl ServiceCounts {
    /// Makes the counters of the services of `config`.
    pub(super) fn all(config: &Config, counted: &[CountedRoute]) -> Vec<Self> {
        let of = |service: Service| {
            let routes = config.routes.iter().map(|route| &*route.name).chain(["-"]);
            let worker = |_| WorkerCounters::new(counted, Box::default(), 0, 0);
            Self {
                service,
                labels: routes.map(|route| service_label(route, service.name())).collect(),
                workers: (0..config.workers.get()).map(worker).collect(),
            }
        };
        config.services.all().map(|(service, _)| of(service)).collect()
    }

    /// The counts of the route with index `i`, over all workers; of requests without a route if there is no such route.
    fn route(&self, i: usize) -> RouteCounts {
        let all = RouteCounts::default();
        self.workers.iter().for_each(|own| match own.routes.get(i) {
            Some(_) => own.add_to(&all, i),
            None => all.add_counters(&own.no_route, Priority::Normal),
        });
        all
    }

    fn of(plan: &Plan, service: Service) -> Option<&Self> {
        plan.services.iter().find(|own| own.service == service)
    }
}

// === impl EndedServiceCounts ===

impl EndedServiceCounts {
    /// Adds the counts of `plan`, and drops those of routes that `current` does not have.
    pub(super) fn add(&mut self, plan: &Plan, current: &Previous<'_>) {
        for own in &plan.services {
            for (i, name) in names(plan).enumerate() {
                let all = self.0.entry((own.service, name.to_owned())).or_default();
                all.add(&own.route(i));
            }
        }
        self.0.retain(|(_, name), _| name.is_empty() || current.route(name).is_some());
    }

    /// Gives the counts of `current`, of these plans and of those that are in use.
    pub(super) fn give(&self, scrape: &mut Scrape, current: &Plan, in_use: &[Previous<'_>]) {
        for own in &current.services {
            for (i, name) in names(current).enumerate() {
                let all = own.route(i);
                let ended = self.0.get(&(own.service, name.to_owned()));
                ended.into_iter().for_each(|ended| all.add(ended));
                for names in in_use {
                    let i = match name {
                        "" => names.plan.map(|plan| plan.config.routes.len()),
                        name => names.route(name).map(|(_, i)| i),
                    };
                    let counts = names.plan.and_then(|plan| ServiceCounts::of(plan, own.service));
                    i.zip(counts).into_iter().for_each(|(i, counts)| all.add(&counts.route(i)));
                }
                let route = current.config.routes.get(i);
                let rule = route.map_or(&PriorityRule::Normal, |route| &route.priority);
                all.give(scrape, &own.labels[i], rule);
            }
        }
    }
}

/// The names of the routes of `plan`, and an empty one for requests without a route.
fn names(plan: &Plan) -> impl Iterator<Item = &str> {
    plan.config.routes.iter().map(|route| &*route.name).chain([""])
}

#[cfg(test)]
mod tests {
    use crate::{
        config::Config,
        metrics::Outcome,
        plan::{CountLedger, Plan},
    };
    use std::{path::Path, sync::Arc};

    #[test]
    fn a_service_keeps_separate_counts_across_reloads() {
        let config = |route: &str| {
            let text = format!(
                "workers: 2\nservices: {{ forward_auth: 127.0.0.1:1 }}\nupstreams: {{ a: http://a }}\n\
                 routes: [{{ suffix: /b }}, {{ suffix: {route} }}]\n"
            );
            Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config")
        };
        let first = Arc::new(Plan::new(config("/a"), false));
        let second = first.next(config("/c"));
        first.counters[0].passed(0);
        first.services[0].workers[1].passed(0);
        first.services[0].workers[0].no_route.requests.count(Outcome::NoRoute);
        second.services[0].workers[0].routes[0].requests.count(Outcome::Refused);
        let ledger = CountLedger::default();
        let running = first.clone();
        ledger.retire(first);
        for _ in 0..2 {
            let text = ledger.scrape(&second).into_text();
            for (labels, count) in [
                ("route=\"/b\",outcome=\"passed\"", 1),
                ("route=\"/b\",service=\"forward_auth\",outcome=\"passed\"", 1),
                ("route=\"/b\",service=\"forward_auth\",outcome=\"refused\"", 1),
                ("route=\"-\",service=\"forward_auth\",outcome=\"no_route\"", 1),
                ("route=\"/c\",service=\"forward_auth\",outcome=\"passed\"", 0),
            ] {
                let line = format!("paceway_requests_total{{{labels}}} {count}\n");
                assert!(text.contains(&line), "{line}{text}");
            }
            if Arc::strong_count(&running) == 2 {
                assert_eq!(ledger.plans_in_use(), 1);
            }
        }
        drop(running);
        let text = ledger.scrape(&second).into_text();
        assert_eq!(ledger.plans_in_use(), 0);
        let kept = "{route=\"/b\",service=\"forward_auth\",outcome=\"passed\"} 1\n";
        assert!(text.contains(kept) && !text.contains("route=\"/a\""), "{text}");
    }
}
