//! What applies to the requests of a route. Routes may be thousands; where the same applies to them, they share it, and
//! what they share is in a cache.

use super::LimiterPlan;
use crate::{
    config::{self, Charge, Config, Mode},
    key::{Cost, Parts},
    store::Checks,
    upstream::headers::Rules,
};
use smallvec::SmallVec;
use std::{collections::HashMap, time::Duration};

/// What applies to the requests of some routes.
pub(crate) struct RoutePolicy {
    /// What is charged; empty: nothing limits them.
    charges: Vec<Charge>,
    /// For each check, the index of its limiter and of its rate there.
    owners: SmallVec<[(usize, usize); 1]>,
    /// What the operator changes in headers: of the upstream, then of the route. `None`: nothing.
    pub(crate) rules: Option<[Rules; 2]>,
    /// Index of the upstream.
    pub(crate) upstream: usize,
    pub(crate) max_wait: Duration,
    pub(crate) max_wait_cap: Duration,
    /// Requests of a route that may wait at one time in this gateway.
    pub(crate) max_waiting: usize,
}

/// What is written of them.
#[derive(PartialEq, Eq, Hash)]
struct PolicyKey<'a> {
    limiters: &'a [Charge],
    /// Which route it is, if it changes headers: equal values may be secret in one and not in another.
    headers: Option<usize>,
    upstream: usize,
    max_wait: Duration,
    max_wait_cap: Duration,
    max_waiting: usize,
}

// === impl RoutePolicy ===

impl RoutePolicy {
    /// All of them, and which are those of each route.
    pub(crate) fn all(config: &Config, limiters: &[LimiterPlan]) -> (Vec<Self>, Vec<usize>) {
        let (mut all, mut places) = (Vec::new(), HashMap::new());
        let place = |(i, route)| {
            *places.entry(PolicyKey::of(i, route)).or_insert_with(|| {
                all.push(Self::new(route, limiters, config));
                all.len() - 1
            })
        };
        let of_routes = config.routes.iter().enumerate().map(place).collect();
        (all, of_routes)
    }

    fn new(route: &config::Route, limiters: &[LimiterPlan], config: &Config) -> Self {
        let works = |charge: &&Charge| {
            config.limiting && limiters[charge.limiter].limiter.mode != Mode::Off
        };
        let charges: Vec<Charge> = route.limiters.iter().filter(works).cloned().collect();
        let owners = charges.iter().flat_map(|charge| {
            let rates = 0..limiters[charge.limiter].checks.len();
            rates.map(|rate| (charge.limiter, rate))
        });
        let rules = [config.upstreams[route.upstream].headers.clone(), route.headers.clone()];
        Self {
            owners: owners.collect(),
            charges,
            rules: rules.iter().any(|rules| !rules.is_empty()).then_some(rules),
            upstream: route.upstream,
            max_wait: route.max_wait,
            max_wait_cap: route.max_wait_cap,
            max_waiting: route.max_waiting,
        }
    }

    /// What the limiters are asked, where nothing of it depends on the request. Each worker has its own: to hold it is to
    /// count who does.
    pub(crate) fn fixed(&self, limiters: &[LimiterPlan]) -> Option<Checks> {
        let fixed = self.charges.iter().map(|charge| match charge.cost {
            Cost::Fixed(cost) if limiters[charge.limiter].limiter.key.is_none() => {
                Some(limiters[charge.limiter].checks(None, cost))
            }
            _ => None,
        });
        let fixed = fixed.collect::<Option<Vec<_>>>().filter(|fixed| !fixed.is_empty())?;
        Some(fixed.into_iter().flatten().collect())
    }

    /// What the limiters are asked for a request, where that is not the same for all; `None` where nothing limits it.
    ///
    /// # Errors
    ///
    /// A message for the caller, when the request names a cost that cannot be paid.
    pub(crate) fn checks<'p>(
        &self,
        limiters: &[LimiterPlan],
        parts: impl FnOnce() -> Parts<'p>,
    ) -> Result<Option<Checks>, String> {
        if self.charges.is_empty() {
            return Ok(None);
        }
        let parts = parts();
        let mut checks = Vec::with_capacity(self.owners.len());
        for Charge { limiter, cost } in &self.charges {
            let plan = &limiters[*limiter];
            let cost = cost.of(&parts, plan.limiter.capacity(), &plan.limiter.name)?;
            let filled = plan.limiter.key.as_ref().map(|template| template.fill(&parts));
            checks.extend(plan.checks(filled.as_deref(), cost));
        }
        Ok(Some(checks.into()))
    }

    /// The limiter behind a check.
    pub(crate) fn limiter(&self, check: usize) -> usize {
        self.owners[check].0
    }

    /// The limiter behind a check, and the place of its rate.
    pub(crate) fn owner(&self, check: usize) -> (usize, usize) {
        self.owners[check]
    }
}

// === impl PolicyKey ===

impl<'a> PolicyKey<'a> {
    fn of(i: usize, route: &'a config::Route) -> Self {
        Self {
            limiters: &route.limiters,
            headers: (!route.headers.is_empty()).then_some(i),
            upstream: route.upstream,
            max_wait: route.max_wait,
            max_wait_cap: route.max_wait_cap,
            max_waiting: route.max_waiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{config::Config, plan::Plan};
    use rstest::rstest;
    use std::{path::Path, sync::Arc};

    fn plan(routes: [&str; 2]) -> Plan {
        let text = format!(
            "workers: 2\nupstreams:\n  a: http://a\n  b: http://b\n\
             limiters:\n  x: {{ rate: 1/s }}\n  y: {{ rate: 1/s }}\n\
             routes:\n- {{ suffix: /1, {} }}\n- {{ suffix: /2, {} }}\n",
            routes[0], routes[1]
        );
        let config = Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config");
        Plan::new(config, false)
    }

    #[rstest]
    #[case::same("upstream: a, limiters: [x], max_wait: 2s", 1)]
    #[case::fewer_may_wait("upstream: a, limiters: [x], max_wait: 2s, max_waiting: 7", 2)]
    #[case::longer("upstream: a, limiters: [x], max_wait: 3s", 2)]
    #[case::longer_for_who_asks("upstream: a, limiters: [x], max_wait: 2s, max_wait_cap: 90s", 2)]
    #[case::other_upstream("upstream: b, limiters: [x], max_wait: 2s", 2)]
    #[case::other_limiter("upstream: a, limiters: [y], max_wait: 2s", 2)]
    #[case::other_headers(
        "upstream: a, limiters: [x], max_wait: 2s, headers: { response: { remove: [Server] } }",
        2
    )]
    fn routes_share_what_is_the_same(#[case] other: &str, #[case] expected: usize) {
        let plan = plan(["upstream: a, limiters: [x], max_wait: 2s", other]);
        let of_the_second = plan.counters[0].lines[1].policy;
        assert_eq!((plan.policies.len(), of_the_second), (expected, expected - 1));
    }

    #[test]
    fn each_worker_asks_with_its_own() {
        let plan = plan(["upstream: a, limiters: [x]", "upstream: a"]);
        let [one, other] = &plan.counters[..] else { panic!("two workers") };
        assert_eq!(one.fixed, other.fixed);
        let (own, its) = (one.fixed[0].as_ref(), other.fixed[0].as_ref());
        assert!(!Arc::ptr_eq(own.expect("checks"), its.expect("checks")));
        assert_eq!(one.fixed[1], None);
    }
}
