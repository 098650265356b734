//! The state that a rule assumes after its store has lost data: as full as the lost state can have been. In
//! the script the same is in `epoch.lua`, `state.lua`, and in the file of each algorithm.

use super::{Algorithm, MAX_BUDGET, Micros, Open, State, concurrency};

/// A loss of data in the store, for example after a failover of Redis to an empty replica. It is unknown
/// which states are gone and what they contained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataLoss {
    /// The instant of the loss. A state that is absent or was born before it counts as lost.
    pub at: Micros,
    /// How long after the loss a grant from before it can still count, µs: [`Algorithm::horizon`].
    pub horizon: Micros,
}

// === impl Algorithm ===

impl Algorithm {
    /// The same as [`Self::open`] in a store that has lost data. A state that is lost counts as full until
    /// the end of its horizon, so that no forgotten grant is made a second time.
    pub fn open_after(&self, loss: DataLoss, state: Option<&mut State>, now: Micros) -> Open {
        match self {
            Self::Concurrency(rule) => {
                let state = state.and_then(|state| match state {
                    State::Concurrency(state) => Some(state),
                    _ => None,
                });
                Open::Concurrency(concurrency::Open::held_until(loss.until(), state, now, *rule))
            }
            _ => match state.filter(|state| !loss.takes(state)) {
                Some(state) => self.open(Some(state), now),
                None => self.open(self.used_up(loss, now).as_mut(), now),
            },
        }
    }

    /// The instant from which on the limiter grants again after a loss, if no request has used it since; µs of the
    /// store's clock. A daily quota of a [`FixedWindow`](super::FixedWindow) that is lost at noon reopens at midnight.
    pub fn closed_until(&self, loss: DataLoss) -> Micros {
        loss.at + self.open_after(loss, None, loss.at).level().next
    }

    /// A state that comes into being `now` and of which no permit is taken. After a loss it differs from an
    /// absent state, which counts as lost.
    pub fn unused(&self, now: Micros) -> Option<State> {
        self.used_up(DataLoss { at: 0, horizon: 0 }, now)
    }

    /// The state that this rule assumes after a loss: full, and born `now`. `None` for a [`Concurrency`],
    /// whose holders are unknown.
    fn used_up(&self, loss: DataLoss, now: Micros) -> Option<State> {
        Some(match self {
            Self::TokenBucket(rule) => State::TokenBucket(rule.used_up(loss, now)),
            Self::LeakyBucket(rule) => State::LeakyBucket(rule.used_up(loss, now)),
            Self::SlidingWindow(rule) => State::SlidingWindow(rule.used_up(loss, now)),
            Self::FixedWindow(rule) => State::FixedWindow(rule.used_up(loss, now)),
            Self::WarmUp(rule) => State::WarmUp(rule.used_up(loss, now)),
            Self::Concurrency(_) => return None,
        })
    }

    /// How long after a loss of data a grant from before the loss can still count, µs, if no request waits
    /// longer than `longest_wait` and none costs more than `greatest_cost`. After Redis loses its data the
    /// limiter counts as exhausted for this long.
    pub fn horizon(&self, longest_wait: Micros, greatest_cost: i64) -> Micros {
        let wait = longest_wait.clamp(0, MAX_BUDGET);
        match self {
            Self::TokenBucket(rule) => wait + rule.longest_debt(),
            Self::LeakyBucket(rule) => {
                wait.min(rule.longest_wait()) + rule.longest_debt(greatest_cost)
            }
            Self::WarmUp(rule) => wait + rule.longest_debt(greatest_cost),
            Self::SlidingWindow(_) | Self::FixedWindow(_) => wait,
            Self::Concurrency(rule) => rule.lease(),
        }
    }
}

// === impl DataLoss ===

impl DataLoss {
    /// The instant from which on no grant from before the loss counts, µs of the store's clock.
    pub(super) fn until(self) -> Micros {
        self.at + self.horizon
    }

    /// Whether `state` is from before the loss. A state that is written after the loss was opened after it,
    /// and is born after it.
    pub fn takes(self, state: &State) -> bool {
        match state {
            State::TokenBucket(state) | State::LeakyBucket(state) => state.born() < self.at,
            State::SlidingWindow(state) => state.born() < self.at,
            State::FixedWindow(state) => state.born() < self.at,
            State::WarmUp(state) => state.born() < self.at,
            // The holders in the state do hold their permits. `held_until` accounts for the holders that were
            // lost.
            State::Concurrency(_) => false,
        }
    }
}
