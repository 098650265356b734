//! The rule of a limiter of either kind: permits of a rate, or permits that calls hold. It decides nothing.

use super::{
    Algorithm, Concurrency, DataLoss, Grant, Level, Micros, Open, OpenRate, Returns, State,
    concurrency,
};
use smallvec::SmallVec;

/// The rule of a limiter.
///
/// ```
/// use paceway_limit::algorithm::{Concurrency, Rule};
///
/// let rule = Rule::from(Concurrency::new(4, 30_000_000).expect("4 at once"));
/// assert_eq!((rule.limit(), rule.lease()), (4, Some(30_000_000)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Each call spends permits of a rate.
    Rate(Algorithm),
    /// Each call holds a concurrency permit until it has ended.
    Permits(Concurrency),
}

/// The state of a limiter, in the form that its store keeps between two calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleState {
    /// The grants of a rate.
    Rate(State),
    /// The holders and the waiters of a [`Concurrency`].
    Permits(concurrency::State),
}

/// The state of a limiter while it is worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenRule {
    /// The open state of a rate.
    Rate(Open),
    /// The open state of a [`Concurrency`].
    Permits(concurrency::Open),
}

impl From<Algorithm> for Rule {
    fn from(rule: Algorithm) -> Self {
        Self::Rate(rule)
    }
}

impl From<Concurrency> for Rule {
    fn from(rule: Concurrency) -> Self {
        Self::Permits(rule)
    }
}

// === impl Rule ===

impl Rule {
    /// The rule if it is a rate.
    pub fn as_rate(&self) -> Option<&Algorithm> {
        match self {
            Self::Rate(rule) => Some(rule),
            Self::Permits(_) => None,
        }
    }

    /// How long a concurrency permit is held without a renewal, µs; `None` for a rate.
    pub fn lease(&self) -> Option<Micros> {
        match self {
            Self::Rate(_) => None,
            Self::Permits(rule) => Some(rule.lease()),
        }
    }

    /// Reads a state at `now`, in a store that may have lost data; `None` is a limiter that no request has used, or not for a
    /// long time. Large parts are moved out of `state` until [`OpenRule::put_back`] or [`OpenRule::close`] returns them.
    pub fn open(
        &self,
        loss: Option<DataLoss>,
        state: Option<&mut RuleState>,
        now: Micros,
    ) -> OpenRule {
        match self {
            Self::Rate(rule) => {
                // The key of a state names its algorithm, so another kind is never there.
                let state = state.and_then(|state| match state {
                    RuleState::Rate(state) => Some(state),
                    RuleState::Permits(_) => None,
                });
                OpenRule::Rate(match loss {
                    Some(loss) => rule.open_after(loss, state, now),
                    None => rule.open(state, now),
                })
            }
            Self::Permits(rule) => {
                let state = state.and_then(|state| match state {
                    RuleState::Rate(_) => None,
                    RuleState::Permits(state) => Some(state),
                });
                let unknown_until = loss.map_or(0, DataLoss::until);
                OpenRule::Permits(concurrency::Open::held_until(unknown_until, state, now, *rule))
            }
        }
    }

    /// The instant from which on the limiter grants again after a loss, if no request has used it since; µs of the
    /// store's clock. A daily quota of a [`FixedWindow`](super::FixedWindow) that is lost at noon reopens at midnight.
    pub fn closed_until(&self, loss: DataLoss) -> Micros {
        loss.at + self.open(Some(loss), None, loss.at).level().next
    }

    /// The greatest cost that one request can ever pay, in permits; a request with a greater cost is refused.
    pub fn capacity(&self) -> i64 {
        match self {
            Self::Rate(rule) => rule.capacity(),
            Self::Permits(_) => 1,
        }
    }

    /// The most permits that exist at one time: the burst or the count of a rate, or the maximum of a
    /// [`Concurrency`].
    pub fn limit(&self) -> i64 {
        match self {
            Self::Rate(rule) => rule.capacity(),
            Self::Permits(rule) => rule.max(),
        }
    }

