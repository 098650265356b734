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
                // After the clock was set back, a state that is born now would be born before the loss, and count as lost
                // again, with each permit that it has granted.
                None => self.open(self.used_up(loss, now.max(loss.at)).as_mut(), now),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{
        FixedWindow, LeakyBucket, SlidingWindow, TokenBucket, WarmUp,
        reserve::{self, Want},
    };
    use rstest::rstest;

    const SECOND: Micros = 1_000_000;

    /// 40/s in several rules. In the history 93233 of the fleet the store lost its data, then its clock was set back by 3 s.
    /// Every decision began with a state that was born before the loss, so it forgot all earlier grants: fixed windows
    /// granted without a limit for 3 s. The requests wait longer than the horizon counts on, so that all of them get slots.
    #[rstest]
    #[case::token_bucket(TokenBucket::new(40, SECOND, 10).map(Algorithm::TokenBucket))]
    #[case::sliding_window(SlidingWindow::new(10, SECOND / 4, 0).map(Algorithm::SlidingWindow))]
    #[case::fixed_window(FixedWindow::new(10, SECOND / 4).map(Algorithm::FixedWindow))]
    #[case::leaky_bucket(LeakyBucket::new(40, SECOND, 0, None).map(Algorithm::LeakyBucket))]
    #[case::warm_up(WarmUp::new(40, SECOND, SECOND, 3.0).map(Algorithm::WarmUp))]
    fn a_clock_that_is_set_back_after_a_loss_forgets_no_grant(#[case] rule: Option<Algorithm>) {
        let rule = rule.expect("a rule");
        let now = 1_700_000_000 * SECOND;
        let loss = DataLoss { at: now + 3 * SECOND, horizon: rule.horizon(0, 1) };
        let mut state = None;
        let mut granted = Vec::new();
        for i in 0..100 {
            let now = now + i * 1_000;
            let mut open = rule.open_after(loss, state.as_mut(), now);
            let want = Want { open: &mut open, cost: 1, enforce: true, gate: None };
            let reserved = reserve::decide(&mut [want], 60 * SECOND, None);
            assert!(reserved.parts.is_some(), "{reserved:?}");
            granted.push(now + reserved.at);
            state = open.close().map(|(state, _)| state);
        }
        granted.sort_unstable();
        assert!(granted[0] >= loss.at, "{} before the loss", loss.at - granted[0]);
        // 10 at once, and 90 at 40/s.
        let last = granted[99] - loss.at;
        assert!(last >= 9 * SECOND / 4, "100 within {last} µs");
    }
}
