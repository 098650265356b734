//! Calls about permits that a program has taken: refunds, true costs and concurrency permits. Each reservation is refunded or settled
//! once, so that no program gets back more than it took.

use super::{
    ProgramAnswer, bad,
    calls::{PermitCall, RefundCall, SettleCall, TrueCostSaid},
    check_number,
};
use crate::{
    algorithm::Grant,
    answer::Failure,
    decision,
    limit::{Reservation, Settled},
    plan::{KeptReservation, release},
    proxy::Proxy,
    store::{Check, Source},
};
use serde_json::json;

/// The greatest true cost, as large as a number of JSON that every program reads exactly.
const MOST_COST: i64 = (1 << 53) - 1;

impl Proxy {
    /// Refunds all permits of a reservation, once.
    pub(super) fn refunded(&self, call: RefundCall) -> Result<ProgramAnswer, Failure> {
        let kept = self.0.plan.kept_reservations.take(&call.reservation, |_| Ok(()))?;
        let refunded = kept.is_some();
        if let Some((kept, ())) = kept {
            kept.refund(&self.0.store);
        }
        Ok(ProgramAnswer::Done(json!({ "refunded": refunded })))
    }

    /// Settles the permits of a reservation for their true cost, once.
    pub(super) fn settled(&self, call: SettleCall) -> Result<ProgramAnswer, Failure> {
        let plan = &self.0.plan;
        check_number(call.limiters.len())?;
        let judge = |reservation: &Reservation| -> Result<Vec<_>, Failure> {
            let places = call.limiters.iter().map(|said| self.places(said, reservation));
            places.collect()
        };
        let kept = plan.kept_reservations.take(&call.reservation, judge)?;
        let Some((KeptReservation { mut reservation, .. }, places)) = kept else {
            return Ok(ProgramAnswer::Done(json!({ "settled": false, "limiters": [] })));
        };
        let mut all = Vec::new();
        for (said, (limiter, checks)) in call.limiters.iter().zip(places) {
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
        Ok(ProgramAnswer::Done(json!({ "settled": true, "limiters": all })))
    }

    /// The index of the limiter of a true cost, and those of its checks in a reservation.
    fn places(
        &self,
        said: &TrueCostSaid,
        reservation: &Reservation,
    ) -> Result<(usize, Vec<usize>), Failure> {
        let (limiter, plan) = self.limiter(&said.limiter)?;
        if !(0..=MOST_COST).contains(&said.cost) {
            let name = &said.limiter;
            return Err(bad(format!("`{name}`: `cost` must be between 0 and {MOST_COST}")));
        }
        // Their states tell the key: a reload may have added or removed that of the limiter since they were taken.
        let filled = said.key.as_deref().map(|key| match &plan.limiter.key {
            Some(template) => template.canonical(key),
            None => key.to_owned(),
        });
        let filled = filled.as_deref();
        let keys: Vec<_> =
            reservation.checks().iter().map(|check| plan.key_in(&check.key)).collect();
        let is_named = match filled {
            Some(_) => keys.contains(&Some(filled)),
            None => keys.iter().flatten().all(Option::is_none),
        };
        let is_own = |own: &Option<&str>| is_named && (own.is_none() || *own == filled);
        let places = keys.iter().enumerate().filter(|(_, key)| key.as_ref().is_some_and(is_own));
        let places: Vec<_> = places.map(|(i, _)| i).collect();
        if places.is_empty() {
            let why = decision::checks(plan, said.key.as_deref(), 1).err();
            let why = why.unwrap_or("the reservation has no permits with this key".into());
            return Err(bad(format!("`{}`: {why}", said.limiter)));
        }
        Ok((limiter, places))
    }

    /// The concurrency permit of a call of `renew` or `release`.
    fn permit(&self, call: PermitCall) -> Result<(Check, Grant), Failure> {
        let plan = self.limiter(&call.limiter)?.1;
        let permit = decision::permit(plan, call.key.as_deref(), &call.lease);
        permit.map_err(|why| bad(format!("`{}`: {why}", call.limiter)))
    }

    /// Extends a concurrency permit by its lease.
    pub(super) async fn renewed(&self, call: PermitCall) -> Result<ProgramAnswer, Failure> {
        let (check, grant) = self.permit(call)?;
        let renewed = self.0.store.renew(Source::Shared, &check, grant).get().await;
        Ok(ProgramAnswer::Done(json!({ "renewed": renewed.map_err(Failure::Store)? })))
    }

    /// Ends a concurrency permit.
    pub(super) fn released(&self, call: PermitCall) -> Result<ProgramAnswer, Failure> {
        let (check, grant) = self.permit(call)?;
        release(&self.0.store, Source::Shared, check, grant);
        Ok(ProgramAnswer::Done(json!({ "released": true })))
    }
}
