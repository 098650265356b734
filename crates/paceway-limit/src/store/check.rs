//! The limiters of one request as a store sees them: key, rule, cost, and the policy for an outage.

use super::Turn;
use crate::algorithm::{
    DataLoss, Gate, Micros, Rule,
    fair::{Floors, Priority},
    gate::{Bounds, OpenGate},
};
use memchr::memchr;
use std::sync::Arc;

/// The part of one limiter in a request: which state is charged, by which rule, and by how many permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Name of the state in the store; the checks of one request share its `{hash tag}`.
    pub key: Arc<str>,
    /// The rule that decides, such as a token bucket of 10 permits per second.
    pub algorithm: Rule,
    /// Permits that the request takes, from 1 to the rule's capacity.
    pub cost: i64,
    /// If false, the limiter counts the request and reports its decision, but never holds or refuses it.
    pub enforce: bool,
    /// How far into the future this limiter may already have granted permits, in µs. After the store loses its data, the
    /// limiter counts as exhausted for this long. See [`Rule::horizon`].
    pub horizon: Micros,
    /// The period of the limiter's rate as it is written, in µs: 1000 an hour have one of an hour. A pause that is much
    /// shorter leaves the level as it is.
    pub period: Micros,
    /// The bounds of a rate that the upstream's refusals find; `algorithm` is the rule of the highest one. `None` for a rate that
    /// is written.
    pub bounds: Option<Arc<Bounds>>,
    /// Whether the limiter closes for that long after a loss, or continues with the states that the store has.
    pub on_loss: OnLoss,
    /// The key of the shared state that counts this key when the store has no room for another one.
    pub overflow: Option<Arc<str>>,
    /// The policy that applies when the store gives no decision.
    pub on_failure: OnFailure,
    /// How the request takes its turn among those that wait for this limiter; `None`: first come, first served.
    pub turn: Option<Turn>,
    /// The permits that requests of lower priorities leave to those of higher ones. They count for requests with a turn.
    pub floors: Floors,
    /// Whether gateways take permits of this limiter in blocks, for requests that come later; only a token bucket gives
    /// some. It is decided once, when a configuration is loaded: the limiter enforces, no request takes turns at it, and it
    /// is so fast that blocks pay ([`Algorithm::is_fast_bucket`](crate::algorithm::Algorithm::is_fast_bucket)). A block splits the free room of a bucket, so no request
    /// may cost more than a quarter of it, and none may return permits by its true cost.
    pub blocks: bool,
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

/// A limiter's policy after the store has lost states, or may have: a restarted Redis has its states again with an
/// append-only file, but may lack the last of them.
///
/// ```
/// use paceway_limit::{Limit, OnLoss, Rate};
///
/// // A vendor that answers 429 for a call too many, and does no more, needs no caution after a restart of Redis.
/// let limit = Limit::token_bucket("vendor", Rate::per_second(30), 10).on_loss(OnLoss::Trust);
/// assert_eq!(OnLoss::default(), OnLoss::Close);
/// # drop(limit);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// Lost states count as used up, so that no forgotten grant is made a second time.
    #[default]
    Close,
    /// The limiter continues with the states that the store has; one that it has lost counts as unused.
    Trust,
}

// === impl OnLoss ===

impl OnLoss {
    /// All values, with their names in the configuration.
    pub const NAMED: [(&str, Self); 2] = [("close", Self::Close), ("trust", Self::Trust)];

    /// The value of `on_loss` in the configuration.
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }
}

// === impl Check ===

impl Check {
    /// A check of one permit of `algorithm` on the state named `key`. It enforces, counts no grants from before a
    /// data loss, and refuses requests when the store gives no decision; the `with_` methods change that.
    pub fn new(key: impl Into<Arc<str>>, algorithm: impl Into<Rule>) -> Self {
        let (algorithm, on_failure) = (algorithm.into(), OnFailure::Reject);
        Self {
            key: key.into(),
            algorithm,
            cost: 1,
            enforce: true,
            horizon: 0,
            period: algorithm.as_rate().map_or(0, |rate| rate.refill_time()),
            bounds: None,
            on_loss: OnLoss::Close,
            overflow: None,
            on_failure,
            turn: None,
            floors: Floors::default(),
            blocks: false,
        }
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

    /// Sets what the limiter does after a data loss, [`OnLoss::Close`] unless this is called.
    #[must_use]
    pub fn with_on_loss(self, on_loss: OnLoss) -> Self {
        Self { on_loss, ..self }
    }

    /// Sets the policy for requests that the store gives no decision for, [`OnFailure::Reject`] unless this is called.
    #[must_use]
    pub fn with_on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    /// Sets how the request takes its turn among those that wait for this limiter, first come, first served unless this is
    /// called.
    #[must_use]
    pub fn with_turn(self, turn: Turn) -> Self {
        Self { turn: Some(turn), ..self }
    }

    /// Sets the permits that requests of lower priorities leave to others, none unless this is called.
    #[must_use]
    pub fn with_floors(self, floors: Floors) -> Self {
        let algorithm = match self.algorithm {
            Rule::Permits(rule) => rule.with_floors(floors).into(),
            rate @ Rule::Rate(_) => rate,
        };
        Self { algorithm, floors, ..self }
    }

    /// The permits that a request of this priority leaves to others.
    pub fn kept_from(&self, priority: Priority) -> i64 {
        if self.floors.is_none() {
            return 0;
        }
        self.floors.kept_from(priority, self.algorithm.limit())
    }

    /// The permits that this request leaves to others. One without a turn has the priority of most.
    pub fn floor(&self) -> i64 {
        let turn = self.turn.as_ref();
        self.kept_from(turn.map_or(Priority::Normal, |turn| turn.priority))
    }

    /// Sets the bounds of a rate that refusals find.
    #[must_use]
    pub fn with_bounds(self, bounds: Bounds) -> Self {
        Self { bounds: Some(bounds.into()), ..self }
    }

    /// Lets gateways take permits of this limiter in [`blocks`](Self::blocks), which they do not unless this is called.
    #[must_use]
    pub fn with_blocks(self) -> Self {
        Self { blocks: true, ..self }
    }

    /// Reads the gate of the limiter at `now`, of which the store may have none; `None` when it delays no request.
    pub fn open_gate(&self, gate: Option<Gate>, now: Micros) -> Option<OpenGate> {
        let bounds = self.bounds.as_deref().copied();
        OpenGate::new(gate, now, self.algorithm.as_rate()?, bounds)
    }

    /// The loss at the instant `at` as this limiter sees it; `None` if it trusts the store.
    pub fn loss(&self, at: Micros) -> Option<DataLoss> {
        (self.on_loss == OnLoss::Close).then_some(DataLoss { at, horizon: self.horizon })
    }

    /// Whether the limiter bounds how many calls run at once: it leases concurrency permits instead of spending a rate.
    pub fn is_lease(&self) -> bool {
        matches!(self.algorithm, Rule::Permits(_))
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
    fn reads_the_hash_tag_of_a_key(#[case] key: &str, #[case] tag: &str) {
        assert_eq!(super::hash_tag(key), tag);
    }
}
