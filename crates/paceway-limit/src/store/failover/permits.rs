//! The concurrency permits of one limiter that this gateway grants without the store. Other gateways may hold permits that
//! it does not know of. Until their leases have ended, a call gets a permit only in the place of an earlier call of this
//! gateway, which the store still counts. Only arithmetic: no clock, no I/O.

use crate::{
    algorithm::{
        Concurrency, Micros,
        concurrency::{Holder, Ticket},
        reserve::{Part, Parts},
    },
    store::calls::is_here,
};
use std::collections::{BTreeMap, BTreeSet};

/// Permits by the ticket under which the store counts them, or would count them.
#[derive(Debug, Default)]
pub(super) struct Permits {
    held: BTreeMap<Holder, HeldPermit>,
    /// Permits that the store counts and no call uses, each with the end of its lease in the store, in µs.
    idle: BTreeMap<Holder, Micros>,
    /// The ends of all leases in `held` and `idle`, so that an ended one is found without looking at all of them.
    ends: BTreeSet<(Micros, Holder)>,
    /// The idle permits that a call can take over, by the end of their leases.
    usable: BTreeSet<(Micros, Holder)>,
    /// Holders whose permits are compared with the store's last reports at the next [`Self::sync`].
    recheck: BTreeSet<Holder>,
    /// Other gateways may hold unknown permits until then, in µs.
    unknown_until: Micros,
    /// Requests of this process that have asked the store for a permit and have no answer yet.
    asked: i64,
}

#[derive(Debug)]
struct HeldPermit {
    /// Its holder in the state of this gateway.
    inner: Holder,
    /// When it stops counting in this gateway, in µs.
    until: Micros,
    /// When it stops counting in the store, in µs; 0 if the store does not know of it.
    counted_until: Micros,
    /// It is to be charged to the store.
    due: bool,
    /// Its call has renewed it in this gateway, so that call still runs.
    is_renewed: bool,
}

/// The state of a permit after its call has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Departure {
    /// This gateway does not know the permit.
    Unknown,
    /// The next call may take it over; the value is its holder in the state of this gateway.
    Here(Holder),
    /// The same, and the store receives a refund.
    Both(Holder),
}

/// The permits that [`Permits::sync`] found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Synced {
    /// The new ones, each with the rest of its lease in µs.
    pub(super) new: Vec<(Holder, Micros)>,
    /// The holders of those that are gone.
    pub(super) gone: Vec<Holder>,
}

// === impl Permits ===

impl Permits {
    /// The store has answered nothing for `silence` µs. Until one lease after its last answer, other gateways may hold
    /// permits that are not known here.
    pub(super) fn silent_for(&mut self, silence: Micros, lease: Micros, now: Micros) {
        self.unknown_until = self.unknown_until.max(now + lease - silence);
    }

    /// The holders that [`Self::sync`] needs besides those whose permits changed in the store: leases and calls that have
    /// ended. With 10,000 calls under way, looking at all permits would cost 10,000 steps a decision.
    pub(super) fn to_recheck(&self, now: Micros) -> impl Iterator<Item = Holder> {
        let ended = self.ends.iter().take_while(move |(end, _)| *end <= now);
        ended.map(|(_, id)| *id).chain(self.recheck.iter().copied())
    }

    /// Compares the permits of some holders with the last reports of the store: how long each lease lasts yet, in µs, or
    /// `None` for a permit that this process does not hold in the store. `asked` requests have no answer yet.
    pub(super) fn sync(
        &mut self,
        reports: impl IntoIterator<Item = (Holder, Option<Micros>)>,
        asked: i64,
        now: Micros,
    ) -> Synced {
        self.asked = asked;
        self.recheck.clear();
        let (mut new, mut gone) = (Vec::new(), Vec::new());
        for (id, reported) in reports {
            if let Some(held) = self.held.get(&id) {
                // A permit that the store may not know of can only be left by its call.
                let is_own = held.is_renewed || is_here(Ticket::of_holder(id));
                if held.until <= now || !(is_own || reported.is_some()) {
                    gone.extend(self.remove_held(id).map(|held| held.inner));
                }
            }
            if let Some(until) = self.idle.get(&id)
                && (*until <= now || !(is_here(Ticket::of_holder(id)) || reported.is_some()))
            {
                self.remove_idle(id);
            }
            let Some(left) = reported.filter(|left| *left > 0) else { continue };
            if self.held.contains_key(&id) || self.idle.contains_key(&id) {
                continue;
            }
            let until = now + left;
            let held =
                HeldPermit { inner: id, until, counted_until: until, due: true, is_renewed: false };
            self.insert_held(id, held);
            new.push((id, left));
        }
        Synced { new, gone }
    }

