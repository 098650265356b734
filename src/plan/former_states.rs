//! The states that a limiter had before a change of the configuration: another key, algorithm, scope or list of rates names
//! others. As long as their permits count, requests take permits of them, too, so that no change gives a quota twice.

use crate::{
    answer::Policy,
    config::{LimiterConfig, Mode, Rate},
    key::StateNames,
    store::Check,
};
use std::time::Duration;
use tokio::time::Instant;

/// For how long other gateways may have the old file after this one has the new one.
pub(super) const SLACK: Duration = Duration::from_secs(5);
/// The longest time for which keys share what was used before the limiter had keys.
const MOST_SHARED: Duration = Duration::from_secs(60);

/// A state that had the permits of a rate.
#[derive(Clone)]
pub(super) struct FormerState {
    pub(super) check: Check,
    pub(super) names: StateNames,
    pub(super) policy: Policy,
    /// The period of the rate; `None` for concurrency permits.
    pub(super) period: Option<Duration>,
    /// The instant from which it is not asked any more.
    pub(super) until: Instant,
    /// Whether requests ask it. One of a rate that a change removes is not asked, and known for the case that the rate is
    /// back in time.
    pub(super) is_asked: bool,
}

/// The states of a limiter in which permits count, when a change replaces the limiter, switches it off or removes it.
#[derive(Clone)]
pub(super) struct UsedStates {
    pub(super) limiter: LimiterConfig,
    /// The longest wait of a request.
    pub(super) wait: Duration,
    pub(super) all: Vec<FormerState>,
}

/// A limiter after a change, as far as its states depend on it.
pub(super) struct Renamed<'a> {
    pub(super) limiter: &'a LimiterConfig,
    /// The names of its states, for each of its rates.
    pub(super) names: &'a [StateNames],
    /// Whether the states of one request have to be on one server.
    pub(super) is_cluster: bool,
}

// === impl FormerState ===

impl FormerState {
    /// The state that all keys share which the limiter has now.
    fn shared(self, most: Instant) -> Self {
        let names = self.names.shared();
        let check = Check { key: names.of(None).into(), overflow: None, ..self.check };
        Self { check, names, until: self.until.min(most), ..self }
    }
}

// === impl UsedStates ===

impl UsedStates {
    /// Those that still count.
    pub(super) fn now(mut self) -> Self {
        let now = Instant::now();
        self.all.retain(|state| state.until > now);
        self
    }
}

// === impl Renamed ===

impl Renamed<'_> {
    /// The states that `before` had and that the limiter does not have any more for the same rate, and whether permits are
    /// forgotten that count for longer.
    pub(super) fn former(&self, before: UsedStates) -> (Vec<FormerState>, bool) {
        let same_key = before.limiter.key == self.limiter.key;
        let gets_key = before.limiter.key.is_none() && !same_key;
        let most_shared = Instant::now() + before.wait + MOST_SHARED + SLACK;
        let (mut all, mut is_cut) = (Vec::new(), false);
        // A rate that the change removes ends at once, unless another one comes in its place.
        let had = |rate: &Rate| before.limiter.rates.iter().any(|own| own.period == rate.period);
        let is_new = !self.limiter.rates.iter().all(had);
        for mut state in before.all {
            state.is_asked |= is_new || state.period.is_none() || self.rate_of(&state).is_some();
            if !same_key && !state.names.is_shared() {
                if !gets_key {
                    is_cut = true;
                    continue;
                }
                is_cut |= state.until > most_shared;
                state = state.shared(most_shared);
            }
            if self.limiter.key.is_none() {
                // A state that keys shared is the limiter's own again.
                state.names = state.names.per_key();
            }
            if self.has(&state) {
                continue;
            }
            if self.is_cluster && !state.names.share_tags(&self.names[0]) {
                is_cut = true;
                continue;
            }
            all.push(state);
        }
        (all, is_cut)
    }

    /// Whether requests ask this state for the same rate, or for another one that takes its place.
    fn has(&self, state: &FormerState) -> bool {
        let place = self.names.iter().position(|names| *names == state.names);
        let place = place.filter(|_| self.limiter.mode != Mode::Off);
        place.is_some_and(|place| self.rate_of(state).is_none_or(|rate| rate == place))
    }

    /// The index of the rate by whose rule the state is asked: that of the same period, if the algorithm is the same.
    pub(super) fn rule_of(&self, state: &FormerState) -> Option<usize> {
        let letter = state.check.algorithm.letter();
        self.rate_of(state).filter(|rate| self.limiter.algorithms[*rate].letter() == letter)
    }

    /// The index of the rate of the same period.
    fn rate_of(&self, state: &FormerState) -> Option<usize> {
        self.limiter.rates.iter().position(|rate| Some(rate.period) == state.period)
    }
}
