//! One call: its entries, their callers, and their time-outs. Sends nothing.

use super::queued::{Origin, QueuedEntry};
use crate::store::Entry;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// How many entries one call carries at most, so that one run of the script stays well below 1 ms.
pub(super) const BATCH: usize = 128;

/// One call.
pub(super) struct Call {
    pub(super) entries: Arc<Vec<Entry>>,
    /// The origins of the entries, in the same order.
    pub(super) origins: Vec<EntryOrigin>,
    pub(super) started: Instant,
    /// How long the call may take.
    pub(super) limit: Duration,
    /// The instant at which the first caller times out, in this call or in the queue.
    pub(super) due: Instant,
}

/// Where one entry of a call comes from.
pub(super) struct EntryOrigin {
    pub(super) since: Instant,
    pub(super) origin: Origin,
    _token: TaskTrackerToken,
}

/// Collects the entries of one call.
pub(super) struct CallBuilder {
    entries: Vec<Entry>,
    origins: Vec<EntryOrigin>,
    started: Instant,
    /// The instant at which the first caller was queued.
    oldest: Instant,
}

// === impl CallBuilder ===

impl CallBuilder {
    /// Makes room for `expected` entries.
    pub(super) fn new(expected: usize, started: Instant) -> Self {
        let (entries, origins) = (Vec::with_capacity(expected), Vec::with_capacity(expected));
        Self { entries, origins, started, oldest: started }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= BATCH
    }

    /// Adds an entry, unless its caller has left. The time that it has spent in the queue is taken off its budget.
    pub(super) fn push(&mut self, queued: QueuedEntry) {
        let QueuedEntry { mut entry, since, origin, token } = queued;
        if origin.is_abandoned() {
            return;
        }
        if origin.is_caller() {
            self.oldest = self.oldest.min(since);
        }
        if let Entry::Reserve { budget, .. }
        | Entry::Choose { budget, .. }
        | Entry::MoveUp { budget, .. } = &mut entry
            && *budget > 0
        {
            let waited = self.started.saturating_duration_since(since).as_micros();
            // After its budget a request may still be granted for now, but not for later.
            *budget = (*budget - i64::try_from(waited).unwrap_or(i64::MAX)).max(0);
        }
        self.entries.push(entry);
        self.origins.push(EntryOrigin { since, origin, _token: token });
    }

    /// Returns the call; `None` if every caller has left. `waiting` is the instant at which the first caller was queued that
    /// is not in this call.
    pub(super) fn build(self, waiting: Option<Instant>, limit: Duration) -> Option<Call> {
        let Self { entries, origins, started, oldest } = self;
        let due = waiting.map_or(oldest, |since| oldest.min(since)) + limit;
        let entries = Arc::new(entries);
        (!entries.is_empty()).then_some(Call { entries, origins, started, limit, due })
    }
}

// === impl Call ===

impl Call {
    /// Answers every caller with a time-out.
    pub(super) fn time_out(&mut self) {
        self.origins.iter_mut().for_each(|entry| entry.origin.time_out());
    }

    /// Answers the callers with a time-out whose time is up at `now`. Returns the instant of the next one, at most the end
    /// of the call.
    pub(super) fn time_out_until(&mut self, now: Instant) -> Instant {
        let mut next = self.started + self.limit;
        for entry in self.origins.iter_mut().filter(|entry| entry.origin.is_caller()) {
            let end = entry.since + self.limit;
            if end <= now {
                entry.origin.time_out();
            } else {
                next = next.min(end);
            }
        }
        next
    }
}
