//! What was last heard of levels, and which places this process holds: from this a gateway goes on by itself when the
//! store is away. Bounded; what is dropped is decided as if nobody had used it.

use crate::{
    algorithm::{Level, Micros, concurrency::Ticket},
    store::{Checks, Entry, Reply},
};
use ahash::RandomState;
use indexmap::IndexMap;
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Levels, and keys of places, that are remembered.
const MAX_KEYS: usize = 65_536;

/// Who holds a place: gateway and number of its ticket.
pub(in crate::store) type Holder = (i64, i64);

/// What was last heard.
#[derive(Debug, Default)]
pub struct Known {
    levels: Mutex<Levels>,
    /// Of each key who holds a place, and until when if it is not renewed.
    places: Mutex<HashMap<Arc<str>, HashMap<Holder, Instant>, RandomState>>,
}

#[derive(Debug, Default)]
struct Levels {
    all: IndexMap<Arc<str>, (Level, Instant), RandomState>,
    /// Which goes next when there are too many.
    next: usize,
}

// === impl Known ===

impl Known {
    /// Hears what the store said to `entries`.
    pub(in crate::store) fn hear(&self, entries: &[Entry], replies: &[Reply]) {
        let now = Instant::now();
        let mut levels = None;
        let mut said = entries.iter().zip(replies).peekable();
        while let Some((entry, reply)) = said.next() {
            let (key, level) = match (entry, reply) {
                (Entry::Decide { checks, ticket, .. }, Reply::Decision(decision)) => {
                    if let Some(ticket) = ticket.filter(|_| decision.admitted) {
                        let held = checks.iter().zip(&decision.parts);
                        for (check, _) in
                            held.filter(|(check, part)| check.is_lease() && part.at >= 0)
                        {
                            self.hold(&check.key, check.algorithm.lease(), ticket, now);
                        }
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
                Entry::Decide { checks, .. } => is_of(checks, &key.key),
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

    /// Who of this process holds a place of `key`, and for how long at most, µs.
    pub(in crate::store) fn places(&self, key: &str) -> Vec<(Holder, Micros)> {
        let now = Instant::now();
        let places = self.places.lock();
        let held = places.get(key).into_iter().flatten();
        let left = |until: Instant| until.saturating_duration_since(now).as_micros();
        let held = held.filter(|(_, until)| **until > now);
        held.map(|(holder, until)| (*holder, i64::try_from(left(*until)).unwrap_or(0))).collect()
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
        let mut places = self.places.lock();
        if !places.contains_key(key) && places.len() >= MAX_KEYS {
            return;
        }
        let held = places.entry(key.clone()).or_default();
        // Those that the admin side gave may never be given back.
        if held.len().is_power_of_two() {
            held.retain(|_, until| *until > now);
        }
        held.insert((ticket.gateway, ticket.number), until);
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
