//! The share of a rule that one gateway enforces by itself while the gateways cannot share a state: its rate,
//! the state in which it begins, and the permits that it owes when the shared state is back. Only arithmetic.

use super::{Algorithm, Level, MAX_BUDGET, Micros};

/// How many windows ahead of now are taken over into the state of a share; later windows begin empty.
const WINDOWS: usize = 256;

// === impl Algorithm ===

impl Algorithm {
    /// The rule of one of `gateways` (at least 1) that enforce this rule together, each by itself. The share
    /// is never below one permit in `period` µs, and never too small for a request of `cost` permits. If a
    /// share is raised to these minimums, the gateways grant more in sum than the whole rule allows.
    pub fn share(&self, gateways: i64, period: Micros, cost: i64) -> Self {
        match self {
            Self::TokenBucket(rule) => Self::TokenBucket(rule.share(gateways, period, cost)),
            Self::LeakyBucket(rule) => Self::LeakyBucket(rule.share(gateways, period)),
            Self::SlidingWindow(rule) => Self::SlidingWindow(rule.share(gateways, cost)),
            Self::FixedWindow(rule) => Self::FixedWindow(rule.share(gateways, cost)),
            Self::WarmUp(rule) => Self::WarmUp(rule.share(gateways, period)),
            Self::Concurrency(rule) => Self::Concurrency(rule.share(gateways)),
        }
    }

    /// The same rule for permits that are already spent: a full queue refuses none of them.
    pub fn endless(&self) -> Self {
        match self {
            Self::LeakyBucket(rule) => Self::LeakyBucket(rule.endless()),
            rule => *rule,
        }
    }

    /// The rule by which permits that another state granted are charged to this one. A fixed window accepts
    /// them above its count, too. Otherwise a charge to a full window would be counted in the next window,
    /// and a permit that is refunded a moment later (that of a call whose answer came too late) would be
    /// granted once more.
    pub fn spent(&self) -> Self {
        match self {
            Self::FixedWindow(rule) => Self::FixedWindow(rule.spent()),
            rule => rule.endless(),
        }
    }

    /// The largest number of permits that is charged at once for requests that were made already: those of half an
    /// hour. A state takes permits for one hour ahead. Half of 1000 permits a day would never be charged
    /// while other requests take each permit that flows in.
    pub fn piece(&self) -> i64 {
        let half = MAX_BUDGET / 2;
        let permits = match self {
            Self::TokenBucket(rule) => rule.permits(half),
            Self::LeakyBucket(rule) => rule.permits(half),
            Self::WarmUp(rule) => rule.permits(half),
            Self::SlidingWindow(_) | Self::FixedWindow(_) | Self::Concurrency(_) => i64::MAX,
        };
        permits.clamp(1, self.capacity().max(1))
    }

    /// How many permits a limiter at `level` owes beyond one at `known`, both measured now, rounded up. The
    /// result is 0 for windows, whose permits do not flow back one by one: their debt follows from the
    /// instants of the grants.
    pub fn owed(&self, level: Level, known: Level) -> i64 {
        match self {
            Self::TokenBucket(rule) => rule.permits(level.reset_after - known.reset_after),
            Self::LeakyBucket(rule) => rule.permits(level.reset_after - known.reset_after),
            // `reset_after` is the time until the limiter is cold, and cold time is no debt.
            Self::WarmUp(rule) => rule.permits(level.next - known.next),
            Self::SlidingWindow(_) | Self::FixedWindow(_) | Self::Concurrency(_) => 0,
        }
    }

    /// The instant at which a permit that was granted at `at` is charged to another state: the middle of its
    /// window, because the clocks may differ a little.
    pub fn slot(&self, at: Micros) -> Micros {
        match self {
            Self::FixedWindow(rule) => at - at.rem_euclid(rule.period()) + rule.period() / 2,
            _ => at,
        }
    }

    /// How long after its [slot](Self::slot) a permit counts, µs; 0 where [`Self::owed`] says it.
    pub fn counts_for(&self) -> Micros {
        match self {
            Self::SlidingWindow(rule) => rule.span(),
            Self::FixedWindow(rule) => rule.period() - rule.period() / 2,
            _ => 0,
        }
    }

    /// The length of a window, µs; 0 for rules without windows.
    pub fn window(&self) -> Micros {
        match self {
            Self::SlidingWindow(rule) => rule.span(),
            Self::FixedWindow(rule) => rule.period(),
            _ => 0,
        }
    }

    /// The pieces in which permits of this share are taken from a fresh state, so that it is as full as
    /// `whole` at `level`: both are unused again at the same instant.
    pub fn begin(&self, whole: &Self, level: Level) -> Vec<i64> {
        match self {
            Self::SlidingWindow(_) | Self::FixedWindow(_) => {
                let ahead = usize::try_from(self.ahead(level)).unwrap_or(0).min(WINDOWS);
                let now = Some(self.used(level, whole)).filter(|now| *now > 0);
                now.into_iter().chain(std::iter::repeat_n(self.limit(), ahead)).collect()
            }
            _ => {
                let owed = self.owed(level, Level::default());
                Some(owed).filter(|owed| *owed > 0).into_iter().collect()
            }
        }
    }

    /// How much earlier than now the permits were granted that come back in `reset_after` µs. The permits of
    /// one sliding window come back together.
    pub fn since(&self, reset_after: Micros) -> Micros {
        match self {
            Self::SlidingWindow(rule) => (rule.span() - reset_after).max(0),
            _ => 0,
        }
    }

    /// How many windows after the present one have permits in use.
    fn ahead(&self, level: Level) -> i64 {
        match self {
            Self::SlidingWindow(rule) => (level.reset_after - 1).max(0) / rule.span(),
            Self::FixedWindow(rule) => (level.reset_after - 1).max(0) / rule.period(),
            _ => 0,
        }
    }

    /// The permits of this share that are used in the present window when `whole` is at `level`.
    fn used(&self, level: Level, whole: &Self) -> i64 {
        if level.reset_after <= 0 {
            return 0;
        }
        let (own, all) = (i128::from(self.limit()), i128::from(whole.limit()));
        let limit = match whole {
            // The last known level is that of a charge, which counts by another limit: see [`Self::spent`].
            Self::FixedWindow(rule) if level.remaining > whole.limit() => rule.spent().capacity(),
            _ => whole.limit(),
        };
        let used = i128::from((limit - level.remaining).max(0));
        i64::try_from((used * own + all - 1) / all).unwrap_or(i64::MAX)
    }
}

// === impl Level ===

impl Level {
    /// The level after `span` µs in which no permit was taken. The permits of a window come back all at once.
    #[must_use]
    pub fn after(self, span: Micros) -> Self {
        let left = |time: Micros| (time - span).max(0);
        let (next, reset_after) = (left(self.next), left(self.reset_after));
        Self { next, reset_after, paused: left(self.paused), ..self }
    }
}

#[cfg(test)]
mod tests;
