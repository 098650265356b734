//! The questions that each algorithm of a rate answers in its own file. No question has a default answer, so the compiler
//! names those that a new algorithm leaves open.

use super::{Algorithm, DataLoss, Grant, Level, Micros, State, nanohertz::Nanohertz};
use smallvec::SmallVec;

/// The rule of a rate with its parameters, such as a token bucket of 10/s. An [`Algorithm`] is any of them.
pub trait RateRule {
    /// The facts about the rule that are true of every state.
    fn facts(&self) -> RateFacts;

    /// The numbers of the rule for the script, in the order in which `rule` of its Lua twin reads them.
    fn numbers(&self) -> SmallVec<[i64; 6]>;

    /// The rate of the rule in permits in 10^9 s, without its margin; 0 for a rule whose rate is not constant.
    fn rate(&self) -> Nanohertz;

    /// The same rule with `count` permits in each `period` µs in place of its own rate, and with this margin if it has any. The
    /// queue and the warm-up stay, and so does a burst that is not above `count`. `None` for numbers that are beyond the
    /// arithmetic of the rule.
    fn with_rate(&self, count: i64, period: Micros, margin: Micros) -> Option<Algorithm>;

    /// The same rule at another rate. The burst and the margin stay. A sliding window
    /// also keeps its period as far as whole permits allow: the upstream's window has a fixed length, too, and calls that
    /// come in clusters may not be as many as before in a longer time. `None` for the algorithms that have no automatic rate,
    /// and for a rate that is beyond the arithmetic of the rule.
    fn at_rate(&self, rate: Nanohertz) -> Option<Algorithm>;

    /// The rule of one of `gateways` (at least 1) that enforce this rule together, each by itself. The share
    /// is never below one permit in `period` µs, and never too small for a request of `cost` permits. If a
    /// share is raised to these minimums, the gateways grant more in sum than the whole rule allows.
    fn share(&self, gateways: i64, period: Micros, cost: i64) -> Algorithm;

    /// Names the last permits of a grant of `cost` permits of which `used` were used.
    fn unused_of(&self, grant: Grant, cost: i64, used: i64) -> Grant;

    /// The state that this rule assumes after a loss of data: full until the end of the horizon, and born `now`.
    fn used_up(&self, loss: DataLoss, now: Micros) -> State;

    /// How long after a loss of data a grant from before the loss can still count, µs, if no request waits
    /// longer than `wait` (0 to 1 h) and none costs more than `greatest_cost`.
    fn longest_debt(&self, wait: Micros, greatest_cost: i64) -> Micros;
}

/// The facts about a rule that are true of every state of it.
#[derive(Debug, Clone, Copy)]
pub struct RateFacts {
    /// The algorithm's name in the configuration and in metrics, such as `token_bucket`.
    pub name: &'static str,
    /// The capital letter by which the script and the names of keys know the algorithm, such as `T`.
    pub letter: u8,
    /// The greatest cost that one request can ever pay, and the most permits that exist at one time.
    pub capacity: i64,
    /// How many permits an idle limiter saves, where the user names that number.
    pub burst: Option<i64>,
    /// A time in µs and the permits that flow in meanwhile.
    pub pace: [i64; 2],
    /// By how much the travel time to the upstream may vary without breaking the rule there, µs.
    pub margin: Micros,
    /// How long the limiter's own queue may be, µs; [`MAX_BUDGET`](super::MAX_BUDGET) if it has no bound of its own. A request
    /// that would wait longer is refused, whatever its budget is.
    pub longest_wait: Micros,
    /// How permits come back.
    pub returns: Returns,
    /// The part of a level that grows with each permit taken, µs; 0 for windows, whose permits do not flow back one by one:
    /// their debt follows from the instants of the grants.
    pub debt: fn(&Level) -> Micros,
    /// The same rule for permits that are already spent: a full queue refuses none of them.
    pub endless: Algorithm,
    /// The rule by which permits that another state granted are charged to this one. A fixed window accepts
    /// them above its count, too. Otherwise a charge to a full window would be counted in the next window,
    /// and a permit that is refunded a moment later (that of a call whose answer came too late) would be
    /// granted once more.
    pub spent: Algorithm,
    /// The field of a grant that holds its place in the count of a gate, or the reset of a remainder as a negative number, 0 for
    /// neither: one that the algorithm does not use itself. `None` where it uses all: permits that come back to such a limiter do not come back to its gate.
    pub gate_field: Option<fn(&mut Grant) -> &mut Micros>,
    /// Whether the limiter keeps the time between two permits by itself, so that it never grants two at once.
    pub spaces_permits: bool,
}

/// How the permits of a rule come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returns {
    /// One by one, at the pace of the rule.
    OneByOne,
    /// This many µs after they were granted.
    AfterSpan(Micros),
    /// All at once, at the end of a window of the store's clock.
    AtWindowEnd {
        /// The start of one of the windows, µs since 1970.
        since: Micros,
        /// The length of a window, µs; windows of a calendar differ a little.
        period: Micros,
    },
}

// === impl RateFacts ===

impl RateFacts {
    /// The length of a window, µs; 0 for rules without windows.
    pub fn window(&self) -> Micros {
        match self.returns {
            Returns::OneByOne => 0,
            Returns::AfterSpan(span) => span,
            Returns::AtWindowEnd { period, .. } => period,
        }
    }

    /// How many permits flow in during `span` µs, rounded up, after the 2 µs by which a time is rounded are subtracted.
    pub(super) fn permits(&self, span: Micros) -> i64 {
        let [per, den] = self.pace.map(i128::from);
        let ticks = i128::from((span - 2).max(0)) * den;
        i64::try_from((ticks + per - 1) / per).unwrap_or(i64::MAX)
    }
}

/// The state of a rate while it is worked on: read at one `now`, changed in memory, and then kept or dropped. An
/// [`Open`](super::Open) is any of them.
pub trait OpenRate {
    /// The state as a store keeps it.
    type State;

    /// The facts about the rule with which this state was opened.
    fn facts(&self) -> RateFacts;

    /// The first instant from `from` on (µs from now) at which `cost` permits may be granted, and the start
    /// of these permits for [`Self::take`]. The request leaves `kept` permits to others, or as many as the limiter can have beside
    /// its own: a rule that saves no permits keeps none.
    fn earliest(&self, from: Micros, cost: i64, kept: i64) -> (Micros, i64);

    /// Takes the permits that [`Self::earliest`] found, and returns the grant for a later refund.
    fn take(&mut self, start: i64, cost: i64) -> Grant;

    /// Returns the permits of a grant that was not used, or the last permits of one that was used in part, as
    /// [`Algorithm::unused_part`] names them. False when the state has nothing (left) of this grant.
    fn refund(&mut self, grant: Grant, cost: i64) -> bool;

    /// Notes that the request that took the permits at `start` waits until `at`, µs from now, and left `kept` permits to others.
    /// Permits that come back to a bucket must not be granted within those of requests that wait.
    fn promise(&mut self, at: Micros, start: i64, kept: i64);

    /// How full the limiter is at this instant; the state does not change.
    fn level(&self) -> Level;

    /// The state that the store keeps and for how many µs it matters; `None` when it equals an absent state.
    fn close(self) -> Option<(Self::State, Micros)>;

    /// Moves the parts that `new` took out of `state` back into it, when no permit was taken.
    fn put_back(self, state: &mut Self::State);
}
