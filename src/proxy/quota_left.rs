//! The quota that a caller has left, on the answers of a route with `ratelimit_headers: all`.

use crate::{
    algorithm::Micros,
    answer::Policy,
    limit::{self, Reservation},
    throttle::structured,
};
use http::{HeaderMap, HeaderValue};
use paceway_limit::answer::{RATELIMIT, RATELIMIT_POLICY, whole_seconds};
use tokio::time::Instant;

/// The level of the limiter that bound a request, as the store's decision has it.
#[derive(Debug)]
pub(super) struct QuotaLeft {
    policy: Policy,
    remaining: i64,
    /// With permits left, the time from the decision until the limiter is unused again; otherwise the time until one permit
    /// can be taken, µs.
    reset: Micros,
    decided: Instant,
}

// === impl QuotaLeft ===

impl QuotaLeft {
    /// The level after `reservation`, which the limiter of `policy` granted.
    pub(super) fn new(policy: Policy, reservation: &Reservation) -> Self {
        let level = reservation.level;
        let reset = if level.remaining > 0 { level.reset_after } else { level.next };
        let remaining = level.remaining.max(0);
        Self { policy, remaining, reset, decided: Instant::now() }
    }

    /// Adds `RateLimit` and `RateLimit-Policy`. An upstream's own fields stay first; fields that are no lists of named
    /// quotas, or that have a quota of the same name, stay alone.
    pub(super) fn add_to(&self, headers: &mut HeaderMap) {
        let name = self.policy.plain_name();
        let has_room = |value: &HeaderValue| {
            value.to_str().is_ok_and(|field| structured::has_room_for(field, &name))
        };
        let mut theirs =
            headers.get_all(&RATELIMIT).iter().chain(headers.get_all(&RATELIMIT_POLICY));
        if !theirs.all(has_room) {
            return;
        }
        let seconds = whole_seconds(self.reset - limit::micros(self.decided.elapsed()));
        for (field, value) in self.policy.fields(self.remaining, seconds) {
            headers.append(field, value);
        }
    }
}
