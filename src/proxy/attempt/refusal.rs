//! The answer to an attempt that its limiters refuse. Asks no store, and no upstream.

use super::{
    Attempt,
    notes::{Times, is_logged},
};
use crate::{
    algorithm::Micros,
    answer::{Failure, is_reason},
    limit,
    metrics::Verdict,
    plan::CheckOwner,
    store::{Decision, Source},
};

// === impl Attempt ===

impl Attempt<'_, '_> {
    /// Counts a refusal, and makes its answer.
    fn limited(&mut self, decision: &Decision) -> Failure {
        let CheckOwner { limiter, rate } = self.policy.owner(self.index(decision.bound_by));
        self.bind(decision.bound_by);
        // The answer has the fields of this refusal.
        self.record.quota = None;
        self.count_verdict(limiter, Verdict::Refuse, decision.source);
        let plan = &self.proxy.0.plan.limiters[limiter];
        if let Some(margin) = plan.margin().filter(|_| decision.level.paused == 0) {
            margin.asked(true);
        }
        let policy = plan.policy(rate, &self.checks[decision.bound_by].key, decision.level);
        let (retry_after, remaining) = (decision.retry_after, decision.level.remaining);
        if decision.level.paused > 0 {
            let bound = std::slice::from_ref(&self.checks[decision.bound_by]);
            return match self.proxy.0.store.pauses().held(bound) {
                Some(_) => Failure::Paused { policy, retry_after, remaining },
                None => Failure::Throttled { policy, retry_after, remaining },
            };
        }
        match self.closed_for(decision) {
            Some(left) => {
                // A concurrency limiter without a free permit says only when to ask again.
                let is_lease = self.checks[decision.bound_by].is_lease();
                let retry_after = if is_lease { left } else { retry_after };
                Failure::closed(policy, retry_after, remaining, left)
            }
            None => Failure::Limited { policy, retry_after, remaining },
        }
    }

    /// The answer to a request that the limiters refuse.
    pub(super) fn refusal(&mut self, mut decision: Decision) -> Failure {
        let Decision { bound_by, wait, retry_after, source, .. } = decision;
        let check = &self.checks[bound_by];
        if is_logged() {
            let times = Times { retry_after: Some(limit::duration(retry_after)), wait: None };
            self.log("refuse", check, bound_by, source, times);
        }
        if self.is_last_call {
            self.bind(bound_by);
            return Failure::Draining { retry_after };
        }
        if !self.is_at_max_waiting || self.until.is_some() {
            return self.limited(&decision);
        }
        // It was asked without its budget, because no more may wait. Would it have waited?
        let is_lease = check.is_lease();
        if is_lease || (wait > 0 && limit::duration(wait) <= self.budget) {
            self.limited(&decision);
            return Failure::QueueFull { retry_after: if is_lease { retry_after } else { wait } };
        }
        // With its budget it is admitted that much earlier.
        decision.retry_after -= limit::micros(self.budget);
        self.limited(&decision)
    }

    /// The time in µs for which the limiter that refused the request stays closed after a loss of states.
    fn closed_for(&self, decision: &Decision) -> Option<Micros> {
        let check =
            self.checks.get(decision.bound_by).filter(|_| decision.source == Source::Shared)?;
        // A key that an operator has reset since the loss is open earlier.
        let wait = if check.is_lease() { decision.level.next } else { decision.wait };
        self.proxy.0.store.closed_for(check).filter(|left| is_reason(wait, *left))
    }
}
