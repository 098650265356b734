//! The permits that requests take of a limiter, and the rates that pay them, where keys differ in these.

use super::LimiterPlan;
use crate::{
    config::Rate,
    key::{AccountNames, Cost, Parts, StateNames},
    plan::learned_reserves::LearnedCall,
    store::Check,
};

// === impl LimiterPlan ===

impl LimiterPlan {
    /// The checks of all requests of one cost that are sent with this account, or with none; `None` if they depend on more.
    pub(in crate::plan) fn fixed_checks(
        &self,
        account: Option<AccountNames<'_>>,
        cost: &Cost,
    ) -> Option<Vec<Check>> {
        // A rule that is learned may be another one for each request.
        if self.changes || !self.limiter.key_rates.is_empty() {
            return None;
        }
        // With accounts, a cost that cannot be paid is cut or refused for each request.
        let is_payable = |cost: &i64| (1..=self.limiter.capacity()).contains(cost);
        let cost = cost.fixed().filter(|cost| account.is_none() || is_payable(cost))?;
        let key = match &self.limiter.key {
            None => None,
            Some(key) => Some(key.of_account(account?)?),
        };
        Some(self.checks(key.as_deref(), cost).collect())
    }

    /// The permits that a request takes, whose key is `known` if keys differ in their costs or in the rate that pays them.
    ///
    /// # Errors
    ///
    /// Those of [`Cost::of`].
    pub(in crate::plan) fn cost(
        &self,
        cost: &Cost,
        known: Option<Option<&str>>,
        parts: &Parts<'_>,
    ) -> Result<i64, String> {
        let most = known.map_or(self.limiter.capacity(), |key| self.capacity(key));
        let learned = known.filter(|_| cost.learns());
        match learned.and_then(|key| self.learned_reserve(key, parts)) {
            Some(learned) => Ok(learned.min(most)),
            None => cost.of(parts, most, &self.limiter.name),
        }
    }

    /// The permits that cover nearly all calls like a request of this key; `None` until enough is known.
    fn learned_reserve(&self, key: Option<&str>, parts: &Parts<'_>) -> Option<i64> {
        let key = key.filter(|_| !self.names.iter().any(StateNames::is_shared));
        self.reserves.as_ref()?.of(key).reserve(parts.body_length?)
    }

    /// A call with a body of so many bytes, which was charged to this `state`; `None` if its cost is not learned.
    pub(crate) fn learned_call(&self, state: &str, bytes: Option<u64>) -> Option<LearnedCall> {
        let costs = self.reserves.as_ref()?.of(self.key_in(state)?);
        Some(LearnedCall { costs, bytes: bytes? })
    }

    /// The greatest cost that a key can pay at once.
    pub(crate) fn capacity(&self, key: Option<&str>) -> i64 {
        let own = key.and_then(|key| self.limiter.key_rates.find(key));
        own.map_or(self.limiter.capacity(), |rule| self.key_checks[rule].algorithm.capacity())
    }

    /// The rate that a key of the limiter has in place of that of the others.
    pub(crate) fn key_rate(&self, key: Option<&str>) -> Option<Rate> {
        let rates = &self.limiter.key_rates;
        Some(rates.rules()[rates.find(key?)?].rate)
    }
}
