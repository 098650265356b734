//! The numbers of a limit that follow from its rate: those of the limit itself, of a key with a rate of its own, or of a rate
//! that was set while the program runs. They ask no store.

use super::{Limit, RuleError, micros};
use crate::{
    algorithm::Rule,
    answer::Quota,
    rate::Rate,
    store::{Check, OnFailure},
};
use std::{fmt, sync::Arc, time::Duration};

/// A limit at one rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rated {
    pub(super) rule: Rule,
    /// The greatest cost of a call.
    pub(super) most: i64,
    /// The quota that a refused caller of an HTTP service reads.
    pub(super) quota: Quota,
    /// The period of the rate, µs.
    period: i64,
    on_failure: OnFailure,
}

/// The function of [`Limit::rates`].
#[derive(Clone)]
pub(super) struct KeyRates(RateOf);

type RateOf = Arc<dyn Fn(&str) -> Option<Rate> + Send + Sync>;

// === impl Rated ===

impl Rated {
    /// The numbers of `limit` at `rate`, or the bound that they do not keep.
    pub(super) fn new(limit: &Limit, rate: Rate) -> Result<Self, RuleError> {
        let rule = limit.algorithm(rate)?;
        Ok(Self {
            rule,
            most: limit.most(&rule),
            quota: limit.quota(rate),
            period: rate.period_micros(),
            on_failure: limit.on_failure(rate),
        })
    }

    /// Puts the rule, and all that follows from it, into a check of a limiter that reserves up to `max_wait` ahead.
    pub(super) fn apply(&self, check: Check, max_wait: Duration) -> Check {
        Check {
            algorithm: self.rule,
            horizon: self.rule.horizon(micros(max_wait), self.most),
            period: self.period,
            on_failure: self.on_failure,
            ..check
        }
    }
}

// === impl KeyRates ===

impl KeyRates {
    pub(super) fn new(rates: impl Fn(&str) -> Option<Rate> + Send + Sync + 'static) -> Self {
        Self(Arc::new(rates))
    }

    pub(super) fn of(&self, key: &str) -> Option<Rate> {
        (self.0)(key)
    }
}

impl PartialEq for KeyRates {
    /// Whether both are the same function, as far as that can be known.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for KeyRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyRates")
    }
}
