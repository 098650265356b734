//! The part of a grant that a request did not use. Only arithmetic: [`OpenRate::refund`](super::OpenRate::refund)
//! returns that part to the state.
//!
//! A request can reserve more permits than it turns out to cost: 1000 tokens for an answer of 200. With the
//! 800 others returned, the true costs obey the law of the rule as if 200 had been reserved. Nothing comes
//! back of time that has passed meanwhile: a bucket that was full again kept no permit for that request. Only requests that wait at
//! a working rate get such permits.

use super::{Algorithm, Gate, Grant};

// === impl Algorithm ===

impl Algorithm {
    /// Names the last permits of a grant of `cost` permits of which `used` were used, and says how many they
    /// are. `None` when there are none.
    ///
    /// ```
    /// use paceway_limit::algorithm::{Algorithm, OpenRate, TokenBucket};
    ///
    /// let rule = Algorithm::TokenBucket(TokenBucket::new(10, 1_000_000, 10).expect("a legal rule"));
    /// let now = 1_700_000_000_000_000;
    /// let mut bucket = rule.open(None, now);
    /// let (_, start) = bucket.earliest(0, 10, 0);
    /// let grant = bucket.take(start, 10);
    /// let (unused, permits) = rule.unused_part(grant, 10, 3).expect("7 of them were not used");
    /// assert!(bucket.refund(unused, permits));
    /// assert_eq!(bucket.level().remaining, 7);
    /// ```
    pub fn unused_part(&self, grant: Grant, cost: i64, used: i64) -> Option<(Grant, i64)> {
        let (used, permits) = (used.max(0), cost - used.max(0));
        if permits < 1 {
            return None;
        }
        let grant = Gate::unused_of(&self.facts(), self.unused_of(grant, cost, used), used);
        Some((grant, permits))
    }
}

// === impl Grant ===

impl Grant {
    /// The grant of the permits that begin `ticks` ticks of `1/den` µs after the first one of this grant.
    pub(crate) fn after(self, ticks: i64, den: i64) -> Self {
        let ticks = self.ticks + ticks;
        let (whole, ticks) = (self.whole + ticks.div_euclid(den), ticks.rem_euclid(den));
        Self { whole, ticks, ..self }
    }
}

#[cfg(test)]
mod tests;
