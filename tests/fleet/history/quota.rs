//! The quota of an upstream that is lower than a limiter's, and the content of its answers. Decides nothing.

use super::{MS, Micros, SECOND, choice};
use fastrand::Rng;

/// The quota of the upstream, which it counts in windows of its own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quota {
    /// The permits of a window.
    pub(crate) count: i64,
    pub(crate) period: Micros,
    pub(crate) says: Says,
    /// Each answer that is no refusal says how many permits remain, and when the window ends.
    pub(crate) reports: bool,
    /// `throttle.learn` is not off.
    pub(crate) learns: bool,
}

/// The time after which a call may be sent again, as an answer of 429 names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Says {
    /// The end of the window.
    Until,
    /// The same in whole seconds, rounded up.
    Seconds,
    /// Nothing, so that the gateways take their default.
    Nothing,
}

/// The pause after an answer that names no time.
const DEFAULT_PAUSE: Micros = 500 * MS;

// === impl Quota ===

impl Quota {
    /// A quota below `rate` permits in `period` µs.
    pub(super) fn draw(rng: &mut Rng, rate: i64, period: Micros) -> Self {
        let window = *choice(rng, &[period, SECOND, 3 * SECOND]);
        let part = *choice(rng, &[60, 80, 90]);
        Self {
            count: (rate * window / period * part / 100).max(8),
            period: window,
            says: *choice(rng, &[Says::Until, Says::Seconds, Says::Nothing]),
            reports: rng.bool(),
            learns: rng.u8(0..4) > 0,
        }
    }

    /// The number of the window of an instant.
    pub(crate) fn window(&self, at: Micros) -> i64 {
        at.div_euclid(self.period)
    }

    /// The end of that window.
    pub(crate) fn end(&self, at: Micros) -> Micros {
        (self.window(at) + 1) * self.period
    }

    /// The end of a pause, as the gateways have it after a refusal at `at`.
    pub(crate) fn refuses_until(&self, at: Micros) -> Micros {
        let left = self.end(at) - at;
        match self.says {
            Says::Until => at + left,
            Says::Seconds => at + (left + SECOND - 1) / SECOND * SECOND,
            Says::Nothing => at + DEFAULT_PAUSE,
        }
    }
}
