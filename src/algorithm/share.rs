//! A rule that several gateways keep without asking each other: what is left of it for one of them, how that one
//! begins from what was last known, and what it owes when they share one state again. Only arithmetic.

use super::{Algorithm, Level, Micros};

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

    /// How many permits a limiter at `level` has given beyond those at `known`, as far as they still matter. Rounded up;
    /// of windows that lie ahead each counts as full.
    pub fn unpaid(&self, level: Level, known: Level) -> i64 {
        match self {
            Self::TokenBucket(rule) => rule.permits(level.reset_after - known.reset_after),
            Self::LeakyBucket(rule) => rule.permits(level.reset_after - known.reset_after),
            // Its reset is when it is cold, which it owes nobody.
            Self::WarmUp(rule) => rule.permits(level.next - known.next),
            Self::SlidingWindow(_) | Self::FixedWindow(_) => {
                (self.used(level, self) - self.used(known, self)).max(0)
            }
            Self::Concurrency(_) => 0,
        }
    }

    /// How many permits of this share are gone when `whole` stands at `level`: it is full again at the same instant.
    pub fn begin(&self, whole: &Self, level: Level) -> i64 {
        match self {
            Self::SlidingWindow(_) | Self::FixedWindow(_) => self.used(level, whole),
            _ => self.unpaid(level, Level::default()),
        }
    }

    /// How much earlier than now permits are gone that are back in `reset_after` µs: those of a window are at once.
    pub fn since(&self, reset_after: Micros) -> Micros {
        match self {
            Self::SlidingWindow(rule) => (rule.span() - reset_after).max(0),
            _ => 0,
        }
    }

    /// The permits of the windows that are not past, when `whole` stands at `level`.
    fn used(&self, level: Level, whole: &Self) -> i64 {
        let ahead = match self {
            _ if level.reset_after <= 0 => return 0,
            Self::SlidingWindow(rule) => (level.reset_after - 1) / rule.span(),
            Self::FixedWindow(rule) => (level.reset_after - 1) / rule.period(),
            _ => 0,
        };
        let (own, all) = (i128::from(self.limit()), i128::from(whole.limit()));
        let used = i128::from((whole.limit() - level.remaining).max(0));
        let used = (used * own + all - 1) / all + own * i128::from(ahead);
        i64::try_from(used).unwrap_or(i64::MAX)
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
