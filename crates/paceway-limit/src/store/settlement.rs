//! The entries that settle a grant whose request cost another number of permits than it had reserved. Decides nothing and
//! sends nothing.

use super::{Check, Entry};
use crate::algorithm::{fair::Place, reserve::Part};

/// A debt above 256 times the capacity of its limiter is cut: a request that took 300 times the capacity delays the others by
/// 256 times of it.
const PIECES: i64 = 256;

/// Returns the entry that refunds the permits of `part` beyond the first `used`; `None` if there are none.
pub(super) fn unused(check: &Check, part: Part, used: i64) -> Option<Entry> {
    if part.at < 0 {
        return None;
    }
    let (grant, cost) = check.algorithm.as_rate()?.unused_part(part.grant, check.cost, used)?;
    Some(Entry::Refund { check: Check { cost, ..check.clone() }, grant })
}

/// Returns the entry after that refund which gives the free permits to requests that take turns at this limiter: no request
/// leaves their queue. `None` if none take turns.
pub(super) fn gives_room(check: &Check) -> Option<Entry> {
    let checks = [check.clone()].into();
    (check.turn.is_some() && check.enforce).then_some(Entry::Leave { checks, place: Place::NONE })
}

/// Returns how many permits a request owes that was granted `part` and used `used`. A limiter that counts calls is not
/// settled, and neither is one that took nothing.
pub(super) fn owed(check: &Check, part: Part, used: i64) -> i64 {
    let is_settled = part.at >= 0 && !check.is_lease();
    if is_settled { bounded(check, (used - check.cost).max(0)) } else { 0 }
}

/// The part of a debt that is charged.
pub(super) fn bounded(check: &Check, permits: i64) -> i64 {
    permits.min(check.algorithm.capacity().saturating_mul(PIECES))
}

/// Returns the entries that charge `permits` to the state of `check`, whatever its level: they move later slots. A full window
/// takes the charge from the next window. Counted in the full one it would change nothing: at 30/s with one of three gateways
/// absent, 40 were granted in each second.
pub(super) fn charges(check: &Check, permits: i64) -> impl Iterator<Item = Entry> + use<> {
    let (rate, mut left) = (check.algorithm.as_rate().copied(), permits);
    let check = Check { enforce: false, ..check.clone() };
    std::iter::from_fn(move || {
        let rate = rate?;
        let cost = left.min(rate.piece());
        left -= cost;
        let check = || Check { algorithm: rate.facts().endless.into(), cost, ..check.clone() };
        (cost > 0).then(|| Entry::Charge { check: check() })
    })
}
