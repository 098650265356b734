//! The limits and header rules of a route. There may be thousands of routes; those with the same limits share one
//! policy, which therefore stays in a cache.

mod checks;
mod key;

pub(crate) use checks::{PolicyChecks, Unpayable};

use super::{
    LimiterPlan, ReadPolicy,
    accounts::{AccountsPlan, RouteAccounts},
    counters::{CountedRoute, WorkerCounters},
    kept_reads::KeptReads,
};
use crate::{
    algorithm::fair::Priority,
    config::{self, AnswerForm, Charge, Config, Mode, PriorityRule},
    key::{BodyParts, Template, TrueCost},
    path::PathRule,
    store::Check,
    upstream::headers::Rules,
};
use http::{
    HeaderName,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use key::PolicyKey;
use smallvec::SmallVec;
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// The limits and header rules of the routes that share them.
pub(crate) struct RoutePolicy {
    /// The limiters that a request is charged to, with its cost; empty if no limiter applies.
    charges: Vec<Charge>,
    owners: SmallVec<[CheckOwner; 1]>,
    /// The operator's changes to headers: those of the upstream, then those of the route. `None` if both are empty.
    pub(crate) rules: Option<[Rules; 2]>,
    /// Whether one of its limiters learns its rate or its margin.
    pub(crate) learns: bool,
    /// Whether one of its limiters has the rate that answers name.
    pub(crate) hears_rates: bool,
    /// The parts of the request's body that keys and costs are.
    pub(crate) body: Option<BodyParts>,
    /// Whether there are such parts, or a limiter is missing.
    pub(crate) is_special: bool,
    /// The headers that decide its keys, tenants, costs and priority, and how its body is read.
    pub(crate) read_headers: Box<[HeaderName]>,
    /// The limiters that neither the file nor a row of `limits_from` has, joined. Each request is refused.
    pub(crate) missing: Option<Box<str>>,
    /// Whether the answer to a request can say its true cost at some limiter, or that the upstream does not count it.
    pub(crate) settles: bool,
    /// For each set of limiters at which a request can cost 0, the policy without them. The bits of a set are the indices
    /// in `charges`.
    without: Vec<(u64, Self)>,
    /// The bucket at each limiter, in place of the limiter's own key; only for descriptors.
    key: Option<Template>,
    /// The index of the upstream.
    pub(crate) upstream: usize,
    /// The priority of a request among those that wait.
    pub(crate) priority: PriorityRule,
    pub(crate) max_wait: Duration,
    pub(crate) max_wait_cap: Duration,
    /// The most requests of one route that may wait at one time in this gateway.
    pub(crate) max_waiting: usize,
    /// Whether every answer says what its limiter has left.
    pub(crate) tells_quota: bool,
    /// The accounts with which its requests are sent; `None` on most routes.
    pub(crate) accounts: Option<RouteAccounts>,
    /// Whether one of its limiters is that of the account of a request.
    pub(crate) is_by_account: bool,
    /// How its reads may cost nothing; `None` on nearly all routes.
    pub(crate) reads: Option<Arc<ReadPolicy>>,
    /// The form of the gateway's own answers.
    pub(crate) answers: AnswerForm,
}

/// The owner of a check, by indices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CheckOwner {
    pub(crate) limiter: usize,
    /// Its rate within the limiter.
    pub(crate) rate: usize,
}

/// A check whose cost the answer says.
pub(crate) struct SettledCheck<'p> {
    /// Its index.
    pub(crate) check: usize,
    /// The index of its limiter.
    pub(crate) limiter: usize,
    pub(crate) cost: &'p Arc<TrueCost>,
    /// Whether the limiter learns the cost: once for each call, however many rates it has.
    pub(crate) teaches: bool,
}

/// The policies of all routes.
pub(crate) struct RoutePolicies {
    pub(crate) policies: Vec<RoutePolicy>,
    /// The policy of each route, and how its requests are counted.
    pub(crate) counted: Vec<CountedRoute>,
}

// === impl RoutePolicies ===

