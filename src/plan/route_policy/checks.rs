//! The checks of a request by the policy of its route: those of all its requests, or those that its key, its cost and its turn
//! decide. Asks no store.

use super::{LimiterPlan, RoutePolicy};
use crate::{
    algorithm::fair::Priority,
    config::{self, Charge, Rate},
    key::{AccountNames, Parts},
    plan::accounts::question,
    store::{Check, Checks, Question},
};

/// The checks of one request.
pub(crate) struct PolicyChecks<'p> {
    pub(crate) checks: Checks,
    /// The policy of the limiters at which it costs something.
    pub(crate) policy: &'p RoutePolicy,
}

/// A limiter that can never give what is asked for, and why.
pub(crate) struct Unpayable {
    /// The index of the limiter; `None` where every limiter refuses.
    pub(crate) limiter: Option<usize>,
    pub(crate) why: String,
}

// === impl RoutePolicy ===

impl RoutePolicy {
    /// Makes the checks of a request if no part of them depends on the request. Each worker has its own: they are
    /// counted references, and workers that shared them would write to one cache line.
    pub(super) fn fixed(&self, limiters: &[LimiterPlan]) -> Option<Checks> {
        if self.accounts.is_some() { None } else { self.fixed_checks(limiters, None) }
    }

    /// The same for the requests of a route with `accounts`: the question that all of them ask.
    pub(super) fn fixed_question(
        &self,
        limiters: &[LimiterPlan],
        accounts: &config::Accounts,
    ) -> Option<Question> {
        self.accounts.as_ref()?;
        let checks = |names| self.fixed_checks(limiters, Some(names)).map(Some).ok_or(());
        question(accounts, checks).ok()?
    }

    fn fixed_checks(
        &self,
        limiters: &[LimiterPlan],
        account: Option<AccountNames<'_>>,
    ) -> Option<Checks> {
        if self.missing.is_some() {
            return None;
        }
        let fixed = self.charges.iter().map(|charge| {
            let limiter = &limiters[charge.limiter];
            let checks = limiter.fixed_checks(account, &charge.cost)?;
            // A tenant or a priority that a request says is another one for each request.
            let turn = if limiter.limiter.has_turns {
                Some(limiter.limiter.turn_of_all(self.priority.fixed()?)?)
            } else {
                None
            };
            Some(checks.into_iter().map(move |check| Check { turn: turn.clone(), ..check }))
        });
        let fixed = fixed.collect::<Option<Vec<_>>>().filter(|fixed| !fixed.is_empty())?;
        Some(fixed.into_iter().flatten().collect())
    }

    /// Makes the checks of one request of this `priority`, if they depend on it; returns `None` if no limiter applies.
    ///
    /// # Errors
    ///
    /// A message for the caller, when the request names a cost that cannot be paid, or a part of it can be read in several
    /// ways.
    pub(crate) fn checks<'p>(
        &self,
        limiters: &[LimiterPlan],
        priority: Priority,
        parts: impl FnOnce() -> Parts<'p>,
    ) -> Result<Option<PolicyChecks<'_>>, String> {
        if self.charges.is_empty() {
            return Ok(None);
        }
        let checks = self.checks_of(limiters, priority, &parts(), 1, None);
        checks.map_err(|unpayable| unpayable.why)
    }

    /// Makes the checks of a descriptor of Envoy that is about `hits` requests, at a `rate` of its own if it names one, as
    /// [`Self::checks`] makes those of a request.
    ///
    /// # Errors
    ///
    /// The limiter that can never give what the descriptor asks for.
    #[cold]
    pub(crate) fn descriptor_checks(
        &self,
        limiters: &[LimiterPlan],
        parts: &Parts<'_>,
        hits: u64,
        rate: Option<Rate>,
    ) -> Result<Option<PolicyChecks<'_>>, Unpayable> {
        if hits == 0 {
            return Ok(None);
        }
        let hits = i64::try_from(hits).unwrap_or(i64::MAX);
        let priority = self.priority.fixed().unwrap_or(Priority::Normal);
        self.checks_of(limiters, priority, parts, hits, rate)
    }

    /// Makes the checks of as many requests as `hits` says, at a `rate` in place of those of the limiters if there is one.
    fn checks_of(
        &self,
        limiters: &[LimiterPlan],
        priority: Priority,
        parts: &Parts<'_>,
        hits: i64,
        rate: Option<Rate>,
    ) -> Result<Option<PolicyChecks<'_>>, Unpayable> {
        let (mut checks, mut zeroes) = (Vec::with_capacity(self.owners.len()), 0);
        for (i, Charge { limiter, cost }) in self.charges.iter().enumerate() {
            let plan = &limiters[*limiter];
            let (own, has_rates) = (&plan.limiter, !plan.limiter.rates.is_empty());
            let unpayable = |why| Unpayable { limiter: Some(*limiter), why };
            let template = self.key.as_ref().or(own.key.as_ref());
            let fill = || template.map(|template| template.fill(parts)).transpose();
            // The key says how much it can pay and what its calls cost, where keys differ in that.
            let needs_key = !own.key_rates.is_empty() || cost.learns();
            let known = if needs_key { Some(fill().map_err(unpayable)?) } else { None };
            let key = known.as_ref().map(|key| key.as_deref());
            let mut cost = plan.cost(cost, key, parts).map_err(unpayable)?;
            if has_rates {
                cost = cost.saturating_mul(hits);
            }
            if cost == 0 {
                zeroes |= 1 << i;
                continue;
            }
            let filled = match known {
                Some(key) => key,
                None => fill().map_err(unpayable)?,
            };
            let (filled, asked) = (filled.as_deref(), checks.len());
            match rate.filter(|_| has_rates) {
                None => checks.extend(plan.checks(filled, cost)),
                Some(rate) => checks.extend(plan.checks_at(rate, filled, cost)),
            }
            let is_known = hits == 1 && rate.is_none();
            let over = |check: &&Check| check.cost > check.algorithm.capacity();
            if let Some(check) =
                checks[asked..].iter().find(over).filter(|_| !is_known && has_rates)
            {
                let most = check.algorithm.capacity();
                let name = &own.name;
                return Err(unpayable(format!(
                    "`{name}` never gives {cost} permits at once; the most is {most}"
                )));
            }
            if own.has_turns {
                plan.take_turns(&mut checks[asked..], priority, parts).map_err(unpayable)?;
            }
        }
        let policy = match zeroes {
            0 => Some(self),
            zeroes => self.without.iter().find(|(set, _)| *set == zeroes).map(|(_, policy)| policy),
        };
        let policy = policy.filter(|_| !checks.is_empty());
        Ok(policy.map(|policy| PolicyChecks { checks: checks.into(), policy }))
    }
}
