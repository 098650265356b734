//! Permits to charge for gateways that decide alone while this one uses the store. A charge that the store did not take is
//! kept and sent again, since the rule would be exceeded by it otherwise.

use crate::store::{Check, Entry, Reply, StoreError, settlement};
use ahash::RandomState;
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// How many keys may owe charges at one time. A charge for a further key is dropped.
const KEYS: usize = 4_096;
/// How many entries the charges of one key may become at one time. The rest of them waits for the next time.
const ENTRIES: i64 = 64;
/// A charge that had no answer, or found the queue full, is sent again after 0.5 s. If the store executed it and the answer
/// was lost, it is charged twice, which is on the safe side.
const AGAIN: Duration = Duration::from_millis(500);
/// A charge without an answer is dropped after 10 s. By then this gateway decides alone, too.
const GIVE_UP: Duration = Duration::from_secs(10);
/// A charge whose instant is more than one hour ahead is sent again after a minute, until its instant is within the hour for
/// which the store grants.
const AHEAD: Duration = Duration::from_secs(60);

/// The permits that are to be charged again, by key.
#[derive(Debug, Default)]
pub(super) struct OwedCharges(HashMap<Arc<str>, OwedCharge, RandomState>);

/// The permits that are to be charged again to one key.
#[derive(Debug)]
struct OwedCharge {
    check: Check,
    permits: i64,
    /// The instant of the first charge without an answer.
    since: Instant,
    /// The store answered that the instant of the charge is more than an hour ahead.
    is_ahead: bool,
}

/// Why a charge has to be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotCharged {
    /// The call had no answer, or the queue was full.
    Unanswered,
    /// The instant of the charge is more than an hour ahead.
    Ahead,
}

// === impl OwedCharges ===

impl OwedCharges {
    /// Adds a charge that the store did not take. Returns the instant of the next try if none is planned for its key yet.
    pub(super) fn add(&mut self, check: &Check, why: NotCharged, now: Instant) -> Option<Instant> {
        let is_ahead = why == NotCharged::Ahead;
        if let Some(owed) = self.0.get_mut(&check.key) {
            owed.permits = owed.permits.saturating_add(check.cost);
            owed.is_ahead = is_ahead;
            return None;
        }
        if self.0.len() >= KEYS {
            return None;
        }
        let owed = OwedCharge { check: check.clone(), permits: check.cost, since: now, is_ahead };
        let next = now + owed.delay();
        self.0.insert(check.key.clone(), owed);
        Some(next)
    }

    /// Takes the entries that charge what `key` owes, and returns the instant of the next try. Without one nothing is owed
    /// any more, or the store has not answered for 10 s.
    pub(super) fn take(&mut self, key: &Arc<str>, now: Instant) -> (Vec<Entry>, Option<Instant>) {
        let Some(owed) = self.0.get_mut(key) else { return (Vec::new(), None) };
        if owed.is_ahead {
            owed.since = now;
        }
        if owed.permits == 0 || now.saturating_duration_since(owed.since) >= GIVE_UP {
            self.0.remove(key);
            return (Vec::new(), None);
        }
        let piece = owed.check.algorithm.as_rate().map_or(0, |rate| rate.piece());
        let permits = owed.permits.min(piece.saturating_mul(ENTRIES));
        owed.permits -= permits;
        (settlement::charges(&owed.check, permits).collect(), Some(now + owed.delay()))
    }
}

// === impl OwedCharge ===

impl OwedCharge {
    fn delay(&self) -> Duration {
        if self.is_ahead { AHEAD } else { AGAIN }
    }
}

/// Returns what of a charge has to be sent again, and why; `None` for one that the store has taken.
pub(super) fn not_charged(
    check: &Check,
    reply: &Result<Reply, StoreError>,
) -> Option<(Check, NotCharged)> {
    let left = |cost, why| Some((Check { cost, ..check.clone() }, why));
    match reply {
        Ok(Reply::Owed(0)) => None,
        Ok(Reply::Owed(cost)) => left(*cost, NotCharged::Ahead),
        // The state cannot be used, so that no request is granted from it either.
        Ok(_) | Err(StoreError::Foreign(_) | StoreError::Refused(_)) => None,
        Err(_) => left(check.cost, NotCharged::Unanswered),
    }
}