impl RoutePolicies {
    pub(super) fn new(
        config: &Config,
        limiters: &[LimiterPlan],
        accounts: &[Option<Arc<AccountsPlan>>],
        kept: &KeptReads,
    ) -> Self {
        let (mut policies, mut places) = (Vec::new(), HashMap::new());
        let routes = config.routes.iter().enumerate();
        let counted = routes.map(|(i, route)| {
            let policy = *places.entry(PolicyKey::of(i, route)).or_insert_with(|| {
                let reads = kept.policy(i, route).map(Arc::new);
                let policy = RoutePolicy::new(route, limiters, config).with_reads(reads);
                // A descriptor and a decision of a program name no upstream.
                let own = accounts[route.upstream].clone();
                let own = own.filter(|_| route.path != PathRule::Descriptor);
                let own = own.map(|plan| RouteAccounts::new(config, route, plan));
                policies.push(policy.with_accounts(own));
                policies.len() - 1
            });
            CountedRoute { policy, priority: route.priority.fixed().unwrap_or(Priority::Normal) }
        });
        let counted = counted.collect();
        Self { policies, counted }
    }

    /// Makes the counters of a worker, and the checks that it owns.
    pub(super) fn counters(&self, config: &Config, limiters: &[LimiterPlan]) -> WorkerCounters {
        let fixed = self.policies.iter().map(|policy| policy.fixed(limiters)).collect();
        let questions = self.policies.iter().map(|policy| {
            let accounts = config.upstreams[policy.upstream].accounts.as_ref()?;
            policy.fixed_question(limiters, accounts)
        });
        let upstreams = config.upstreams.len();
        let new = WorkerCounters::new(&self.counted, fixed, limiters.len(), upstreams);
        new.with_questions(questions.collect())
    }
}

// === impl RoutePolicy ===

impl RoutePolicy {
    /// The same policy for reads that may cost nothing.
    fn with_reads(mut self, reads: Option<Arc<ReadPolicy>>) -> Self {
        for (_, policy) in &mut self.without {
            policy.reads = reads.clone();
        }
        Self { reads, ..self }
    }

    /// The same policy for requests that are sent with one of these accounts.
    fn with_accounts(mut self, accounts: Option<RouteAccounts>) -> Self {
        for (_, policy) in &mut self.without {
            policy.accounts.clone_from(&accounts);
        }
        Self { accounts, ..self }
    }

    fn new(route: &config::Route, limiters: &[LimiterPlan], config: &Config) -> Self {
        let works = |charge: &&Charge| {
            config.limiting && limiters[charge.limiter].limiter.mode != Mode::Off
        };
        let charges: Vec<Charge> = route.limiters.iter().filter(works).cloned().collect();
        Self::of(charges, route, limiters, config)
    }

    fn of(
        charges: Vec<Charge>,
        route: &config::Route,
        limiters: &[LimiterPlan],
        config: &Config,
    ) -> Self {
        let may_be_zero =
            charges.iter().enumerate().filter(|(_, charge)| charge.cost.may_be_zero());
        let zeroes: u64 = may_be_zero.filter(|(i, _)| *i < 64).map(|(i, _)| 1 << i).sum();
        // The configuration allows few of them.
        let sets =
            std::iter::successors(Some(zeroes), |set| set.checked_sub(1).map(|less| less & zeroes));
        let without = sets.take_while(|set| *set > 0).map(|set| {
            let left = charges.iter().enumerate().filter(|(i, _)| *i >= 64 || set >> i & 1 == 0);
            let left = left.map(|(_, charge)| charge.clone()).collect();
            (set, Self::plain(left, route, limiters, config))
        });
        let without = without.collect();
        Self { without, ..Self::plain(charges, route, limiters, config) }
    }

