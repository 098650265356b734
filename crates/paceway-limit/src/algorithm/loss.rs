//! What a rule makes of states that its store has lost: they count as used up, as far as they can have been when it
//! happened. In the script this stands in `marker.lua`, `state.lua` and with each algorithm.

use super::{Algorithm, MAX_BUDGET, Micros, Open, State, concurrency};

/// That a store has lost states: which ones, and what they said, nobody knows any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// When; a state that was born before it, or is absent, is lost.
    pub at: Micros,
    /// For how long behind it what was granted before can count, µs: [`Algorithm::hidden`].
    pub hidden: Micros,
}

// === impl Algorithm ===

impl Algorithm {
    /// As [`Self::open`], of a store that has lost states: one that is lost counts as used up as far as it can have
    /// been, so that no grant that is forgotten is made again.
    pub fn open_behind(&self, loss: Loss, state: Option<&mut State>, now: Micros) -> Open {
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

    /// A state that comes into being `now` and of which nothing is used: behind a loss it differs from an absent one.
    pub fn unused(&self, now: Micros) -> Option<State> {
        self.used_up(Loss { at: 0, hidden: 0 }, now)
    }

    /// What is known of it behind a loss, as a state that comes into being `now`; `None` for places, whose holders are
    /// not known.
    fn used_up(&self, loss: Loss, now: Micros) -> Option<State> {
        Some(match self {
            Self::TokenBucket(rule) => State::TokenBucket(rule.used_up(loss, now)),
            Self::LeakyBucket(rule) => State::LeakyBucket(rule.used_up(loss, now)),
            Self::SlidingWindow(rule) => State::SlidingWindow(rule.used_up(loss, now)),
            Self::FixedWindow(rule) => State::FixedWindow(rule.used_up(loss, now)),
            Self::WarmUp(rule) => State::WarmUp(rule.used_up(loss, now)),
            Self::Concurrency(_) => return None,
        })
    }

    /// For how long behind a loss of states grants from before it can count, µs, where no request waits longer than
    /// `longest_wait` and none costs more than `greatest_cost`: slots may have been promised as far ahead.
    pub fn hidden(&self, longest_wait: Micros, greatest_cost: i64) -> Micros {
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

// === impl Loss ===

impl Loss {
    /// Until then what was granted before it can count, µs of the store's clock.
    pub(super) fn until(self) -> Micros {
        self.at + self.hidden
    }

    /// Whether `state` is from before it. Whatever is written behind it was opened behind it, and is born then.
    pub fn takes(self, state: &State) -> bool {
        match state {
            State::TokenBucket(state) | State::LeakyBucket(state) => state.born() < self.at,
            State::SlidingWindow(state) => state.born() < self.at,
            State::FixedWindow(state) => state.born() < self.at,
            State::WarmUp(state) => state.born() < self.at,
            // Who holds what is there holds it; that others do, too, its opening knows.
            State::Concurrency(_) => false,
        }
    }
}
