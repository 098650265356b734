//! The requests of this gateway that wait for slots, by limiter and by key: one look at all of them, however many limiters
//! and keys there are.

use super::super::Admin;
use crate::{plan::LimiterPlan, store::WaitingCount};
use ahash::HashMap;
use std::{cmp::Reverse, sync::Arc, time::Duration};
use tokio::time::Instant;

/// The most keys that are listed.
const MOST_KEYS: usize = 20;

/// The requests that wait for slots.
pub(super) struct WaitingRequests {
    /// The name of the state of each limiter and key, and its requests. Those of the rates of one limiter are one entry.
    limiters: HashMap<String, SlotsAhead>,
    /// The keys with the most waiting requests, by limiter.
    pub(super) keys: Vec<(String, String, SlotsAhead)>,
}

/// The slots that are promised to requests which wait for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotsAhead {
    pub(super) slots: usize,
    /// The instant of the last one.
    last: Instant,
}

// === impl WaitingRequests ===

impl WaitingRequests {
    pub(super) fn of(admin: &Admin) -> Self {
        let all = admin.store.pauses().waiting();
        let mut owners = HashMap::<&str, Option<&LimiterPlan>>::default();
        let mut found = HashMap::<(&str, Option<&str>), SlotsAhead>::default();
        for WaitingCount { state, calls, last } in &all {
            let owner = owners.entry(beginning(state));
            // Each limiter is looked up once, not once for each key.
            let owner = *owner.or_insert_with(|| admin.plan.owner(state).map(|(plan, _)| plan));
            let Some(plan) = owner else { continue };
            let Some(key) = plan.key_in(state) else { continue };
            let new = SlotsAhead { slots: *calls, last: *last };
            let own = found.entry((&plan.limiter.name, key)).or_insert(new);
            *own = SlotsAhead { slots: own.slots.max(*calls), last: own.last.max(*last) };
        }
        let mut limiters = HashMap::<String, SlotsAhead>::default();
        for ((name, _), own) in &found {
            match limiters.get_mut(*name) {
                Some(all) => {
                    *all =
                        SlotsAhead { slots: all.slots + own.slots, last: all.last.max(own.last) };
                }
                None => drop(limiters.insert((*name).to_owned(), *own)),
            }
        }
        let keyed = found.into_iter().filter_map(|((name, key), own)| Some((name, key?, own)));
        let mut keys: Vec<_> = keyed.collect();
        let place = |(name, key, own): &(&str, &str, SlotsAhead)| {
            (Reverse(own.slots), Reverse(own.last), (*name).to_owned(), (*key).to_owned())
        };
        if keys.len() > MOST_KEYS {
            let by_slots = |(_, _, own): &(&str, &str, SlotsAhead)| Reverse((own.slots, own.last));
            keys.select_nth_unstable_by_key(MOST_KEYS, by_slots);
            keys.truncate(MOST_KEYS);
        }
        keys.sort_by_cached_key(place);
        let keys = keys.into_iter().map(|(name, key, own)| (name.into(), key.into(), own));
        let keys = keys.collect();
        Self { limiters, keys }
    }

    /// The slots that are promised to requests of a limiter.
    pub(super) fn ahead(&self, limiter: &str) -> Option<&SlotsAhead> {
        self.limiters.get(limiter)
    }
}

// === impl SlotsAhead ===

impl SlotsAhead {
    /// The time until the last slot.
    pub(super) fn left(&self) -> Duration {
        self.last.saturating_duration_since(Instant::now())
    }
}

/// The part of the name of a state that the keys of a limiter share: `PREFIX:{TAG}:KIND:NAME`.
fn beginning(state: &Arc<str>) -> &str {
    let Some(tag) = state.find("}:") else { return state };
    let ends = state[tag + 2..].match_indices(':').nth(1);
    ends.map_or(state, |(end, _)| &state[..tag + 2 + end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::StateNames;

    #[test]
    fn the_keys_of_a_limiter_share_a_beginning() {
        let names = StateNames::new("paceway", "a", b'T', "search");
        let [none, one, other] = [None, Some("x:y"), Some("z")].map(|key| names.of(key).into());
        assert_eq!(beginning(&one), beginning(&other));
        assert_eq!(beginning(&one), &*none);
        let longer = StateNames::new("paceway", "a", b'T', "searches").of(Some("z")).into();
        assert_ne!(beginning(&longer), beginning(&one));
    }
}
