//! Permits of one limiter that are given without the store. As long as places of other gateways may live that this one does
//! not know of, a call gets one only in the place of an earlier call of this gateway, which the store still counts. Only
//! arithmetic.

use crate::{
    algorithm::{
        Concurrency, Micros,
        concurrency::Ticket,
        reserve::{Part, Parts},
    },
    store::{calls::is_here, health::Holder},
};
use std::collections::BTreeMap;

/// Permits by the name that the store knows, or would know, them by.
#[derive(Debug, Default)]
pub(super) struct Permits {
    held: BTreeMap<Holder, HeldPermit>,
    /// The store counts them, nobody uses them, and until when (µs) their leases last there.
    idle: BTreeMap<Holder, Micros>,
    /// Until then places of other gateways may live that are not known here, µs.
    unknown_until: Micros,
    /// Calls of this process that have asked the store and have no answer yet.
    asked: i64,
}

#[derive(Debug)]
struct HeldPermit {
    /// Its name in the state that is kept here.
    inner: Holder,
    /// Until then it counts here, µs.
    until: Micros,
    /// Until then the store counts it, µs; 0: it was never told.
    counted_until: Micros,
    /// The store is to be told.
    due: bool,
    /// Its call has renewed it here, so it is under way.
    is_renewed: bool,
}

/// What becomes of a place that its call leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Departure {
    /// It is not held here.
    Unknown,
    /// The next call may take it over; `Holder` is its name in the state here.
    Here(Holder),
    /// The same, and the store is to be told.
    Both(Holder),
}

fn id(ticket: Ticket) -> Holder {
    (ticket.gateway, ticket.number)
}

fn ticket(id: Holder) -> Ticket {
    Ticket { gateway: id.0, number: id.1, deadline: 0 }
}

// === impl Permits ===

impl Permits {
    /// The store has answered nothing for `silence` µs. Until a lease after its last answer other gateways may hold places
    /// that are not known here.
    pub(super) fn silent_for(&mut self, silence: Micros, lease: Micros, now: Micros) {
        self.unknown_until = self.unknown_until.max(now + lease - silence);
    }

    /// Hears which places of this process the store has given, how long each lease lasts yet (µs), and how many calls
    /// have no answer. Returns those that are new here, and the names here of those that are gone. `known` is in order: an
    /// outage with 10,000 places under way would cost 10^8 comparisons a decision otherwise.
    pub(super) fn hear(
        &mut self,
        known: &[(Holder, Micros)],
        asked: i64,
        now: Micros,
    ) -> (Vec<(Holder, Micros)>, Vec<Holder>) {
        self.asked = asked;
        let is_known = |id: &Holder| known.binary_search_by_key(id, |(known, _)| *known).is_ok();
        let mut gone = Vec::new();
        self.held.retain(|id, held| {
            // What the store has not been told, or may not have heard, only its call can leave.
            let is_own = held.is_renewed || is_here(ticket(*id));
            let stays = held.until > now && (is_own || is_known(id));
            if !stays {
                gone.push(held.inner);
            }
            stays
        });
        self.idle.retain(|id, until| *until > now && (is_here(ticket(*id)) || is_known(id)));
        let mut new = Vec::new();
        for (id, left) in known.iter().copied().filter(|(_, left)| *left > 0) {
            if self.held.contains_key(&id) || self.idle.contains_key(&id) {
                continue;
            }
            let until = now + left;
            let held =
                HeldPermit { inner: id, until, counted_until: until, due: true, is_renewed: false };
            self.held.insert(id, held);
            new.push((id, left));
        }
        (new, gone)
    }

    /// The rule here of one of `gateways` that share `whole`, `share` being one part of it.
    pub(super) fn rule(&self, whole: &Concurrency, gateways: i64, now: Micros) -> Concurrency {
        if gateways <= 1 {
            return whole.with_max(whole.max() - self.asked);
        }
        let share = whole.max() / gateways;
        let own = self.held.len() as i64 + self.usable(whole, now).count() as i64;
        match now < self.unknown_until || share == 0 {
            true => whole.with_max(own.min(share.max(1))),
            false => whole.with_max(share),
        }
    }

    /// When more may be known of the places of others, µs from now.
    pub(super) fn known_after(&self, gateways: i64, now: Micros) -> Option<Micros> {
        Some(self.unknown_until - now).filter(|after| gateways > 1 && *after > 0)
    }

    /// Those that a call can take over: half of their lease is left, so that they last as long as most calls.
    fn usable(&self, whole: &Concurrency, now: Micros) -> impl Iterator<Item = (Holder, Micros)> {
        let least = now + whole.lease() / 2;
        let idle = self.idle.iter().map(|(id, until)| (*id, *until));
        idle.filter(move |(_, until)| *until >= least)
    }

    /// The ticket `asked` has a place here; returns whose place it is for the store.
    pub(super) fn take(&mut self, whole: &Concurrency, asked: Ticket, now: Micros) -> Ticket {
        let usable = self.usable(whole, now).next();
        let (name, counted_until) = usable.unwrap_or((id(asked), 0));
        self.idle.remove(&name);
        let until = now + whole.lease();
        let held =
            HeldPermit { inner: id(asked), until, counted_until, due: true, is_renewed: false };
        self.held.insert(name, held);
        ticket(name)
    }

    /// The call of `place` has ended. `closing`: the store decides again.
    pub(super) fn leave(&mut self, place: Ticket, closing: bool, now: Micros) -> Departure {
        let Some(held) = self.held.remove(&id(place)) else { return Departure::Unknown };
        let is_counted = held.counted_until > 0;
        if is_counted && closing {
            return Departure::Both(held.inner);
        }
        if is_counted && held.counted_until > now {
            self.idle.insert(id(place), held.counted_until);
        }
        Departure::Here(held.inner)
    }

    /// Holds `place` for another `lease`, µs; its name here, and whether the store is to be told as well.
    pub(super) fn renew(
        &mut self,
        place: Ticket,
        lease: Micros,
        now: Micros,
    ) -> Option<(Ticket, bool)> {
        let held = self.held.get_mut(&id(place))?;
        (held.until, held.is_renewed) = (now + lease, true);
        Some((ticket(held.inner), held.counted_until > 0))
    }

    /// Those that the store is to be told of, as told until `until`, µs; and how many of them it did not know.
    pub(super) fn due(&mut self, until: Micros) -> (Vec<Ticket>, i64) {
        let mut new = 0;
        let due = self.held.iter_mut().filter(|(_, held)| held.due).map(|(id, held)| {
            new += i64::from(held.counted_until == 0);
            (held.due, held.counted_until) = (false, until);
            Ticket { deadline: Ticket::HELD, ..ticket(*id) }
        });
        (due.collect(), new)
    }

    /// The store may not have heard of it.
    pub(super) fn restore(&mut self, place: Ticket) {
        if let Some(held) = self.held.get_mut(&id(place)) {
            held.due = true;
        }
    }

    /// What the store counts and nobody uses.
    pub(super) fn idle(self) -> impl Iterator<Item = Parts> {
        let parts = |(id, _)| -> Parts {
            std::iter::once(Part { at: 0, grant: ticket(id).grant() }).collect()
        };
        self.idle.into_iter().map(parts)
    }
}
