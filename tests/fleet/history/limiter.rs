//! A limiter of a history, as its seed draws it. Decides nothing.

use super::{MS, Micros, SECOND, choice};
use fastrand::Rng;
use paceway::{
    algorithm::{
        Algorithm, Concurrency, FixedWindow, LeakyBucket, Rule, SlidingWindow, TokenBucket,
    },
    store::OnFailure,
};

#[derive(Debug, Clone)]
pub(crate) struct Limiter {
    pub(crate) rule: Rule,
    pub(crate) count: i64,
    pub(crate) period: Micros,
    pub(crate) on_failure: OnFailure,
}

// === impl Limiter ===

impl Limiter {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let period = *choice(rng, &[250, 500, 1000]) * MS;
        let count = rng.i64(4..=12) * period / (250 * MS);
        let margin = *choice(rng, &[0, 0, 20]) * MS;
        let rule = match rng.u8(0..10) {
            0..3 => TokenBucket::new(count, period, rng.i64(4..=count.max(4))).map(Rule::from),
            3..5 => SlidingWindow::new(count, period, margin).map(Rule::from),
            5..7 => FixedWindow::new(count, period).map(Rule::from),
            7..8 => LeakyBucket::new(count, period, margin, None).map(Rule::from),
            _ => Concurrency::new(rng.i64(2..=8), rng.i64(2..=4) * SECOND).map(Rule::from),
        };
        let on_failure = match rng.u8(0..6) {
            0 => OnFailure::Reject,
            1 => OnFailure::Allow,
            _ => OnFailure::Share { period },
        };
        Self { rule: rule.expect("within the bounds of every rule"), count, period, on_failure }
    }

    /// A limiter of the tokens that answers cost.
    pub(super) fn tokens(rng: &mut Rng) -> Self {
        let (count, period) = (*choice(rng, &[60, 120]), *choice(rng, &[500, 1000]) * MS);
        Self::at_once(count, period, rng)
    }

    /// A limiter that grants `count` permits at once, and then none for long.
    pub(super) fn at_once(count: i64, period: Micros, rng: &mut Rng) -> Self {
        let rule = match rng.u8(0..3) {
            0 => TokenBucket::new(count, period, count).map(Rule::from),
            1 => SlidingWindow::new(count, period, 0).map(Rule::from),
            _ => FixedWindow::new(count, period).map(Rule::from),
        };
        let rule = rule.expect("within the bounds of every rule");
        Self { rule, count, period, on_failure: OnFailure::Share { period } }
    }

    /// The same limiter with `count` permits in its period.
    pub(super) fn with_count(&self, count: i64) -> Self {
        let rule = self.rule.as_rate().expect("a rate");
        let rule = rule.with_rate(count, self.period, self.rule.margin()).expect("a usual rate");
        Self { rule: rule.into(), count, ..self.clone() }
    }

    /// Makes a token bucket six times as fast, with a burst that one call can ask for.
    pub(super) fn quicken(&mut self) {
        if let Rule::Rate(Algorithm::TokenBucket(_)) = self.rule {
            self.count *= 6;
            let rule = TokenBucket::new(self.count, self.period, self.count.min(100));
            self.rule = rule.map_or(self.rule, Rule::from);
        }
    }

    /// The time between two grants of a saturated limiter, when each call takes `hold`.
    pub(crate) fn spacing(&self, hold: Micros) -> Micros {
        match self.rule {
            Rule::Permits(rule) => hold.max(MS) / rule.max(),
            Rule::Rate(Algorithm::LeakyBucket(_)) => self.period / self.count + self.rule.margin(),
            _ => (self.period + self.rule.margin()) / self.count,
        }
    }
}