    fn plain(
        charges: Vec<Charge>,
        route: &config::Route,
        limiters: &[LimiterPlan],
        config: &Config,
    ) -> Self {
        let keys = charges.iter().flat_map(|charge| {
            let limiter = &limiters[charge.limiter].limiter;
            limiter.key.iter().chain(limiter.fair.as_ref().map(|fair| &fair.by))
        });
        let keys: Vec<_> = keys.chain(&route.key).collect();
        let costs = charges.iter().map(|charge| &charge.cost);
        let body = BodyParts::of(keys.iter().copied(), costs.clone());
        let templates = keys.into_iter().chain(costs.flat_map(|cost| cost.templates()));
        let mut read_headers: Vec<_> =
            templates.flat_map(|template| template.headers()).cloned().collect();
        if let PriorityRule::Header(name) = &route.priority {
            read_headers.push(name.clone());
        }
        if body.is_some() {
            read_headers.extend([CONTENT_TYPE, CONTENT_ENCODING]);
        }
        let owners = charges.iter().flat_map(|charge| {
            let rates = 0..limiters[charge.limiter].checks.len();
            rates.map(|rate| CheckOwner { limiter: charge.limiter, rate })
        });
        let rules = [config.upstreams[route.upstream].headers.clone(), route.headers.clone()];
        let is_closed = config.limiting && !route.missing.is_empty();
        let missing = is_closed.then(|| route.missing.join("`, `").into());
        let learns = |charge: &Charge| limiters[charge.limiter].margin().is_some();
        let is_of_accounts = |charge: &Charge| limiters[charge.limiter].limiter.is_of_accounts();
        let is_by_account = charges.iter().any(is_of_accounts);
        let hears = |charge: &Charge| limiters[charge.limiter].learned.is_some();
        Self {
            learns: charges.iter().any(learns),
            hears_rates: charges.iter().any(hears),
            owners: owners.collect(),
            is_special: missing.is_some() || body.is_some(),
            body,
            read_headers: read_headers.into(),
            missing,
            settles: charges.iter().any(|charge| charge.cost.settle().is_some())
                || !config.upstreams[route.upstream].throttle.rules.free.is_empty(),
            without: Vec::new(),
            charges,
            rules: rules.iter().any(|rules| !rules.is_empty()).then_some(rules),
            key: route.key.clone(),
            upstream: route.upstream,
            priority: route.priority.clone(),
            max_wait: route.max_wait,
            max_wait_cap: route.max_wait_cap,
            max_waiting: route.max_waiting,
            tells_quota: route.tells_quota,
            accounts: None,
            is_by_account,
            reads: None,
            answers: route.answers,
        }
    }

    /// The policy of one call of a program, which names its limiters itself: the `owners` of its checks. All else is that of
    /// this policy.
    pub(crate) fn for_call(&self, owners: SmallVec<[CheckOwner; 1]>) -> Self {
        Self {
            learns: self.learns,
            hears_rates: self.hears_rates,
            owners,
            is_special: false,
            body: None,
            read_headers: Box::default(),
            missing: None,
            settles: false,
            without: Vec::new(),
            charges: Vec::new(),
            rules: None,
            key: None,
            upstream: self.upstream,
            priority: PriorityRule::Normal,
            max_wait: self.max_wait,
            max_wait_cap: self.max_wait_cap,
            max_waiting: self.max_waiting,
            tells_quota: self.tells_quota,
            accounts: None,
            is_by_account: false,
            reads: None,
            answers: self.answers,
        }
    }

    /// The checks whose cost the answer says. A limiter with several rates has a check for each of them.
    pub(crate) fn settled(&self) -> impl Iterator<Item = SettledCheck<'_>> {
        self.owners.iter().enumerate().filter_map(|(check, CheckOwner { limiter, rate })| {
            let charge = self.charges.iter().find(|charge| charge.limiter == *limiter)?;
            let (cost, teaches) = (charge.cost.settle()?, *rate == 0 && charge.cost.learns());
            Some(SettledCheck { check, limiter: *limiter, cost, teaches })
        })
    }

    /// Shows the limiters that learn an answer that `took` this long, and that its call was `refused` if it was: a call that
    /// was sent at that instant. `checks` are those that granted it.
    #[cold]
    pub(crate) fn learn(
        &self,
        limiters: &[LimiterPlan],
        checks: &[Check],
        took: Duration,
        refused: Option<Instant>,
    ) {
        for CheckOwner { limiter, rate } in self.owners.iter().take(checks.len()) {
            let plan = &limiters[*limiter];
            // A state from before a change has no learned margin.
            if let Some(margin) = plan.margin().filter(|_| *rate < plan.limiter.algorithms.len()) {
                match refused {
                    Some(sent) => margin.refused(sent),
                    None => margin.took(took),
                }
            }
        }
    }

    /// The index of the limiter of each check.
    pub(crate) fn limiters(&self) -> impl Iterator<Item = usize> {
        self.owners.iter().map(|owner| owner.limiter)
    }

    /// Whether any limiter counts its requests now.
    pub(crate) fn has_limiters(&self) -> bool {
        !self.charges.is_empty()
    }

    /// The index of the limiter that a check belongs to.
    pub(crate) fn limiter(&self, check: usize) -> usize {
        self.owners[check].limiter
    }

    /// The limiter that a check belongs to, and its rate.
    pub(crate) fn owner(&self, check: usize) -> CheckOwner {
        self.owners[check]
    }
}

#[cfg(test)]
mod tests;
