//! The way of a call through its limiters: ask, wait, make ready what the call needs, and refund what is not used.
//!
//! [`service::pace`] is the one loop that does it. The gateway drives it for each request, [`LimitLayer`] for each call
//! of a tower service, and [`Limiter`] for a program that only wants to know when it may go ahead.

mod acquired;
mod ask;
mod asked;
mod extract;
mod handle;
mod layer;
mod lease;
mod limited_call;
mod limiter;
mod move_up;
mod pace_layer;
mod planned;
mod rated;
mod reservation;
#[cfg(feature = "reqwest-middleware")]
mod reqwest_middleware;
mod responses;
mod retry_after;
mod rule;
pub mod service;
mod settlement;
mod turn;
mod waiter;
mod ways;

pub use acquired::Acquired;
pub use ask::{Admission, ask};
pub use handle::{CostHandle, CostLimit, HandleError, KeyHandle, KeyLimit};
pub use layer::{LimitLayer, LimitService};
pub use limited_call::LimitedCall;
pub use limiter::{AcquireError, Limiter};
pub use pace_layer::{PaceError, PaceLayer, PaceService};
pub use reservation::{LeasedPermit, Reservation};
pub use responses::{ReadResponse, Responses};
pub use retry_after::retry_after;
pub use rule::{Limit, RuleError, WithoutStore};
pub use service::{AlwaysReady, Callee, Caller, lead, pace};
pub use settlement::{Settled, Settlement};
pub use waiter::Waiter;

use crate::algorithm::{MAX_BUDGET, Micros};
use std::time::Duration;

/// Converts a span to µs, in which the rules count. A span over an hour, the longest wait, becomes an hour.
pub fn micros(span: Duration) -> Micros {
    i64::try_from(span.as_micros()).unwrap_or(MAX_BUDGET).min(MAX_BUDGET)
}

/// Converts µs to a span. A negative number becomes zero.
pub fn duration(micros: Micros) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

#[cfg(test)]
mod tests;
