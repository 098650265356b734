//! The limiters of which gateways ask for blocks. Only arithmetic.

use crate::{
    algorithm::{Algorithm, Micros, TokenBucket},
    store::{Check, Checks},
};

/// No permit is used later than 0.5 s after its grant, so that a gateway which misses a message stops soon.
pub(super) const LONGEST: Micros = 500_000;

/// When a gateway asks for blocks.
#[derive(Debug, Clone, Copy)]
pub struct BlockPolicy {
    /// The least rate of a limiter, in permits per second.
    pub rate: i64,
    /// The fewest requests that a block serves.
    pub least: i64,
}

// === impl BlockPolicy ===

impl Default for BlockPolicy {
    /// Limiters of 1,000/s or more. A block costs the store about as much as a request.
    fn default() -> Self {
        Self { rate: 1000, least: 3 }
    }
}

impl BlockPolicy {
    /// No blocks.
    pub const OFF: Self = Self { rate: i64::MAX, least: i64::MAX };

    /// The bucket of a check, if it is fast enough for blocks.
    fn fast(&self, check: &Check) -> Option<TokenBucket> {
        let Algorithm::TokenBucket(rule) = check.algorithm else { return None };
        let [per, den, _] = rule.args();
        (per.saturating_mul(self.rate) <= den.saturating_mul(1_000_000)).then_some(rule)
    }

    /// The bucket that a request asks alone, if it is one that can give blocks.
    pub(super) fn bucket<'c>(&self, checks: &'c Checks) -> Option<(&'c Check, TokenBucket)> {
        let [check] = &**checks else { return None };
        let may_have_some = check.blocks && check.enforce && check.turn.is_none();
        let rule = self.fast(check).filter(|_| may_have_some)?;
        Some((check, rule))
    }

    /// Prepares the check by which unused permits are returned to the store. The line of a bucket moves back then, and must not
    /// move permits that gateways of another configuration hold: those that can be used within the next 0.5 s stay.
    pub(in super::super) fn keep_blocks(&self, check: &mut Check) {
        if self.fast(check).is_some() {
            check.horizon = check.horizon.max(check.algorithm.horizon(LONGEST, check.cost));
        }
    }
}