    /// How long after a loss of data a grant from before the loss can still count, µs, if no request waits
    /// longer than `longest_wait` and none costs more than `greatest_cost`. After Redis loses its data the
    /// limiter counts as exhausted for this long.
    pub fn horizon(&self, longest_wait: Micros, greatest_cost: i64) -> Micros {
        match self {
            Self::Rate(rule) => rule.horizon(longest_wait, greatest_cost),
            Self::Permits(rule) => rule.lease(),
        }
    }

    /// By how much the travel time to the upstream may vary without breaking the rule there, µs.
    pub fn margin(&self) -> Micros {
        self.as_rate().map_or(0, |rate| rate.facts().margin)
    }

    /// The length of a window, µs; 0 for rules without windows.
    pub fn window(&self) -> Micros {
        self.as_rate().map_or(0, |rate| rate.facts().window())
    }

    /// Whether all permits of a window come back at its end, and may be used up before.
    pub fn has_reset(&self) -> bool {
        let facts = self.as_rate().map(|rate| rate.facts());
        facts.is_some_and(|facts| {
            matches!(facts.returns, Returns::AtWindowEnd { .. }) && !facts.spaces_permits
        })
    }

    /// The numbers of the rule for the script, in the order in which `rule` of its Lua twin reads them.
    pub fn numbers(&self) -> SmallVec<[i64; 6]> {
        match self {
            Self::Rate(rule) => rule.numbers(),
            Self::Permits(rule) => SmallVec::from_slice(&[rule.max(), rule.lease()]),
        }
    }

    /// The capital letter by which the script and the names of keys know the algorithm, such as `T`.
    pub fn letter(&self) -> u8 {
        match self {
            Self::Rate(rule) => rule.facts().letter,
            Self::Permits(_) => b'C',
        }
    }

    /// The algorithm's name in the configuration and in metrics, such as `token_bucket`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Rate(rule) => rule.facts().name,
            Self::Permits(_) => "concurrency",
        }
    }
}

// === impl OpenRule ===

impl OpenRule {
    /// Returns the permits of a grant; false when the state has nothing (left) of it.
    pub fn refund(&mut self, grant: Grant, cost: i64) -> bool {
        match self {
            Self::Rate(open) => open.refund(grant, cost),
            Self::Permits(open) => open.refund(grant),
        }
    }

    /// The open state if it is that of a rate.
    pub fn rate(&self) -> Option<&Open> {
        match self {
            Self::Rate(open) => Some(open),
            Self::Permits(_) => None,
        }
    }

    /// The same, to be changed.
    pub fn rate_mut(&mut self) -> Option<&mut Open> {
        match self {
            Self::Rate(open) => Some(open),
            Self::Permits(_) => None,
        }
    }

    /// The open state if it is that of a [`Concurrency`].
    pub fn leases(&mut self) -> Option<&mut concurrency::Open> {
        match self {
            Self::Rate(_) => None,
            Self::Permits(open) => Some(open),
        }
    }

    /// How full the limiter is at this instant; the state does not change.
    pub fn level(&self) -> Level {
        match self {
            Self::Rate(open) => open.level(),
            Self::Permits(open) => open.level(),
        }
    }

    /// The state that the store keeps and for how many µs it matters; `None` when it equals an absent state.
    pub fn close(self) -> Option<(RuleState, Micros)> {
        match self {
            Self::Rate(open) => open.close().map(|(state, ttl)| (RuleState::Rate(state), ttl)),
            Self::Permits(open) => {
                open.close().map(|(state, ttl)| (RuleState::Permits(state), ttl))
            }
        }
    }

    /// Moves the parts that [`Rule::open`] took out of `state` back into it, when no permit was taken.
    pub fn put_back(self, state: &mut RuleState) {
        match (self, state) {
            (Self::Rate(open), RuleState::Rate(state)) => open.put_back(state),
            (Self::Permits(open), RuleState::Permits(state)) => open.put_back(state),
            _ => {}
        }
    }
}