    /// The rule for this gateway while `gateways` share `whole`.
    pub(super) fn rule(&self, whole: &Concurrency, gateways: i64, now: Micros) -> Concurrency {
        if gateways <= 1 {
            return whole.with_max(whole.max() - self.asked);
        }
        let share = whole.max() / gateways;
        let least = now + whole.lease() / 2;
        let too_short = self.usable.iter().take_while(|(end, _)| *end < least).count();
        let own = (self.held.len() + self.usable.len() - too_short) as i64;
        if now < self.unknown_until || share == 0 {
            whole.with_max(own.min(share.max(1)))
        } else {
            whole.with_max(share)
        }
    }

    /// When more can be known about the permits of other gateways, in µs from now.
    pub(super) fn known_after(&self, gateways: i64, now: Micros) -> Option<Micros> {
        Some(self.unknown_until - now).filter(|after| gateways > 1 && *after > 0)
    }

    /// The request `asked` is granted a permit. It takes over an idle one whose lease lasts for at least half of its
    /// length, as long as most calls do. Returns the ticket under which the store counts the permit.
    pub(super) fn take(&mut self, whole: &Concurrency, asked: Ticket, now: Micros) -> Ticket {
        let least = now + whole.lease() / 2;
        while self.usable.first().is_some_and(|(end, _)| *end < least) {
            self.usable.pop_first();
        }
        let usable = self.usable.first().map(|(end, id)| (*id, *end));
        let (name, counted_until) = usable.unwrap_or((asked.holder(), 0));
        self.remove_idle(name);
        self.remove_held(name);
        let until = now + whole.lease();
        let held = HeldPermit {
            inner: asked.holder(),
            until,
            counted_until,
            due: true,
            is_renewed: false,
        };
        self.insert_held(name, held);
        Ticket::of_holder(name)
    }

    /// The call of `permit` has ended. `closing`: the store decides again, so it receives the refund.
    pub(super) fn leave(&mut self, permit: Ticket, closing: bool, now: Micros) -> Departure {
        let Some(held) = self.remove_held(permit.holder()) else { return Departure::Unknown };
        self.recheck.insert(permit.holder());
        let is_counted = held.counted_until > 0;
        if is_counted && closing {
            return Departure::Both(held.inner);
        }
        if is_counted && held.counted_until > now {
            let (id, end) = (permit.holder(), held.counted_until);
            self.remove_idle(id);
            self.idle.insert(id, end);
            self.ends.insert((end, id));
            self.usable.insert((end, id));
        }
        Departure::Here(held.inner)
    }

    /// Extends the lease of `permit` to `lease` µs from now. Returns its ticket in the state of this gateway, and whether
    /// the store counts it, too.
    pub(super) fn renew(
        &mut self,
        permit: Ticket,
        lease: Micros,
        now: Micros,
    ) -> Option<(Ticket, bool)> {
        let held = self.held.get_mut(&permit.holder())?;
        self.ends.remove(&(held.until, permit.holder()));
        (held.until, held.is_renewed) = (now + lease, true);
        self.ends.insert((held.until, permit.holder()));
        Some((Ticket::of_holder(held.inner), held.counted_until > 0))
    }

    /// The permits to charge to the store, which counts them until `until` from now on, and how many of them it did not
    /// know.
    pub(super) fn due(&mut self, until: Micros) -> (Vec<Ticket>, i64) {
        let mut new = 0;
        let due = self.held.iter_mut().filter(|(_, held)| held.due).map(|(id, held)| {
            new += i64::from(held.counted_until == 0);
            (held.due, held.counted_until) = (false, until);
            Ticket { deadline: Ticket::HELD, ..Ticket::of_holder(*id) }
        });
        (due.collect(), new)
    }

    /// The store may not have received the charge of this permit, so it is due again.
    pub(super) fn restore(&mut self, permit: Ticket) {
        if let Some(held) = self.held.get_mut(&permit.holder()) {
            held.due = true;
        }
    }

    /// The grants of the permits that the store counts and no call uses.
    pub(super) fn idle(self) -> impl Iterator<Item = Parts> {
        let parts = |(id, _)| -> Parts {
            std::iter::once(Part { at: 0, grant: Ticket::of_holder(id).grant() }).collect()
        };
        self.idle.into_iter().map(parts)
    }

    fn insert_held(&mut self, id: Holder, held: HeldPermit) {
        self.ends.insert((held.until, id));
        self.held.insert(id, held);
    }

    fn remove_held(&mut self, id: Holder) -> Option<HeldPermit> {
        let held = self.held.remove(&id)?;
        self.ends.remove(&(held.until, id));
        Some(held)
    }

    fn remove_idle(&mut self, id: Holder) {
        if let Some(end) = self.idle.remove(&id) {
            self.ends.remove(&(end, id));
            self.usable.remove(&(end, id));
        }
    }
}

#[cfg(test)]
mod tests;
