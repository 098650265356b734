//! The state that a rule assumes after its store has lost data: as full as the lost state can have been. In
//! the script the same is in `epoch.lua`, `state.lua`, and in the file of each algorithm.

use super::{Algorithm, MAX_BUDGET, Micros, Open, RuleState, State};

/// A loss of data in the store, for example after a failover of Redis to an empty replica. It is unknown
/// which states are gone and what they contained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataLoss {
    /// The instant of the loss. A state that is absent or was born before it counts as lost.
    pub at: Micros,
    /// How long after the loss a grant from before it can still count, µs: [`Rule::horizon`](super::Rule::horizon).
    pub horizon: Micros,
}

// === impl Algorithm ===

impl Algorithm {
    /// The same as [`Self::open`] in a store that has lost data. A state that is lost counts as full until
    /// the end of its horizon, so that no forgotten grant is made a second time.
    pub fn open_after(&self, loss: DataLoss, state: Option<&mut State>, now: Micros) -> Open {
        match state.filter(|state| state.born() >= loss.at) {
            Some(state) => self.open(Some(state), now),
            // After the clock was set back, a state that is born now would be born before the loss, and count as lost
            // again, with each permit that it has granted.
            None => self.open(Some(&mut self.used_up(loss, now.max(loss.at))), now),
        }
    }

    /// A state that comes into being `now` and of which no permit is taken. After a loss it differs from an
    /// absent state, which counts as lost.
    pub fn unused(&self, now: Micros) -> State {
        self.used_up(DataLoss { at: 0, horizon: 0 }, now)
    }

    /// How long after a loss of data a grant from before the loss can still count; see [`Rule::horizon`](super::Rule::horizon).
    pub fn horizon(&self, longest_wait: Micros, greatest_cost: i64) -> Micros {
        self.longest_debt(longest_wait.clamp(0, MAX_BUDGET), greatest_cost)
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
    pub fn takes(self, state: &RuleState) -> bool {
        match state {
            RuleState::Rate(state) => state.born() < self.at,
            // The holders in the state do hold their permits. `held_until` accounts for the holders that were
            // lost.
            RuleState::Permits(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{
        CalendarWindow, FixedWindow, LeakyBucket, Rule, SlidingWindow, TokenBucket, WarmUp,
        reserve::{self, Want},
    };
    use rstest::rstest;

    const SECOND: Micros = 1_000_000;

    /// 40/s in several rules. In the history 93233 of the fleet the store lost its data, then its clock was set back by 3 s.
    /// Every decision began with a state that was born before the loss, so it forgot all earlier grants: fixed windows
    /// granted without a limit for 3 s. The requests wait longer than the horizon counts on, so that all of them get slots.
    #[rstest]
    #[case::token_bucket(TokenBucket::new(40, SECOND, 10).map(Rule::from))]
    #[case::sliding_window(SlidingWindow::new(10, SECOND / 4, 0).map(Rule::from))]
    #[case::fixed_window(FixedWindow::new(10, SECOND / 4).map(Rule::from))]
    #[case::calendar_window(CalendarWindow::new(10, [1, 2, 3].map(|i| i * SECOND / 4)).map(Rule::from))]
    #[case::leaky_bucket(LeakyBucket::new(40, SECOND, 0, None).map(Rule::from))]
    #[case::warm_up(WarmUp::new(40, SECOND, SECOND, 3.0).map(Rule::from))]
    fn a_clock_that_is_set_back_after_a_loss_forgets_no_grant(#[case] rule: Option<Rule>) {
        let rule = rule.expect("a rule");
        let now = 1_700_000_000 * SECOND;
        let loss = DataLoss { at: now + 3 * SECOND, horizon: rule.horizon(0, 1) };
        let mut state = None;
        let mut granted = Vec::new();
        for i in 0..100 {
            let now = now + i * 1_000;
            let mut open = rule.open(Some(loss), state.as_mut(), now);
            let want = Want { open: &mut open, cost: 1, enforce: true, gate: None, kept: 0 };
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
