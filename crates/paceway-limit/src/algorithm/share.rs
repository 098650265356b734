//! The share of a rule that one gateway enforces by itself while the gateways cannot share a state: its rate,
//! the state in which it begins, and the permits that it owes when the shared state is back. Only arithmetic.

use super::{Algorithm, Level, MAX_BUDGET, Micros, Returns};

/// How many windows ahead of now are taken over into the state of a share; later windows begin empty.
const WINDOWS: usize = 256;

// === impl Algorithm ===

impl Algorithm {
    /// The largest number of permits that is charged at once for requests that were made already: those of half an
    /// hour. A state takes permits for one hour ahead. Half of 1000 permits a day would never be charged
    /// while other requests take each permit that flows in.
    pub fn piece(&self) -> i64 {
        let (facts, most) = (self.facts(), self.capacity().max(1));
        match facts.returns {
            Returns::OneByOne => facts.permits(MAX_BUDGET / 2).clamp(1, most),
            Returns::AfterSpan(_) | Returns::AtWindowEnd { .. } => most,
        }
    }

    /// How many permits a limiter at `level` owes beyond one at `known`, both measured now, rounded up. The
    /// result is 0 for windows.
    pub fn owed(&self, level: Level, known: Level) -> i64 {
        let facts = self.facts();
        facts.permits((facts.debt)(&level) - (facts.debt)(&known))
    }

    /// The instant at which a permit that was granted at `at` is charged to another state: the middle of its
    /// window, because the clocks may differ a little.
    pub fn slot(&self, at: Micros) -> Micros {
        match self.facts().returns {
            Returns::AtWindowEnd { since, period } => {
                at - (at - since).rem_euclid(period) + period / 2
            }
            Returns::OneByOne | Returns::AfterSpan(_) => at,
        }
    }

    /// How long after its [slot](Self::slot) a permit counts, µs; 0 where [`Self::owed`] says it.
    pub fn counts_for(&self) -> Micros {
        match self.facts().returns {
            Returns::OneByOne => 0,
            Returns::AfterSpan(span) => span,
            Returns::AtWindowEnd { period, .. } => period - period / 2,
        }
    }

    /// The pieces in which permits of this share are taken from a fresh state, so that it is as full as
    /// `whole` at `level`: both are unused again at the same instant.
    pub fn begin(&self, whole: &Self, level: Level) -> Vec<i64> {
        let window = self.facts().window();
        if window == 0 {
            let owed = self.owed(level, Level::default());
            return Some(owed).filter(|owed| *owed > 0).into_iter().collect();
        }
        // The number of windows after the present one that have permits in use.
        let ahead = (level.reset_after - 1).max(0) / window;
        let ahead = usize::try_from(ahead).unwrap_or(0).min(WINDOWS);
        let now = Some(self.used(level, whole)).filter(|now| *now > 0);
        now.into_iter().chain(std::iter::repeat_n(self.capacity(), ahead)).collect()
    }

    /// The rule by which the pieces of [`Self::begin`] are taken: calls that were made already take no slots of an even flow.
    pub fn of_past_calls(&self) -> Self {
        let facts = self.facts();
        let unspaced = facts.spent.with_rate(self.capacity(), facts.window(), facts.margin);
        unspaced.filter(|_| facts.spaces_permits && facts.window() > 0).unwrap_or(*self)
    }

    /// How much earlier than now the permits were granted that come back in `reset_after` µs. The permits of
    /// one sliding window come back together.
    pub fn since(&self, reset_after: Micros) -> Micros {
        match self.facts().returns {
            Returns::AfterSpan(span) => (span - reset_after).max(0),
            Returns::OneByOne | Returns::AtWindowEnd { .. } => 0,
        }
    }

    /// The permits of this share that are used in the present window when `whole` is at `level`.
    fn used(&self, level: Level, whole: &Self) -> i64 {
        if level.reset_after <= 0 {
            return 0;
        }
        let (own, all) = (i128::from(self.capacity()), i128::from(whole.capacity()));
        let facts = whole.facts();
        if facts.spaces_permits {
            // The level does not tell what is left of the window; of an even flow at most its past part is used.
            let past = i128::from((facts.window() - level.reset_after).clamp(0, facts.window()));
            let window = i128::from(facts.window());
            return i64::try_from((own * past + window - 1) / window).unwrap_or(i64::MAX);
        }
        // The last known level may be that of a charge, which counts by another limit: that of `spent`.
        let is_charge = level.remaining > whole.capacity();
        let limit = if is_charge { whole.facts().spent.capacity() } else { whole.capacity() };
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
        let since = self.since + span;
        Self { next, reset_after, paused: left(self.paused), since, ..self }
    }
}

#[cfg(test)]
mod tests;
