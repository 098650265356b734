//! The store that calls go to, with everything that records how they end. Knows no queue.

use super::{blocks::Blocks, store_metrics::StoreMetrics};
use crate::store::{Backend, Entry, Pauses, Reply, StoreError, health::Member};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::Instant;

/// The store that calls go to.
#[derive(Debug)]
pub(super) struct CalledStore {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) metrics: StoreMetrics,
    /// Learns how each call ends, and decides how long one may take.
    pub(super) member: Option<Arc<Member>>,
    /// The time-out where there is no `member`.
    timeout: Duration,
    spends_late: AtomicBool,
    pub(super) blocks: Arc<Blocks>,
}

// === impl CalledStore ===

impl CalledStore {
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        metrics: StoreMetrics,
        member: Option<Arc<Member>>,
        timeout: Duration,
        pauses: &Arc<Pauses>,
    ) -> Self {
        let spends_late = AtomicBool::new(false);
        let (counters, member_of) = (metrics.blocks.clone(), member.clone());
        let blocks = Blocks::new(backend.clone(), member_of, pauses, counters);
        Self { backend, metrics, member, timeout, spends_late, blocks }
    }

    /// Returns the time-out of a call that begins now.
    pub(super) fn limit(&self) -> Duration {
        self.member.as_ref().map_or(self.timeout, |member| member.limit())
    }

    /// See [`Batched::spend_late`](super::Batched).
    pub(super) fn set_spends_late(&self) {
        self.spends_late.store(true, Relaxed);
    }

    pub(super) fn spends_late(&self) -> bool {
        self.spends_late.load(Relaxed)
    }

    /// Reports a concurrency permit that is given back to the process's health, before the store has it.
    pub(super) fn note_release(&self, entry: &Entry) {
        if let (Entry::Refund { check, grant }, Some(member)) = (entry, &self.member) {
            member.refunded(check, *grant);
        }
    }

    /// Records the end of a call of the queue `name`. With `is_late`, the call was recorded as unanswered before.
    pub(super) fn record(
        &self,
        name: &str,
        entries: &[Entry],
        answer: &Result<Vec<Reply>, StoreError>,
        started: Instant,
        is_late: bool,
    ) {
        if let Some(member) = &self.member {
            member.heard(name, entries, answer, started, is_late);
        }
        match answer {
            Ok(replies) => {
                self.metrics.seconds.record(started.elapsed());
                replies.iter().filter_map(Reply::error).for_each(|error| self.metrics.count(error));
            }
            Err(error) => self.metrics.count(error),
        }
    }
}
