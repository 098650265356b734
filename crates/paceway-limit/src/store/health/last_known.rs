//! What was last heard of levels, and which places this process holds: from this a gateway goes on by itself when the
//! store is away. Bounded; what is dropped is decided as if nobody had used it.

use crate::{
    algorithm::{Level, Micros, concurrency::Ticket},
    store::{Checks, Entry, Reply},
};
use ahash::RandomState;
use indexmap::IndexMap;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// Levels, and keys of places, that are remembered.
const MAX_KEYS: usize = 65_536;

/// How long a place that was not given back stays known after its lease has ended: its call may still run.
const KEPT: Duration = Duration::from_secs(60);

/// Who holds a place: gateway and number of its ticket.
pub(in crate::store) type Holder = (i64, i64);

/// A place that this process holds, or may.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// When its lease ends if it is not renewed; of one that was asked for, when nobody waits for the answer any more.
    until: Instant,
    /// The store has not answered yet.
    is_asked: bool,
}

/// What was last heard.
#[derive(Debug, Default)]
pub struct LastKnown {
    levels: Mutex<Levels>,
    /// By key.
    places: Mutex<HashMap<Arc<str>, BTreeMap<Holder, Place>, RandomState>>,
}

#[derive(Debug, Default)]
struct Levels {
    all: IndexMap<Arc<str>, (Level, Instant), RandomState>,
    /// Which goes next when there are too many.
    next: usize,
}

// === impl LastKnown ===

impl LastKnown {
    /// Hears what the store said to `entries`; `late`: after the time-out. A place that comes late is given back.
    pub(in crate::store) fn hear(&self, entries: &[Entry], replies: &[Reply], late: bool) {
        let now = Instant::now();
        let mut levels = None;
        let mut said = entries.iter().zip(replies).peekable();
        while let Some((entry, reply)) = said.next() {
            let (key, level) = match (entry, reply) {
                (Entry::Reserve { checks, ticket, .. }, Reply::Decision(decision)) => {
                    match ticket.filter(|_| !late) {
                        Some(ticket) if decision.admitted => {
                            let held = checks.iter().zip(&decision.parts);
                            for (check, _) in
                                held.filter(|(check, part)| check.is_lease() && part.at >= 0)
                            {
                                self.hold(&check.key, check.algorithm.lease(), ticket, now);
                            }
                        }
                        Some(ticket) => self.refused(checks, ticket),
                        None => {}
                    }
                    let check = &checks[decision.bound_by.min(checks.len() - 1)];
                    (check, decision.level)
                }
                (Entry::Look { check }, Reply::Level(level)) => (check, *level),
                (Entry::Renew { check, grant }, Reply::Done(true)) => {
                    let lease = check.algorithm.lease();
                    self.hold(&check.key, lease, Ticket::of(*grant), now);
                    continue;
                }
                _ => continue,
            };
            // Often a call is about one bucket: what it said last counts.
            let again = said.peek().is_some_and(|(next, _)| match next {
                Entry::Reserve { checks, .. } => is_of(checks, &key.key),
                _ => false,
            });
            if !again && !key.is_lease() {
                let levels = levels.get_or_insert_with(|| self.levels.lock());
                levels.set(&key.key, level, now);
            }
        }
    }

    /// How full `key` was, and how long ago.
    pub(in crate::store) fn level(&self, key: &str) -> Option<(Level, Duration)> {
        let (level, at) = *self.levels.lock().all.get(key)?;
        Some((level, at.elapsed()))
    }

    /// Who of this process holds a place of `key`, and until when at most, µs from now: below 0 if its lease has ended. In
    /// order.
    pub(in crate::store) fn places(&self, key: &str) -> Vec<(Holder, Micros)> {
        let now = Instant::now();
        let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        let left = |until: Instant| match until > now {
            true => micros(until - now),
            false => -micros(now - until),
        };
        let places = self.places.lock();
        let held = places.get(key).into_iter().flatten().filter(|(_, place)| !place.is_asked);
        held.map(|(holder, place)| (*holder, left(place.until))).collect()
    }

    /// `ticket` asks the store for places, and waits `span` for the answer at most. Until then it may hold them.
    pub(in crate::store) fn asks(&self, checks: &Checks, ticket: Ticket, span: Duration) {
        let place = Place { until: Instant::now() + span, is_asked: true };
        for check in checks.iter().filter(|check| check.is_lease()) {
            self.set(&check.key, ticket, place);
        }
    }

    /// `ticket` has no place of `checks` if the store has not given it one.
    pub(in crate::store) fn refused(&self, checks: &Checks, ticket: Ticket) {
        let mut places = self.places.lock();
        for check in checks.iter().filter(|check| check.is_lease()) {
            let Some(held) = places.get_mut(&check.key) else { continue };
            let id = (ticket.gateway, ticket.number);
            if held.get(&id).is_some_and(|place| place.is_asked) {
                held.remove(&id);
            }
            if held.is_empty() {
                places.remove(&check.key);
            }
        }
    }

    /// How many of this process have asked the store for a place of `key` and have no answer yet.
    pub(in crate::store) fn asked(&self, key: &str) -> i64 {
        let now = Instant::now();
        let places = self.places.lock();
        let held = places.get(key).into_iter().flat_map(BTreeMap::values);
        held.filter(|place| place.is_asked && place.until > now).count() as i64
    }

    pub(super) fn given_back(&self, key: &str, ticket: Ticket) {
        let mut places = self.places.lock();
        if let Some(held) = places.get_mut(key) {
            held.remove(&(ticket.gateway, ticket.number));
            if held.is_empty() {
                places.remove(key);
            }
        }
    }

    fn hold(&self, key: &Arc<str>, lease: Option<Micros>, ticket: Ticket, now: Instant) {
        let until = now + Duration::from_micros(lease.unwrap_or_default().unsigned_abs());
        self.set(key, ticket, Place { until, is_asked: false });
    }

    fn set(&self, key: &Arc<str>, ticket: Ticket, place: Place) {
        let mut places = self.places.lock();
        if !places.contains_key(key) && places.len() >= MAX_KEYS {
            return;
        }
        let held = places.entry(key.clone()).or_default();
        // Those that the admin side gave may never be given back.
        if held.len().is_power_of_two() {
            let now = Instant::now();
            held.retain(|_, place| {
                place.until + if place.is_asked { Duration::ZERO } else { KEPT } > now
            });
        }
        let id = (ticket.gateway, ticket.number);
        match held.get_mut(&id) {
            // Who asks again with a place that it was called to has it.
            Some(known) if place.is_asked && !known.is_asked => {}
            Some(known) => *known = place,
            None => drop(held.insert(id, place)),
        }
    }
}

// === impl Levels ===

impl Levels {
    fn set(&mut self, key: &Arc<str>, level: Level, now: Instant) {
        if let Some(known) = self.all.get_mut(key) {
            *known = (level, now);
            return;
        }
        if self.all.len() >= MAX_KEYS {
            self.next = (self.next + 1) % MAX_KEYS;
            self.all.swap_remove_index(self.next);
        }
        self.all.insert(key.clone(), (level, now));
    }
}

/// Whether a request is about one bucket, and this one.
fn is_of(checks: &Checks, key: &Arc<str>) -> bool {
    matches!(&checks[..], [check] if Arc::ptr_eq(&check.key, key))
}
