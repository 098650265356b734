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
    DataLoss, Grant, Level, MAX_BUDGET, Micros, ceil_div,
    timeline::{Pace, Timeline},
};

/// The rule of a leaky bucket: one permit every `per / den` µs, and a queue of bounded length.
///
/// ```
/// use paceway_limit::algorithm::LeakyBucket;
///
/// // A call every 200 ms and 10 ms more, for an upstream that measures spacing; 3 callers may wait.
/// let rule = LeakyBucket::new(5, 1_000_000, 10_000, Some(3)).expect("a legal rule");
/// assert_eq!(rule.longest_wait(), 3 * 210_000);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeakyBucket {
    pace: Pace,
    margin: Micros,
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

    /// How long its queue may be, µs: the time in which `capacity` permits flow out. [`MAX_BUDGET`] means
    /// that the queue has no bound of its own.
    pub fn longest_wait(&self) -> Micros {
        self.longest_wait
    }

    /// The count of the rate, and the period in which as many flow out, µs.
    pub(super) fn count_and_period(&self) -> (i64, Micros) {
        let with_margin = ceil_div(self.pace.full(), self.pace.den);
        (self.pace.most, with_margin - self.pace.most * self.margin)
    }

    /// How many permits may wait; `None` if only their budgets bound that.
    pub fn queue(&self) -> Option<i64> {
        self.queue
    }

    /// The extra time between two permits, µs.
    pub fn margin(&self) -> Micros {
        self.margin
    }

    /// The greatest cost of a request, in permits: the count of the rate.
    pub fn capacity(&self) -> i64 {
        self.pace.most
    }

    /// How far after its instant the interval of a grant of `cost` permits can end, µs.
    pub(super) fn longest_debt(&self, cost: i64) -> Micros {
        ceil_div(cost.min(self.pace.most) * self.pace.per, self.pace.den)
    }

    /// How many ticks a permit owns, and how many a µs has.
    pub(super) fn pace(&self) -> (i64, i64) {
        (self.pace.per, self.pace.den)
    }

    /// The state that the bucket assumes after a loss of data: no permit flows out before the end of the
    /// horizon.
    pub(super) fn used_up(&self, loss: DataLoss, now: Micros) -> State {
        State::used_up(self.pace, loss, now)
    }

    /// One gateway's share of the rule, see [`Algorithm::share`](super::Algorithm::share). The margin stays
    /// the same, and so does the time that the queue may take.
    pub(super) fn share(&self, gateways: i64, period: Micros) -> Self {
        let Pace { per, den, most } = self.pace;
        let margin = i128::from(self.margin) * i128::from(den);
        let slower = (i128::from(per) - margin) * i128::from(gateways);
        let slower = slower.min(i128::from(period) * i128::from(den)) + margin;
        let pace = i64::try_from(slower).ok().and_then(|per| Pace::new(den, per, most, 0));
        let pace = pace.or_else(|| Pace::new(1, period.checked_add(self.margin)?, most, 0));
        Self { pace: pace.unwrap_or(self.pace), ..*self }
    }

    /// The same rule with a queue of any length, for permits that are already spent.
    pub(super) fn endless(&self) -> Self {
        Self { longest_wait: MAX_BUDGET, queue: None, ..*self }
    }

    /// How many permits flow out during `span` µs, rounded up.
    pub(super) fn permits(&self, span: Micros) -> i64 {
        self.pace.permits(span)
    }

    /// The arguments of the rule for the script, in the order in which `rule` of `leaky_bucket.lua` reads
    /// them.
    pub fn args(&self) -> [i64; 4] {
        [self.pace.per, self.pace.den, self.pace.most, self.longest_wait]
    }
}

// === impl Open ===

impl Open {
    /// Reads a state at `now`. A bucket that has run dry equals an absent one.
    pub fn new(state: Option<&mut State>, now: Micros, rule: LeakyBucket) -> Self {
        Self { rule, line: Timeline::new(state, now, rule.pace, |_| 1) }
    }

    /// The first instant from `from` on (µs from now) at which `cost` permits may be granted, and the start
    /// of their interval.
    pub fn earliest(&self, from: Micros, cost: i64) -> (Micros, i64) {
        let pace = self.rule.pace;
        let start = self.line.free(from, cost * pace.per);
        (ceil_div(start, pace.den).max(from), start)
    }

    /// Takes the interval that [`Self::earliest`] found, and returns the grant for a later refund.
    pub fn take(&mut self, start: i64, cost: i64) -> Grant {
        self.line.take(start, cost)
    }

    /// Returns the interval of an unused grant; false when the state has nothing (left) of this grant.
    pub fn refund(&mut self, grant: Grant, cost: i64) -> bool {
        self.line.refund(grant, cost)
    }

    /// How full the bucket is: one permit can be taken now, or none.
    pub fn level(&self) -> Level {
        let next = self.earliest(0, 1).0;
        let reset_after = self.line.reset_after();
        Level { remaining: i64::from(next == 0), next, reset_after, paused: 0 }
    }

    /// The state to keep and how long it matters, µs; `None` when the bucket is dry, which equals an absent
    /// state.
    pub fn close(self) -> Option<(State, Micros)> {
        self.line.close()
    }

    /// The [`LeakyBucket::longest_wait`] of the rule with which this state was opened, µs.
    pub fn longest_wait(&self) -> Micros {
        self.rule.longest_wait
    }
}

#[cfg(test)]
mod tests;
