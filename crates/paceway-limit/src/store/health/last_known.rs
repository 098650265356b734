//! The levels that the store reported last, and the concurrency permits that this process holds. A gateway continues from
//! them when the store is away. Bounded: what is dropped is decided as if no request had used it.

use super::known_permits::KnownPermits;
use crate::{
    algorithm::{Level, concurrency::Ticket},
    store::{Checks, Entry, Reply},
};
use ahash::RandomState;
use indexmap::IndexMap;
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Keys whose levels are remembered. A further key takes the place of another one.
const MAX_KEYS: usize = 65_536;

/// The last report of the store on each key.
#[derive(Debug, Default)]
pub struct LastKnown {
    levels: Mutex<Levels>,
    /// The concurrency permits that this process holds.
    pub(in crate::store) permits: KnownPermits,
}

#[derive(Debug, Default)]
struct Levels {
    all: IndexMap<Arc<str>, (Level, Instant), RandomState>,
    /// The place in `all` that the next new key takes when there are too many.
    next: usize,
}

// === impl LastKnown ===

impl LastKnown {
    /// Records the store's replies to `entries`. If they came `late`, after the time-out, the permits that they grant are
    /// on their way back, so those are not recorded.
    pub(in crate::store) fn record(&self, entries: &[Entry], replies: &[Reply], late: bool) {
        let now = Instant::now();
        let mut levels = None;
        let mut replied = entries.iter().zip(replies).peekable();
        while let Some((entry, reply)) = replied.next() {
            let (key, level) = match (entry, reply) {
                (
                    Entry::Reserve { ticket, .. } | Entry::Choose { ticket, .. },
                    Reply::Decision(decision),
                ) => {
                    let Some(checks) = entry.checks_of(decision) else { continue };
                    match ticket.filter(|_| !late) {
                        Some(ticket) if decision.admitted => {
                            let held = checks.iter().zip(&decision.parts);
                            for (check, _) in
                                held.filter(|(check, part)| check.is_lease() && part.at >= 0)
                            {
                                let lease = check.algorithm.lease();
                                self.permits.hold(&check.key, lease, ticket, now);
                            }
                        }
                        Some(ticket) => self.permits.refused(checks, ticket),
                        None => {}
                    }
                    let check = &checks[decision.bound_by.min(checks.len() - 1)];
                    (check, decision.level)
                }
                (Entry::Look { check }, Reply::Level(level)) => (check, *level),
                (Entry::Renew { check, grant }, Reply::Done(true)) => {
                    let lease = check.algorithm.lease();
                    self.permits.hold(&check.key, lease, Ticket::of(*grant), now);
                    continue;
                }
                _ => continue,
            };
            // Often all entries of a call concern one bucket, and only the last level counts.
            let again = replied.peek().is_some_and(|(next, _)| match next {
                Entry::Reserve { checks, .. } => is_of(checks, &key.key),
                _ => false,
            });
            if !again && !key.is_lease() {
                let levels = levels.get_or_insert_with(|| self.levels.lock());
                levels.set(&key.key, level, now);
            }
        }
    }

    /// How full `key` was at the last report, and how long ago that was.
    pub(in crate::store) fn level(&self, key: &str) -> Option<(Level, Duration)> {
        let (level, at) = *self.levels.lock().all.get(key)?;
        Some((level, at.elapsed()))
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

/// Whether a request asks one limiter only, the one named `key`.
fn is_of(checks: &Checks, key: &Arc<str>) -> bool {
    matches!(&checks[..], [check] if Arc::ptr_eq(&check.key, key))
}
