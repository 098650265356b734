//! Leaky bucket as a queue: a constant outflow, one permit at a time. Twin of `leaky_bucket.lua`.
//!
//! A grant of `n` permits at instant `at` owns the `n·per` ticks of a [`Timeline`] that begin there: the next
//! grant waits for the time that this one takes. The rule is a token bucket of burst 1, except that a greater
//! cost is paid after the grant and not before it. Between two grants of one permit lie `period/count +
//! margin` µs, and a grant of `n` permits is followed by `n` times as much. Instants are whole µs and rounded
//! up, intervals are exact: nothing drifts.
//!
//! Source: ITU-T I.371 Annex A (continuous-state leaky bucket); the queue is that of nginx's `limit_req
//! burst=`.

pub use super::timeline::State;

use super::{
    Algorithm, DataLoss, Grant, Level, MAX_BUDGET, Micros, OpenRate, RateFacts, RateRule, Returns,
    ceil_div,
    nanohertz::{Nanohertz, nanohertz, span_of},
    timeline::{Pace, Timeline},
};
use smallvec::SmallVec;

/// The rule of a leaky bucket: one permit every `per / den` µs, and a queue of bounded length.
///
/// ```
/// use paceway_limit::algorithm::{LeakyBucket, RateRule};
///
/// // A call every 200 ms and 10 ms more, for an upstream that measures spacing; 3 callers may wait.
/// let rule = LeakyBucket::new(5, 1_000_000, 10_000, Some(3)).expect("a legal rule");
/// assert_eq!(rule.facts().longest_wait, 3 * 210_000);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeakyBucket {
    pace: Pace,
    margin: Micros,
    /// How long the queue may be, µs: the time in which its permits flow out.
    longest_wait: Micros,
    /// How many permits may wait; `None` if only their budgets bound that.
    queue: Option<i64>,
}

/// The state of a leaky bucket while it is worked on, with the rule under which it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    rule: LeakyBucket,
    line: Timeline,
}

// === impl LeakyBucket ===

impl LeakyBucket {
    /// `count` permits per `period` µs, each of them `margin` µs farther from the next, and `capacity`
    /// permits that may wait (`None`: as many as their budgets allow). `None` when `count` or `period` is not
    /// positive, `margin` or `capacity` is negative, the rate is above one permit a µs, or `count` permits
    /// take more than 2^52 µs.
    ///
    /// A rate whose arithmetic would leave the exact integers is replaced by a slightly slower one that stays
    /// exact, at most two parts in a million away.
    pub fn new(count: i64, period: Micros, margin: Micros, capacity: Option<i64>) -> Option<Self> {
        if count < 1 || period < count || margin < 0 || capacity.is_some_and(|queue| queue < 0) {
            return None;
        }
        let pace = Pace::new(count, margin.checked_mul(count)?.checked_add(period)?, count, 0)?;
        // Rounded up, as the instants are: the last permit of the queue waits just as long. One permit more
        // would wait a whole interval longer, at least a µs.
        let longest = |queue: i64| {
            let ticks = i128::from(queue) * i128::from(pace.per) + i128::from(pace.den) - 1;
            i64::try_from(ticks / i128::from(pace.den)).unwrap_or(MAX_BUDGET).min(MAX_BUDGET)
        };
        Some(Self {
            pace,
            margin,
            longest_wait: capacity.map_or(MAX_BUDGET, longest),
            queue: capacity,
        })
    }
}

// === impl RateRule for LeakyBucket ===

impl RateRule for LeakyBucket {
    fn facts(&self) -> RateFacts {
        let endless = Self { longest_wait: MAX_BUDGET, queue: None, ..*self }.into();
        RateFacts {
            name: "leaky_bucket",
            letter: b'L',
            capacity: self.pace.most,
            burst: None,
            pace: [self.pace.per, self.pace.den],
            margin: self.margin,
            longest_wait: self.longest_wait,
            returns: Returns::OneByOne,
            debt: |level| level.reset_after,
            endless,
            spent: endless,
            gate_field: Some(|grant| &mut grant.aux),
            spaces_permits: true,
        }
    }

    fn numbers(&self) -> SmallVec<[i64; 6]> {
        SmallVec::from_slice(&[self.pace.per, self.pace.den, self.pace.most, self.longest_wait])
    }

    fn rate(&self) -> Nanohertz {
        let with_margin = ceil_div(self.pace.full(), self.pace.den);
        nanohertz(self.pace.most, with_margin - self.pace.most * self.margin)
    }

    fn with_rate(&self, count: i64, period: Micros, margin: Micros) -> Option<Algorithm> {
        Self::new(count, period, margin, self.queue).map(Into::into)
    }

    fn at_rate(&self, rate: Nanohertz) -> Option<Algorithm> {
        self.with_rate(self.pace.most, span_of(self.pace.most, rate)?, self.margin)
    }

    /// The margin stays the same, and so does the time that the queue may take.
    fn share(&self, gateways: i64, period: Micros, _cost: i64) -> Algorithm {
        let Pace { per, den, most } = self.pace;
        let margin = i128::from(self.margin) * i128::from(den);
        let slower = (i128::from(per) - margin) * i128::from(gateways);
        let slower = slower.min(i128::from(period) * i128::from(den)) + margin;
        let pace = i64::try_from(slower).ok().and_then(|per| Pace::new(den, per, most, 0));
        let one = || Pace::new(1, period.checked_add(self.margin)?, most, 0);
        Self { pace: pace.or_else(one).unwrap_or(self.pace), ..*self }.into()
    }

    fn unused_of(&self, grant: Grant, _cost: i64, used: i64) -> Grant {
        grant.after(used * self.pace.per, self.pace.den)
    }

    fn used_up(&self, loss: DataLoss, now: Micros) -> super::State {
        super::State::LeakyBucket(State::used_up(self.pace, loss, now))
    }

    fn longest_debt(&self, wait: Micros, greatest_cost: i64) -> Micros {
        let cost = greatest_cost.min(self.pace.most);
        wait.min(self.longest_wait) + ceil_div(cost * self.pace.per, self.pace.den)
    }
}

// === impl Open ===

impl Open {
    /// Reads a state at `now`. A bucket that has run dry equals an absent one.
    pub fn new(state: Option<&mut State>, now: Micros, rule: LeakyBucket) -> Self {
        Self { rule, line: Timeline::new(state, now, rule.pace, |_| 1) }
    }
}

// === impl OpenRate for Open ===

impl OpenRate for Open {
    type State = State;

    fn facts(&self) -> RateFacts {
        self.rule.facts()
    }

    fn earliest(&self, from: Micros, cost: i64, _kept: i64) -> (Micros, i64) {
        let pace = self.rule.pace;
        let start = self.line.free(from, cost * pace.per);
        (ceil_div(start, pace.den).max(from), start)
    }

    fn take(&mut self, start: i64, cost: i64) -> Grant {
        self.line.take(start, cost)
    }

    fn refund(&mut self, grant: Grant, cost: i64) -> bool {
        self.line.refund(grant, cost)
    }

    fn promise(&mut self, _at: Micros, _start: i64, _kept: i64) {}

    /// One permit can be taken now, or none.
    fn level(&self) -> Level {
        let next = self.earliest(0, 1, 0).0;
        let reset_after = self.line.reset_after();
        Level { remaining: i64::from(next == 0), next, reset_after, ..Level::default() }
    }

    fn close(self) -> Option<(State, Micros)> {
        self.line.close()
    }

    fn put_back(self, _state: &mut State) {}
}

#[cfg(test)]
mod tests;
