//! Token bucket as a generic cell rate algorithm with reservations. Twin of `token_bucket.lua`.
//!
//! Source: ITU-T I.371 Annex A (virtual scheduling). The reservation of future permits and the holes are
//! additions of Paceway.
//!
//! A grant of `n` permits owns an interval of `n·per` ticks of a [`Timeline`], and no two grants share a
//! tick. A grant at instant `at` whose interval `[v, v + n·per)` lies in `[at, at + burst·per)` keeps the
//! law: all grants of `[a, a + t)` own disjoint intervals of `[a, a + t + burst·per)`, which has room for
//! `burst + t/per` permits. Therefore a request gets the first free interval that is long enough, at the
//! first instant from which that interval is in reach. The tail of the timeline is the theoretical arrival
//! time.
//!
//! Instants are whole µs and intervals are not, so `at` is rounded up, and the law holds for every half-open
//! interval of whole µs.

mod block;

pub use super::timeline::State;
pub use block::{BlockAsk, LONGEST_USE};

use super::{
    Algorithm, DataLoss, Grant, Level, MAX_BUDGET, Micros, OpenRate, RateFacts, RateRule, Returns,
    ceil_div,
    nanohertz::{Nanohertz, nanohertz, span_of},
    timeline::{Pace, Timeline},
};
use smallvec::SmallVec;

/// The rule of a token bucket: a permit costs `per / den` µs, and an idle bucket saves at most `burst`
/// permits.
///
/// ```
/// use paceway_limit::algorithm::TokenBucket;
///
/// // 600 permits per minute, at most 20 of them at once.
/// let rule = TokenBucket::new(600, 60_000_000, 20).expect("a legal rule");
/// assert_eq!(rule.capacity(), 20);
/// // More than one permit a µs is beyond the arithmetic of the rules.
/// assert!(TokenBucket::new(2_000_000, 1_000_000, 1).is_none());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    /// How many ticks of the time line a permit owns; at least `den`.
    pub(super) per: i64,
    /// How many ticks a µs has.
    pub(super) den: i64,
    /// How many permits a full bucket holds.
    pub(super) burst: i64,
}

/// The state of a token bucket while it is worked on, with the rule under which it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    rule: TokenBucket,
    line: Timeline,
}

// === impl TokenBucket ===

impl TokenBucket {
    /// A bucket of one permit that refills in one second.
    #[cfg(test)]
    pub(crate) const ONE_A_SECOND: Self = Self { per: 1_000_000, den: 1, burst: 1 };

    /// `count` permits per `period` µs, at most `burst` at once. `None` when one of them is not positive,
    /// when the rate is above one permit a µs, or when the bucket takes more than 2^52 µs to fill.
    ///
    /// A rate whose arithmetic would leave the exact integers (such as 123457 a day) is replaced by a
    /// slightly slower one that stays exact, at most two parts in a million away.
    pub fn new(count: i64, period: Micros, burst: i64) -> Option<Self> {
        let Pace { per, den, most: burst } = Pace::new(count, period, burst, 0)?;
        Some(Self { per, den, burst })
    }

    /// The permits that a full bucket holds; a request with a greater cost is never granted.
    pub fn capacity(&self) -> i64 {
        self.burst
    }

    /// The numbers of the rule in the order in which `rule` of `token_bucket.lua` reads them.
    pub fn args(&self) -> [i64; 3] {
        [self.per, self.den, self.burst]
    }

    /// Whether the permits of a waiting request of this `cost` begin long enough after its instant that the state need not
    /// remember it; see [`Pace::usual_gap`].
    #[cfg(feature = "redis")]
    pub(crate) fn is_usual(&self, cost: i64) -> bool {
        cost == 1 || cost <= self.burst / 4
    }

    fn pace(&self) -> Pace {
        Pace { per: self.per, den: self.den, most: self.burst }
    }
}

// === impl RateRule for TokenBucket ===

impl RateRule for TokenBucket {
    fn facts(&self) -> RateFacts {
        RateFacts {
            name: "token_bucket",
            letter: b'T',
            capacity: self.burst,
            burst: Some(self.burst),
            pace: [self.per, self.den],
            margin: 0,
            longest_wait: MAX_BUDGET,
            returns: Returns::OneByOne,
            debt: |level| level.reset_after,
            endless: (*self).into(),
            spent: (*self).into(),
            gate_field: Some(|grant| &mut grant.aux),
            spaces_permits: false,
        }
    }

    fn numbers(&self) -> SmallVec<[i64; 6]> {
        SmallVec::from_slice(&self.args())
    }

    fn rate(&self) -> Nanohertz {
        nanohertz(self.den, self.per)
    }

    fn with_rate(&self, count: i64, period: Micros, _margin: Micros) -> Option<Algorithm> {
        Self::new(count, period, self.burst.min(count)).map(Into::into)
    }

    fn at_rate(&self, rate: Nanohertz) -> Option<Algorithm> {
        // An interval of less than a ms is too coarse in whole µs.
        let count = if rate > nanohertz(1_000, 1_000_000) { 1_000 } else { 1 };
        Self::new(count, span_of(count, rate)?, self.burst).map(Into::into)
    }

