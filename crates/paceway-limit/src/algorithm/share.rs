//! A rule that several gateways keep without asking each other: what is left of it for one of them, how that one
//! begins from what was last known, and what it owes when they share one state again. Only arithmetic.

use super::{Algorithm, Level, Micros};

/// Windows ahead that are counted at most.
const WINDOWS: usize = 256;

// === impl Algorithm ===

impl Algorithm {
    /// The rule of one of `gateways` (at least 1) that keep this one together, each on its own. Never below one permit in
    /// `period` µs, and never too small for a request of `cost` permits: as many gateways as that is less than the
    /// share of then grant more than the whole in sum.
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

    /// The same rule for permits that are spent already: nobody is refused because the queue is full.
    pub fn endless(&self) -> Self {
        match self {
            Self::LeakyBucket(rule) => Self::LeakyBucket(rule.endless()),
            rule => *rule,
        }
    }

    /// The rule by which permits that another state granted are charged to this one. A fixed window takes them above its
    /// count, too. Otherwise a charge that found the window full would be counted in the next window, and a permit that
    /// is given back a moment later (that of a call whose answer came too late) would be granted once more.
    pub fn spent(&self) -> Self {
        match self {
            Self::FixedWindow(rule) => Self::FixedWindow(rule.spent()),
            rule => rule.endless(),
        }
    }

    /// How many permits a limiter at `level` owes beyond what it does at `known`, both of now, rounded up. None where
    /// permits do not flow back one by one: what is owed there, their instants say.
    pub fn owed(&self, level: Level, known: Level) -> i64 {
        match self {
            Self::TokenBucket(rule) => rule.permits(level.reset_after - known.reset_after),
            Self::LeakyBucket(rule) => rule.permits(level.reset_after - known.reset_after),
            // Its reset is when it is cold, which it owes nobody.
            Self::WarmUp(rule) => rule.permits(level.next - known.next),
            Self::SlidingWindow(_) | Self::FixedWindow(_) | Self::Concurrency(_) => 0,
        }
    }

    /// When a permit that was given at `at` is charged to another state: in the middle of its window, for clocks may
    /// differ a little.
    pub fn slot(&self, at: Micros) -> Micros {
        match self {
            Self::FixedWindow(rule) => at - at.rem_euclid(rule.period()) + rule.period() / 2,
            _ => at,
        }
    }

    /// How long behind its [slot](Self::slot) a permit counts, where [`Self::owed`] does not tell, µs.
    pub fn counts_for(&self) -> Micros {
        match self {
            Self::SlidingWindow(rule) => rule.span(),
            Self::FixedWindow(rule) => rule.period() - rule.period() / 2,
            _ => 0,
        }
    }

    /// How long a window is, µs; 0 for rules without.
    pub fn window(&self) -> Micros {
        match self {
            Self::SlidingWindow(rule) => rule.span(),
            Self::FixedWindow(rule) => rule.period(),
            _ => 0,
        }
    }

    /// The pieces in which permits of this share are taken from a fresh state, so that it is as full as `whole` at
    /// `level`: it is full again at the same instant.
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

    /// How much earlier than now permits are gone that are back in `reset_after` µs: those of a window are at once.
    pub fn since(&self, reset_after: Micros) -> Micros {
        match self {
            Self::SlidingWindow(rule) => (rule.span() - reset_after).max(0),
            _ => 0,
        }
    }

    /// How many windows behind the one that is now have permits in use.
    fn ahead(&self, level: Level) -> i64 {
        match self {
            Self::SlidingWindow(rule) => (level.reset_after - 1).max(0) / rule.span(),
            Self::FixedWindow(rule) => (level.reset_after - 1).max(0) / rule.period(),
            _ => 0,
        }
    }

    /// The permits of this share in the window that is now, when `whole` stands at `level`.
    fn used(&self, level: Level, whole: &Self) -> i64 {
        if level.reset_after <= 0 {
            return 0;
        }
        let (own, all) = (i128::from(self.limit()), i128::from(whole.limit()));
        let limit = match whole {
            // The last that was heard is of a charge: see [`Self::spent`].
            Self::FixedWindow(rule) if level.remaining > whole.limit() => rule.spent().capacity(),
            _ => whole.limit(),
        };
        let used = i128::from((limit - level.remaining).max(0));
        i64::try_from((used * own + all - 1) / all).unwrap_or(i64::MAX)
    }
}

// === impl Level ===

impl Level {
    /// What is left of it after `span` µs in which nothing was taken. Permits of windows come back all at once.
    #[must_use]
    pub fn after(self, span: Micros) -> Self {
        let left = |time: Micros| (time - span).max(0);
        Self { next: left(self.next), reset_after: left(self.reset_after), ..self }
    }
}

#[cfg(test)]
mod tests;
