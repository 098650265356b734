//! The limiters of one request as a store sees them: key, rule, cost, and the policy for an outage.

use crate::algorithm::{Algorithm, Micros};
use memchr::memchr;
use std::sync::Arc;

/// The part of one limiter in a request: which state is charged, by which rule, and by how many permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Name of the state in the store; the checks of one request share its `{hash tag}`.
    pub key: Arc<str>,
    /// The rule that decides, such as a token bucket of 10 permits per second.
    pub algorithm: Algorithm,
    /// Permits that the request takes, from 1 to the rule's capacity.
    pub cost: i64,
    /// If false, the limiter counts the request and reports its decision, but never holds or refuses it.
    pub enforce: bool,
    /// How far into the future this limiter may already have granted permits, in µs. After the store loses its data, the
    /// limiter counts as exhausted for this long. See [`Algorithm::horizon`].
    pub horizon: Micros,
    /// The key of the shared state that counts this key when the store has no room for another one.
    pub overflow: Option<Arc<str>>,
    /// The policy that applies when the store gives no decision.
    pub on_failure: OnFailure,
}

/// A request's limiters: at least one, and no key twice. They are made once, when a configuration is loaded.
pub type Checks = Arc<[Check]>;

/// A limiter's policy for requests that the store gives no decision for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// Each gateway enforces its share of the rule, at least one permit per `period`.
    Share {
        /// The period of the limiter's rate, in µs.
        period: Micros,
    },
    /// The gateway enforces the whole rule, because no other gateway uses this state.
    Whole,
    /// Requests pass without a decision.
    Allow,
    /// Requests that this limiter must decide are refused.
    Reject,
}

// === impl Check ===

impl Check {
    /// A check of one permit of `algorithm` on the state named `key`. It enforces, counts no grants from before a
    /// data loss, and refuses requests when the store gives no decision; the `with_` methods change that.
    pub fn new(key: impl Into<Arc<str>>, algorithm: Algorithm) -> Self {
        let on_failure = OnFailure::Reject;
        let key = key.into();
        Self { key, algorithm, cost: 1, enforce: true, horizon: 0, overflow: None, on_failure }
    }

    /// Sets how many permits the request takes, one unless this is called.
    #[must_use]
    pub fn with_cost(self, cost: i64) -> Self {
        Self { cost, ..self }
    }

    /// Sets how long grants from before a data loss can still count, in µs; see [`horizon`](Self::horizon).
    #[must_use]
    pub fn with_horizon(self, horizon: Micros) -> Self {
        Self { horizon, ..self }
    }

    /// Sets the policy for requests that the store gives no decision for, [`OnFailure::Reject`] unless this is called.
    #[must_use]
    pub fn with_on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    /// Whether the limiter bounds how many calls run at once: it leases concurrency permits instead of spending a rate.
    pub fn is_lease(&self) -> bool {
        matches!(self.algorithm, Algorithm::Concurrency(_))
    }
}

/// The `{hash tag}` of a key: the part that a Redis Cluster computes the key's slot from.
pub fn hash_tag(key: &str) -> &str {
    // Every decision calls this, so it searches with `memchr`.
    let find = |from: usize, what| memchr(what, &key.as_bytes()[from..]);
    let start = find(0, b'{').map_or(0, |at| at + 1);
    match find(start, b'}').filter(|_| start > 0) {
        Some(length) if length > 0 => &key[start..start + length],
        _ => key,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    /// A Redis Cluster reads the tag between the first `{` and the next `}`, unless nothing is between them.
    #[rstest]
    #[case("paceway:{account}:T:search", "account")]
    #[case("a{b}{c}", "b")]
    #[case("a}b{c}d", "c")]
    #[case("{}a{b}", "{}a{b}")]
    #[case("a{b", "a{b")]
    #[case("a}b", "a}b")]
    #[case("", "")]
    fn hash_tag(#[case] key: &str, #[case] tag: &str) {
        assert_eq!(super::hash_tag(key), tag);
    }
}
