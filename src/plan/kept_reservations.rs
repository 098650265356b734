//! The reservations of programs that may still refund or settle their permits, by the name that each program was given. They are
//! in this process alone: after a restart every permit counts as used.

use crate::{
    limit::{LeasedPermit, Reservation},
    store::Store,
};
use parking_lot::Mutex;
use std::{
    collections::{HashMap, VecDeque, hash_map::RandomState},
    hash::BuildHasher,
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// The most reservations that are kept. A further one takes the place of the oldest, whose permits then count as used.
const MOST_KEPT: usize = 65_536;
/// How long a reservation can be refunded or settled.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(600);

/// The reservations of all programs. Plans that follow each other share them.
pub(crate) struct KeptReservations {
    /// Secrets of this process, from which the names are made: no program can guess the name of another one's reservation.
    secrets: [RandomState; 2],
    table: Mutex<KeptTable>,
}

#[derive(Default)]
struct KeptTable {
    number: u64,
    /// The names in the order in which they were given, each with the end of its time; at most [`MOST_KEPT`].
    order: VecDeque<(Instant, u128)>,
    all: HashMap<u128, KeptReservation>,
}

/// Permits that a program took, and has neither refunded nor settled.
pub(crate) struct KeptReservation {
    pub(crate) reservation: Reservation,
    /// Its concurrency permits.
    pub(crate) permits: Vec<LeasedPermit>,
}

// === impl KeptReservations ===

impl Default for KeptReservations {
    fn default() -> Self {
        Self { secrets: [RandomState::new(), RandomState::new()], table: Mutex::default() }
    }
}

impl KeptReservations {
    /// Keeps a reservation, and returns the name by which its program refunds or settles it.
    pub(crate) fn keep(&self, kept: KeptReservation) -> String {
        self.keep_until(kept, Instant::now() + KEPT_FOR, MOST_KEPT)
    }

    fn keep_until(&self, kept: KeptReservation, until: Instant, most: usize) -> String {
        let mut table = self.table.lock();
        table.number += 1;
        let [one, other] = [0, 1].map(|i: usize| self.secrets[i].hash_one(table.number));
        let id = u128::from(one) << 64 | u128::from(other);
        table.order.push_back((until, id));
        table.all.insert(id, kept);
        let dropped = table.outdated(Instant::now(), most);
        drop(table);
        drop(dropped);
        format!("{id:032x}")
    }

    /// Takes a reservation out, if its program may do with it what `judge` says. `None`: there is none of this name (any more).
    ///
    /// # Errors
    ///
    /// Those of `judge`; the reservation is kept then.
    pub(crate) fn take<T, E>(
        &self,
        name: &str,
        judge: impl FnOnce(&Reservation) -> Result<T, E>,
    ) -> Result<Option<(KeptReservation, T)>, E> {
        let is_name = name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let Some(id) = u128::from_str_radix(name, 16).ok().filter(|_| is_name) else {
            return Ok(None);
        };
        let mut table = self.table.lock();
        let outdated = table.outdated(Instant::now(), MOST_KEPT);
        let taken = match table.all.get(&id) {
            Some(kept) => judge(&kept.reservation)
                .map(|judged| table.all.remove(&id).map(|kept| (kept, judged))),
            None => Ok(None),
        };
        drop(table);
        drop(outdated);
        taken
    }
}

// === impl KeptTable ===

impl KeptTable {
    /// Takes out those whose time has ended, and the oldest above `most`.
    fn outdated(&mut self, now: Instant, most: usize) -> Vec<KeptReservation> {
        let mut taken = Vec::new();
        while let Some((until, id)) = self.order.front() {
            if *until > now && self.order.len() <= most {
                break;
            }
            taken.extend(self.all.remove(id));
            self.order.pop_front();
        }
        taken
    }
}

// === impl KeptReservation ===

impl KeptReservation {
    /// Refunds everything: the call was not made.
    pub(crate) fn refund(self, store: &Arc<dyn Store>) {
        for permit in self.permits {
            permit.release(store, self.reservation.source);
        }
        self.reservation.refund();
    }
}

#[cfg(test)]
mod tests;