    fn share(&self, gateways: i64, period: Micros, cost: i64) -> Algorithm {
        let burst = (self.burst / gateways).max(cost).min(self.burst);
        match self.pace().share(gateways, period, burst, 0) {
            Some(Pace { per, den, most: burst }) => Self { per, den, burst }.into(),
            None => Self { burst, ..*self }.into(),
        }
    }

    fn unused_of(&self, grant: Grant, _cost: i64, used: i64) -> Grant {
        // A negative number tells such a part from a grant that was not used at all. Above the ticks of its place is
        // by how much the line had moved.
        let ticks = if grant.ticks < 0 { !grant.ticks } else { grant.ticks };
        let place = ticks.rem_euclid(self.den);
        let part = Grant { ticks: place, ..grant }.after(used * self.per, self.den);
        Grant { ticks: !(ticks - place + part.ticks), ..part }
    }

    fn used_up(&self, loss: DataLoss, now: Micros) -> super::State {
        super::State::TokenBucket(State::used_up(self.pace(), loss, now))
    }

    fn longest_debt(&self, wait: Micros, _greatest_cost: i64) -> Micros {
        // A full bucket refills.
        wait + ceil_div(self.pace().full(), self.den)
    }
}

// === impl Open ===

impl Open {
    /// Reads a state at `now`. A bucket that is full again equals an absent one. A state that another rule
    /// wrote keeps its level.
    pub fn new(state: Option<&mut State>, now: Micros, rule: TokenBucket) -> Self {
        Self { rule, line: Timeline::new(state, now, rule.pace(), |pace| pace.most) }
    }

    /// The open state of a bucket without holes that was never moved, from the tail and the birth that the script reports; `None`
    /// when no such bucket has these numbers.
    pub fn reported(rule: TokenBucket, now: Micros, tail: i64, born: Micros) -> Option<Self> {
        let line = Timeline::reported(rule.pace(), now, tail, born)?;
        Some(Self { rule, line })
    }
}

impl Open {
    /// Whether the permits of a grant are within reach no earlier than `at`, µs of the store's clock.
    pub(super) fn binds(&self, grant: Grant, cost: i64, at: Micros) -> bool {
        let Pace { per, den, .. } = self.rule.pace();
        let end = (grant.whole - at) * den + grant.ticks.rem_euclid(den) + cost * per;
        end > self.rule.pace().full() - den
    }
}

// === impl OpenRate for Open ===

impl OpenRate for Open {
    type State = State;

    fn facts(&self) -> RateFacts {
        self.rule.facts()
    }

    /// The permits that stay are free before those of the request, or came back. They stay free until others take them
    /// ([`Timeline::float`]), or until a request takes the first of them in place of its own, because they are past soon.
    fn earliest(&self, from: Micros, cost: i64, kept: i64) -> (Micros, i64) {
        let rule = self.rule;
        let length = cost * rule.per;
        let kept = if kept > 0 { kept.min(rule.burst - cost).max(0) * rule.per } else { 0 };
        let start = match kept {
            0 => self.line.free(from, length),
            kept => self.line.free_after(from, length, kept),
        };
        let at = ceil_div(start + length - rule.pace().full(), rule.den);
        // Permits that came back are granted for now alone.
        if at > from
            && from == 0
            && let Some(start) = self.line.free_in_credit(kept + length)
        {
            return (0, start);
        }
        if kept > 0 && at <= from {
            let first = self.line.free(from, length);
            if from == 0 || first < from * rule.den + rule.per {
                return (from, first);
            }
        }
        (at.max(from), start)
    }

    fn promise(&mut self, at: Micros, start: i64, kept: i64) {
        self.line.promise(at, start);
        if kept > 0 {
            self.line.float(kept * self.rule.per);
        }
    }

    fn take(&mut self, start: i64, cost: i64) -> Grant {
        self.line.take(start, cost)
    }

    fn refund(&mut self, grant: Grant, cost: i64) -> bool {
        self.line.settle(grant, cost)
    }

    fn level(&self) -> Level {
        let pace = self.rule.pace();
        let permits = |start: i64, end: i64| {
            let end = end.min(pace.full());
            // Permits are counted one by one from now on. Where not even one fits so, one that ends with the
            // room counts.
            let last = i64::from(pace.left(start, end) >= pace.per);
            ((end - pace.clip(start, 0)) / pace.per).max(last)
        };
        let holes: i64 = self.line.holes.iter().map(|(start, end)| permits(*start, *end)).sum();
        Level {
            remaining: holes + permits(self.line.tail, pace.full()) + self.line.credit() / pace.per,
            next: self.earliest(0, 1, 0).0,
            reset_after: self.line.reset_after(),
            ..Level::default()
        }
    }

    fn close(self) -> Option<(State, Micros)> {
        self.line.close()
    }

    fn put_back(self, _state: &mut State) {}
}

#[cfg(test)]
mod tests;
