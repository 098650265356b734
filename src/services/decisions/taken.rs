//! Calls about permits that a program has taken: refunds, true costs and concurrency permits. Each reservation is refunded or settled
//! once, so that no program gets back more than it took.

use super::{
    bad,
    calls::{PermitCall, RefundCall, SettleCall, TrueCostSaid},
    check_number, find_limiter, permits,
};
use crate::{
    answer::Failure,
    limit::{LeasedPermit, Reservation, Settled},
    plan::{KeptReservation, Plan},
    proxy::Proxy,
};
use serde_json::{Value, json};

/// The greatest true cost, as large as a number of JSON that every program reads exactly.
const MOST_COST: i64 = (1 << 53) - 1;

/// The place of a true cost in a reservation.
struct SettledPlaces {
    /// The index of its limiter.
    limiter: usize,
    /// Those of the limiter's checks in the reservation.
    checks: Vec<usize>,
}

/// Refunds all permits of a reservation, once.
pub(super) fn refund(proxy: &Proxy, call: RefundCall) -> Result<Value, Failure> {
    let kept = proxy.plan().kept_reservations.take(&call.reservation, |_| Ok::<_, Failure>(()))?;
    let refunded = kept.is_some();
    if let Some((kept, ())) = kept {
        kept.refund(proxy.store());
    }
    Ok(json!({ "refunded": refunded }))
}

/// Settles the permits of a reservation for their true cost, once.
pub(super) fn settle(proxy: &Proxy, call: SettleCall) -> Result<Value, Failure> {
    let plan = proxy.plan();
    check_number(call.limiters.len())?;
    let judge = |reservation: &Reservation| -> Result<Vec<_>, Failure> {
        let places = call.limiters.iter().map(|said| SettledPlaces::of(said, plan, reservation));
        places.collect()
    };
    let kept = plan.kept_reservations.take(&call.reservation, judge)?;
    let Some((KeptReservation { mut reservation, .. }, places)) = kept else {
        return Ok(json!({ "settled": false, "limiters": [] }));
    };
    let mut all = Vec::new();
    for (said, SettledPlaces { limiter, checks }) in call.limiters.iter().zip(places) {
        let metrics = &plan.limiters[limiter].metrics.settled;
        let mut changed = Settled::Exact;
        for check in checks {
            let Some(settlement) = reservation.settlement(check) else { continue };
            changed = settlement.settle(said.cost);
        }
        let (refunded, owed) = match changed {
            Settled::Exact => (0, 0),
            Settled::Refunded(permits) => {
                metrics.refunded.increment(permits.unsigned_abs());
                (permits, 0)
            }
            Settled::Owed(permits) => {
                metrics.owed.increment(permits.unsigned_abs());
                (0, permits)
            }
        };
        all.push(json!({ "limiter": said.limiter, "refunded": refunded, "owed": owed }));
    }
    Ok(json!({ "settled": true, "limiters": all }))
}

/// The concurrency permit of a call of `renew` or `release`.
pub(super) fn permit(plan: &Plan, call: PermitCall) -> Result<LeasedPermit, Failure> {
    let limiter = &plan.limiters[find_limiter(plan, &call.limiter)?];
    let permit = permits::find_permit(limiter, call.key.as_deref(), &call.lease);
    permit.map_err(|why| bad(format!("`{}`: {why}", call.limiter)))
}

// === impl SettledPlaces ===

impl SettledPlaces {
    fn of(said: &TrueCostSaid, plan: &Plan, reservation: &Reservation) -> Result<Self, Failure> {
        let limiter = find_limiter(plan, &said.limiter)?;
        let own = &plan.limiters[limiter];
        if !(0..=MOST_COST).contains(&said.cost) {
            let name = &said.limiter;
            return Err(bad(format!("`{name}`: `cost` must be between 0 and {MOST_COST}")));
        }
        // Their states tell the key: a reload may have added or removed that of the limiter since they were taken.
        let filled = said.key.as_deref().map(|key| match &own.limiter.key {
            Some(template) => template.canonical(key),
            None => key.to_owned(),
        });
        let filled = filled.as_deref();
        let keys: Vec<_> =
            reservation.checks().iter().map(|check| own.key_in(&check.key)).collect();
        let is_named = match filled {
            Some(_) => keys.contains(&Some(filled)),
            None => keys.iter().flatten().all(Option::is_none),
        };
        let is_own = |own: &Option<&str>| is_named && (own.is_none() || *own == filled);
        let places = keys.iter().enumerate().filter(|(_, key)| key.as_ref().is_some_and(is_own));
        let checks: Vec<_> = places.map(|(i, _)| i).collect();
        if checks.is_empty() {
            let why = permits::checks(own, said.key.as_deref(), 1).err();
            let why = why.unwrap_or("the reservation has no permits with this key".into());
            return Err(bad(format!("`{}`: {why}", said.limiter)));
        }
        Ok(Self { limiter, checks })
    }
}
